"""A store's files as Hadoop finds them from Spark's JVM, and whether it does.

Hadoop's connectors have settings of their own, and retry for minutes what cannot be reached. So
they are given a few seconds, once in a session. Knows paths, and nothing of columns and rows.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from threading import Lock
from typing import TYPE_CHECKING, Any

from txnlog.time_limits import NoAnswer, run_within

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from txnlog.read.plan import SegmentRange
    from txnlog.storage.base import Storage

_logger = logging.getLogger(__name__)

ANSWER_S = 5
"""For how long a read waits to learn whether it can be native."""
_INSISTENT_ANSWER_S = 60
"""For how long one waits that must be native."""
_SCHEMES = {"s3": "s3a"}
"""Hadoop's names of filesystems, if they differ from fsspec's."""
_NOT_AGAIN = "it does not answer, and is not waited for again in this session"
_MOST_REMEMBERED = 256


@dataclass(frozen=True, slots=True)
class HadoopRoot:
    """``root`` is the store's URL in Hadoop's form; or it is None, and ``why`` says the reason."""

    root: str | None
    why: str = ""


def find_root(
    spark: SparkSession, storage: Storage, first: SegmentRange | None, *, must: bool = False
) -> HadoopRoot:
    """Where the JVM finds a store's files, if it finds the first of them with the right size.

    A filesystem that has not answered in time is not asked again in the session, unless the call
    that was left behind succeeds after all, or ``must``: then there is more time, too.
    """
    root = hadoop_root(storage)
    if root is None:
        return HadoopRoot(None, f"Hadoop has no filesystem for {storage.url}")
    if first is None:
        return HadoopRoot(root)
    if getattr(spark, "_jsc", None) is None:
        return HadoopRoot(None, "a session of Spark Connect has no JVM here")
    try:
        size = _size(spark, root, f"{root}/{first.paths.log}", must=must)
    except NoAnswer as error:
        return HadoopRoot(None, f"Spark's JVM does not reach {root}: {error}")
    except Exception as error:  # noqa: BLE001 - py4j's, of whatever Hadoop's connectors raise
        return HadoopRoot(None, f"Spark's JVM does not reach {root}: {_reason(error)}")
    if size != first.segment.stored.size_bytes:
        return HadoopRoot(
            None, f"Spark's JVM finds another {root}/{first.paths.log}, of {size} bytes"
        )
    return HadoopRoot(root)


def hadoop_root(storage: Storage) -> str | None:
    """The URL by which Hadoop finds the store's files, if it can; None if it certainly cannot.

    Not escaped: Hadoop's paths are taken as they are, '%', '#' and '?' too.
    """
    local = storage.local_path("")
    if local is not None:
        return f"file:{local}"
    scheme, found, rest = storage.url.partition("://")
    if not found or scheme == "memory":
        return None
    return f"{_SCHEMES.get(scheme, scheme)}://{rest}".rstrip("/")


def _size(spark: SparkSession, root: str, file: str, *, must: bool) -> int:
    within: Any = spark.sparkContext
    jvm, settings = within._jvm, within._jsc.hadoopConfiguration()  # noqa: SLF001 - no other way

    def ask() -> int:
        path = jvm.org.apache.hadoop.fs.Path(file)
        files = path.getFileSystem(settings)
        size: int = files.getFileStatus(path).getLen()
        return size

    if root.startswith("file:"):
        return ask()
    scheme, _, rest = root.partition("://")
    place = f"{scheme}://{rest.partition('/')[0]}"
    key = spark.sparkContext.applicationId or "", place
    if must:
        return _ask_within(_INSISTENT_ANSWER_S, key, ask)
    if key in _silent:
        raise NoAnswer(_NOT_AGAIN)
    return _ask_within(ANSWER_S, key, ask)


_silent: dict[tuple[str, str], None] = {}
"""The filesystems that have not answered in time, by application and URL; the oldest first."""
_said: dict[tuple[str, str], None] = {}
"""What was said in an application about native reads."""
_LOCK = Lock()


def _ask_within(timeout_s: float, key: tuple[str, str], ask: Callable[[], int]) -> int:
    """What ``ask`` returns or raises. Raises NoAnswer if it takes too long."""

    def ask_and_note() -> int:
        answer = ask()
        with _LOCK:
            _silent.pop(key, None)
        return answer

    try:
        return run_within(ask_and_note, timeout_s)
    except NoAnswer as error:
        with _LOCK:
            _remember(_silent, key)
        raise NoAnswer(_NOT_AGAIN) from error


def _remember(those: dict[tuple[str, str], None], key: tuple[str, str]) -> None:
    those[key] = None
    for oldest in list(those)[:-_MOST_REMEMBERED]:
        del those[oldest]


def say_how(spark: SparkSession, what: str, why: str) -> None:
    """One line about how records are read: a warning for each reason, once in a session.

    Where Spark reads the files itself, and ``why`` is "", it is for those who listen.
    """
    if not why:
        _logger.info("%s: read by Spark itself", what)
        return
    context = getattr(spark, "_sc", None)
    key = (getattr(context, "applicationId", None) or "", why)
    with _LOCK:
        is_new = key not in _said
        _remember(_said, key)
    level = logging.WARNING if is_new else logging.INFO
    _logger.log(
        level, "%s: read by the data source, which is slower than Spark itself: %s", what, why
    )


def _reason(error: Exception) -> str:
    """The first line of what Java, or py4j, says."""
    java = getattr(error, "java_exception", None)
    try:
        text = str(error if java is None else java.toString())
    except Exception:  # noqa: BLE001 - the JVM is gone
        text = type(error).__name__
    return text.strip().partition("\n")[0]
