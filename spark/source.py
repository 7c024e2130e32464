"""The data source: what ``format("txnlog")`` is to Spark.

Spark makes an instance in a process of its own beside the driver, asks it for its schema, pickles
it, and goes on with copies. ``schema()`` therefore pins what a read returns: a loaded DataFrame
returns the same records however often and whenever it is run. It is not told whether the read is
a stream, which goes its own way from there.

Imports are light: Spark loads this module to learn the format's name.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from importlib.util import find_spec
from typing import TYPE_CHECKING

from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
)

from txnlog.errors import (
    ConcurrentTransactions,
    CorruptRecord,
    InvalidOption,
    OffsetOutOfRange,
    TxnlogError,
    UnknownTopicOrPartition,
)

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

    from txnlog.read.changed_rows import ChangeColumns
    from txnlog.read.plan import ScanColumns
    from txnlog.schema import TopicSchema
    from txnlog.spark.batch.change_read import ChangeFeedPlan
    from txnlog.spark.batch.read_plan import ReadPlan
    from txnlog.spark.options.read_options import ReadOptions


NEEDED = ("txnlog", "pyarrow", "numpy", "msgspec", "fsspec", "crc32c", "lz4", "zstandard")
"""What a Python must have that runs it."""


def reads_streams() -> bool:
    """Whether this PySpark can read streams from Python sources that track their own progress."""
    return find_spec("pyspark.sql.streaming.datasource") is not None


class TxnlogDataSource(DataSource):
    """Topics of a txnlog store as a Spark data source. docs/SPARK.md lists the options."""

    def __init__(self, options: dict[str, str]) -> None:
        super().__init__(options)
        self._plan: ReadPlan | None = None
        self._feed: ChangeFeedPlan | None = None
        self._schema: TopicSchema | None = None

    @classmethod
    def name(cls) -> str:
        return "txnlog"

    def schema(self) -> StructType:
        """The row of Spark's Kafka source, or a typed topic's. Pins what a batch will read.

        With ``transactional.id`` it also begins the transaction that a write will commit, and the
        columns carry which one it is.

        Offsets that are not there, or not yet, are no error here, nor is damage where a time is
        looked for, nor a topic that is gone if failOnDataLoss is false: they mean nothing to a
        stream that goes on from its checkpoint. A batch says so when it is run.
        """
        from txnlog.spark.batch.provenance import column_metadata
        from txnlog.spark.batch.read_plan import plan_read
        from txnlog.spark.batch.row_schema import read_schema
        from txnlog.spark.options.kafka_client_options import warn_passed_over
        from txnlog.spark.options.read_options import parse_read
        from txnlog.spark.options.stream_options import check_rates

        check_rates(self.options)
        options = parse_read(self.options)
        warn_passed_over(options.passed_over)
        elsewhere: list[type[TxnlogError]] = [
            ConcurrentTransactions,
            CorruptRecord,
            InvalidOption,
            OffsetOutOfRange,
        ]
        if options.subscription.pattern is not None or not options.fail_on_data_loss:
            elsewhere.append(UnknownTopicOrPartition)
        if options.pre_images:
            from txnlog.spark.batch.change_read import feed_schema, plan_changes

            with suppress(*elsewhere):
                self._feed = plan_changes(self.options)
            feed = self._feed.columns if self._feed else _feed_columns_of(options)
            self._schema = feed.rows.topic_schema
            return feed_schema(feed)
        with suppress(*elsewhere):
            self._plan = plan_read(self.options)
        columns = self._plan.columns if self._plan else _columns_of(options)
        self._schema = columns.topic_schema
        return read_schema(columns, column_metadata(self._plan.origin if self._plan else None))

    def reader(self, schema: StructType) -> DataSourceReader:
        from txnlog.spark.batch.read_plan import plan_read
        from txnlog.spark.batch.reader import TxnlogReader
        from txnlog.spark.batch.row_schema import check_read_schema
        from txnlog.spark.options.stream_options import warn_of_rates

        warn_of_rates(self.options)
        self._schema = None
        if _is_feed(self.options):
            from txnlog.spark.batch.change_read import ChangeReader, check_feed_schema, plan_changes

            feed, self._feed = self._feed or plan_changes(self.options), None
            check_feed_schema(schema, feed.columns)
            return ChangeReader(feed)
        # This copy goes into every task: without the plan. There is none if it failed, or if the
        # user gave a schema, so that Spark did not ask for ours.
        plan, self._plan = self._plan or plan_read(self.options), None
        check_read_schema(schema, plan.columns)
        return TxnlogReader(plan)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        from txnlog.spark.batch.writer import open_writer

        if overwrite:
            raise InvalidOption(
                'mode("overwrite") is refused: a log only grows. Use mode("append"); to start '
                "over, delete and create the topic, or write to a new one"
            )
        return open_writer(self.options, schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802
        from txnlog.spark.batch.row_schema import check_read_schema
        from txnlog.spark.options.stream_options import parse_stream

        if not reads_streams():
            raise InvalidOption(
                "reading a stream needs PySpark 4.2 or newer: before, Spark does not tell a source "
                "where the last batch ended. Writing one does not"
            )
        from txnlog.spark.stream.reader import TxnlogStreamReader

        self._plan = self._feed = None
        loaded, self._schema = self._schema, None
        options = parse_stream(self.options)
        if options.read.pre_images:
            from txnlog.spark.batch.change_read import check_feed_schema
            from txnlog.spark.stream.change_reader import ChangeStreamReader

            feed = _feed_columns_of(options.read, loaded)
            check_feed_schema(schema, feed)
            return ChangeStreamReader(options, feed)
        columns = _columns_of(options.read, loaded)
        check_read_schema(schema, columns)
        return TxnlogStreamReader(options, columns)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:  # noqa: ARG002, N802
        """Complete mode asks to overwrite; as in Spark's Kafka sink its rows are appended."""
        from txnlog.spark.stream.writer import open_stream_writer

        return open_stream_writer(self.options, schema)


def _is_feed(options: Mapping[str, str]) -> bool:
    """Whether valid options ask for a feed of changes."""
    from txnlog.spark.options.option_names import PRE_IMAGES

    lower = {name.lower(): value for name, value in options.items()}
    return lower.get(PRE_IMAGES.lower(), "").strip().lower() == "true"


def _feed_columns_of(options: ReadOptions, loaded: TopicSchema | None = None) -> ChangeColumns:
    """The columns of a feed whose range is not pinned, or not yet."""
    from txnlog.spark.batch.change_read import feed_columns

    (topic,) = options.subscription.topics
    return feed_columns(options, topic, _schema_of(options, loaded))


def _columns_of(options: ReadOptions, loaded: TopicSchema | None = None) -> ScanColumns:
    """The columns of a read whose range is not pinned, or not yet."""
    return options.columns.of(_schema_of(options, loaded))


def _schema_of(options: ReadOptions, loaded: TopicSchema | None) -> TopicSchema | None:
    """The topics' schema: the one that a stream was loaded with, as long as it may read by it."""
    from txnlog.spark.batch.pinned_read import topic_schema
    from txnlog.spark.options.store_options import open_at

    now = topic_schema(open_at(options.address), options.subscription)
    if loaded is None:
        return now
    from txnlog.spark.stream.planner import may_read

    return loaded if may_read(loaded, now) else now
