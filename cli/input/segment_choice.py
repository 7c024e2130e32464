"""The segments for a verb: a topic's, one of them, or single files without a store."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, TypeVar

import typer

from txnlog.cli.input.places import parse_target
from txnlog.errors import ObjectNotFound, UnknownTopicOrPartition

if TYPE_CHECKING:
    from txnlog.inspect.descriptions import SegmentDescription
    from txnlog.store import Store

T = TypeVar("T")

OptionalTargetArgument = Annotated[
    str | None,
    typer.Argument(metavar="TOPIC[:PARTITION]", help="A topic or one partition of it."),
]
SegmentOption = Annotated[
    str | None,
    typer.Option("--segment", metavar="NAME", help="Only this segment."),
]
FileOption = Annotated[
    list[str] | None,
    typer.Option(
        "--file",
        metavar="PATH",
        help="A single file, a path or a URL, instead; needs no store. May be repeated.",
    ),
]


@dataclass(frozen=True, slots=True)
class SegmentChoice:
    """Either ``files``, or the segments of ``target``, of which ``name`` may select one."""

    target: str
    name: str | None
    files: list[str]

    def find(self, store: Store) -> list[SegmentDescription]:
        """The selected segments. Raises BadParameter, ObjectNotFound if none has the name."""
        where = parse_target(self.target)
        found = store.topics.segments(where.topic, where.partition)
        if self.name is None:
            return found
        from txnlog.names import SegmentPaths

        paths = SegmentPaths.of(self.name)
        stem = self.name if paths is None else paths.stem
        chosen = [segment for segment in found if segment.name == stem]
        if not chosen:
            raise ObjectNotFound(
                f"{self.target} has no segment {self.name!r} in {store.url}; "
                f"`txnlog segments ls {self.target}` lists them"
            )
        return chosen

    def check_each(
        self,
        store: Store,
        segments: Iterable[SegmentDescription],
        check: Callable[[SegmentDescription], T],
        *,
        is_sound: Callable[[T], bool],
    ) -> Iterator[T]:
        """What ``check`` finds in each segment that is still there.

        Results for segments whose files are gone come last. They are yielded only if the log, read
        again, still names the segment: then its file is missing, and was not just deleted.
        """
        gone: list[tuple[str, T]] = []
        for segment in segments:
            found = check(segment)
            if not is_sound(found) and _is_gone(store, segment.paths.log):
                gone.append((segment.paths.log, found))
            else:
                yield found
        placed = self._paths(store) if gone else ()
        for path, found in gone:
            if path in placed:
                yield found

    def _paths(self, store: Store) -> set[str]:
        """The files of the selected segments; an empty set if the topic or they are gone.

        Aborted segments are left out: a writer may have placed one whose file was deleted already.
        """
        try:
            found = self.find(store)
            return {segment.paths.log for segment in found if segment.outcome != "aborted"}
        except (ObjectNotFound, UnknownTopicOrPartition):
            return set()


def _is_gone(store: Store, path: str) -> bool:
    try:
        store.storage.size(path)
    except ObjectNotFound:
        return True
    return False


def choose_segments(
    target: str | None, segment: str | None, files: list[str] | None, *, indexes: bool = False
) -> SegmentChoice:
    """Raises BadParameter unless it is either a topic's segments, or files of the right kind."""
    if (target is None) == (not files):
        raise typer.BadParameter("name either TOPIC[:PARTITION] or --file PATH")
    if files and segment is not None:
        raise typer.BadParameter("--segment chooses among a topic's segments, not with --file")
    for file in files or ():
        if not indexes and file.endswith("index"):
            raise typer.BadParameter(
                f"--file {file} is not a segment; for indexes use `txnlog index`"
            )
    return SegmentChoice(target or "", segment, files or [])
