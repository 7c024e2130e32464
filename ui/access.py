"""Who may see a page: one browser that was given the token, from this machine, and no other site.

A local server is reached by whatever runs in a browser here, so being local protects nothing:
names that resolve to this machine (DNS rebinding) are told by Host, forms of other sites by Origin
and by a token in each form.
"""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets
from collections import OrderedDict, deque
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from ipaddress import ip_address
from urllib.parse import urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import Request
from starlette.responses import PlainTextResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from txnlog.errors import InvalidOption

MOST_WRONG_TRIES = 10
TRIES_WITHIN_S = 60.0
MOST_CLIENTS = 1000
"""So many addresses that gave wrong passwords are remembered; each takes less than a kilobyte."""
_SAFE = ("GET", "HEAD")
_HEADERS = {
    "content-security-policy": "default-src 'none'; style-src 'self'; script-src 'self'; "
    "img-src 'self'; connect-src 'self'; form-action 'self'; frame-ancestors 'none'; "
    "base-uri 'none'",
    "cache-control": "no-store",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "referrer-policy": "same-origin",  # without any, a form would come from nowhere
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
}


class TooManyTries(Exception):
    """An address has lately sent so many wrong passwords that its passwords are not checked."""


class WrongTries:
    """When wrong passwords were given, and from where: who guesses locks nobody else out."""

    def __init__(self) -> None:
        self._times_s: OrderedDict[str, deque[float]] = OrderedDict()
        """By client; who has tried last comes last."""

    def __len__(self) -> int:
        """How many clients are remembered."""
        return len(self._times_s)

    def are_too_many(self, client: str, now_s: float) -> bool:
        """Whether a client has to wait."""
        times = self._times_s.get(_network(client))
        while times and now_s - times[0] >= TRIES_WITHIN_S:
            times.popleft()
        return times is not None and len(times) >= MOST_WRONG_TRIES

    def add(self, client: str, now_s: float) -> None:
        """Count a wrong password."""
        network = _network(client)
        self._times_s.setdefault(network, deque(maxlen=MOST_WRONG_TRIES)).append(now_s)
        self._times_s.move_to_end(network)
        if len(self._times_s) > MOST_CLIENTS:
            self._times_s.popitem(last=False)


def _network(client: str) -> str:
    """The network that counts as one client: an IPv4 address, or 64 bits of an IPv6 address."""
    try:
        address = ip_address(client)
    except ValueError:
        return client
    if address.version == 4:
        return client
    if address.ipv4_mapped is not None:
        return str(address.ipv4_mapped)
    return address.exploded[:19]


@dataclass(frozen=True, slots=True)
class Access:
    """What opens the door. ``hosts`` are what a browser may call this server, with its port.

    ``public_hosts`` are what it may call a proxy before us, which need not pass that on.

    With a ``password`` the token of the URL opens nothing: who comes is asked for it. It may come
    by any address then, as no site can have its name resolve to one that is written out.
    """

    hosts: frozenset[str]
    password: str | None = None
    token: str = field(default_factory=lambda: secrets.token_urlsafe(32))
    session: str = field(default_factory=lambda: secrets.token_urlsafe(32))
    wrong_tries: WrongTries = field(default_factory=WrongTries)
    public_hosts: frozenset[str] = frozenset()

    @property
    def form_token(self) -> str:
        """The token in each of our forms, which no other site can know."""
        return hmac.new(self.session.encode(), b"form", hashlib.sha256).hexdigest()

    def is_called(self, host: str) -> bool:
        """Whether a request's ``Host`` header names this server."""
        # Proxies differ in the port that they pass on; no other site can have such a name.
        is_public = _bare(host) in map(_bare, self.public_hosts)
        is_named = is_public or host.lower() in self.hosts
        return is_named or (self.password is not None and _is_address(host))

    def knows(self, request: Request) -> bool:
        """Whether a request comes from a browser that has shown the token, or the password."""
        return same_secret(request.cookies.get(cookie_name(request), ""), self.session)

    def opens_by_url(self, request: Request) -> bool:
        """Whether the URL has the token."""
        given = request.query_params.get("token")
        return given is not None and self.password is None and same_secret(given, self.token)

    def opens_by_password(self, given: str, client: str, now_s: float) -> bool:
        """Whether this is the password.

        Raises TooManyTries after wrong ones from the same address, without a look.
        """
        if self.wrong_tries.are_too_many(client, now_s):
            raise TooManyTries
        if self.password is not None and same_secret(given, self.password):
            return True
        self.wrong_tries.add(client, now_s)
        return False

    def admit(self, request: Request, where: str) -> Response:
        """Redirect to one of our pages, with the session's cookie, which later requests need."""
        # Two slashes begin the name of a host, also where a browser has decoded them.
        response = RedirectResponse("/" + where.lstrip("/"), status_code=303)
        response.set_cookie(
            cookie_name(request),
            self.session,
            httponly=True,
            samesite="strict",
            path="/",
            secure=request.headers.get("origin", "").startswith("https://"),
        )
        return response


