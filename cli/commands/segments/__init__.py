"""``txnlog segments``: the files that hold the records, and what is in them."""

from __future__ import annotations

from txnlog.cli.commands.segments import du, dump, ls, verify
from txnlog.cli.verbs import verb_group

app = verb_group(
    "Segments: the files that hold the records.",
    {
        "ls": ls.list_segments,
        "dump": dump.dump_segments,
        "verify": verify.verify_segments,
        "du": du.show_usage,
    },
)
