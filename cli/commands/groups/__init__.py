"""``txnlog groups``: consumer groups, their offsets, their lag and their history."""

from __future__ import annotations

from txnlog.cli.commands.groups import delete, delete_offsets, describe, log, ls, seek
from txnlog.cli.verbs import verb_group

app = verb_group(
    "Consumer groups: how far they have read.",
    {
        "ls": ls.list_groups,
        "describe": describe.describe_group,
        "log": log.show_log,
        "seek": seek.seek_group,
        "delete": delete.delete_groups,
        "delete-offsets": delete_offsets.delete_offsets,
    },
)
