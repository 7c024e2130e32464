"""What may be different when a frame is computed once more, as Catalyst knows it.

Spark computes a frame for each action, and part of it again when an executor is lost. Most
expressions give the same value each time. Two kinds do not:

    by chance       a user's function that is marked so (``asNondeterministic``), and whatever else
                    Catalyst does not call deterministic
    by position     ``rand()``, ``uuid()``, ``monotonically_increasing_id()``, ...: their seeds are
                    in the plan, and each row takes the next value. They repeat as long as rows come
                    in the same order, so not behind a shuffle, which fetches as it can. So it is
                    with ``sample``; and with ``limit``, which takes rows of all tasks as they are
                    fetched, unless these are sorted or there is one task

To Catalyst a function that maps batches is always deterministic. One that is not says so in the
metadata of its columns, under ``BY_CHANCE``.

A checkpoint (``localCheckpoint()`` too) ends what must be computed again. The batch that Spark
gives to ``foreachBatch`` does not: it is an RDD of the query's plan, of which its own has nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from threading import Lock

from pyspark.sql import DataFrame
from pyspark.sql.types import StructType

from txnlog.errors import InvalidOption
from txnlog.spark.batch.catalyst import Java, analyzed_plan, kind, sequence
from txnlog.spark.batch.provenance import QUERY_ID

BY_CHANCE = "txnlog.by-chance"
"""In the metadata of what ``mapInArrow`` returns: the name of what need not repeat."""

_BY_POSITION = {
    "InputFileBlockLength",
    "InputFileBlockStart",
    "InputFileName",
    "MonotonicallyIncreasingID",
    "Rand",
    "RandStr",
    "Randn",
    "Shuffle",
    "SparkPartitionID",
    "Uniform",
    "Uuid",
}
_TAKERS = {"GlobalLimit": "limit", "Offset": "offset", "Sample": "sample", "Tail": "tail"}
"""Operators that take some of the rows by where they come, with what they are called."""
_PER_TASK = {"Sample"}
"""Those that do so in each task by itself. For others rows of all tasks are brought together."""
_KEEP_ORDER = {
    "ArrowEvalPython",
    "BatchEvalPython",
    "DataSourceV2Relation",
    "DataSourceV2ScanRelation",
    "Expand",
    "Filter",
    "Generate",
    "GlobalLimit",
    "LocalLimit",
    "LocalRelation",
    "LogicalRelation",
    "MapInArrow",
    "MapInPandas",
    "Offset",
    "OneRowRelation",
    "Project",
    "Range",
    "ResolvedHint",
    "StreamingDataSourceV2Relation",
    "StreamingDataSourceV2ScanRelation",
    "SubqueryAlias",
    "Union",
    "View",
}
"""Operators whose rows come in the same order each time, if their input does.

A sort needs no such input: rows that are equal to it, and come in another order, are not told from
each other here.
"""

_FUNCTIONS = ("PythonUDF", "PythonUDAF", "PythonUDTF", "ScalaUDF")
_OF_PLANS = {
    f"pyspark.sql.connect.{name}"
    for name in ("column", "dataframe", "expressions", "plan", "table_arg", "window")
}
"""Modules of what a client's plan is made of. Its session is not among them."""


@dataclass(frozen=True)
class Chance:
    """An expression whose values may be others in the next run. Equal where it is the same."""

    name: str
    identity: object

    def __str__(self) -> str:
        return self.name


def chances(frame: DataFrame) -> list[Chance]:
    """The expressions of a frame that need not repeat; none for nearly all frames.

    Through Spark Connect, whose client has no plan of Catalyst's, these are the Python functions of
    the frame itself that are marked so.
    """
    plan = analyzed_plan(frame)
    if plan is None:
        return _in_request(frame)
    return [*_in_plan(plan), *_in_streaming_batch(frame, plan)]


# -- in Catalyst's plan --------------------------------------------------------------------------


def _in_plan(plan: Java) -> Iterator[Chance]:
    below = [*sequence(plan.children())]
    # These have no expression that says so, and take rows by their position, too.
    what = kind(plan)
    if what in _TAKERS and not all(_repeats(child, per_task=what in _PER_TASK) for child in below):
        yield Chance(f"{_TAKERS[what]}()", plan.canonicalized())
    if what == "MapInArrow":
        marked = [c.metadata() for c in sequence(plan.output()) if c.metadata().contains(BY_CHANCE)]
        yield from (Chance(m.getString(BY_CHANCE), plan.canonicalized()) for m in marked[:1])
    if not plan.deterministic():
        for expression in sequence(plan.expressions()):
            if not expression.deterministic():
                yield from _in_expression(expression, plan)
    for child in below:
        yield from _in_plan(child)


def _in_streaming_batch(frame: DataFrame, plan: Java) -> Iterator[Chance]:
    """Chances in the plan of the running streaming query, if the frame is made from its batch."""
    context = frame.sparkSession.sparkContext
    query_id = context.getLocalProperty(QUERY_ID)
    if query_id is None or not any(map(_may_be_batch, sequence(plan.collectLeaves()))):
        return
    jvm: Java = context._jvm  # noqa: SLF001 - Python's classes do not have it
    queries = frame._jdf.sparkSession().sharedState().activeStreamingQueries()  # noqa: SLF001
    query = queries.get(jvm.java.util.UUID.fromString(query_id))
    if query is not None and query.lastExecution() is not None:
        yield from _in_plan(query.lastExecution().analyzed())


