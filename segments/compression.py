"""The codecs of record batches, by Kafka's numbers and names. Compresses nothing itself."""

from __future__ import annotations

import enum

from txnlog.segments.errors import UnsupportedCompression


class Compression(enum.IntEnum):
    """A codec. The numbers are stored in the batch header's attributes: append only."""

    NONE = 0
    GZIP = 1
    SNAPPY = 2
    LZ4 = 3
    ZSTD = 4

    @classmethod
    def parse(cls, name: str) -> Compression:
        """The codec of Kafka's ``compression.type``; "uncompressed" is another name for "none".

        Raises UnsupportedCompression for any other name.
        """
        if name == "uncompressed":
            return cls.NONE
        for codec in cls:
            if codec.kafka_name == name:
                return codec
        known = ", ".join(codec.kafka_name for codec in cls)
        raise UnsupportedCompression(f"compression {name!r} is not one of {known}")

    @property
    def kafka_name(self) -> str:
        """The name used in configurations, such as "zstd"."""
        return self.name.lower()
