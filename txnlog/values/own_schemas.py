"""Values as columns of the very schema that each was written under: to look at, of any topic."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress

import numpy as np
import pyarrow as pa

from txnlog.errors import InvalidOption, InvalidSchema, UnknownSchema
from txnlog.values.avro_columns import Numbers, Problems
from txnlog.values.codecs import Codec, make_codec
from txnlog.values.framing import Frames
from txnlog.values.rows import TooManyFields
from txnlog.values.schemas import Schemas


def decode_each(
    schemas: Schemas, values: pa.Array, is_over: Callable[[], bool]
) -> Iterator[tuple[int, Numbers, pa.RecordBatch]]:
    """The values that can be decoded: an id, their numbers, and a row for each.

    Of a .proto each message has columns of its own. Values that cannot be decoded are left out: one
    may begin as if it carried an id. Looking for unknown ids ends with the first, and all ends at
    the first id for which it ``is_over``: the text of each .proto costs a compiler's process.

    Raises StorageError: the schemas cannot be read.
    """
    frames = Frames(values, 4)
    for schema_id, chosen in frames.by_id():
        if is_over():
            return
        try:
            codec = make_codec(schemas, schemas.by_id(schema_id))
        except UnknownSchema:
            return
        except (InvalidSchema, InvalidOption):
            continue
        for one, numbers in _by_message(codec, frames, chosen):
            with suppress(InvalidSchema, TooManyFields):
                good, columns = _decode(one, frames, numbers)
                if len(good):
                    yield schema_id, frames.rows[good], columns


def _by_message(codec: Codec, frames: Frames, chosen: Numbers) -> Iterator[tuple[Codec, Numbers]]:
    """The values of one schema, each by the codec that reads all of its fields."""
    from txnlog.values.protobuf import ProtobufCodec

    if not isinstance(codec, ProtobufCodec):
        yield codec, chosen
        return
    for one, numbers in codec.by_message(frames.data, frames.starts[chosen], frames.ends[chosen]):
        yield one, chosen[numbers]


def _decode(codec: Codec, frames: Frames, chosen: Numbers) -> tuple[Numbers, pa.RecordBatch]:
    """Those of the values that can be decoded, and their columns."""
    problems = Problems()
    starts, ends = frames.starts[chosen], frames.ends[chosen]
    found = codec.decode(frames.data, starts, ends, problems, codec)
    good = np.array([n for n in range(len(chosen)) if n not in problems.reasons], np.int64)
    return chosen[good], pa.RecordBatch.from_struct_array(found.take(pa.array(good)))
