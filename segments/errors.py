"""The root of the exception tree, and the errors of bytes and files.

Knows nothing of topics or transactions; ``txnlog.errors`` adds theirs. The three booleans are
those of Kafka's clients: they say what a handler would do, so that code can branch on them
instead of on names.
"""

from __future__ import annotations

from typing import Self


class TxnlogError(Exception):
    """Base class of every error that txnlog raises on purpose.

    Attributes:
        retriable: the same call may succeed if it is made again.
        abortable: the open transaction can only be aborted; a new one may succeed.
        fatal: this producer or consumer cannot go on; make a new one.
    """

    retriable: bool = False
    abortable: bool = False
    fatal: bool = False


class CorruptRecord(TxnlogError):
    """Bytes of a segment are not what was written: a bad checksum, length or count.

    The message names the file, the position in it (bytes) and the offset as far as they are known.

    Attributes:
        topic, partition: where a consumer has met it; None elsewhere.
        offset, next_offset: the records [offset, next_offset) cannot be read, others follow.
    """

    topic: str | None = None
    partition: int | None = None
    offset: int | None = None
    next_offset: int | None = None

    _advice = "restore the file from a backup"

    @classmethod
    def at(cls, name: str, position: int, reason: str, offset: int | None = None) -> Self:
        """The error for the batch at ``position`` (bytes) of file ``name``.

        ``offset`` is relative to the segment; None if the header cannot be trusted.
        """
        where = f"{name} at byte {position}"
        if offset is not None:
            where += f" (relative offset {offset})"
        return cls(f"{where}: {reason}; {cls._advice}")


class RecordTooLarge(TxnlogError):
    """A record, or a batch, is larger than ``max.message.bytes`` allows, or than can be read."""

    abortable = True


class UnsupportedCompression(TxnlogError):
    """The codec does not exist, or this record format cannot carry it."""


class UnsupportedRecordFormat(TxnlogError):
    """A batch has a magic byte that this version cannot decode, or records have a wrong schema."""


class UnknownMagic(UnsupportedRecordFormat, CorruptRecord):
    """A batch's magic byte is not known to this version: a newer format, or damage.

    The byte alone cannot tell which, so handlers of either error see it.
    """

    _advice = "read it with a newer version of txnlog, or restore the file from a backup"


class SegmentTooLarge(TxnlogError):
    """A segment would pass 2 GiB - 1 bytes or 2^31 - 1 records: roll to a new one earlier."""

    abortable = True


class UnknownCodec(UnsupportedCompression, CorruptRecord):
    """A batch names a codec that does not exist or that its format cannot carry.

    Damage or a newer format, as with UnknownMagic: handlers of either error see it.
    """

    _advice = "read it with a newer version of txnlog, or restore the file from a backup"
