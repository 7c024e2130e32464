"""How Spark's tasks open the store that the user's process has opened: as options of the format.

Spark's options are strings, their names in lower case. Strings stay separate options, so that Spark
redacts those named as secrets; the rest is passed as JSON. Messages name options and never show
their values.
"""

from __future__ import annotations

import json
from collections.abc import Mapping

from txnlog.errors import InvalidOption
from txnlog.spark.options.option_names import STORAGE_PREFIX, TYPED_STORAGE
from txnlog.spark.options.option_values import OptionValues
from txnlog.storage.base import Address
from txnlog.store import Store, open_store


def parse_address(values: OptionValues) -> Address:
    """The store's URL, and its filesystem's options."""
    unsafe = values.boolean("unsafeSingleWriter") or False
    return Address(values.path(), values.storage, unsafe)


def open_at(address: Address) -> Store:
    """The store at an address."""
    return open_store(
        address.url,
        storage_options=address.options,
        unsafe_single_writer=address.unsafe_single_writer,
    )


def store_options(
    store: Store, storage_options: Mapping[str, object] | None = None
) -> dict[str, str]:
    """The options with which ``format("txnlog")`` opens a store that is open here.

    Args:
        store: the store.
        storage_options: override, or add to, those that it was opened with.

    Raises:
        InvalidOption: an option is not plain data, or the URL has a password in it.
    """
    address = store.storage.address()
    _, is_url, rest = address.url.partition("://")
    if is_url and ("@" in rest.partition("/")[0] or "?" in rest):
        raise InvalidOption(
            f"the URL of {store.url} holds credentials, which Spark would show in its plans; open "
            "the store with them in storage_options"
        )
    options = {"path": address.url}
    typed: dict[str, object] = {}
    for name, value in {**address.options, **(storage_options or {})}.items():
        if isinstance(value, str) and name == name.lower():
            options[STORAGE_PREFIX + name] = value
        else:
            typed[name] = _plain(name, value)
    if typed:
        options[TYPED_STORAGE] = json.dumps(typed, sort_keys=True)
    if address.unsafe_single_writer:
        options["unsafeSingleWriter"] = "true"
    return options


def _plain(name: str, value: object) -> object:
    """The value, if it survives a round trip through JSON."""
    try:
        if json.loads(json.dumps(value, allow_nan=False)) == value:
            return value
    except (TypeError, ValueError, RecursionError):
        pass
    raise InvalidOption(
        f"storage option {name} is of a kind that cannot be handed to Spark's tasks: give text, "
        "numbers, true, false, and lists or mappings of them, whose names are text"
    )
