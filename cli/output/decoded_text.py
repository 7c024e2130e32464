"""Values that carry the id of a schema, as JSON; what cannot be decoded is told on stderr."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

import typer

from txnlog.cli.output.streams import warn

if TYPE_CHECKING:
    import pyarrow as pa

    from txnlog.cli.input.record_filter import RecordFilter
    from txnlog.cli.input.value_options import ValueChoice
    from txnlog.store import Store
    from txnlog.values import ValueReader

_ROWS: Final = 4096
"""So many values are made text at a time."""
_MOST_TOLD: Final = 20


@dataclass(slots=True)
class DecodedText:
    """Records with values as JSON; dead letters stay as they are, and are told on stderr."""

    reader: ValueReader
    dead: int = field(default=0)

    @classmethod
    def of(cls, choice: ValueChoice | None, store: Store, topic: str) -> DecodedText | None:
        """For the values of a topic; None if no format was named.

        Raises BadParameter: its records have columns. And what ValueReader does.
        """
        if choice is None:
            return None
        if store.logs.topic_spec(topic).schema is not None:
            raise typer.BadParameter(f"--value-format: the records of {topic} have columns")
        return cls(choice.open(store, topic))

    def texts(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """The batches of a scan with the text of each value."""
        for batch in batches:
            for piece, decoded in self._pieces(batch):
                column = self._text(piece, decoded)
                yield piece.set_column(piece.schema.get_field_index("value"), "value", column)

    def wanted_texts(
        self, batches: Iterable[pa.RecordBatch], wanted: RecordFilter
    ) -> Iterator[pa.RecordBatch]:
        """Batches of a scan by key alone with the text of each value, as a pattern picks them."""
        for batch in self.texts(batches):
            yield batch if wanted.of_scan is None else batch.filter(wanted.of_scan)

    def columns(
        self, batches: Iterable[pa.RecordBatch], wanted: RecordFilter
    ) -> Iterator[pa.RecordBatch]:
        """Decode the records that match ``wanted`` into columns."""
        import numpy as np
        import pyarrow as pa

        from txnlog.read.conditions import keep_matching

        for batch in batches:
            for piece, found in self._pieces(batch):
                decoded = found
                if wanted:
                    shown = pa.record_batch(
                        {
                            "key": piece.column("key"),
                            "value": self._text(piece, decoded),
                            "row": pa.array(np.arange(piece.num_rows)),
                        }
                    )
                    if wanted.of_scan is not None:
                        shown = shown.filter(wanted.of_scan)
                    decoded = decoded.take(keep_matching(shown, wanted.conditions).column("row"))
                else:
                    self._tell(piece, decoded)
                yield decoded

    def text(self, value: bytes) -> bytes:
        """One value: as a consumer's deserializer."""
        import pyarrow as pa

        piece = pa.record_batch({"value": pa.array([value], pa.binary())})
        found: bytes = self._text(piece, self.reader.read_batch(piece))[0].as_py()
        return found

    def summary(self) -> None:
        """Say how many dead letters there were, unless each was told."""
        if self.dead > _MOST_TOLD:
            warn(f"{self.dead} values are dead letters; the first {_MOST_TOLD} were named")

    def _pieces(self, batch: pa.RecordBatch) -> Iterator[tuple[pa.RecordBatch, pa.RecordBatch]]:
        for start in range(0, batch.num_rows, _ROWS):
            yield from self.reader.read_pieces(batch.slice(start, _ROWS))

    def _text(self, piece: pa.RecordBatch, decoded: pa.RecordBatch) -> pa.Array:
        import pyarrow as pa
        import pyarrow.compute as pc

        from txnlog.read.json_records import json_objects
        from txnlog.values.reader import ERROR

        self._tell(piece, decoded)
        raw = piece.column("value").cast(pa.binary())
        names = self.reader.schema.names
        texts = json_objects(names, [decoded.column(n) for n in names], piece.num_rows)
        is_decoded = pc.and_(raw.is_valid(), decoded.column(ERROR).is_null())
        return pc.if_else(is_decoded, texts.cast(pa.binary()), raw)

    def _tell(self, piece: pa.RecordBatch, decoded: pa.RecordBatch) -> None:
        from txnlog.values.reader import ERROR

        errors = decoded.column(ERROR)
        if errors.null_count == len(errors):
            return
        for row, reason in enumerate(errors.to_pylist()):
            if reason is None:
                continue
            self.dead += 1
            if self.dead <= _MOST_TOLD:
                where = "a record"
                if "offset" in piece.schema.names:
                    place = (piece.column(n)[row].as_py() for n in ("topic", "partition", "offset"))
                    where = ":".join(map(str, place))
                warn(f"{where} is a dead letter: {reason}")
