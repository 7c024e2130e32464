"""Decodes small hostile things in a process with a limit; prints how much memory each has taken."""

from __future__ import annotations

import base64
import json
import resource
import sys
import tracemalloc
import zlib
from collections.abc import Callable
from contextlib import suppress

import msgspec
from crc32c import crc32c

from txnlog.errors import TxnlogError
from txnlog.read.snapshot_token import SnapshotToken
from txnlog.state import topic, topic_entries
from txnlog.storage import envelope

MOST_BYTES = 2 << 30


def token(content: bytes) -> str:
    packed = zlib.compress(content, 9)
    data = packed + crc32c(packed).to_bytes(4, "big")
    return f"txnlog1.{base64.urlsafe_b64encode(data).decode().rstrip('=')}"


def sealed(body: str) -> bytes:
    data = body.encode() + b"\n"
    return b'{"format":1,"checksum":"%08x",' % crc32c(data) + data


def array(count: int) -> bytes:
    """The head of an array of msgpack."""
    return b"\xdd" + count.to_bytes(4, "big")


TOPIC = b"\x95\xa1t\xa1i\x00"
MANY = 15 << 20
FULL = TOPIC + array(100_000) + bytes(100_000) + array(100_000) + bytes(100_000)
CREATED = '"kind":"created","nonce":"n","at_ms":0,"topic_id":"i","config":{},"partitions":%d}'
CHECKPOINT = '"kind":"topic-checkpoint","partitions":[%s]}'


def fold(body: str) -> None:
    """What a reader of a log does with an entry."""
    entry = envelope.decode(sealed(body), topic_entries.ENTRY_DECODER, "entry")
    topic.TopicState().apply(0, entry)


def read_checkpoint(body: str) -> None:
    envelope.decode(sealed(body), topic.CHECKPOINT_DECODER, "checkpoint")


def cases() -> dict[str, tuple[int, Callable[[], object]]]:
    """By its name: the size of a hostile thing in bytes, and what is done with it."""
    outer = b"\x92\xa7instant"
    tokens = {
        "offsets of one topic": outer + array(1) + TOPIC + array(MANY) + bytes(MANY),
        "offsets of many topics": outer + array(70) + FULL * 70,
        "topics": outer + array(MANY) + bytes(MANY),
        "a length that is not there": outer + array(1) + TOPIC + array((1 << 32) - 1),
        "depth": outer + array(1) + b"\x91" * 300_000,
        "more than a token is": outer + bytes(64 << 20),
    }
    found: dict[str, tuple[int, Callable[[], object]]] = {}
    for name, content in tokens.items():
        text = token(content)
        found[f"token: {name}"] = len(text), lambda text=text: SnapshotToken.decode(text)  # type: ignore[misc]
    for count in (2_000_000_000, 1 << 62):
        body = CREATED % count
        found[f"{count} partitions"] = len(body), lambda body=body: fold(body)  # type: ignore[misc]
    whole = CHECKPOINT % ",".join(["{}"] * 2_000_000)
    found["partitions of a checkpoint"] = len(whole), lambda: read_checkpoint(whole)
    return found


def main() -> None:
    hostile = cases()
    resource.setrlimit(resource.RLIMIT_AS, (MOST_BYTES, MOST_BYTES))
    tracemalloc.start()
    grown = {}
    for name, (size, decode) in hostile.items():
        tracemalloc.reset_peak()
        before, _ = tracemalloc.get_traced_memory()
        with suppress(TxnlogError, msgspec.MsgspecError):
            decode()
            raise AssertionError(f"{name} was taken")
        grown[name] = [size, tracemalloc.get_traced_memory()[1] - before]
    sys.stdout.write(json.dumps(grown))


if __name__ == "__main__":
    main()
