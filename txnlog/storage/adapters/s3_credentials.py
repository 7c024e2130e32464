"""Credentials of S3 that change under a living process, and how its clients get the new ones.

botocore looks for them once for each client. Those whose time limit it knows (roles, web identity,
SSO) it renews by itself; that the keys of a profile were replaced, or that the server ended a
session early, shows only in a refusal.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Final

from txnlog.storage.adapters.surroundings import surroundings

_REFUSALS: Final = frozenset(
    {
        "ExpiredToken",
        "ExpiredTokenException",
        "InvalidAccessKeyId",
        "InvalidToken",
        "InvalidTokenId",
        "NoCredentialsError",
        "SignatureDoesNotMatch",
        "TokenRefreshRequired",
    }
)
"""Codes of S3, and of servers that speak its protocol, which other credentials may cure."""
_REFUSALS_WITHOUT_BODY: Final = frozenset({"400", "401", "403"})
"""What botocore has instead of a code where the answer has no body: that to a HEAD."""

_FILES: Final = {
    "AWS_SHARED_CREDENTIALS_FILE": "~/.aws/credentials",
    "AWS_CONFIG_FILE": "~/.aws/config",
}
"""Variables that name files, and where the files are without them."""


def may_be_credentials(code: str, method: str) -> bool:
    """Whether a request that was refused with a code may pass with other credentials."""
    return code in _REFUSALS or (method.startswith("head_") and code in _REFUSALS_WITHOUT_BODY)


def aws_surroundings() -> str:
    """What botocore takes from its surroundings; see :func:`surroundings`.

    A client that was made before a profile was renewed, or ``AWS_PROFILE`` set, serves nobody who
    opens a store after that.
    """
    return surroundings(("AWS_",), _FILES)


class Renewal:
    """Gives the clients of one session other credentials, found as those of a new session are.

    ``make_session`` makes a session of botocore's like theirs.
    """

    def __init__(self, make_session: Callable[[], Any]) -> None:
        self._make_session = make_session
        self._lock = asyncio.Lock()

    @staticmethod
    def used_by(client: Any) -> object:
        """What a client signs its requests with, to be compared by identity."""
        # Where botocore has kept it for ten years; s3_reads needs it too.
        return getattr(getattr(client, "_request_signer", None), "_credentials", None)

    async def renew(self, client: Any, refused: object) -> bool:
        """Whether the client has other credentials now than those that were refused.

        They are looked for once, however many requests were refused. They may turn out to be the
        same: the next refusal says so.

        Raises whatever botocore raises for a source of credentials that fails.
        """
        if not hasattr(getattr(client, "_request_signer", None), "_credentials"):
            return False
        async with self._lock:
            if self.used_by(client) is not refused:
                return True
            found = await self._make_session().get_credentials()
            if found is not None:
                client._request_signer._credentials = found  # noqa: SLF001 - see used_by
            return found is not None
