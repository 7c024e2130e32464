"""Options of Kafka's client, which have no use here: there is no broker."""

from __future__ import annotations

import logging
import re
from collections.abc import Collection

_logger = logging.getLogger(__name__)

IGNORE_KAFKA_CLIENT_OPTIONS = "ignoreKafkaClientOptions"
"""With it a read or write ignores the options below, with one warning."""

_CONNECTION = re.compile(
    r"""kafka\.(
        bootstrap\.servers | (security|sasl|ssl|socket)\..+ | send\.buffer\.bytes
        | receive\.buffer\.bytes | client\.(id|rack|dns\.lookup) | reconnect\..+ | retr(ies|y\..+)
        | connections\..+ | metadata\..+ | metrics?\..+ | auto\.include\.jmx\.reporter
        | enable\.metrics\.push
        # how a consumer fetches
        | fetch\..+ | max\.partition\.fetch\.bytes | max\.poll\..+ | check\.crcs
        | (request|default\.api|session)\.timeout\.ms | heartbeat\.interval\.ms
        | group\.instance\.id | partition\.assignment\.strategy | allow\.auto\.create\.topics
        | exclude\.internal\.topics
        # how a producer sends: here every write is idempotent, and synced before it is placed
        | batch\.size | linger\.ms | buffer\.memory | max\.(block\.ms|request\.size)
        | max\.in\.flight\.requests\.per\.connection | delivery\.timeout\.ms | acks
        | enable\.idempotence
    )""",
    re.VERBOSE,
)
"""How Kafka's client connects, fetches and sends. Options that affect which records are read or
written are not among them: ``kafka.partitioner.class``, ``kafka.interceptor.classes``.
"""

_OF_SPARK = {
    name.lower(): name
    for name in (
        "groupIdPrefix",
        "kafkaConsumer.pollTimeoutMs",
        "fetchOffset.numRetries",
        "fetchOffset.retryIntervalMs",
    )
}
"""The options of Spark's Kafka source itself for its client."""


def is_client_option(name: str) -> bool:
    """True of a name, in lower case, that only tells Kafka's client how to do its work."""
    return name in _OF_SPARK or _CONNECTION.fullmatch(name) is not None


def display_name(name: str) -> str:
    """An option in the spelling of Kafka's or Spark's documentation."""
    return _OF_SPARK.get(name, name)


def refusal(names: Collection[str], accepted: str) -> str:
    """The message about given client options; never their values, which may be secrets."""
    listed = ", ".join(sorted(names))
    options, these, them = (
        ("options", "these are", "them") if len(names) > 1 else ("option", "this is", "it")
    )
    there = (
        "there is no broker to connect to, only the store that path names, as in "
        '.option("path", "s3://bucket/store"); '
        if "kafka.bootstrap.servers" in names
        else ""
    )
    return (
        f"{options} {listed}: {there}{these} for Kafka's client, which is not used here; remove "
        f"{them}, or ignore {them} with {IGNORE_KAFKA_CLIENT_OPTIONS}=true. Of the kafka.* options "
        f"only these are used: {accepted}"
    )


def warn_passed_over(names: Collection[str]) -> None:
    """The single warning of a read or write that ignores options for Kafka's client."""
    if names:
        _logger.warning(
            "%s: ignored, because there is no Kafka client here: %s",
            IGNORE_KAFKA_CLIENT_OPTIONS,
            ", ".join(names),
        )
