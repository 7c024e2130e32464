"""``txnlog catalog``: topics as the tables of a catalog."""

from __future__ import annotations

from txnlog.cli.commands.catalog import serve
from txnlog.cli.verbs import verb_group

app = verb_group(
    "Catalog: topics as tables of an Iceberg REST catalog.", {"serve": serve.serve_catalog}
)
