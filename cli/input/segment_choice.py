"""Which segments a verb is about: a topic's, one of them, or single files without a store."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated

import typer

from txnlog.cli.input.places import parse_target
from txnlog.cli.session import Session

if TYPE_CHECKING:
    from txnlog.inspect.descriptions import SegmentDescription
    from txnlog.segments.file import SegmentFile
    from txnlog.store import Store

TargetArgument = Annotated[
    str | None,
    typer.Argument(
        metavar="TOPIC[:PARTITION]", help="A topic or one partition of it.", show_default=False
    ),
]
SegmentOption = Annotated[
    str | None,
    typer.Option("--segment", metavar="NAME", help="Only this segment.", show_default=False),
]
FileOption = Annotated[
    list[str] | None,
    typer.Option(
        "--file",
        metavar="PATH",
        help="A single file, a path or a URL, instead; needs no store. May be repeated.",
        show_default=False,
    ),
]


def check_source(
    target: str | None, segment: str | None, files: list[str] | None, *, indexes: bool = False
) -> None:
    """Raise BadParameter unless it is either a topic's segments, or files of the right kind."""
    if (target is None) == (not files):
        raise typer.BadParameter("name either TOPIC[:PARTITION] or --file PATH")
    if files and segment is not None:
        raise typer.BadParameter("--segment chooses among a topic's segments, not with --file")
    for file in files or ():
        if not indexes and file.endswith("index"):
            raise typer.BadParameter(f"--file {file} is no segment; for indexes use `txnlog index`")


def choose_segments(
    session: Session, target: str | None, name: str | None
) -> tuple[Store, list[SegmentDescription]]:
    """The segments that are meant. Raises ObjectNotFound if there is none of this name."""
    where = parse_target(target or "")
    store = session.open_store()
    found = store.segments(where.topic, where.partition)
    if name is not None:
        from txnlog.names import SegmentPaths

        paths = SegmentPaths.of(name)
        stem = name if paths is None else paths.stem
        found = [segment for segment in found if segment.name == stem]
        if not found:
            from txnlog.errors import ObjectNotFound

            raise ObjectNotFound(
                f"{target} has no segment {name!r} in {store.url}; "
                f"`txnlog segments ls {target}` lists them"
            )
    return store, found


def open_files(session: Session, files: list[str]) -> Iterator[SegmentFile]:
    """Each file in turn, open while it is the newest. Raises StorageError."""
    from txnlog.inspect.files import open_segment_file

    for path in files:
        with open_segment_file(path, session.storage_options) as file:
            yield file
