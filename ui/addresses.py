"""The addresses that servers listen at: this machine's own, or others."""

from __future__ import annotations

import socket
from ipaddress import ip_address
from secrets import randbelow

from txnlog.errors import InvalidOption

LOOPBACK = "127.0.0.1"
_MOST_PORT = 65_535


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches the address."""
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def named_in_url(host: str) -> str:
    """An address as URLs have it."""
    return f"[{host}]" if ":" in host else host


def listen_alone(port: int) -> socket.socket:
    """Listen at an address of our own, where all of 127.0.0.0/8 is this machine, as on Linux.

    Raises InvalidOption.
    """
    _check_port(port)
    own = f"127.{randbelow(254) + 1}.{randbelow(256)}.{randbelow(254) + 1}"
    try:
        return socket.create_server((own, port))
    except OSError:
        return listen(LOOPBACK, port)


def listen(host: str, port: int) -> socket.socket:
    """Listen at an address. Raises InvalidOption."""
    _check_port(port)
    try:
        host.encode("idna")
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        return socket.create_server((host, port), family=family)
    except (OSError, UnicodeError) as error:
        reason = getattr(error, "strerror", None) or error
        raise InvalidOption(f"cannot listen at {host}:{port}: {reason}") from error


def _check_port(port: int) -> None:
    if not 0 <= port <= _MOST_PORT:
        raise InvalidOption(f"cannot listen at port {port}: it is 0 (any free one) to {_MOST_PORT}")
