"""Files that may be useless: their folders, and their ages."""

from __future__ import annotations

from collections.abc import Iterator

from txnlog import names
from txnlog.storage.base import Storage
from txnlog.storage.probe import FOLDER

LOOSE_FOLDERS = (names.STAGING, names.TEMPORARY, FOLDER)
"""Folders of files being written, or left over."""


def list_topic_files(storage: Storage, topic: str) -> Iterator[tuple[str, int]]:
    """The files of a topic's data, with their sizes in bytes: not its log, nor vacuum's notes."""
    for path, size_bytes in storage.list_all(names.topic_folder(topic)):
        if not names.is_topic_log_file(path) and not names.is_retired_note(path):
            yield path, size_bytes


def list_loose_files(storage: Storage) -> Iterator[tuple[str, str, int]]:
    """Files outside of topics, groups and ids: (folder, path, size in bytes).

    What is called as no job and no process calls its files is somebody else's, and left out.
    """
    for folder in LOOSE_FOLDERS:
        for path, size_bytes in storage.list_all(folder):
            if names.is_leftover(path):
                yield folder, path, size_bytes


def file_age_ms(storage: Storage, path: str, now_ms: int) -> int | None:
    """A file's age, at least 0; None if the storage does not report when it was put.

    Raises ObjectNotFound.
    """
    modified_ms = storage.modified_ms(path)
    return None if modified_ms is None else max(now_ms - modified_ms, 0)