def cookie_name(request: Request) -> str:
    """The cookie of one console: browsers send cookies to all ports of a host."""
    return f"txnlog_session_{request.url.port or 80}"


def loopback_hosts(port: int) -> frozenset[str]:
    """What a browser on this machine calls a server on its loopback address."""
    return named_hosts(("127.0.0.1", "localhost", "[::1]"), port)


def named_hosts(names: Iterable[str], port: int) -> frozenset[str]:
    """What a browser puts into ``Host`` for these names: in lower case, port 80 left out."""
    return frozenset(f"{name}:{port}".lower().removesuffix(":80") for name in names)


def public_host(name: str) -> str:
    """What a browser puts into ``Host`` for a name of a proxy: ``NAME`` or ``NAME:PORT``.

    Raises InvalidOption.
    """
    host = name.lower().removesuffix(":443").removesuffix(":80")
    if not re.fullmatch(r"[a-z0-9._-]+(:[0-9]{1,5})?", host):
        raise InvalidOption(
            f"{name[:100]!r} is not what a browser calls a console: give a name such as "
            "console.example.com, with :PORT if that is not 443"
        )
    return host


def _bare(host: str) -> str:
    """A name without its port."""
    return re.sub(":[0-9]{1,5}$", "", host.lower())


class Guard:
    """Lets requests through to pages, or refuses them; gives every answer its headers."""

    def __init__(self, app: ASGIApp, access: Access, open_paths: Sequence[str] = ()) -> None:
        self._app = app
        self._access = access
        self._open_paths = open_paths

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["type"] != "http":
            if scope["type"] == "lifespan":
                await self._app(scope, receive, send)
            return

        async def send_guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message).update(_HEADERS)
            await send(message)

        request = Request(scope, receive)
        answer = self._refuse(request)
        await (answer or self._app)(scope, receive, send_guarded)

    def _refuse(self, request: Request) -> Response | None:
        """What to answer in place of the page; None if it may be seen."""
        access = self._access
        if not access.is_called(request.headers.get("host", "")):
            return PlainTextResponse(
                "This address is not one that the console was started for: "
                "--public-host says what a proxy before it is called.\n",
                421,
            )
        if request.method not in _SAFE and not _comes_from_here(
            request.headers, access.public_hosts
        ):
            return PlainTextResponse("The request comes from another site.\n", 403)
        if access.opens_by_url(request) and request.method == "GET":
            return access.admit(request, request.scope["path"])
        if access.knows(request) or request.url.path in self._open_paths:
            return None
        if access.password is not None:
            return RedirectResponse("/login", status_code=303)
        return PlainTextResponse(
            "Open the URL that `txnlog ui` has printed: it has the token that is needed here.\n",
            403,
        )


def _comes_from_here(headers: Headers, public_hosts: Collection[str]) -> bool:
    """Whether a page of ours sent it, which a proxy may serve by https, and under its own name."""
    scheme, _, name = headers.get("origin", "").partition("://")
    return scheme in ("http", "https") and (name == headers["host"] or name.lower() in public_hosts)


def _is_address(host: str) -> bool:
    try:
        return bool(ip_address(urlsplit(f"//{host}").hostname or ""))
    except ValueError:
        return False


def same_secret(given: str, expected: str) -> bool:
    """Whether two secrets are equal; takes the same time whatever was given."""
    return hmac.compare_digest(given.encode(), expected.encode())
