"""The command line's root: what is common to all verbs, and the groups of verbs.

A group is one module with one typer app. Modules import the library inside their commands only,
so that help costs no more than typer itself.
"""

# ruff: noqa: D301 - the help keeps lines as they are after a real backspace
from __future__ import annotations

from typing import Annotated

import typer

from txnlog.cli.commands import (
    bench,
    demo,
    doctor,
    groups,
    index,
    kafka,
    log,
    offsets,
    records,
    segments,
    topics,
    txns,
)
from txnlog.cli.commands.groups import seek
from txnlog.cli.commands.records import tail, write
from txnlog.cli.commands.topics import config, trim
from txnlog.cli.commands.txns import why
from txnlog.cli.input.places import HELP_NAMES
from txnlog.cli.session import ConfigOption, OutputOption, StorageOptions, StoreOption, remember

app = typer.Typer(
    epilog="Exit codes: 0 ok, 1 failure, 2 wrong usage, 3 damage found, "
    "4 hanging transactions found, 130 interrupted.",
    no_args_is_help=True,
    rich_markup_mode=None,  # plain help starts in half the time, and a pipe shows the same
    pretty_exceptions_enable=False,
    context_settings=HELP_NAMES,
)
topics.app.command("trim")(trim.trim_records)
topics.app.add_typer(config.app, name="config")
app.add_typer(topics.app, name="topics")
app.add_typer(offsets.app, name="offsets")
app.add_typer(segments.app, name="segments")
app.add_typer(index.app, name="index")
app.add_typer(log.app, name="log")
records.app.command("head")(tail.head_records)
records.app.command("tail")(tail.tail_records)
records.app.command("write")(write.write_records)
app.add_typer(records.app, name="records")
groups.app.command("seek")(seek.seek_group)
groups.app.command("delete")(seek.delete_groups)
groups.app.command("delete-offsets")(seek.delete_offsets)
app.add_typer(groups.app, name="groups")
txns.app.command("find-hanging")(why.find_hanging)
txns.app.command("why")(why.explain_stable_offset)
txns.app.command("abort")(why.abort_transaction)
app.add_typer(txns.app, name="txns")
app.add_typer(kafka.app)
app.add_typer(doctor.app)
app.add_typer(demo.app)
app.add_typer(bench.app)


def _show_version(wanted: bool) -> None:
    if wanted:
        from txnlog import __version__

        print(f"txnlog {__version__}")
        raise typer.Exit


@app.callback()
def root(
    ctx: typer.Context,
    store: StoreOption = None,
    storage_option: StorageOptions = None,
    config_file: ConfigOption = None,
    output: OutputOption = None,
    _version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_show_version, is_eager=True, help="Show the version and exit."
        ),
    ] = False,
) -> None:
    """Look into a txnlog store: topics, segments, transactions, groups, records.

    --store, --storage-option and -o may stand here or behind the verb. `txnlog demo` makes a
    store to try all this on.

    \b
    Example:
      export TXNLOG_STORE=s3://bucket/store
      txnlog topics ls
      txnlog records read orders --from earliest -n 10
    """
    remember(ctx, store, storage_option, config_file, output)
