"""``read(...)``: a batch of a topic as a DataFrame, without a transaction."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from txnlog.errors import InvalidOption
from txnlog.names import check_topic
from txnlog.spark.batch.change_read import plan_changes
from txnlog.spark.batch.decoded_values import ValueColumns
from txnlog.spark.batch.latest import read_latest
from txnlog.spark.batch.pinned_read import pin_read
from txnlog.spark.batch.read_frame import read_frame
from txnlog.spark.options.option_names import AT_TOKEN, PRE_IMAGES
from txnlog.spark.options.read_options import parse_read
from txnlog.spark.options.store_options import store_options
from txnlog.spark.registration import register
from txnlog.spark.transactions.read_options import merge_read_options
from txnlog.store import Store, open_store

if TYPE_CHECKING:
    from datetime import datetime

    from pyspark.sql import DataFrame, SparkSession

    from txnlog.spark.options.positions import OffsetsOption
    from txnlog.values import ValueReader


def read(
    spark: SparkSession,
    path: str | Store,
    *topics: str,
    columns: str | Sequence[str] | None = None,
    include_headers: bool = False,
    starting_offsets: OffsetsOption | None = None,
    ending_offsets: OffsetsOption | None = None,
    at: datetime | int | str | None = None,
    options: Mapping[str, bool | int | str] | None = None,
    native: bool | None = None,
    latest: bool = False,
    values: ValueReader | str | None = None,
    since: datetime | int | str | None = None,
    pre_images: bool = False,
    storage_options: Mapping[str, object] | None = None,
) -> DataFrame:
    """Read topics as a DataFrame. It is pinned: each time it is run it returns the same records.

        flights = read(spark, "/data/store", "flights")
        flights.where("carrier = 'AA'").groupBy("dest").count()

    Segments that are Parquet files, as those of typed topics, are read by Spark itself: it skips
    columns and row groups, and counts from the files' footers. Their rows have no order. The rest
    is read by the data source.

    Args:
        spark: the session.
        path: the store's folder or URL, or an open store: Spark's tasks open it as it was opened.
        topics: their names; several are read at one consistent cut, and have the same schema.
        columns: only these columns: names, or a string as for the option ``columns``. Of a typed
            topic those of its schema and ``_topic``, ``_partition``, ``_offset``, ``_timestamp``,
            ``_headers``, ``_deleted``.
        include_headers: add the column ``headers``, for a typed topic ``_headers``.
        starting_offsets: 'earliest', 'latest' or {topic: {partition: offset}}.
        ending_offsets: the same; exclusive.
        at: the topics as they were at a datetime with a zone, as text too, at milliseconds since
            1970, or as a token of ``Snapshot.token()`` says; see ``txnlog.Store.snapshot``.
        options: options of a batch read, as docs/SPARK.md lists them.
        native: True: an error if Spark itself cannot read the files; False: the data source reads
            everything; None: Spark reads them if its JVM can, and no option says how to make tasks.
        latest: only the newest record of each key; keys that it deletes (a null value, or
            ``_deleted``) are left out, and so are records without a key. Of a partition that is
            the one with the greatest offset; where a key is in several partitions, the one of
            these with the greatest timestamp. It is of the records that are read: up to the
            pinned ends, and from ``starting_offsets`` on.
        values: 'avro', 'protobuf' or 'json': values begin with the id of a schema of the store's,
            and become the columns of the newest one of subject ``TOPIC-value``. Or a
            ``txnlog.values.ValueReader``, for other subjects and schemas from elsewhere. Beside
            them are ``_key``, ``_topic``, ``_partition``, ``_offset``, ``_timestamp``, and for
            what cannot be decoded ``_error``, the reason, and ``_value``, the bytes.
        since: with ``pre_images``, where the feed begins; like ``at``, which is where it ends, or
            'earliest': when the topic was made.
        pre_images: a feed of changes of one topic with a key: ``_change``, where and when it was,
            and the topic's own columns; see ``txnlog.Store.changes``. The data source reads it.
        storage_options: for the filesystem, as ``txnlog.open`` takes them; Spark's tasks use them
            too.

    Raises:
        StoreNotFound, UnknownTopicOrPartition, OffsetOutOfRange: it does not exist.
        UnknownSchema, InvalidSchema: of ``values``.
        InvalidOption: an argument is not valid.
    """
    if not topics:
        raise InvalidOption("read() needs the name of a topic")
    given = dict(storage_options or {})
    store = path if isinstance(path, Store) else open_store(path, storage_options=given)
    if store.url.startswith("memory:"):
        raise InvalidOption(f"{store.url} is in this process only; Spark's tasks cannot reach it")
    decoded = None
    if values is not None:
        decoded = ValueColumns.of(values, store, topics, columns, include_headers=include_headers)
        columns = decoded.to_read
    merged = merge_read_options(
        options or {},
        columns=columns,
        include_headers=include_headers,
        starting_offsets=starting_offsets,
        ending_offsets=ending_offsets,
        at=at,
        since=since,
        in_block=False,
        decoded=decoded is not None,
    )
    if pre_images:
        if latest or native or values is not None:
            raise InvalidOption("pre_images=True: leave latest, native and values out")
        merged[PRE_IMAGES] = "true"
    names = ",".join(check_topic(topic) for topic in topics)
    parsed = parse_read({**merged, "path": store.url, "subscribe": names})
    register(spark)
    everything = {**merged, **store_options(store, given)}
    if parsed.pre_images:
        # Each run ends where this one does.
        everything["subscribe"] = names
        if parsed.at is None:
            everything[AT_TOKEN] = store.snapshot(list(topics)).token()
        plan_changes(everything)  # what is wrong is said here, and by our errors
        return spark.read.format("txnlog").options(**everything).load()
    make_frame = read_latest if latest else read_frame
    frame = make_frame(
        spark, store.storage, pin_read(store, parsed), parsed, everything, native=native
    )
    return frame if decoded is None else decoded.frame(frame)
