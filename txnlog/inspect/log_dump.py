"""Shows a log as it is: entries with their markers, decoded, damage and gaps included.

Modifies nothing and decides nothing. Memory is that of the files' names and of a few dozen entries.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import pairwise
from typing import Generic, TypeAlias, TypeVar

import msgspec

from txnlog import names
from txnlog.errors import CorruptEntry, ObjectNotFound, StorageError, UnsupportedVersion
from txnlog.names import LogFile
from txnlog.state.folded_state import unbundled
from txnlog.state.proposal import MOST_TOGETHER
from txnlog.state.transaction import Marker, Outcome, TransactionRef
from txnlog.storage import envelope
from txnlog.storage.base import Storage

EntryT_co = TypeVar("EntryT_co", bound=msgspec.Struct, covariant=True)
JsonObject: TypeAlias = dict[str, object]

_AT_ONCE = 64
"""How many entries are read at a time."""
_MARKER_DECODER = msgspec.json.Decoder(Marker)
_MARKERS = (LogFile.COMMIT, LogFile.ABORT)


@dataclass(frozen=True, slots=True)
class DumpedEntry(Generic[EntryT_co]):
    """The files under one number of a log, or (``missing_count``) numbers without an entry.

    An entry that is in a bundle with others comes by itself, under its own number; ``file`` is then
    the bundle's, which ``path`` and ``size_bytes`` are of too. ``entry`` is None if it cannot be
    decoded; ``content`` is its JSON as written, if it is JSON at all. ``outcomes`` are those of the
    markers beside it. ``damage`` says what is wrong, None if nothing is. ``failures`` are files
    that could not be read, and why.
    """

    number: int
    path: str
    size_bytes: int | None
    entry: EntryT_co | None
    content: JsonObject | None
    outcomes: tuple[Outcome, ...]
    has_checkpoint: bool
    damage: str | None
    missing_count: int = 0
    failures: tuple[tuple[str, StorageError], ...] = ()
    file: int = -1

    @property
    def transaction(self) -> TransactionRef | None:
        """The entry's transaction."""
        found = getattr(self.entry, "transaction", None)
        return found if isinstance(found, TransactionRef) else None


@dataclass(slots=True)
class _Files:
    """The files under one number."""

    number: int
    kinds: set[LogFile] = field(default_factory=set)


@dataclass(frozen=True, slots=True)
class _Read(Generic[EntryT_co]):
    """Their content: the entries of the file, one or several, and its markers."""

    found: DumpedEntry[EntryT_co]
    entries: Sequence[EntryT_co] = ()
    markers: tuple[tuple[str, Marker], ...] = ()


def dump_log(
    storage: Storage,
    folder: str,
    decoder: msgspec.json.Decoder[EntryT_co],
    *,
    first: int = 0,
    keep_going: bool = False,
) -> Iterator[DumpedEntry[EntryT_co]]:
    """Yield the content of a log's folder from entry ``first`` on, in the order of numbers.

    One listing, or two if the first shows gaps, and a read for each entry and marker, made while it
    is consumed. Missing numbers come as one item: they are damage unless a later checkpoint covers
    them, as after cleaning.

    With ``keep_going`` a file that cannot be read is a failure of its item, and the others follow.
    Raises StorageError.
    """
    # The first one may be in a bundle.
    begin = max(first - MOST_TOGETHER, 0)
    start_after = names.log_file_prefix(begin) if begin else ""
    listed = storage.list_names(folder, start_after)
    if not _has_no_gaps(_group_by_number(listed)):
        # Files before a listed one existed before it, so a second listing has them.
        listed = [*listed, *storage.list_names(folder, start_after)]
    files = _from_file_of(first, _group_by_number(listed))
    newest = max((f.number for f in files if LogFile.CHECKPOINT in f.kinds), default=-1)
    expected = first
    bundle: deque[DumpedEntry[EntryT_co]] = deque()
    unread_end = 0
    """Entries below this one may be in the file before, which could not be read."""
    for start in range(0, len(files), _AT_ONCE):
        some = files[start : start + _AT_ONCE]
        reads = storage.gather([partial(_read_entry, storage, folder, f, decoder) for f in some])
        for read, known in zip(reads, some, strict=True):
            found = read.found
            if found.number < first:
                bundle = deque(e for e in _unbundle(found, read.entries) if e.number >= first)
                continue
            if found.failures and not keep_going:
                raise found.failures[0][1]
            while bundle and bundle[0].number < found.number:
                expected = bundle[0].number + 1
                yield bundle.popleft()
            if found.number > max(expected, unread_end):
                yield _describe_gap(folder, expected, found.number - expected, newest)
            # A checkpoint or a marker may outlive its entry. Files gone since the listing were
            # cleaned up, which is not damage.
            was_there = LogFile.ENTRY in known.kinds
            if bundle and bundle[0].number == found.number and not was_there:
                found, was_there = _join(bundle.popleft(), found), True
            found = _check_markers(found, read.markers)
            is_known = was_there or found.number < unread_end
            if not is_known and found.damage is None and newest < found.number:
                yield replace(found, damage=_MISSING.format(found.path))
            else:
                yield found
            if len(read.entries) > 1:
                bundle = deque(_unbundle(found, read.entries))
            expected = found.number + 1
            if LogFile.ENTRY in known.kinds:
                was_read = found.size_bytes is not None
                unread_end = 0 if was_read else found.number + MOST_TOGETHER
    yield from bundle


