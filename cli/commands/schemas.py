"""``txnlog schemas``: the schemas of values, in the topic ``_schemas`` of the store."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from txnlog.cli.input.assignments import split_assignment
from txnlog.cli.input.options import DryRunOption, YesOption
from txnlog.cli.output.confirmation import confirm, note_dry_run
from txnlog.cli.output.fields import Field, names, number, text
from txnlog.cli.output.streams import FAILURE
from txnlog.cli.session import Session
from txnlog.cli.verbs import verb_group

if TYPE_CHECKING:
    from txnlog.values import RegisteredSchema, SchemaReference


@dataclass(frozen=True, slots=True)
class Objection:
    """What stands against a schema."""

    subject: str
    reason: str


@dataclass(frozen=True, slots=True)
class Mode:
    """The compatibility of a subject; None: of all that have none of their own."""

    subject: str | None
    compatibility: str


def _references_of(schema: RegisteredSchema) -> list[str]:
    return [f"{one.name}={one.subject}:{one.version}" for one in schema.references]


SUMMARY: list[Field[RegisteredSchema]] = [
    text("subject", "SUBJECT", lambda schema: schema.subject),
    number("version", "VERSION", lambda schema: schema.version),
    number("id", "ID", lambda schema: schema.id),
    text("type", "TYPE", lambda schema: schema.schema_type),
    names("references", "REFERENCES", _references_of, wide=True),
]
SCHEMA: list[Field[RegisteredSchema]] = [
    *SUMMARY,
    Field("schema", "SCHEMA", lambda schema: schema.text, lambda schema: schema.text),
]
OBJECTIONS: list[Field[Objection]] = [
    text("subject", "SUBJECT", lambda found: found.subject),
    text("reason", "REASON", lambda found: found.reason),
]
MODES: list[Field[Mode]] = [
    text("subject", "SUBJECT", lambda mode: mode.subject),
    text("compatibility", "COMPATIBILITY", lambda mode: mode.compatibility),
]
_Subject = Annotated[str, typer.Argument(metavar="SUBJECT", help="Whose schema, as orders-value.")]
_File = Annotated[
    Path,
    typer.Argument(
        metavar="FILE", help=".avsc (Avro), .json (JSON Schema), .proto or .desc.", exists=True
    ),
]
_References = Annotated[
    list[str] | None,
    typer.Option(
        "--reference",
        metavar="NAME=SUBJECT:VERSION",
        help="A schema that it uses, by its name; may be repeated.",
    ),
]


def add_schema(
    session: Session, subject: _Subject, file: _File, reference: _References = None
) -> None:
    """Register a schema and print its id.

    It is the next version of its subject, and must be compatible: see `txnlog schemas config`. One
    that the subject has already is not added again; one that another subject has keeps its id.
    Values of a topic are by custom those of the subject TOPIC-value.

    \b
    Example:
      txnlog schemas add orders-value order.avsc
      txnlog schemas add orders-value v2.avsc --reference shop.Item=item:1
    """
    kind, schema, references = _read(file, reference)
    added = session.open_store().schemas.add(subject, schema, kind, references)
    session.output.rows(SUMMARY, [added])


def check_schema(
    session: Session, subject: _Subject, file: _File, reference: _References = None
) -> None:
    """Tell what stands against a schema; exit 1 if something does.

    \b
    Example:
      txnlog schemas check orders-value order.avsc
    """
    kind, schema, references = _read(file, reference)
    found = session.open_to_read().schemas.check(subject, schema, kind, references)
    session.output.rows(OBJECTIONS, [Objection(subject, reason) for reason in found])
    if found:
        raise typer.Exit(FAILURE)


def list_schemas(
    session: Session,
    subject: Annotated[
        str | None,
        typer.Argument(metavar="SUBJECT", help="Only of this one."),
    ] = None,
    deleted: Annotated[
        bool, typer.Option("--deleted", help="Those that were deleted, but not for good.")
    ] = False,
) -> None:
    """List subjects with their versions and the ids of these.

    \b
    Example:
      txnlog schemas ls
      txnlog schemas ls orders-value
    """
    found = session.open_to_read().schemas.list(subject, deleted=deleted)
    session.output.rows(SUMMARY, found)


def show_schema(
    session: Session,
    subject: Annotated[str | None, typer.Argument(metavar="SUBJECT", help="Whose schema.")] = None,
    version: Annotated[
        int | None,
        typer.Option("--version", metavar="N", help="Which; else the newest."),
    ] = None,
    schema_id: Annotated[
        int | None,
        typer.Option("--id", metavar="ID", help="By its id instead."),
    ] = None,
) -> None:
    """Show a schema, of a subject or by its id.

    \b
    Example:
      txnlog schemas show orders-value
      txnlog schemas show orders-value --version 1
      txnlog schemas show --id 7
    """
    if (subject is None) == (schema_id is None) or (version is not None and subject is None):
        raise typer.BadParameter("name a SUBJECT, perhaps with --version, or an --id")
    schemas = session.open_to_read().schemas
    if schema_id is not None:
        found = schemas.by_id(schema_id)
    else:
        assert subject is not None
        found = schemas.version(subject, version)
    with session.output.document() as document:
        document.fields(SCHEMA, found)


def delete_schema(
    session: Session,
    subject: _Subject,
    version: Annotated[
        int | None,
        typer.Option("--version", metavar="N", help="Which; else all."),
    ] = None,
    permanent: Annotated[
        bool, typer.Option("--permanent", help="For good, what was deleted before.")
    ] = False,
    yes: YesOption = False,
    dry_run: DryRunOption = False,
) -> None:
    """Delete a subject, or one version of it.

    Values that carry the ids can be read as before, and the same schema gets the same id again.
    With --permanent what was deleted goes for good: values with its ids are dead letters then,
    unless another subject has them too. What others refer to is refused. Asks first on a terminal;
    elsewhere it needs --yes.

    \b
    Example:
      txnlog schemas delete orders-value --version 1 --dry-run
      txnlog schemas delete orders-value --yes
      txnlog schemas delete orders-value --permanent --yes
    """
    schemas = session.open_store(dry_run=dry_run).schemas
    doomed = schemas.delete(subject, version, permanent=permanent, dry_run=True)
    if not dry_run:
        ids = ", ".join(str(one.id) for one in doomed)
        more = f" for good: values with the ids {ids} are dead letters then" if permanent else ""
        confirm(f"delete {len(doomed)} schema(s) of subject {subject}{more}", yes=yes)
        doomed = schemas.delete(subject, version, permanent=permanent)
    session.output.rows(SUMMARY, doomed)
    note_dry_run(dry_run)


def configure(
    session: Session,
    subject: Annotated[
        str | None,
        typer.Argument(metavar="SUBJECT", help="Which; all that have none of their own."),
    ] = None,
    mode: Annotated[
        str | None,
        typer.Option(
            "--compatibility",
            metavar="MODE",
            help="BACKWARD, FORWARD, FULL, each with _TRANSITIVE, or NONE.",
        ),
    ] = None,
    dry_run: DryRunOption = False,
) -> None:
    """Show or set which schemas a subject takes: its compatibility.

    BACKWARD, the default: the new one reads what the last one wrote; FORWARD: the last one reads
    what the new one writes; FULL: both. With _TRANSITIVE that holds for all earlier versions. NONE
    takes any.

    \b
    Example:
      txnlog schemas config orders-value
      txnlog schemas config orders-value --compatibility FULL_TRANSITIVE
    """
    opened = session.open_to_read() if mode is None else session.open_store()
    if mode is None:
        shown: str = opened.schemas.compatibility(subject)
    else:
        from txnlog.values.compatibility import check_mode

        shown = checked = check_mode(mode)
        if not dry_run:
            opened.schemas.set_compatibility(checked, subject)
    session.output.rows(MODES, [Mode(subject, shown)])
    note_dry_run(dry_run)


def _read(
    file: Path, references: Sequence[str] | None
) -> tuple[str, str, Sequence[SchemaReference]]:
    """The kind and the text of a schema's file, and what it refers to. Raises BadParameter."""
    from txnlog.values import SchemaReference
    from txnlog.values.folder import read_schema_file

    kind, schema = read_schema_file(file)
    made = []
    for given in references or ():
        name, where = split_assignment(given) or ("", "")
        subject, _, version = where.rpartition(":")
        if not (name and subject and version.isdecimal()):
            raise typer.BadParameter(f"--reference {given!r} is not NAME=SUBJECT:VERSION")
        made.append(SchemaReference(name, subject, int(version)))
    return kind, schema, made


app = verb_group(
    {
        "ls": list_schemas,
        "show": show_schema,
        "add": add_schema,
        "check": check_schema,
        "config": configure,
        "delete": delete_schema,
    },
)
