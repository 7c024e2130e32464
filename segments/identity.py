"""What distinguishes a segment's batches from those of every other segment.

The log keeps it for each segment that it places. Each batch is compared with it when its header is
read, so a file that was swapped with another valid one is noticed whatever part of it is read.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import crc32c

from txnlog.segments.batch_header import BatchHeader
from txnlog.segments.errors import CorruptRecord

NO_TAG: Final = -1
NO_CRC: Final = -1


def tag_of(name: str) -> int:
    """The tag in the batches of a segment with this unique name: 31 bits."""
    tag: int = crc32c.crc32c(name.encode()) & 0x7FFFFFFF
    return tag


@dataclass(frozen=True, slots=True)
class SegmentIdentity:
    """Facts about every batch of a segment; offsets are those in the file.

    ``tag`` is in the leader epoch of each batch, NO_TAG if they have none, as Kafka's.
    Offsets lie in [first_offset, end_offset). ``first_crc`` is the checksum in the header of the
    first batch; NO_CRC if it is not known.
    """

    first_offset: int
    end_offset: int
    tag: int = NO_TAG
    first_crc: int = NO_CRC

    def check(self, header: BatchHeader, name: str, position: int) -> None:
        """Raise CorruptRecord unless a batch at this position can be one of the segment."""
        if self.tag not in (NO_TAG, header.leader_epoch):
            reason = f"its tag is {header.leader_epoch}, the log says {self.tag}"
        elif header.base_offset < self.first_offset or header.last_offset >= self.end_offset:
            found = f"{header.base_offset} to {header.last_offset}"
            placed = f"{self.first_offset} to {self.end_offset - 1}"
            reason = f"its offsets are {found}, the log says {placed}"
        elif position == 0 and self.first_crc not in (NO_CRC, header.crc):
            reason = f"its checksum is {header.crc:#010x}, the log says {self.first_crc:#010x}"
        else:
            return
        raise CorruptRecord.at(
            name,
            position,
            f"this batch is not of this segment: {reason}. The header is damaged, or the file was "
            "exchanged for another one",
            header.base_offset,
        )
