"""What a table that is there already may lead its publisher to: nothing but its own files.

Its log may be somebody else's. The libraries open what it names, with the user's credentials, and
follow links; so its folder and the places that it names are looked at before.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from urllib.parse import unquote

from txnlog.errors import InvalidOption
from txnlog.storage.adapters.inside import Inside, absolute, check_regular
from txnlog.storage.failure_messages import failure
from txnlog.storage.reach import is_here, server_of
from txnlog.storage.whole import TooLarge, check_whole

_READ_WHOLE = (".json", ".avro")


def check_log(url: str, folder: str) -> None:
    """Raise StorageError if the log of a table on a disk has something else than its own files.

    ``folder`` is the log's, within the table's.
    """
    if not is_here(url) or url.startswith("memory:"):
        return
    path = re.sub("^(file|local):(//[^/]*)?", "", url)
    for root in {path, unquote(path)}:  # libraries differ
        inside = Inside(os.path.realpath(absolute(root)))
        try:
            with inside.scan(folder) as entries:
                for entry in entries:
                    name = f"{folder}/{entry.name}"
                    if entry.is_dir(follow_symlinks=False):
                        continue
                    about = entry.stat(follow_symlinks=False)
                    check_regular(about, name)
                    if entry.name.endswith(_READ_WHOLE):
                        try:
                            check_whole(about.st_size)
                        except TooLarge as error:
                            raise failure("publishing to", root, name, error) from error
        except FileNotFoundError:
            continue
        except OSError as error:
            raise failure("publishing to", url, folder, error) from error


def check_places(name: str, named: Iterable[str], known: Iterable[str | None]) -> None:
    """Raise InvalidOption if a table names files at another place than its catalog does.

    ``named`` are URLs in its metadata, ``known`` those that the user or the catalog has given.
    """
    servers = {_server(url) for url in known if url}
    for url in named:
        if _server(url) not in servers:
            raise InvalidOption(
                f"the table {name} names {url}, which is neither where the catalog has its "
                "metadata nor in the warehouse: nothing is asked there. If you trust it, give a "
                "location on that server"
            )


def _server(url: str) -> str:
    return "" if is_here(url) else server_of(url)
