"""What a store has by the names of its folders: topics, groups, transactional ids.

Nothing keeps others from putting a folder there that txnlog never made. One whose name no topic,
no group and no id can have is passed over with a warning, so that it stops nobody.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from txnlog import names
from txnlog.storage.base import Storage, warn_of_stray


def list_topics(storage: Storage) -> list[str]:
    """The topics that have a folder, in the order of their names; deleted ones too."""
    return [*_known(storage, names.TOPICS, names.topic_of_folder)]


def list_groups(storage: Storage) -> list[str]:
    """The groups that have a folder, sorted."""
    return sorted(_known(storage, names.GROUPS, names.group_of_folder))


def list_transactional_ids(storage: Storage) -> list[str]:
    """The transactional ids that have a folder, sorted."""
    return sorted(_known(storage, names.TRANSACTIONS, names.transactional_id_of_folder))


def impossible_folders(storage: Storage) -> Iterator[str]:
    """The folders that are passed over, by their names within the store."""
    for above, parse in (
        (names.TOPICS, names.topic_of_folder),
        (names.GROUPS, names.group_of_folder),
        (names.TRANSACTIONS, names.transactional_id_of_folder),
    ):
        for folder in storage.list_folders(above):
            if parse(folder) is None:
                yield f"{above}/{folder}"


def _known(storage: Storage, above: str, parse: Callable[[str], str | None]) -> Iterable[str]:
    for folder in storage.list_folders(above):
        found = parse(folder)
        if found is None:
            warn_of_stray(f"{storage.url}/{above}/{folder}")
        else:
            yield found
