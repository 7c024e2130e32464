"""``txnlog groups``: consumer groups, their offsets, lag, members and history."""

from __future__ import annotations

from txnlog.cli.commands.groups import (
    delete,
    delete_offsets,
    describe,
    log,
    ls,
    remove_members,
    seek,
    translate,
)
from txnlog.cli.verbs import verb_group

app = verb_group(
    "Consumer groups: how far they have read, who shares the work.",
    {
        "ls": ls.list_groups,
        "describe": describe.describe_group,
        "log": log.show_log,
        "seek": seek.seek_group,
        "translate": translate.translate_group,
        "remove-members": remove_members.remove_members,
        "delete": delete.delete_groups,
        "delete-offsets": delete_offsets.delete_offsets,
    },
)
