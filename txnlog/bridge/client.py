"""Kafka's client: its settings, and its errors as our own. Only here it is imported."""

from __future__ import annotations

import logging
import math
import re
import time
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from types import ModuleType
from typing import Any, Final

from txnlog.config import LARGEST_RECORD_BYTES
from txnlog.errors import BridgeFailed, InvalidOption, how_to_install

_REPEATED_S: Final = 60.0
SCHEME: Final = "kafka://"
_SERVERS = re.compile(r"[A-Za-z0-9_.:\[\]-]+(,[A-Za-z0-9_.:\[\]-]+)*")
_OURS: Final = frozenset(
    {
        "acks",
        "auto.offset.reset",
        "bootstrap.servers",
        "enable.auto.commit",
        "enable.auto.offset.store",
        "enable.gapless.guarantee",
        "enable.idempotence",
        "enable.partition.eof",
        "group.id",
        "group.instance.id",
        "isolation.level",
        "metadata.broker.list",
        "partitioner",
        "plugin.library.paths",
        "transaction.timeout.ms",
        "transactional.id",
    }
)
"""What each record once rests on; and the libraries that a setting would load."""
END: Final = "_PARTITION_EOF"
"""The name of the event that a partition has been read up to its end."""
NO_OFFSET: Final = "_AUTO_OFFSET_RESET"
"""Of the error that there is no record at a position, nor will there be."""
TIMED_OUT: Final = "_TIMED_OUT"
"""Of the error that a call has not ended in the time that it was given."""
FAILED: Final = "_STATE"
"""Of the error that a transaction takes no records: what failed in it was told of before."""
TOO_LARGE: Final = "MSG_SIZE_TOO_LARGE"
REFUSED: Final = frozenset({"INVALID_RECORD", "INVALID_TIMESTAMP", TOO_LARGE, "POLICY_VIOLATION"})
"""Of the errors that come again whenever the record is sent."""
FENCED: Final = frozenset({"_FENCED", "PRODUCER_FENCED", "INVALID_PRODUCER_EPOCH"})
_LOST: Final = frozenset({"_TRANSPORT", "_ALL_BROKERS_DOWN", TIMED_OUT, "REQUEST_TIMED_OUT"})
WAIT_S: Final = 30.0
"""How long an answer of Kafka's is waited for."""
_GATHERING_S: Final = 0.02
"""How long more is waited for once something has come, so that few records are not few each."""
_MESSAGE_BYTES: Final = 8 * LARGEST_RECORD_BYTES
"""More than the largest record that a store has: in JSON bytes take up to six times as many.

Whether it takes a record is for Kafka to say, whose limit may be raised while a bridge runs.
"""
BATCH_BYTES: Final = 4096
"""More than Kafka adds to a record that is sent alone."""
_QUEUE_BYTES: Final = 16 << 20
"""How much waits to be sent. A commit waits for all of it: 1 GB by librdkafka's own default."""
_FETCH_WAIT_MS: Final = 100
"""How long a broker waits before it tells that a partition has ended: 500 by its own default."""


class _Seldom(logging.Filter):
    """Of what librdkafka repeats, such as each attempt to reach a server, one a minute."""

    def __init__(self) -> None:
        super().__init__()
        self._said: dict[str, float] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        kind = record.getMessage().partition(" ")[0]  # FAIL, for example
        now_s = time.monotonic()
        if now_s - self._said.get(kind, -math.inf) < _REPEATED_S:
            return False
        self._said[kind] = now_s
        return True


_client_logger = logging.getLogger(f"{__name__}.librdkafka")
_client_logger.addFilter(_Seldom())


def load() -> ModuleType:
    """The client. Raises InvalidOption if it is not installed."""
    try:
        import confluent_kafka
    except ImportError as error:
        raise InvalidOption(f"a bridge needs confluent-kafka: {how_to_install('kafka')}") from error
    return confluent_kafka


def _parse_servers(url: str) -> str:
    """``broker:9092,other:9092`` of a URL, or as it is. Raises InvalidOption."""
    servers = url.removeprefix(SCHEME).rstrip("/")
    if not _SERVERS.fullmatch(servers):
        shown = "what has an @" if "@" in url else repr(url)
        raise InvalidOption(
            f"{shown} does not name Kafka's servers: give {SCHEME}HOST:PORT, or several with "
            "commas; user names and passwords are options of the client (sasl.username, ...)"
        )
    return servers


