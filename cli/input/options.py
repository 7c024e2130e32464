"""``--compression CODEC``: Kafka's names of codecs."""

from __future__ import annotations

from enum import Enum
from typing import Annotated

import typer


class Codec(str, Enum):
    """What records may be compressed with; not every record format knows all of them."""

    NONE = "none"
    GZIP = "gzip"
    SNAPPY = "snappy"
    LZ4 = "lz4"
    ZSTD = "zstd"


CompressionOption = Annotated[
    Codec | None,
    typer.Option("--compression", help="Instead of the topic's.", show_default=False),
]
