"""The files of a partition's folder in a Kafka broker's data folder: names, and small text files.

``orders-0/00000000000000001000.log`` and the like. Knows where files lie, and nothing of records.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

from txnlog.errors import InvalidOption, ObjectNotFound
from txnlog.limits import MOST_OFFSETS
from txnlog.names import SegmentPaths
from txnlog.storage import open_storage
from txnlog.storage.adapters.inside import Inside, absolute
from txnlog.storage.base import Storage
from txnlog.storage.failure_messages import failure

Progress: TypeAlias = Callable[[int, int], None]
"""Called with the bytes done so far and the total."""


LEADER_EPOCHS = "leader-epoch-checkpoint"
"""More partitions than any topic has."""
_LOG_START_OFFSETS = "log-start-offset-checkpoint"
_VERSION = 0

_FOLDER = re.compile(r"(?P<topic>[a-zA-Z0-9._-]+)-(?P<partition>\d{1,9})")
_BASE_OFFSET = re.compile(r"[0-9]{20}")
_UNFINISHED = (".swap", ".cleaned")


@dataclass(frozen=True, slots=True)
class PartitionFolder:
    """One partition in a broker's form. ``base_offsets`` name its segments, ascending.

    ``log_start_offset`` is where its records begin; those below were deleted.
    """

    storage: Storage
    topic: str
    partition: int
    base_offsets: tuple[int, ...]
    files: frozenset[str]
    log_start_offset: int

    @property
    def end_offset_at_least(self) -> int:
        return max(self.log_start_offset, self.base_offsets[-1])

    def next_base_offset(self, base_offset: int) -> int | None:
        """The base offset of the next segment; None for the last."""
        return next((base for base in self.base_offsets if base > base_offset), None)


def segment_paths(base_offset: int) -> SegmentPaths:
    """``00000000000000001000.log`` and the other files of that segment, within their folder."""
    return SegmentPaths(f"{base_offset:020d}")


def base_offset_of(path: str) -> int | None:
    """The base offset that a file of a segment is named for; None if it is named otherwise."""
    paths = SegmentPaths.of(path.replace("\\", "/").rpartition("/")[2])
    return int(paths.stem) if paths and _BASE_OFFSET.fullmatch(paths.stem) else None


def partition_folder(topic: str, partition: int) -> str:
    """The folder's name: ``orders-0``."""
    return f"{topic}-{partition}"


def find_folders(
    log_dirs: Sequence[str], topic: str, storage_options: Mapping[str, object] | None = None
) -> list[PartitionFolder]:
    """The requested partition folders, by partition.

    ``log_dirs`` are paths or URLs, of partition folders or of folders in which these lie; ``topic``
    selects one if they hold partitions of several. Raises InvalidOption: there are none, or they do
    not form one topic.
    """
    found = [
        folder for path in log_dirs for folder in _folders_at(str(path), topic, storage_options)
    ]
    if not found:
        raise InvalidOption("no log folder was named: give the path of one or more, like orders-0")
    by_partition: dict[int, PartitionFolder] = {}
    for folder in found:
        other = by_partition.setdefault(folder.partition, folder)
        if other.topic != folder.topic:
            raise InvalidOption(
                f"{other.storage.url} and {folder.storage.url} are partitions of two topics; "
                "import one topic at a time"
            )
        if other is not folder:
            raise InvalidOption(
                f"{other.storage.url} and {folder.storage.url} are both partition "
                f"{folder.partition}: name the folder of one replica"
            )
    return [by_partition[partition] for partition in sorted(by_partition)]


def _folders_at(
    path: str, topic: str, storage_options: Mapping[str, object] | None
) -> list[PartitionFolder]:
    parent, name = _split(path)
    storage = open_storage(path, storage_options)
    match = _FOLDER.fullmatch(name)
    _check_links(storage)
    if _base_offsets(storage.list_names("")):
        if match is None:
            raise InvalidOption(
                f"{storage.url} holds segments, but its name is not <topic>-<partition>, like "
                "orders-0, so nothing says which partition it is. Rename it"
            )
        starts = _log_start_offsets(open_storage(parent, storage_options)) if parent else {}
        return [_folder(storage, match["topic"], int(match["partition"]), starts)]
    inside = [m for name in storage.list_folders("") if (m := _FOLDER.fullmatch(name))]
    topics = sorted({m["topic"] for m in inside})
    if not inside:
        raise InvalidOption(
            f"{storage.url} is not a Kafka log folder: it holds neither segments (*.log) nor "
            "folders like orders-0"
        )
    if len(topics) > 1 and topic not in topics:
        raise InvalidOption(
            f"{storage.url} holds partitions of {len(topics)} topics, but none of {topic!r}: name "
            f"the folders of one of {', '.join(topics[:10])}"
        )
    chosen = topic if len(topics) > 1 else topics[0]
    starts = _log_start_offsets(storage)
    return [
        _folder(
            open_storage(f"{path.rstrip('/')}/{m[0]}", storage_options),
            chosen,
            int(m["partition"]),
            starts,
        )
        for m in inside
        if m["topic"] == chosen
    ]