class Cluster:
    """How a Kafka cluster is reached.

    The URL is ``broker:9092``, or several with commas; ``kafka://`` may stand before. The options
    are librdkafka's, and in no message. Raises InvalidOption: the servers or an option is not
    valid, or the client is not installed.
    """

    def __init__(self, url: str, options: Mapping[str, str] | None = None) -> None:
        load()
        self.servers = _parse_servers(url)
        self._options = {**(options or {})}
        if wrong := sorted(_OURS & self._options.keys()):
            raise InvalidOption(f"option {wrong[0]!r} of Kafka's client is decided by the bridge")

    def check_answers(self) -> None:
        """Raise BridgeFailed unless the cluster can be reached: a mistake is told at once."""
        with reported(f"Kafka at {self.servers}"):
            self.admin().list_topics(timeout=WAIT_S)

    def config(self, **own: str | bool | float) -> dict[str, str | bool | float]:
        """The settings of a client; ``own`` has underscores in the place of dots."""
        ours = {name.replace("_", "."): value for name, value in own.items()}
        return {**self._options, "bootstrap.servers": self.servers, **ours}

    def consumer(self, group_id: str) -> Any:  # noqa: ANN401 - confluent_kafka.Consumer
        """A consumer that joins no group and commits nothing. Raises InvalidOption, BridgeFailed.

        ``group_id`` is what the cluster's quotas know it by.
        """
        config = self.config(
            group_id=group_id,
            enable_auto_commit=False,
            enable_auto_offset_store=False,
            enable_partition_eof=True,
            auto_offset_reset="error",
            isolation_level="read_committed",
        )
        config.setdefault("fetch.wait.max.ms", _FETCH_WAIT_MS)
        with reported("Kafka's client"):
            return load().Consumer(config, logger=_client_logger)

    def producer(self, transactional_id: str, timeout_ms: int, largest_bytes: int = 0) -> Any:  # noqa: ANN401 - confluent_kafka.Producer
        """A producer with transactions. Raises InvalidOption, BridgeFailed.

        So much can wait to be sent that records of ``largest_bytes`` fit.
        """
        config = self.config(
            transactional_id=transactional_id,
            transaction_timeout_ms=timeout_ms,
            enable_idempotence=True,
            acks="all",
        )
        config.setdefault("message.max.bytes", _MESSAGE_BYTES)
        queue_bytes = max(_QUEUE_BYTES, 2 * (largest_bytes + BATCH_BYTES))
        config.setdefault("queue.buffering.max.kbytes", queue_bytes >> 10)
        config.setdefault("delivery.report.only.error", True)
        with reported("Kafka's client"):
            return load().Producer(config, logger=_client_logger)

    def admin(self) -> Any:  # noqa: ANN401 - confluent_kafka.admin.AdminClient
        """A client for topics. Raises InvalidOption, BridgeFailed."""
        load()
        from confluent_kafka.admin import AdminClient

        with reported("Kafka's client"):
            return AdminClient(self.config(), logger=_client_logger)


def take(consumer: Any, most: int, wait_s: float) -> list[Any]:  # noqa: ANN401 - confluent_kafka.Consumer
    """Up to ``most`` messages and events, in order; waits ``wait_s`` seconds for the first one.

    Those that follow soon are taken too. A single call of the client would wait for ``most``.
    """
    first: list[Any] = consumer.consume(1, wait_s)
    return first + consumer.consume(most, _GATHERING_S) if first else first


@contextmanager
def reported(doing: str) -> Generator[None]:
    """Kafka's errors as BridgeFailed."""
    kafka = load()
    try:
        yield
    except kafka.KafkaException as error:
        raise failure(doing, error.args[0]) from error
    except TimeoutError as error:  # of a future
        raise passing(f"{doing}: Kafka has not answered in {WAIT_S:.0f} s") from error
    except (ValueError, TypeError) as error:  # of a setting, before anything is asked
        raise InvalidOption(f"{doing}: {error}") from error


def passing(message: str) -> BridgeFailed:
    """An error that may be gone with the next attempt."""
    found = BridgeFailed(message)
    found.retriable = True
    return found


def failure(doing: str, error: Any) -> BridgeFailed:  # noqa: ANN401 - confluent_kafka.KafkaError
    """The BridgeFailed for an error of Kafka's client; ``retriable`` if trying again may help."""
    if not isinstance(error, load().KafkaError):
        return BridgeFailed(f"{doing}: {error}")
    if error.name() in FENCED:
        return BridgeFailed(
            f"{doing}: a newer instance of this bridge has taken over, or this one stood still for "
            "longer than its transaction may take; run it once at a time"
        )
    found = BridgeFailed(f"{doing}: Kafka says: {error.str()}")
    found.retriable = error.retriable() or error.txn_requires_abort() or error.name() in _LOST
    return found
