"""How Spark's tasks open the store that the user's process has opened: as options of the format.

Spark's options are strings, their names in lower case. Strings stay separate options, so that Spark
redacts those named as secrets; the rest is passed as JSON. Messages name options and never show
their values.
"""

from __future__ import annotations

import json
import os
from collections import OrderedDict
from collections.abc import Mapping
from typing import Final

from txnlog import names
from txnlog.errors import InvalidOption, TxnlogError
from txnlog.spark.options.option_names import STORAGE_PREFIX, TYPED_STORAGE
from txnlog.spark.options.option_values import OptionValues
from txnlog.storage.base import Address
from txnlog.storage.registry import StoreFile
from txnlog.store import Store, open_store

_MOST_KEPT = 4
_kept: Final[OrderedDict[tuple[int, str, str, bool], Store]] = OrderedDict()
"""The stores that were written to last, by process and address."""


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


def open_kept(address: Address) -> Store:
    """Open a store to write to it, with all that this process has read of it before.

    Spark plans all writes in one process and commits them in another: a micro-batch goes on from
    where the one before has ended, and opens no connection and reads no log from its checkpoint on.
    """
    options = json.dumps(dict(address.options), sort_keys=True, default=repr)
    key = os.getpid(), address.url, options, address.unsafe_single_writer
    kept = _kept.pop(key, None)
    store = kept if kept is not None and _is_there(kept) else open_at(address)
    store.storage.will_write()
    if store.storage.kind() != "store":
        return store  # it may be useless later: a standby is promoted, replicas lose records
    _kept[key] = store
    while len(_kept) > _MOST_KEPT:
        _kept.popitem(last=False)
    return store


def _is_there(store: Store) -> bool:
    """False if the store is gone, or was replaced by another one: its logs are not known then."""
    try:
        data = store.storage.get(names.STORE_FILE)
        found = StoreFile.decode(data, f"{store.url}/{names.STORE_FILE}")
    except TxnlogError:
        return False  # opening it again tells what is wrong
    return found.store_id == store.store_id


def store_options(
    store: Store, storage_options: Mapping[str, object] | None = None
) -> dict[str, str]:
    """The options with which ``format("txnlog")`` opens a store that is open here.

    ``storage_options`` override, or add to, those that it was opened with. Raises InvalidOption: an
    option is not plain data, or the URL has a password in it.
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