def _base_offsets(files: Iterable[str]) -> tuple[int, ...]:
    """The base offsets of the segments among a folder's files, in the files' order."""
    found = ((file, base_offset_of(file)) for file in files)
    return tuple(b for file, b in found if b is not None and file == segment_paths(b).log)


def _split(path: str) -> tuple[str, str]:
    """The folder that holds ``path``, and its own name."""
    if "://" not in path:
        # Not resolved: that would follow a link, and the folder's own name is what counts.
        path = os.path.abspath(absolute(str(Path(path).expanduser())))  # noqa: PTH100
    parent, _, name = path.rstrip("/").rpartition("/")
    return parent or "/", name


def _folder(
    storage: Storage, topic: str, partition: int, starts: Mapping[tuple[str, int], int]
) -> PartitionFolder:
    _check_links(storage)
    files = storage.list_names("")
    for file in files:
        if file.endswith(_UNFINISHED):
            raise InvalidOption(
                f"{storage.url}/{file} shows that the broker was stopped during a cleaning: start "
                "and stop it once, then import"
            )
    bases = _base_offsets(files)
    if not bases:
        raise InvalidOption(f"{storage.url} holds no segments (*.log)")
    start = max(starts.get((topic, partition), 0), bases[0])
    if bases[-1] >= MOST_OFFSETS:
        raise InvalidOption(f"{storage.url} has a segment {bases[-1]}: no topic has such offsets")
    if start >= MOST_OFFSETS:
        raise InvalidOption(
            f"{_LOG_START_OFFSETS} beside {storage.url} says that its log starts at {start}: no "
            "topic has such offsets"
        )
    return PartitionFolder(storage, topic, partition, bases, frozenset(files), start)


def _check_links(storage: Storage) -> None:
    """Raise InvalidOption if a link or the like stands for a segment or a partition.

    No listing shows it, so it would be left out without a word.
    """
    path = storage.local_path("")
    if path is None:
        return
    try:
        with Inside(path).scan("") as entries:
            for entry in entries:
                if entry.is_file(follow_symlinks=False) or entry.is_dir(follow_symlinks=False):
                    continue
                if _FOLDER.fullmatch(entry.name) or base_offset_of(entry.name) is not None:
                    raise InvalidOption(
                        f"{storage.url}/{entry.name} is a link, which is not followed, or no file: "
                        "put what belongs there in its place, or name its folder itself"
                    )
    except FileNotFoundError:
        return
    except OSError as error:
        raise failure("listing", storage.url, "", error) from error


def _log_start_offsets(storage: Storage) -> dict[tuple[str, int], int]:
    """The log start offset from the broker's file, if it exists."""
    try:
        text = storage.get(_LOG_START_OFFSETS).decode()
        version, count, *lines = text.splitlines()
        starts = {}
        for line in lines:
            topic, partition, offset = line.split()
            starts[topic, int(partition)] = int(offset)
    except ObjectNotFound:
        return {}
    except ValueError:
        version, count, starts = "", "", {}
    if version != str(_VERSION) or count != str(len(starts)):
        raise InvalidOption(
            f"{storage.url}/{_LOG_START_OFFSETS} cannot be read: it should have version 0, a "
            "count, and lines of topic, partition and offset. Move it away to import the records "
            "that were deleted, too"
        )
    return starts


def leader_epochs(epochs: Iterable[tuple[int, int]]) -> bytes:
    """The content of ``leader-epoch-checkpoint``: (epoch, its first offset), ascending."""
    lines = [f"{epoch} {offset}" for epoch, offset in epochs]
    return "\n".join([str(_VERSION), str(len(lines)), *lines, ""]).encode()
