"""The command line's root: the options before the verb, and the groups of verbs."""

# ruff: noqa: D301 - the help keeps lines as they are after a real backspace
from __future__ import annotations

from importlib import import_module
from typing import Annotated, Any, Final

import typer
from typer.core import TyperCommand, TyperGroup

from txnlog.cli.input.options import (
    BytesOption,
    ConfigOption,
    OutputOption,
    StorageOptions,
    StoreOption,
)
from txnlog.cli.output.escape import shortening
from txnlog.cli.session import read_root_options
from txnlog.cli.verbs import AliasedRoot, verb_group
from txnlog.hooks import registered

GROUPS: Final = {
    "store": "The store itself: make one, and see how it is set.",
    "topics": "Topics: what they hold and how they are set.",
    "offsets": "Offsets: where partitions begin and end.",
    "segments": "Segments: the files that hold the records.",
    "index": "Indexes: what finds offsets and times in segments.",
    "log": "Logs: a topic's entries and markers as they lie.",
    "records": "Records: what is in a topic.",
    "tables": "Tables: topics as Delta and Iceberg tables.",
    "catalog": "Catalog: topics as tables of an Iceberg REST catalog.",
    "schemas": "Schemas: of values, by their subjects and ids.",
    "groups": "Consumer groups: how far they have read, who shares the work.",
    "txns": "Transactions: which are open, who waits, how they ended.",
}
"""The groups of verbs with their help, in the order of the root's."""

SUMMARIES: Final = {
    "import": "Import partition folders of a stopped Kafka broker.",
    "export": "Export a topic as partition folders that Kafka's tools read.",
    "bridge": "Copy topics from a running Kafka, or to it, each record once.",
    "maintain": "Do the regular work of a store.",
    "metrics": "Print offsets, sizes, lags and transactions for Prometheus.",
    "doctor": "Check a store: the storage's promises, logs, files, damage.",
    "ui": "Show a store in the browser, until Ctrl-C.",
    "demo": "Make a small store to look at.",
    "bench": "Measure the speed of writes, reads and small transactions.",
}
"""The verbs without a group, with the first sentence of each one's own help. They stand behind the
groups in the root's."""

_VERBS: Final = {
    "import": "import_.import_folders",
    "export": "export.export_folders",
    "bridge": "bridge.run_bridge",
    "maintain": "maintain.maintain_store",
    "metrics": "metrics.print_metrics",
    "doctor": "doctor.examine_store",
    "ui": "ui.serve_pages",
    "demo": "demo.make_demo",
    "bench": "bench.measure_store",
}
"""The verbs without a group: a module of ``commands`` and its function."""


class LazyRoot(AliasedRoot):
    """The root, whose groups and verbs are imported and built when used.

    Until then each is represented by a command with only its summary, for help.
    """

    def __init__(self, **settings: Any) -> None:  # noqa: ANN401 - typer's own
        super().__init__(**settings)
        for name, summary in summaries().items():
            self.add_command(TyperCommand(name, help=summary, rich_markup_mode=None))

    def make_context(self, *arguments: Any, **settings: Any) -> Any:  # noqa: ANN401 - typer's own
        with shortening():
            return super().make_context(*arguments, **settings)

    def invoke(self, ctx: Any) -> Any:  # noqa: ANN401 - typer's own
        with shortening():
            return super().invoke(ctx)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:  # noqa: ANN401 - typer's own
        if cmd_name in self.commands and self.commands[cmd_name].callback is None:
            self.commands[cmd_name] = _load(cmd_name)
        return super().get_command(ctx, cmd_name)

    def format_commands(self, ctx: Any, formatter: Any) -> None:  # noqa: ANN401 - typer's own
        TyperGroup(commands=dict(self.commands)).format_commands(ctx, formatter)


def summaries() -> dict[str, str]:
    """The entries of the root's help, in order.

    A hook's module has ``GROUPS``, such summaries, and ``VERBS``, the package of each group.
    """
    added = {name: text for hook in registered("command") for name, text in hook.GROUPS.items()}
    return {**GROUPS, **added, **SUMMARIES}


def _load(name: str) -> Any:  # noqa: ANN401 - a command of typer's
    """Import and build the group or the verb ``txnlog NAME``."""
    module_name, _, function = _VERBS.get(name, name).partition(".")
    added = {name: where for hook in registered("command") for name, where in hook.VERBS.items()}
    module = import_module(added.get(name, f"txnlog.cli.commands.{module_name}"))
    if function:
        verbs = verb_group({name: getattr(module, function)})
        return typer.main.get_group(verbs).commands[name]
    group = typer.main.get_group(module.app)
    group.name, group.help = name, summaries()[name]
    return group


app = typer.Typer(
    cls=LazyRoot,
    epilog="Exit codes: 0 ok, 1 failure, 2 wrong usage, 3 damage found, "
    "4 hanging transactions found, 130 interrupted, 141 the reader of the output has gone.",
    no_args_is_help=True,
    rich_markup_mode=None,  # plain help starts in half the time, and a pipe shows the same
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
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
