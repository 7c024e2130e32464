"""The data source: what ``format("txnlog")`` is to Spark.

Spark makes an instance in a process of its own beside the driver, asks it for its schema, pickles
it, and goes on with copies. ``schema()`` therefore pins what the read returns: a loaded DataFrame
returns the same records however often and whenever it is run.

Imports are light: Spark loads this module to learn the format's name.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceWriter

from txnlog.errors import InvalidOption

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

    from txnlog.spark.planning import ReadPlan


class TxnlogDataSource(DataSource):
    """Topics of a txnlog store as a Spark data source. docs/SPARK.md lists the options."""

    def __init__(self, options: dict[str, str]) -> None:
        super().__init__(options)
        self._plan: ReadPlan | None = None

    @classmethod
    def name(cls) -> str:
        return "txnlog"

    def schema(self) -> StructType:
        """The row of Spark's Kafka source. Pins the range that will be read.

        With ``transactional.id`` it also begins the transaction that a write will commit.
        """
        from txnlog.spark.opening import plan_read
        from txnlog.spark.rows import row_schema

        self._plan = plan_read(self.options)
        return row_schema(self._plan.columns)

    def reader(self, schema: StructType) -> DataSourceReader:
        from txnlog.spark.reader import TxnlogReader
        from txnlog.spark.rows import check_row_schema

        if self._plan is None:
            # The user gave a schema, so Spark did not ask for ours.
            self.schema()
        plan, self._plan = self._plan, None  # this copy goes into every task: without the plan
        assert plan is not None
        check_row_schema(schema, plan.columns)
        return TxnlogReader(plan)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        from txnlog.spark.opening import plan_write

        if overwrite:
            raise InvalidOption(
                'mode("overwrite") is refused: a log only grows. Use mode("append"); to start '
                "over, delete and create the topic, or write to a new one"
            )
        return plan_write(self.options, schema)
