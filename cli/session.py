"""One run of one verb: its store, how to reach it, how to print."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

import typer

import txnlog
from txnlog.cli.input.config_file import Settings, read_settings
from txnlog.cli.input.options import CONFIG_VARIABLE, STORE_VARIABLE, Format
from txnlog.cli.input.storage_options import parse_storage_options
from txnlog.cli.output.output import Output
from txnlog.errors import StoreExists, StoreNotFound

if TYPE_CHECKING:
    from txnlog.store import Store


@dataclass(frozen=True, slots=True)
class RootOptions:
    """The options before the verb, and the config file."""

    store: str | None = None
    storage_options: Mapping[str, str] = field(default_factory=dict)
    output: Format | None = None
    settings: Settings = field(default_factory=Settings)
    in_bytes: bool = False


def read_root_options(
    store: str | None,
    storage_option: list[str] | None,
    config_file: Path | None,
    output: Format | None,
    in_bytes: bool = False,
) -> RootOptions:
    """Keep the options before the verb; those after it override them."""
    from_variable = os.environ.get(CONFIG_VARIABLE)
    path = config_file or (Path(from_variable) if from_variable else None)
    settings = Settings() if path is None else read_settings(path)
    return RootOptions(
        store, parse_storage_options(storage_option or ()), output, settings, in_bytes
    )


@dataclass(frozen=True, slots=True)
class Session:
    """A verb's input and output."""

    url: str | None
    explicit_url: str | None
    """The store named by an option; one from a variable or a file is not for experiments."""
    output: Output
    output_format: Format
    in_bytes: bool
    _explicit_options: Mapping[str, str]
    _configured_options: Mapping[str, object]

    @property
    def storage_options(self) -> dict[str, object]:
        return self.storage_options_of(self.url)

    def storage_options_of(self, url: str | None) -> dict[str, object]:
        """The storage options of a store.

        Those of a config file are not used for a local path, except those under the URL of a
        replica's root, or of the controller: a store that a local root names may lie there.
        """
        configured = self._configured_options
        if not _is_remote(url):
            configured = {key: value for key, value in configured.items() if "/" in key}
        return {**configured, **self._explicit_options}

    def at(self, url: str | None) -> Session:
        """This session with a store that the verb's own argument names, if it does.

        Raises BadParameter if an option names one, too.
        """
        if url is None:
            return self
        if self.explicit_url is not None:
            raise typer.BadParameter("name the store once: as an argument or with --store")
        return replace(self, url=url, explicit_url=url)

    def printing(self, chosen: Format) -> Session:
        """This session with another format of its output."""
        output = _make_output(chosen, in_bytes=self.in_bytes)
        return replace(self, output=output, output_format=chosen)

    def open_store(self, *, dry_run: bool = False) -> Store:
        """Open the store for a verb that writes. Raises as :meth:`open_to_read` does."""
        opened = self.open_to_read()
        if not dry_run:
            opened.storage.will_write()
        return opened

    def open_to_read(self) -> Store:
        """Open the store for a verb that only reads.

        Raises BadParameter if none is named, and what ``txnlog.open`` raises.
        """
        return txnlog.open(self.named_url(), storage_options=self.storage_options)

    def create_store(self, config: Mapping[str, str], *, if_not_exists: bool) -> Store:
        """Make a new store.

        Raises BadParameter if none is named, StoreExists if it is there and need not be new, and
        what ``txnlog.open`` raises.
        """
        if not if_not_exists:
            self.refuse_existing()
        options = self.storage_options
        return txnlog.open(self.named_url(), create=True, storage_options=options, config=config)

    def refuse_existing(self) -> None:
        """Raise StoreExists if the store is there, and what ``txnlog.open`` raises."""
        try:
            found = txnlog.open(self.named_url(), storage_options=self.storage_options)
        except StoreNotFound:
            return
        raise StoreExists(
            f"{found.url} is a store already; `txnlog store describe` shows it, "
            "and --if-not-exists takes it as it is"
        )

    def named_url(self) -> str:
        """The store's URL. Raises BadParameter if none is named."""
        if not self.url:
            raise typer.BadParameter(
                f"no store is named: give --store URL or set the variable {STORE_VARIABLE}; "
                "`txnlog store create` makes one, `txnlog demo` one to try things on"
            )
        return self.url


def open_session(
    root: RootOptions,
    store: str | None,
    storage_option: list[str] | None,
    output: Format | None,
    in_bytes: bool = False,
) -> Session:
    """Merge the options before and after the verb with the environment."""
    explicit_url = store or root.store
    explicit_options = {**root.storage_options, **parse_storage_options(storage_option or ())}
    settings = root.settings
    chosen = output or root.output or _parse_format(settings.output) or Format.TABLE
    in_bytes = in_bytes or root.in_bytes
    return Session(
        explicit_url or os.environ.get(STORE_VARIABLE) or settings.store,
        explicit_url,
        _make_output(chosen, in_bytes=in_bytes),
        chosen,
        in_bytes,
        explicit_options,
        settings.storage_options,
    )


def _is_remote(url: str | None) -> bool:
    return "://" in (url or "") and not (url or "").startswith(("file://", "memory://"))


def _parse_format(output: str | None) -> Format | None:
    if output is not None and output not in [known.value for known in Format]:
        known_ones = ", ".join(known.value for known in Format)
        raise typer.BadParameter(f"config file: output {output!r} is not one of {known_ones}")
    return None if output is None else Format(output)


def _make_output(chosen: Format, *, in_bytes: bool) -> Output:
    if chosen is Format.TABLE:
        from txnlog.cli.output.tables import TableOutput

        return TableOutput(in_bytes=in_bytes)
    from txnlog.cli.output.json_output import JsonLinesOutput, JsonOutput

    return JsonOutput() if chosen is Format.JSON else JsonLinesOutput()
