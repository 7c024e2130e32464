"""Changes to objects by their structure, after which checksums are right again.

All of it is decided by a ``random.Random``. Shares no code with what reads these objects.
"""

from __future__ import annotations

import base64
import copy
import json
import re
import struct
import zlib
from collections.abc import Callable, Iterator, Mapping
from random import Random
from typing import Any

import crc32c
import msgspec

from txnlog.state.segment import StoredSegment

Mutate = Callable[[Random, bytes], bytes]

STORED = StoredSegment.__struct_fields__

NUMBERS = (
    *(
        0,
        1,
        -1,
        2,
        15,
        63,
        64,
        255,
        256,
        1 << 15,
        (1 << 15) - 1,
        (1 << 31) - 1,
        1 << 31,
        -(1 << 31),
    ),
    *((1 << 32) - 1, 1 << 40, (1 << 53) + 1, 1 << 62, (1 << 63) - 1, -(1 << 63), 1 << 63),
    *((1 << 64) - 1, 1 << 64, 10**30, 0.5, -0.0, 1e308),
)
TEXTS = (
    *("", "x", "..", "../..", "/etc/passwd", "a/b", ".", "\0", "\x1b]0;owned\x07", "\u202egpj"),
    *("\ud800", "k" * 5000, "-1", "abc", "1e9", "Ongoing", "commit", "memory://elsewhere"),
    *("http://127.0.0.1:9/x", "s3://bucket/x", "None", "%2e%2e", "C:\\x", "0" * 32, "NaN"),
)
DEEP = 100_000
_FRAME = re.compile(rb'\{"format":(\d+),"checksum":"[0-9a-f]{8}",')


# -- bytes ---------------------------------------------------------------------------------------


def change_bytes(random: Random, data: bytes) -> bytes:
    """Some bytes are others, missing, repeated or moved."""
    for _ in range(random.choice((1, 1, 1, 2, 5))):
        data = random.choice(_BYTE_CHANGES)(random, bytearray(data))
    return data


def flip_bits(random: Random, data: bytearray) -> bytes:
    for _ in range(random.choice((1, 1, 3, 20)) if data else 0):
        data[random.randrange(len(data))] ^= 1 << random.randrange(8)
    return bytes(data)


def _truncate(random: Random, data: bytearray) -> bytes:
    return bytes(data[: random.randrange(len(data) + 1)])


def change_number(random: Random, data: bytearray) -> bytes:
    """A whole number, at a place where one may be, is an extreme one."""
    width, letter = random.choice(((1, "b"), (2, "h"), (4, "i"), (8, "q")))
    if len(data) < width:
        return bytes(data)
    at = random.randrange(len(data) - width + 1)
    at -= at % width if random.random() < 0.7 else 0
    put_number(random, data, at, random.choice("<>") + letter)
    return bytes(data)


def put_number(random: Random, data: bytearray, at: int, form: str) -> None:
    width = struct.calcsize(form)
    (there,) = struct.unpack_from(form, data, at)
    number = random.choice((*NUMBERS[:23], there + 1, there - 1, there * 2, -there))
    wrapped = int(number) & ((1 << 8 * width) - 1)
    struct.pack_into(form.replace(form[-1], form[-1].upper()), data, at, wrapped)


def fill_bytes(random: Random, data: bytearray) -> bytes:
    at = random.randrange(len(data) + 1)
    count = random.choice((1, 4, 16, 100))
    data[at : at + count] = bytes([random.choice((0, 0xFF, 0x80, 0x7F))]) * count
    return bytes(data)


def _repeat(random: Random, data: bytearray) -> bytes:
    at = random.randrange(len(data) + 1)
    piece = data[at : at + random.choice((1, 8, 64, 1000))]
    return bytes(data[:at] + piece * random.choice((2, 3, 50)) + data[at + len(piece) :])


def _drop(random: Random, data: bytearray) -> bytes:
    at = random.randrange(len(data) + 1)
    del data[at : at + random.choice((1, 4, 8, 61, 1000))]
    return bytes(data)


_BYTE_CHANGES = (
    flip_bits,
    flip_bits,
    _truncate,
    change_number,
    change_number,
    change_number,
    fill_bytes,
    _repeat,
    _drop,
)


# -- JSON ----------------------------------------------------------------------------------------


