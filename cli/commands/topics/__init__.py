"""``txnlog topics``: what topics hold and how they are set."""

from __future__ import annotations

from txnlog.cli.commands.topics import (
    add_partitions,
    alter,
    compact,
    config,
    create,
    delete,
    describe,
    ls,
    merge,
    purge,
    trim,
)
from txnlog.cli.verbs import verb_group

app = verb_group(
    {
        "ls": ls.list_topics,
        "describe": describe.describe_topics,
        "create": create.create_topic,
        "alter": alter.alter_topic,
        "add-partitions": add_partitions.add_partitions,
        "delete": delete.delete_topic,
        "trim": trim.trim_records,
        "compact": compact.compact_topic,
        "merge": merge.merge_segments,
        "purge": purge.purge_keys,
    },
)
app.add_typer(config.app, name="config")
