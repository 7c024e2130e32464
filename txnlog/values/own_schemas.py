"""Values as columns of the very schema that each was written under: to look at, of any topic."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pyarrow as pa

from txnlog.errors import InvalidOption, InvalidSchema, UnknownSchema
from txnlog.values.avro_columns import Numbers, Problems
from txnlog.values.codecs import make_codec
from txnlog.values.framing import Frames
from txnlog.values.rows import TooManyFields
from txnlog.values.schemas import Schemas


def decode_each(
    schemas: Schemas, values: pa.Array
) -> Iterator[tuple[int, Numbers, pa.RecordBatch]]:
    """The values that can be decoded: an id, their numbers, and a row for each.

    Others are left out: a value may begin like one that carries an id without being one. Looking
    for unknown ids ends with the first.

    Raises StorageError: the schemas cannot be read.
    """
    frames = Frames(values, 4)
    for schema_id, chosen in frames.by_id():
        problems = Problems()
        try:
            schema = schemas.by_id(schema_id)
            codec = make_codec(schemas, schema)
            starts, ends = frames.starts[chosen], frames.ends[chosen]
            found = codec.decode(frames.data, starts, ends, problems, codec)
        except UnknownSchema:
            return
        except (InvalidSchema, InvalidOption, TooManyFields):
            continue
        good = np.array([n for n in range(len(chosen)) if n not in problems.reasons], np.int64)
        if len(good):
            columns = pa.RecordBatch.from_struct_array(found.take(pa.array(good)))
            yield schema_id, frames.rows[chosen[good]], columns