def _may_be_batch(leaf: Java) -> bool:
    """Whether a leaf may be a stream's batch, which is computed anew by each write."""
    return kind(leaf) == "LogicalRDD" and not leaf.rdd().isCheckpointed()


def _in_expression(expression: Java, plan: Java) -> Iterator[Chance]:
    """The chances that make an expression non-deterministic."""
    below = [*sequence(expression.children())]
    if kind(expression).endswith(("Subquery", "Exists")):
        yield from _in_plan(expression.plan())
    elif _is_source(expression, below) and not (
        kind(expression) in _BY_POSITION and all(map(_keeps_order, sequence(plan.children())))
    ):
        is_function = kind(expression) in _FUNCTIONS
        name = expression.name() if is_function else expression.prettyName()
        yield Chance(f"{name}()", expression.canonicalized())
    for child in below:
        if not child.deterministic():
            yield from _in_expression(child, plan)


def _is_source(expression: Java, below: list[Java]) -> bool:
    what = kind(expression)
    if what in _FUNCTIONS:
        return not expression.udfDeterministic()
    return what in _BY_POSITION or all(child.deterministic() for child in below)


def _keeps_order(plan: Java) -> bool:
    """Whether the rows of a plan come in the same order each time."""
    what = kind(plan)
    if what == "LogicalRDD":  # of a checkpoint, or whatever made the RDD
        rdd = plan.rdd()
        return bool(rdd.isCheckpointed()) or str(rdd.outputDeterministicLevel()) == "DETERMINATE"
    if what == "Sort":
        return True
    below = [*sequence(plan.children())]
    # A join with a broadcast table takes the other one's rows as they come.
    kept = what in _KEEP_ORDER or (what == "Join" and "ResolvedHint" in map(kind, below))
    return kept and all(map(_keeps_order, below))


def _repeats(plan: Java, *, per_task: bool) -> bool:
    """Whether the first rows are the same each time: those of each task, or of all."""
    return _keeps_order(plan) and (per_task or _in_one_sequence(plan))


def _in_one_sequence(plan: Java) -> bool:
    """Whether the rows of a plan, which keeps their order, are one task's, or sorted as a whole."""
    what, below = kind(plan), [*sequence(plan.children())]
    if what == "Sort":
        return bool(getattr(plan, "global")())
    if what == "LogicalRDD":
        return int(plan.rdd().getNumPartitions()) == 1
    if not below:  # of others nobody knows before they are planned
        return what in ("LocalRelation", "OneRowRelation")
    return len(below) == 1 and _in_one_sequence(below[0])


# -- in what a client of Spark Connect asks for --------------------------------------------------


def _in_request(frame: DataFrame) -> list[Chance]:
    """Chances in a Spark Connect plan, found by its Python objects: frames share the same function.

    The request that is sent would not do: there each function is pickled anew, with all that it
    refers to. With ``random.random`` that is the state of the generator.
    """
    found: list[Chance] = []
    seen: set[int] = set()
    waiting: list[object] = [frame._plan]  # noqa: SLF001 - the only way
    while waiting:
        node = waiting.pop()
        if isinstance(node, dict):
            waiting += node.values()
        elif isinstance(node, list | tuple):
            waiting += node
        elif type(node).__module__ in _OF_PLANS and id(node) not in seen:
            seen.add(id(node))
            parts = vars(node)
            waiting += parts.values()
            if parts.get("_deterministic") is False:
                function = getattr(parts["_function"], "_func", None)
                chance = Chance(f"{parts['_function_name']}()", function)
                found += [chance] if chance not in found else []
            found += _marked(parts.get("_output_type"), parts.get("_func"))
    return found


def _marked(output: object, function: object) -> list[Chance]:
    """A function that maps batches, if its columns say that it need not repeat."""
    fields = output.fields if isinstance(output, StructType) else []
    names = [field.metadata[BY_CHANCE] for field in fields if BY_CHANCE in field.metadata]
    return [Chance(name, function) for name in names[:1]]


class RepeatableWrites:
    """What the writes so far have computed by chance. They may run at once, in threads."""

    def __init__(self) -> None:
        self._mutex = Lock()
        self._chances: list[Chance] = []

    def check(self, frame: DataFrame, *, allowed: bool) -> None:
        """Raise InvalidOption if an earlier write has computed one of this frame's chances."""
        found = chances(frame)
        with self._mutex:
            again = [chance for chance in found if chance in self._chances]
            self._chances += [chance for chance in found if chance not in again]
        if again and not allowed:
            raise InvalidOption(
                f"write(): {', '.join(map(str, again))} need not give the same values when this "
                "frame is computed, as when an earlier write of the transaction was: rows that are "
                "told apart by it would be in no write, or in both. Give the rows a column 'topic' "
                "and write them at once; or write what frame.localCheckpoint() returns; or give "
                "allow_nondeterministic=True"
            )

    def clear(self) -> None:
        """The writes so far were dropped."""
        with self._mutex:
            self._chances.clear()
