"""The command line's root: the options before the verb, and the groups of verbs."""

# ruff: noqa: D301 - the help keeps lines as they are after a real backspace
from __future__ import annotations

from typing import Annotated

import typer

from txnlog.cli.commands import (
    bench,
    demo,
    doctor,
    export,
    groups,
    import_,
    index,
    log,
    maintain,
    metrics,
    offsets,
    records,
    replicas,
    segments,
    store,
    tables,
    topics,
    txns,
    ui,
)
from txnlog.cli.input.aliases import AliasedRoot
from txnlog.cli.input.options import (
    BytesOption,
    ConfigOption,
    OutputOption,
    StorageOptions,
    StoreOption,
)
from txnlog.cli.session import read_root_options
from txnlog.cli.verbs import verb_group

app = typer.Typer(
    cls=AliasedRoot,
    epilog="Exit codes: 0 ok, 1 failure, 2 wrong usage, 3 damage found, "
    "4 hanging transactions found, 130 interrupted.",
    no_args_is_help=True,
    rich_markup_mode=None,  # plain help starts in half the time, and a pipe shows the same
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.add_typer(store.app, name="store")
app.add_typer(topics.app, name="topics")
app.add_typer(offsets.app, name="offsets")
app.add_typer(segments.app, name="segments")
app.add_typer(index.app, name="index")
app.add_typer(log.app, name="log")
app.add_typer(records.app, name="records")
app.add_typer(tables.app, name="tables")
app.add_typer(groups.app, name="groups")
app.add_typer(txns.app, name="txns")
app.add_typer(replicas.app, name="replicas")
app.add_typer(
    verb_group(
        None,
        {
            "import": import_.import_folders,
            "export": export.export_folders,
            "maintain": maintain.maintain_store,
            "metrics": metrics.print_metrics,
            "doctor": doctor.examine_store,
            "ui": ui.serve_pages,
            "demo": demo.make_demo,
            "bench": bench.measure_store,
        },
    )
)


def _show_version(wanted: bool) -> None:
    if wanted:
        from txnlog import __version__

        print(f"txnlog {__version__}")
        raise typer.Exit


@app.callback()
def keep_root_options(
    ctx: typer.Context,
    store: StoreOption = None,
    storage_option: StorageOptions = None,
    config_file: ConfigOption = None,
    output: OutputOption = None,
    in_bytes: BytesOption = False,
    _version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_show_version, is_eager=True, help="Show the version and exit."
        ),
    ] = False,
) -> None:
    """Look into a txnlog store: topics, segments, transactions, groups, records.

    --store, --storage-option, -o and -b may stand here or behind the verb. `txnlog demo` makes a
    store to try all this on.

    \b
    Example:
      export TXNLOG_STORE=s3://bucket/store
      txnlog topics ls
      txnlog records read orders --from earliest -n 10
    """
    ctx.obj = read_root_options(store, storage_option, config_file, output, in_bytes)
