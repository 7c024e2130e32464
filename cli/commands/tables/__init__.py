"""``txnlog tables``: topics as tables of a lakehouse."""

from __future__ import annotations

from txnlog.cli.commands.tables import publish
from txnlog.cli.verbs import verb_group

app = verb_group("Tables: topics as Delta and Iceberg tables.", {"publish": publish.publish_table})