def framed(fields: Mapping[str, object], version: int = 1) -> bytes:
    """An object in the frame that all small ones have."""
    return frame(json.dumps(fields).encode()[1:] + b"\n", version)


def frame(body: bytes, version: int) -> bytes:
    return b'{"format":%d,"checksum":"%08x",' % (version, crc32c.crc32c(body)) + body


def change_framed(random: Random, data: bytes) -> bytes:
    """A framed object with other content, and the right checksum."""
    head = _FRAME.match(data)
    if head is None:  # that of a person, or of a heartbeat
        return change_bytes(random, data)
    version = random.choice((1, 2, 3, 4, 5, 6)) if random.random() < 0.1 else int(head[1])
    body = data[head.end() :]
    if random.random() < 0.15:
        return frame(change_bytes(random, body), version)
    return frame(change_json(random, b"{" + body)[1:], version)


def change_json(random: Random, data: bytes) -> bytes:
    """A JSON document with something else in some places."""
    if random.random() < 0.05:
        return _deep(random, data)
    return _json_bytes(change_tree(random, json.loads(data))) + b"\n"


def _json_bytes(tree: object) -> bytes:
    return json.dumps(tree, ensure_ascii=True, separators=(",", ":")).encode()


def _deep(random: Random, data: bytes) -> bytes:
    """A value that is nested deeper than any stack."""
    opening, closing = random.choice(((b"[", b"]"), (b'{"a":', b"}")))
    deep = opening * DEEP + b"1" + (closing * DEEP if random.random() < 0.5 else b"")
    places = [found.end() for found in re.finditer(rb'":', data)]
    if not places or random.random() < 0.3:
        return data.rstrip()[:-1] + b',"unknown":' + deep + b"}\n"
    at = random.choice(places)
    return data[:at] + deep + b"," + data[at:]


def change_tree(random: Random, tree: Any) -> Any:
    """Nested lists and dictionaries, with another value in a few places."""
    for _ in range(random.choice((1, 1, 1, 2, 4))):
        places = [*_places(tree)]
        if not places:
            return random.choice((None, [], {}, 1, "x"))
        holder, key = random.choice(places)
        others = [holder[key] for holder, key in places]
        _change_place(random, holder, key, others)
    return tree


def _places(tree: Any) -> Iterator[tuple[Any, Any]]:
    """Where there are values: what holds each, and its key or index there."""
    if isinstance(tree, dict):
        for key, value in tree.items():
            yield tree, key
            yield from _places(value)
    elif isinstance(tree, list):
        for index, value in enumerate(tree):
            yield tree, index
            yield from _places(value)


def _change_place(random: Random, holder: Any, key: Any, others: list[Any]) -> None:
    value = holder[key]
    what = random.randrange(10)
    if what == 0:
        del holder[key]
    elif what == 1:
        holder[key] = copy.deepcopy(random.choice(others))
    elif what == 2 and isinstance(value, list) and value:
        holder[key] = value * random.choice((2, 3, 1000, 20_000 if len(value) < 3 else 2))
    elif what == 2 and isinstance(holder, list):
        holder.insert(key, copy.deepcopy(value))
    elif what == 3 and isinstance(value, dict) and value:
        name = random.choice([*value])
        value[random.choice((*TEXTS, "0", "99", "1000000000"))] = copy.deepcopy(value[name])
    elif what == 4:
        holder[key] = random.choice((None, [], {}, True, [None], [[]], {"": 0}))
    elif isinstance(value, bool) or value is None:
        holder[key] = random.choice((True, False, None, *NUMBERS, *TEXTS))
    elif isinstance(value, int | float) and what < 9:
        holder[key] = random.choice((*NUMBERS, value + 1, value - 1, -value, value * 2))
    elif isinstance(value, str) and value.isdigit() and what < 8:
        holder[key] = str(random.choice(NUMBERS))
    elif isinstance(value, str) and what < 9:
        holder[key] = random.choice((*TEXTS, value + "x", value[:-1], value * 2, value.upper()))
    else:
        holder[key] = random.choice((*NUMBERS, *TEXTS))


