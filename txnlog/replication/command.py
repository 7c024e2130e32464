"""The group ``replicas`` of the command, for its help: the verbs are imported when one is used."""

from __future__ import annotations

GROUPS = {"replicas": "Replicas: who leads, who is in sync, what differs; standbys."}
"""The help of each group."""
VERBS = {"replicas": "txnlog.replication.commands"}
"""The package of each group's verbs."""
