"""Requests to a schema registry over HTTP.

What it answers is somebody else's: sizes and times have limits, redirections are not followed, and
nothing but ids, subjects and versions is ever sent. Credentials are sent to the given address
alone, and are in no message.
"""

from __future__ import annotations

import base64
from http.client import HTTPException, IncompleteRead
from typing import Any, Final, TypeVar
from urllib.error import HTTPError
from urllib.parse import unquote, urlsplit, urlunsplit
from urllib.request import HTTPRedirectHandler, Request, build_opener

import msgspec

from txnlog.errors import InvalidOption, StorageError, UnknownSchema
from txnlog.limits import Counter
from txnlog.time_limits import run_within
from txnlog.values.schemas import MOST_SCHEMA_BYTES

MOST_ANSWER_BYTES: Final = 4 * MOST_SCHEMA_BYTES
"""Of one answer: each character of a schema may be escaped."""
_MOST_TIMEOUT_S: Final = 600
_MOST_ERROR_BYTES: Final = 1 << 16
_T = TypeVar("_T")


class _Error(msgspec.Struct, frozen=True):
    """The body of every registry's answer that something does not exist."""

    error_code: Counter


_ERRORS: Final = msgspec.json.Decoder(_Error)


class RegistryHttp:
    """Asks one registry. Raises InvalidOption: an argument is not valid."""

    def __init__(
        self, url: str, *, user_info: str | None, token: str | None, timeout_s: float
    ) -> None:
        self.url, found = _split(url)
        user_info = user_info or found
        if user_info is not None and token is not None:
            raise InvalidOption(f"{self.url}: give a user_info or a token, not both")
        if not isinstance(timeout_s, int | float) or not 0 < timeout_s <= _MOST_TIMEOUT_S:
            raise InvalidOption(f"timeout_s is {timeout_s!r:.60}; it is above 0, and up to 600")
        self._timeout_s = timeout_s
        for given in (user_info, token):
            if not isinstance(given, str | None):
                raise InvalidOption(
                    f"{self.url}: credentials are a text, not {type(given).__name__}"
                )
        self._authorization = None
        if user_info is not None:
            named = user_info.encode(errors="surrogateescape")  # as the environment has it
            self._authorization = f"Basic {base64.b64encode(named).decode()}"
        elif token is not None:
            self._authorization = f"Bearer {token}"
        sent = self._authorization or ""
        if not sent.isascii() or not sent.isprintable():
            raise InvalidOption(
                f"{self.url}: a token has letters of ASCII, and no line's end or the like"
            )

    def get(self, address: str, missing: str) -> bytes:
        """The body of the answer at an address below the URL.

        Raises UnknownSchema: nothing is there, and ``missing`` says what is missing. StorageError:
        the registry cannot be reached, refuses to answer, or the answer is no registry's: a proxy
        in front of it may have pages of its own, which say nothing of what the registry has.
        """
        request = Request(address)  # noqa: S310 - http or https
        request.add_header(
            "Accept", "application/vnd.schemaregistry.v1+json, application/json, */*"
        )
        if self._authorization is not None:
            # Not one that a redirection would take along.
            request.add_unredirected_header("Authorization", self._authorization)
        try:
            # An answer that comes a byte at a time has no end: the socket's own limit is for each.
            data = run_within(lambda: self._read(request, missing), self._timeout_s)
        except HTTPError as error:
            code = error.code
            hint = ": give its credentials" if code in (401, 403) else ""
            if code == 404:
                hint = ", and not as a registry does: is the URL that of its API?"
            raise StorageError(f"the registry {self.url} answered {code}{hint}") from None
        except TimeoutError:
            raise StorageError(
                f"the registry {self.url} cannot be reached: timed out after {self._timeout_s} s"
            ) from None
        except (OSError, HTTPException) as error:
            reason = getattr(error, "reason", error)
            raise StorageError(
                f"the registry {self.url} cannot be reached: {reason!s:.200}"
            ) from error
        if len(data) > MOST_ANSWER_BYTES:
            raise StorageError(f"{address} answered more than {MOST_ANSWER_BYTES} bytes")
        return data

    def ask(self, address: str, missing: str, decoder: msgspec.json.Decoder[_T]) -> _T:
        """The JSON at an address. Raises what :meth:`get` does."""
        data = self.get(address, missing)
        try:
            return decoder.decode(data)
        except (msgspec.MsgspecError, ValueError, RecursionError) as error:
            raise StorageError(f"{address} answered no schema: {error!s:.300}") from error

    def _read(self, request: Request, missing: str) -> bytes:
        try:
            with build_opener(_NoRedirection()).open(request, timeout=self._timeout_s) as found:
                data: bytes = found.read(MOST_ANSWER_BYTES + 1)
                if found.length and len(data) <= MOST_ANSWER_BYTES:
                    raise IncompleteRead(data, found.length)
        except HTTPError as error:
            with error:
                if error.code == 404 and _is_its_own(error.read(_MOST_ERROR_BYTES)):
                    raise UnknownSchema(f"the registry {self.url} has {missing}") from None
            raise
        return data


def _is_its_own(data: bytes) -> bool:
    """Whether an error is a registry's: what stands before it answers 404 too."""
    try:
        _ERRORS.decode(data)
    except (msgspec.MsgspecError, ValueError, RecursionError):
        return False
    return True


class _NoRedirection(HTTPRedirectHandler):
    """Follows no redirection: only the user says where requests go."""

    def redirect_request(self, *_: Any, **__: Any) -> None:  # noqa: ANN401 - urllib's own
        return None


def _split(url: object) -> tuple[str, str | None]:
    """An address without credentials, and these. Raises InvalidOption, which does not show it."""
    if not isinstance(url, str):
        raise InvalidOption(f"a registry's URL is a text, not {type(url).__name__}")
    try:
        parts = urlsplit(url)
        port = "" if parts.port is None else f":{parts.port}"
        hostname = (parts.hostname or "").encode("idna").decode()
    except ValueError:
        raise InvalidOption("a registry's URL is not valid") from None
    if not parts.path.isascii():
        raise InvalidOption("what is no ASCII in the path of a registry's URL is written as %C3%A4")
    if parts.scheme not in ("http", "https") or not hostname or parts.query:
        raise InvalidOption("a registry's URL is http:// or https://, a host, and a path at most")
    host = f"[{hostname}]" if ":" in hostname else hostname
    plain = urlunsplit((parts.scheme, host + port, parts.path.rstrip("/"), "", ""))
    if parts.username is None:
        return plain, None
    return plain, f"{unquote(parts.username)}:{unquote(parts.password or '')}"
