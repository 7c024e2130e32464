"""``txnlog records``: what is in a topic, and what is put into it."""

from __future__ import annotations

from txnlog.cli.commands.records import changes, count, ends, read, write
from txnlog.cli.verbs import verb_group

app = verb_group(
    {
        "read": read.read_records,
        "changes": changes.show_changes,
        "count": count.count_records,
        "head": ends.head_records,
        "tail": ends.tail_records,
        "write": write.write_records,
    },
)
