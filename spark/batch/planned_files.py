"""Parquet files as a relation of Spark's that reads them in a given order, and lists nothing.

Spark sorts what it is to read by length, the longest first, cuts it by what the cluster has, and
fills one task after the other. What is equally long stays in the order of the listing. So the
listing is made here, of what the log knows, and the lengths in it are chosen: none is less than
the file's own, and each says how many such files fill a task. Where a file really ends Spark learns
from the filesystem, when it opens it.

A file's number in the order is its time of modification, which Spark hands to expressions.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from threading import Lock
from typing import TYPE_CHECKING, Any, TypeAlias

from pyspark.sql import DataFrame
from pyspark.sql.types import LongType, StructField, StructType

from txnlog.names import STORE_FILE
from txnlog.segments.parquet.compact_values import varint

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from txnlog.read.plan import SegmentRange

_Java: TypeAlias = Any
"""What py4j hands out of the JVM."""

FILE_NUMBER = (
    "IF(unix_millis({metadata}.file_modification_time) < 2147483648, "
    "CAST(unix_millis({metadata}.file_modification_time) AS INT), CAST(raise_error("
    "'this frame of a topic was refreshed, which it cannot be: read the topic again') AS INT))"
)
"""The number of a row's file among those of its relation, as SQL.

The file that a refresh finds has none. Spark asks for it before it opens a file, to leave some out.
"""

_ROOMS = (18, 19, 20, 22, 24, 28)
"""Sixteenths of its share that a task may have room for."""
_MAX_BYTES, _OPEN_BYTES, _LEAST_TASKS, _MOST_TASKS = (
    f"spark.sql.files.{name}"
    for name in ("maxPartitionBytes", "openCostInBytes", "minPartitionNum", "maxPartitionNum")
)
_FACTOR = "spark.sql.sources.fileCompressionFactor"


@dataclass(frozen=True, slots=True)
class Files:
    """Files by their paths within a store, with the lengths that Spark is told.

    These lengths fill a task at ``task_bytes``. The files' true size is ``size_bytes`` in all.
    """

    names: Sequence[str]
    lengths: Sequence[int]
    task_bytes: int
    size_bytes: int


@dataclass(frozen=True, slots=True)
class Planner:
    """What decides how much a task reads: the same settings as in Spark's own reads.

    At most ``max_bytes``, to which a file adds ``open_bytes`` to its own; ``tasks`` that there
    should be at least. If that makes more than about ``most_tasks``, a task reads more instead.
    """

    max_bytes: int
    open_bytes: int
    tasks: int
    most_tasks: int | None = None

    def plan(self, parts: Sequence[SegmentRange]) -> tuple[list[SegmentRange], Files]:
        """The ranges' files in the order to read them, and what Spark is told of them.

        ``parts`` have each partition's ranges in order, and so has the result. A file that is
        larger than a task is cut. Of smaller ones a task takes as many as it could take if all were
        of this size. These numbers must rise in the order, because lengths fall; so small files in
        front of a large one of their partition come in tasks with as few files as that one's.

        Tasks have some room to spare, because one of two halves often is a little too large; and
        more, if they would take turns otherwise that Spark's own do not: a third beside two cores.
        """
        total = sum(part.segment.stored.size_bytes + self.open_bytes for part in parts)
        wanted = max(min(self.max_bytes, max(self.open_bytes, -(-total // self.tasks))), 1)
        if self.most_tasks is not None:
            wanted = max(wanted, -(-total // self.most_tasks))
        turns = -(-total // (wanted * self.tasks))
        most_tasks = (turns + turns // 4) * self.tasks
        rooms = (wanted * sixteenths // 16 for sixteenths in _ROOMS)
        plans = ((_count_tasks(plan[1]), plan) for plan in (self._fill(parts, r) for r in rooms))
        fewest, best = next(plans)
        while fewest > most_tasks and (another := next(plans, None)):
            if another[0] < fewest:
                fewest, best = another
        return best

    def _fill(self, parts: Sequence[SegmentRange], room: int) -> tuple[list[SegmentRange], Files]:
        """The plan for tasks with so much room."""
        sizes = [part.segment.stored.size_bytes for part in parts]
        counts: list[int] = []
        least: dict[tuple[str, int], int] = {}
        for part, size in zip(reversed(parts), reversed(sizes), strict=True):
            where = part.topic, part.partition
            fitting = max((room + self.open_bytes) // max(size + self.open_bytes, 1), 1)
            least[where] = min(_rounded(fitting), least.get(where, room))
            counts.append(least[where])
        counts.reverse()
        order = sorted(range(len(parts)), key=counts.__getitem__)
        lengths = [
            -(-sizes[i] // room) * room if counts[i] == 1 else room // counts[i] for i in order
        ]
        found = [parts[i] for i in order]
        return found, Files([part.paths.log for part in found], lengths, room, sum(sizes))


def _count_tasks(files: Files) -> int:
    """How many tasks Spark makes of files: it fills one after the other."""
    count, held = 0, files.task_bytes
    for length in files.lengths:
        left = length
        while left > files.task_bytes:  # cut
            count, held, left = count + 1, files.task_bytes, left - files.task_bytes
        if held + left > files.task_bytes:
            count, held = count + 1, 0
        held += left
    return count


def _rounded(count: int) -> int:
    """At most ``count``, and one of few numbers: files of about one size stay together."""
    unit = 1 << max(count.bit_length() - 2, 0)
    return count // unit * unit


def planner(spark: SparkSession) -> Planner:
    """The settings of a session as they are now."""
    session: _Java = spark._jsparkSession  # noqa: SLF001 - no other way
    conf = session.sessionState().conf()
    least = spark.conf.get(_LEAST_TASKS, None)
    tasks = session.leafNodeDefaultParallelism() if least is None else int(least)
    most = spark.conf.get(_MOST_TASKS, None)
    return Planner(
        conf.filesMaxPartitionBytes(),
        conf.filesOpenCostInBytes(),
        max(tasks, 1),
        None if most is None else int(most),
    )


def read_in_order(
    spark: SparkSession,
    root: str,
    files: Files,
    schema: StructType,
    options: Mapping[str, str],
    settings: Mapping[str, str],
) -> DataFrame:
    """The rows of files, as :meth:`Planner.plan` returns them, in their order, task after task.

    ``root`` is the store's, in Hadoop's form. ``schema`` has the columns by the files' names for
    them. ``options`` are those of Spark's Parquet source; ``settings`` override the session's.
    """
    session: _Java = spark._jsparkSession  # noqa: SLF001 - no other way
    jvm = JavaClasses(spark)
    convert, none = jvm("org.apache.spark.api.python.PythonUtils"), jvm("scala.Option").empty()
    # A relation is cut into tasks by the settings of its session: the user's, in all else.
    planning = session.cloneSession()
    conf = planning.conf()
    own = float(conf.get(_FACTOR))
    for name, value in (
        (_MAX_BYTES, files.task_bytes),
        (_OPEN_BYTES, 0),
        (_LEAST_TASKS, 1),
        # What a plan is told of the relation: by the lengths alone it would be broadcast to none.
        (_FACTOR, own * max(files.size_bytes, 1) / max(sum(files.lengths), 1)),
    ):
        conf.set(name, str(value))
    for name, text in settings.items():
        conf.set(name, text)
    conf.unset(_MOST_TASKS)  # with it Spark would cut files by another size than the plan's
    listing = b"".join(
        _file_status(f"{root}/{name}", length, number)
        for number, (name, length) in enumerate(zip(files.names, files.lengths, strict=True))
    )
    # No folder that there is, but a name for these files: to Spark relations are the same, and one
    # is read in the other's place, if their folders are.
    folder = jvm("org.apache.hadoop.fs.Path")(f"{root}/files-{sha256(listing).hexdigest()[:32]}")
    known = jvm(f"{_SOURCES}.SharedInMemoryCache")(_UNBOUNDED, -1).createForNewClient()
    known.putLeafFiles(folder, _file_statuses(jvm, len(files.names), listing))
    # A refresh lists both. The first is not there, so that it would find no rows and say nothing;
    # now it finds a file that is no Parquet and has no number, with which every read fails.
    other = jvm("org.apache.hadoop.fs.Path")(f"{root}/{STORE_FILE}")
    known.putLeafFiles(other, jvm.gateway.new_array(jvm(_FILE_STATUS), 0))
    to_map = convert.toScalaMap
    relation = jvm(f"{_SOURCES}.HadoopFsRelation")(
        jvm(f"{_SOURCES}.InMemoryFileIndex")(
            planning,
            convert.toSeq([folder, other]),
            to_map({"recursiveFileLookup": "true"}),
            none,
            known,
            none,
            none,
        ),
        session.parseDataType(StructType([]).json()),
        session.parseDataType(schema.json()),
        none,
        jvm(f"{_SOURCES}.parquet.ParquetFileFormat")(),
        to_map(options),
        planning,
    )
    return DataFrame(session.baseRelationToDataFrame(relation), spark)


class JavaClasses:
    """Classes of the JVM by their names, without a call for each package on the way."""

    def __init__(self, spark: SparkSession) -> None:
        from py4j.java_gateway import JavaClass

        self._class = JavaClass
        self.gateway: _Java = spark.sparkContext._gateway  # noqa: SLF001 - no other way

    def __call__(self, name: str) -> _Java:
        return self._class(name, self.gateway._gateway_client)  # noqa: SLF001 - the same


_SOURCES = "org.apache.spark.sql.execution.datasources"
_FILE_STATUS = "org.apache.hadoop.fs.FileStatus"
_UNBOUNDED = 1 << 40


# -- whether this Spark does what is said above ----------------------------------------------------

_answers: dict[str, str] = {}
_LOCK = Lock()


def why_not(spark: SparkSession) -> str:
    """Why files cannot be read in order by this Spark; "" if they can; asked once.

    All of this is Spark's inside, which others who build it may have changed.
    """
    key = spark.sparkContext.applicationId or ""
    with _LOCK:
        if key not in _answers:
            _answers[key] = _try(spark)
        return _answers[key]


def _try(spark: SparkSession) -> str:
    # Three that fill tasks alone, of which one is cut, and those that share them.
    files = Files([*"gacbfed"], [100, 200, 100, 50, 50, 50, 33], 100, 583)
    try:
        schema = StructType([StructField("n", LongType())])
        frame: _Java = read_in_order(spark, "file:/txnlog", files, schema, {}, {})
        scan = frame._jdf.queryExecution().executedPlan().collectLeaves().head()  # noqa: SLF001
        tasks = [
            "".join(str(file.toPath().getName()) for file in task.files())
            for task in scan.inputRDD().partitions()
        ]
    except Exception as error:  # noqa: BLE001 - py4j's, of whatever this Spark has instead
        text = str(error).strip().partition("\n")[0]
        return f"it is another Spark inside than those that txnlog knows ({text})"
    if tasks != ["g", "a", "a", "c", "bf", "ed"]:
        return f"it puts files into tasks in another way than txnlog knows ({', '.join(tasks)})"
    return ""


# -- Hadoop's FileStatus, many of them by one call -------------------------------------------------


def _file_statuses(jvm: JavaClasses, count: int, listing: bytes) -> _Java:
    """An array of Hadoop's, of what :func:`_file_status` returns one after the other."""
    found = jvm("org.apache.hadoop.io.ArrayWritable")(jvm("java.lang.Class").forName(_FILE_STATUS))
    data = struct.pack(">i", count) + listing
    stream = jvm("java.io.ByteArrayInputStream")(data)
    found.readFields(jvm("java.io.DataInputStream")(stream))
    array = jvm.gateway.new_array(jvm(_FILE_STATUS), count)
    jvm("java.lang.System").arraycopy(found.get(), 0, array, 0, count)
    return array


def _file_status(path: str, length: int, modified_ms: int) -> bytes:
    """A FileStatus as Hadoop's Writable: a length, and the message FileStatusProto."""
    message = b"".join(
        (
            _number(1, 2),  # a file
            _bytes(2, path.encode()),
            _number(3, length),
            _bytes(4, _number(1, 0o644)),
            _bytes(5, b""),  # owner
            _bytes(6, b""),  # group
            _number(7, modified_ms),
        )
    )
    return struct.pack(">i", len(message)) + message


def _number(field: int, value: int) -> bytes:
    return varint(field << 3) + varint(value)


def _bytes(field: int, value: bytes) -> bytes:
    return varint(field << 3 | 2) + varint(len(value)) + value
