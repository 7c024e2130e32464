"""``txnlog store``: make a store, and see what it is."""

from __future__ import annotations

from txnlog.cli.commands.store import config, create, describe
from txnlog.cli.verbs import verb_group

app = verb_group(
    "The store itself: make one, and see how it is set.",
    {
        "create": create.create_store,
        "describe": describe.describe_store,
        "config": config.show_config,
    },
)
