"""Publishing topics whose ``table.publish`` says where.

Whoever may alter a topic decides where its table lies, and the process that publishes has the
credentials: so that process says at which places it does.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING

from txnlog.config import TopicConfig
from txnlog.errors import InvalidOption, require_package
from txnlog.log.open_logs import Logs

if TYPE_CHECKING:
    from txnlog.tables.publication import TablePublication

_DELTA, _ICEBERG = "delta", "iceberg"

_logger = logging.getLogger(__name__)


def check_places(publish: str | Sequence[str]) -> tuple[str, ...]:
    """The places at which a process publishes: how ``table.publish`` begins. Raises InvalidOption.

    A place ends where a part of the setting does, so "delta:/data" is not the beginning of
    "delta:/database".
    """
    places = (publish,) if isinstance(publish, str) else tuple(publish)
    for place in places:
        if not isinstance(place, str) or place.partition(":")[0] not in (_DELTA, _ICEBERG):
            raise InvalidOption(
                f"publish is {place!r:.100}, but a place begins with 'delta:' or 'iceberg:', as "
                "table.publish of a topic does"
            )
    return places


def publish_as_set(
    logs: Logs, topic: str, places: Sequence[str], *, dry_run: bool = False
) -> TablePublication | None:
    """Publish a topic as its ``table.publish`` says; None if it says nothing, or no place is given.

    Raises what ``publish_delta`` and ``publish_iceberg`` do, and InvalidOption: the table lies at
    none of the places.
    """
    table = TopicConfig.of(logs.topic_spec(topic).config).table_publish
    if not table:
        return None
    if not places:
        _logger.warning(
            "topic %r is not published to %s: no place is given where this process may do so "
            "(publish=, --publish)",
            topic,
            table,
        )
        return None
    if not table_here(logs, topic, places):
        raise InvalidOption(
            f"topic {topic!r} has table.publish={table}, which is at none of the places where this "
            f"process may publish: {', '.join(places)}"
        )
    kind, _, place = table.partition(":")
    if kind == _DELTA:
        require_package("deltalake", "delta", f"table.publish of topic {topic!r}")
        from txnlog.tables.delta import publish_delta

        return publish_delta(logs, topic, place, None, dry_run=dry_run)
    require_package("pyiceberg", "iceberg", f"table.publish of topic {topic!r}")
    from txnlog.tables.iceberg import named_catalog, publish_iceberg

    name, _, identifier = place.partition("/")
    return publish_iceberg(logs, topic, named_catalog(name), identifier, None, dry_run=dry_run)


def table_here(logs: Logs, topic: str, places: Sequence[str]) -> str:
    """The topic's ``table.publish``; "" if it says nothing, or is at none of the places."""
    table = TopicConfig.of(logs.topic_spec(topic).config).table_publish
    return table if any(_lies_in(table, place) for place in places) else ""


def _lies_in(table: str, place: str) -> bool:
    ends = ":" if ":" not in place else "/." if place.startswith(_ICEBERG) else "/"
    following = table[len(place) :]
    is_whole = not following or place[-1] in "/:" or following[0] in ends
    return table.startswith(place) and is_whole
