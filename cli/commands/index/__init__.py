"""``txnlog index``: the offset and time indexes beside segments."""

from __future__ import annotations

from txnlog.cli.commands.index import dump, rebuild, verify
from txnlog.cli.verbs import verb_group

app = verb_group(
    "Indexes: what finds offsets and times in segments.",
    {
        "dump": dump.dump_indexes,
        "verify": verify.verify_indexes,
        "rebuild": rebuild.rebuild_indexes,
    },
)