def change_token(random: Random, token: bytes) -> bytes:
    """A snapshot's token: compressed msgpack with a checksum, in base64."""
    head, _, body = token.partition(b".")
    packed = base64.urlsafe_b64decode(body + b"=" * (-len(body) % 4))
    content = zlib.decompress(packed[:-4])
    what = random.random()
    if what < 0.6:
        content = msgspec.msgpack.encode(
            _packable(change_tree(random, msgspec.msgpack.decode(content)))
        )
    elif what < 0.7:  # lists that claim or have very many values
        many = random.choice((1 << 10, 1 << 16, 1 << 19))
        tree = msgspec.msgpack.decode(content)
        for pinned in tree[1]:
            pinned[-2:] = [[0] * many, [0] * many]
        content = msgspec.msgpack.encode(tree)
    elif what < 0.8:
        content = b"\x91" * DEEP + content
    else:
        content = change_bytes(random, content)
    packed = zlib.compress(content, 9)
    if random.random() < 0.1:
        packed = change_bytes(random, packed)
    data = packed + crc32c.crc32c(packed).to_bytes(4, "big")
    return head + b"." + base64.urlsafe_b64encode(data).rstrip(b"=")


def _packable(tree: Any) -> Any:
    """Msgpack has neither integers beyond 64 bits nor half characters."""
    if isinstance(tree, dict):
        return {_packable(key): _packable(value) for key, value in tree.items()}
    if isinstance(tree, list):
        return [_packable(value) for value in tree]
    if isinstance(tree, int) and not -(1 << 63) <= tree < 1 << 64:
        return float(tree)
    return tree.encode(errors="replace").decode() if isinstance(tree, str) else tree


def change_lines(random: Random, data: bytes) -> bytes:
    """A file of JSON lines."""
    lines = data.splitlines()
    at = random.randrange(len(lines))
    lines[at] = (
        change_bytes(random, lines[at])
        if random.random() < 0.3
        else change_json(random, lines[at]).rstrip()
    )
    return b"\n".join(lines) + b"\n"


# -- what refers to an object --------------------------------------------------------------------


def repaired(files: Mapping[str, bytes], name: str, data: bytes) -> dict[str, bytes]:
    """An object's new bytes, and everything that says something about them, made right."""
    if name.endswith((".arrow", ".rewrites")):
        return {name: data, **_listed(files, name, data)}
    if not name.endswith((".log", ".parquet")):
        return {name: data}
    stem = name.rpartition("/")[2].removesuffix(".log")
    tag = None
    if name.endswith(".parquet") and len(data) > 8:
        (size,) = struct.unpack("<i", data[-8:-4])
        if 0 <= size <= len(data) - 8:
            tag = crc32c.crc32c(data[-8 - size :]) & 0x7FFFFFFF
    changed = {name: data}
    for path, found in files.items():
        head = _FRAME.match(found)
        if head and b'"%s"' % stem.encode() in found:
            tree = json.loads(found)
            version = tree.pop("format")
            del tree["checksum"]
            if _place(tree, stem, len(data), tag):
                changed[path] = framed(tree, version)
    return changed


def _listed(files: Mapping[str, bytes], name: str, data: bytes) -> dict[str, bytes]:
    changed = {}
    last = name.rpartition("/")[2]
    for path, found in files.items():
        if path.endswith(".list") and last.encode() in found:
            tree = json.loads(found)
            version = tree.pop("format")
            del tree["checksum"]
            for ref in (*tree["manifests"], tree.get("rewrites") or {}):
                if ref.get("name") == last:
                    ref["size_bytes"] = len(data)
                    if "crc" in ref:
                        ref["crc"] = crc32c.crc32c(data)
            changed[path] = framed(tree, version)
    return changed


def _place(tree: Any, stem: str, size_bytes: int, tag: int | None) -> bool:
    """Say of a segment, wherever it is placed in a file of its own, how large it is now."""
    if isinstance(tree, list) and len(tree) == len(STORED) and tree[0] == stem:
        if tree[STORED.index("position")] != -1:
            return False
        tree[STORED.index("size_bytes")] = size_bytes
        if tag is not None:
            tree[STORED.index("tag")] = tag
        return True
    inner = tree.values() if isinstance(tree, dict) else tree if isinstance(tree, list) else ()
    placed = [_place(each, stem, size_bytes, tag) for each in inner]  # maybe more than once
    return any(placed)