def _unbundle(
    first: DumpedEntry[EntryT_co], entries: Sequence[EntryT_co]
) -> Iterator[DumpedEntry[EntryT_co]]:
    """The other entries of a bundle, as if there were no files beside them."""
    for number, entry in enumerate(entries[1:], start=first.number + 1):
        yield DumpedEntry(
            number,
            first.path,
            first.size_bytes,
            entry,
            msgspec.to_builtins(entry),
            (),
            False,
            None,
            file=first.number,
        )


def _join(entry: DumpedEntry[EntryT_co], beside: DumpedEntry[EntryT_co]) -> DumpedEntry[EntryT_co]:
    """An entry of a bundle, with the files under its own number."""
    return replace(
        entry,
        outcomes=beside.outcomes,
        has_checkpoint=beside.has_checkpoint,
        damage=beside.damage,
        failures=beside.failures,
    )


_MISSING = "{} is missing, though later files exist; restore it from a backup"


def _group_by_number(files: Sequence[str]) -> list[_Files]:
    found: dict[int, _Files] = {}
    for name in files:
        parsed = names.parse_log_file(name)
        if parsed is not None and parsed[1] is not LogFile.SEEN:
            found.setdefault(parsed[0], _Files(parsed[0])).kinds.add(parsed[1])
    return [found[number] for number in sorted(found)]


def _from_file_of(first: int, files: Sequence[_Files]) -> list[_Files]:
    """The files after the one that holds entry ``first``, and that one if it is there."""
    before = (f.number for f in files if LogFile.ENTRY in f.kinds and f.number <= first)
    holds = max(before, default=first)
    return [f for f in files if f.number == holds or f.number >= first]


def _has_no_gaps(files: Sequence[_Files]) -> bool:
    """Whether no entry is missing between these files, judged by their names."""
    numbers = [file.number for file in files if LogFile.ENTRY in file.kinds]
    return len(numbers) == len(files) and all(b == a + 1 for a, b in pairwise(numbers))


def _describe_gap(folder: str, number: int, count: int, newest: int) -> DumpedEntry[EntryT_co]:
    path = f"{folder}/{names.log_file(number, LogFile.ENTRY)}"
    # Opening the log begins after the newest checkpoint.
    damage = None if newest >= number + count - 1 else _MISSING.format(path)
    return DumpedEntry(number, path, None, None, None, (), False, damage, count)


def _read_entry(
    storage: Storage, folder: str, files: _Files, decoder: msgspec.json.Decoder[EntryT_co]
) -> _Read[EntryT_co]:
    path = f"{folder}/{names.log_file(files.number, LogFile.ENTRY)}"
    data, damages = None, []
    entries: Sequence[EntryT_co] = ()
    failures: list[tuple[str, StorageError]] = []
    if LogFile.ENTRY in files.kinds:
        try:
            data = storage.get(path)
            entries = unbundled(envelope.decode(data, decoder, path))
        except ObjectNotFound:
            pass  # cleaned up since the listing
        except StorageError as error:
            failures.append((path, error))
        except (CorruptEntry, UnsupportedVersion) as error:
            damages.append(str(error))
    outcomes = tuple(Outcome(kind.value) for kind in _MARKERS if kind in files.kinds)
    if len(outcomes) > 1:
        damages.append(f"{path} has both a commit and an abort marker")
    markers = []
    for outcome in outcomes:
        marker = f"{folder}/{names.log_file(files.number, LogFile(outcome.value))}"
        try:
            content = envelope.decode(storage.get(marker), _MARKER_DECODER, marker)
            markers.append((marker, content))
            if content.outcome is not outcome:
                damages.append(f"{marker} says {content.outcome.value}, which its name does not")
        except ObjectNotFound:
            pass  # cleaned up since the listing
        except StorageError as error:
            failures.append((marker, error))
        except (CorruptEntry, UnsupportedVersion) as error:
            damages.append(str(error))
    content_of = None if data is None else _parse_json(data)
    if len(entries) > 1:
        content_of = msgspec.to_builtins(entries[0])
    found = DumpedEntry(
        files.number,
        path,
        None if data is None else len(data),
        entries[0] if entries else None,
        content_of,
        outcomes,
        LogFile.CHECKPOINT in files.kinds,
        "; ".join(damages) or None,
        failures=tuple(failures),
        file=files.number,
    )
    return _Read(found, entries, tuple(markers))


def _check_markers(
    found: DumpedEntry[EntryT_co], markers: Sequence[tuple[str, Marker]]
) -> DumpedEntry[EntryT_co]:
    """Report wrong markers, whose content is for people: only their names decide."""
    damages = [found.damage] if found.damage else []
    for path, marker in markers if found.entry is not None else ():
        if found.transaction is None:
            damages.append(f"{path} marks an entry that has no transaction")
        elif found.transaction.key != marker.transaction.key:
            damages.append(f"{path} is of {marker.transaction}, its entry of {found.transaction}")
    return replace(found, damage="; ".join(damages) or None)


def _parse_json(data: bytes) -> JsonObject | None:
    try:
        return msgspec.json.decode(data, type=JsonObject)
    except (msgspec.DecodeError, ValueError, RecursionError):
        return None
