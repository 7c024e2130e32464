"""The framing of registries: a byte of 0, the id of the schema, then the value's own bytes.

The id has four bytes, as Confluent's serializers and most others write it, or eight, as Apicurio's
did by default; the highest byte is the first one.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from txnlog.errors import InvalidOption

MAGIC: Final = 0
ID_BYTES: Final = (4, 8)
Numbers = npt.NDArray[np.int64]


def check_id_bytes(count: object) -> int:
    """How long ids are. Raises InvalidOption."""
    if count not in ID_BYTES or isinstance(count, bool):
        raise InvalidOption(f"the id of a schema has 4 or 8 bytes, not {count!r:.60}")
    assert isinstance(count, int)
    return count


def frame(schema_id: int, id_bytes: int) -> bytes:
    """The bytes before a value of this schema. Raises InvalidOption: its id is too long."""
    if schema_id.bit_length() > 8 * id_bytes:
        raise InvalidOption(f"the id {schema_id} of a schema has more than {id_bytes} bytes")
    return bytes([MAGIC]) + schema_id.to_bytes(id_bytes, "big")


class Frames:
    """The values of an array that are not null, and where each lies in ``data``.

    ``problems``: those that are in no frame, by their row, with the reason.
    """

    def __init__(self, values: pa.Array, id_bytes: int) -> None:
        self._count = len(values)
        self.problems: dict[int, str] = {}
        valid = values.is_valid().to_numpy(zero_copy_only=False)
        _, ends, data = values.buffers()
        bounds = (
            np.zeros(1, np.int64)
            if ends is None
            else np.frombuffer(ends, np.int32, len(values) + 1, values.offset * 4).astype(np.int64)
        )
        self.data = np.frombuffer(b"" if data is None else data, np.uint8)
        head = 1 + id_bytes
        lengths = np.diff(bounds)
        short = valid & (lengths < head)
        starts = np.where(valid & ~short, bounds[:-1], 0)
        inside = np.flatnonzero(valid & ~short)
        magic = self.data[starts[inside]] if len(inside) else np.empty(0, np.uint8)
        for row in np.flatnonzero(short).tolist():
            self.problems[row] = f"it has {int(lengths[row])} bytes, and no id of a schema"
        for row in inside[magic != MAGIC].tolist():
            first = int(self.data[starts[row]])
            self.problems[row] = f"it begins with the byte {first}, not with 0 and a schema's id"
        self.rows = inside[magic == MAGIC]
        begins = bounds[:-1][self.rows]
        self.ids = np.zeros(len(self.rows), np.uint64)
        for number in range(id_bytes):
            self.ids = (self.ids << np.uint64(8)) | self.data[begins + 1 + number]
        self.starts = begins + head
        self.ends = bounds[1:][self.rows]

    def by_id(self) -> Iterator[tuple[int, Numbers]]:
        """Each id, and the numbers of its values among ``rows``."""
        found = np.unique(self.ids)
        if len(found) == 1:  # as with most topics
            yield int(found[0]), np.arange(len(self.rows))
            return
        order = np.argsort(self.ids, kind="stable")
        bounds = np.searchsorted(self.ids[order], found, side="right")
        start = 0
        for schema_id, stop in zip(found.tolist(), bounds.tolist(), strict=True):
            yield schema_id, order[start:stop]
            start = stop
