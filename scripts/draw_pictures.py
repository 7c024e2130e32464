"""Draws the pictures of the documents into docs/images: ``python scripts/draw_pictures.py``.

SVG that follows the reader's light or dark theme. tests/project holds that what lies there is this.
"""

from __future__ import annotations

from html import escape
from pathlib import Path

FOLDER = Path(__file__).resolve().parents[1] / "docs" / "images"
STYLE = """
text { font: 13px system-ui, sans-serif; fill: #24292f }
.small { font-size: 11px; fill: #57606a }
.code { font: 12px ui-monospace, monospace }
.bold { font-weight: 600 }
.middle { text-anchor: middle }
.frame { fill: none; stroke: #8c959f; stroke-dasharray: 4 3 }
.box { fill: #f6f8fa; stroke: #8c959f }
.committed { fill: #aceebb; stroke: #1a7f37 }
.aborted { fill: #ffcecb; stroke: #cf222e }
.undecided { fill: #fae17d; stroke: #9a6700 }
.decision { fill: #b6e3ff; stroke: #0969da; stroke-width: 2 }
.arrow { stroke: #57606a; stroke-width: 1.5; fill: none; marker-end: url(#head) }
.line { stroke: #57606a; stroke-width: 1.5 }
.head { fill: #57606a }
@media (prefers-color-scheme: dark) {
  text { fill: #e6edf3 }
  .small { fill: #9198a1 }
  .box { fill: #161b22; stroke: #6e7681 }
  .frame { stroke: #6e7681 }
  .committed { fill: #12521f; stroke: #3fb950 }
  .aborted { fill: #6b1a17; stroke: #f85149 }
  .undecided { fill: #5c4307; stroke: #d29922 }
  .decision { fill: #0c3b73; stroke: #58a6ff }
  .arrow, .line { stroke: #9198a1 }
  .head { fill: #9198a1 }
}
"""


class Picture:
    """Shapes, one after another."""

    def __init__(self, width: int, height: int, title: str) -> None:
        size = f'viewBox="0 0 {width} {height}" width="{width}" height="{height}"'
        words = escape(title)
        head = 'id="head" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="8" markerHeight="8"'
        self._lines = [
            f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img" aria-label="{words}">',
            f"<title>{words}</title>",
            f"<style>{STYLE}</style>",
            f'<marker {head} orient="auto"><path class="head" d="M0,0 L8,4 L0,8 z"/></marker>',
        ]

    def box(self, x: int, y: int, width: int, height: int, kind: str = "box") -> None:
        shape = f'x="{x}" y="{y}" width="{width}" height="{height}" rx="5"'
        self._lines.append(f'<rect class="{kind}" {shape}/>')

    def text(self, x: int, y: int, words: str, kind: str = "") -> None:
        self._lines.append(f'<text class="{kind}" x="{x}" y="{y}">{escape(words)}</text>')

    def arrow(self, *points: tuple[int, int], kind: str = "arrow") -> None:
        path = " L".join(f"{x},{y}" for x, y in points)
        self._lines.append(f'<path class="{kind}" d="M{path}"/>')

    def done(self) -> str:
        return "\n".join([*self._lines, "</svg>", ""])


def idea() -> str:
    """Writers, the folder, readers."""
    picture = Picture(820, 300, "Uploads first; one small file decides; readers see all or nothing")
    picture.box(250, 12, 350, 276, "frame")
    picture.text(266, 34, "a folder: disk, S3, HDFS, GCS, Azure, SFTP", "small")
    for row, topic in enumerate(("topics/paid", "topics/totals")):
        y = 52 + 56 * row
        picture.text(266, y + 19, topic, "code")
        for number in range(4):
            last = number == 3
            picture.box(400 + 44 * number, y, 38, 28, "undecided" if last else "committed")
    picture.text(266, 158, "segments: Arrow, Parquet, or Kafka's record batches", "small")
    picture.text(266, 189, "groups/etl", "code")
    picture.box(400, 172, 170, 28)
    picture.text(485, 190, "orders: 41 → 57", "code middle")
    picture.text(266, 239, "transactions/etl", "code")
    picture.box(400, 218, 170, 34, "decision")
    picture.text(485, 240, "PrepareCommit", "code bold middle")
    picture.text(266, 276, "created unless it exists: it decides all of the above", "small")
    picture.box(20, 86, 150, 90)
    picture.text(95, 112, "a Spark job,", "middle bold")
    picture.text(95, 130, "a producer", "middle bold")
    picture.text(95, 156, "kill it anywhere", "small middle")
    picture.arrow((170, 108), (246, 78))
    picture.text(176, 62, "1 upload", "small")
    picture.arrow((170, 132), (246, 132))
    picture.text(176, 124, "2 append", "small")
    picture.arrow((170, 156), (246, 235))
    picture.text(150, 218, "3 decide", "small")
    picture.box(650, 86, 150, 90)
    picture.text(725, 112, "readers", "middle bold")
    picture.text(725, 138, "all of it,", "small middle")
    picture.text(725, 154, "or nothing of it", "small middle")
    picture.arrow((604, 132), (646, 132))
    return picture.done()


def transaction() -> str:
    """The files that one transaction puts, round by round, and what a crash after each means."""
    rounds = (
        (
            "box",
            "uploads",
            "topics/paid/data/..., topics/totals/data/...",
            "orphans, deleted later",
        ),
        ("undecided", "1 begin", "transactions/etl/...1.json  Ongoing", "aborted at its timeout"),
        ("undecided", "2 append", "topics/paid/log/...1.json", "aborted at its timeout"),
        ("undecided", "", "topics/totals/log/...1.json", ""),
        ("undecided", "", "groups/etl/...0.json  the offsets", ""),
        (
            "decision",
            "3 decide",
            "transactions/etl/...2.json  PrepareCommit",
            "committed: others finish it",
        ),
        ("committed", "4 mark", "topics/paid/log/...1.commit", "committed"),
        ("committed", "", "topics/totals/log/...1.commit", ""),
        ("committed", "", "groups/etl/...0.commit", ""),
        ("committed", "5 complete", "transactions/etl/...3.json  CompleteCommit", "committed"),
    )
    picture = Picture(820, 42 + 34 * len(rounds), "The files of a transaction, one after another")
    for x, head in (
        (20, "round"),
        (120, "file, each created unless it exists"),
        (560, "a crash after it"),
    ):
        picture.text(x, 24, head, "small")
    for number, (kind, step, file, crash) in enumerate(rounds):
        y = 36 + 34 * number
        picture.text(20, y + 19, step, "bold")
        picture.box(120, y, 420, 28, kind)
        picture.text(132, y + 18, file, "code")
        picture.text(560, y + 19, crash, "small")
    return picture.done()


def levels() -> str:
    """One partition, and how far each isolation level reads."""
    records = (
        ("T1", "committed"),
        ("T1", "committed"),
        ("T2", "undecided"),
        ("T3", "committed"),
        ("T4", "aborted"),
        ("T5", "committed"),
    )
    picture = Picture(820, 250, "What each isolation level shows of a partition")
    for offset, (owner, outcome) in enumerate(records):
        picture.box(170 + 70 * offset, 46, 62, 36, outcome)
        picture.text(201 + 70 * offset, 69, owner, "middle bold")
        picture.text(201 + 70 * offset, 98, str(offset), "small middle")
    picture.text(20, 69, "orders:0")
    picture.text(20, 98, "offset", "small")
    picture.arrow((306, 36), (306, 104), kind="line")
    picture.text(306, 28, "last stable offset", "small middle")
    picture.arrow((586, 36), (586, 104), kind="line")
    picture.text(586, 28, "end", "small middle")
    shown = (
        ("read_committed", (0, 1), "stops at what is undecided"),
        ("snapshot", (0, 1, 3, 5), "all that is committed now"),
        ("read_uncommitted", range(6), "whatever is there"),
    )
    for row, (level, offsets, words) in enumerate(shown):
        y = 122 + 42 * row
        picture.text(20, y + 19, level, "code")
        for offset in offsets:
            picture.box(170 + 70 * offset, y, 62, 28, records[offset][1])
        picture.text(612, y + 19, words, "small")
    return picture.done()


Step = tuple[int, int, str] | tuple[int, int, str, bool]
"""Who asks whom, by their places, for what, and whether that fails; who asks himself: a note."""


def _sequence(title: str, actors: tuple[str, ...], steps: tuple[Step, ...]) -> str:
    """Requests between actors, one below the other."""
    between = 760 // len(actors)
    places = [30 + between // 2 + between * number for number in range(len(actors))]
    picture = Picture(820, 70 + 44 * len(steps), title)
    for place, actor in zip(places, actors, strict=True):
        picture.arrow((place, 44), (place, 58 + 44 * len(steps)), kind="frame")
        picture.box(place - 78, 14, 156, 30)
        picture.text(place, 34, actor, "middle bold")
    for number, (asks, asked, words, *fails) in enumerate(steps):
        y = 84 + 44 * number
        if asks == asked:
            picture.box(places[asks] - 78, y - 20, 28 + 7 * len(words), 30, "undecided")
            picture.text(places[asks] - 66, y - 1, words)
            continue
        start, end = places[asks], places[asked]
        ahead = 1 if end > start else -1
        picture.text((start + end) // 2, y - 8, words, "middle")
        if any(fails):
            end -= 40 * ahead
            picture.text(end + 8 * ahead, y + 5, "\u2715", "middle bold")
            picture.arrow((start, y), (end, y), kind="line")
        else:
            picture.arrow((start, y), (end - 3 * ahead, y))
    return picture.done()


def outage() -> str:
    """A follower does not answer."""
    return _sequence(
        "A follower fails, and is put out",
        ("writer", "root A, leader", "root B", "controller"),
        (
            (0, 1, "entry 7"),
            (0, 2, "entry 7", True),
            (0, 0, "again, until replica.lag.time.max.ms is over"),
            (0, 3, "epoch 5, if absent: in sync are A alone"),
            (0, 1, "entry 7: there, own"),
            (0, 3, "is there an epoch after 5? no"),
            (0, 0, "acknowledged"),
        ),
    )


def election() -> str:
    """The leader does not answer."""
    return _sequence(
        "The leader fails, and another root leads",
        ("writer", "root A, leader", "root B", "controller"),
        (
            (0, 1, "entry 8", True),
            (0, 0, "again, until replica.lag.time.max.ms is over"),
            (0, 2, "are you the folder you should be? yes"),
            (0, 3, "epoch 6, if absent: B leads, in sync is B alone"),
            (0, 2, "entry 8"),
            (0, 3, "is there an epoch after 6? no"),
            (0, 0, "acknowledged"),
        ),
    )


def returning() -> str:
    """A root that was out comes back."""
    return _sequence(
        "A root comes back as a new incarnation",
        ("Replicas.add", "root A", "root B, leader", "controller"),
        (
            (0, 1, "mark a new folder"),
            (0, 3, "epoch 7, if absent: A's new incarnation is joining"),
            (2, 2, "from here on writers write to both"),
            (0, 2, "list everything"),
            (0, 1, "copy it"),
            (0, 2, "list again: what was deleted meanwhile goes"),
            (0, 3, "epoch 8, if absent: in sync are B and A"),
        ),
    )


def standby() -> str:
    """A round of a standby."""
    return _sequence(
        "One round of a standby",
        ("follow", "store", "standby"),
        (
            (0, 1, "which segments are new?"),
            (0, 2, "copy them: nobody sees them yet"),
            (0, 1, "logs, ids, logs again"),
            (0, 0, "the longest part of them that fits together"),
            (0, 2, "its logs, in a folder of this attempt"),
            (0, 2, "round 7, if absent: all of it shows at once"),
        ),
    )


ROOMS: dict[str, tuple[int, int]] = {
    "cli": (0, 0),
    "bridge": (0, 1),
    "replication": (0, 2),
    "ui": (1, 0),
    "spark": (1, 1),
    "testing": (1, 2),
    "doctor": (3, 0),
    "admin": (3, 2),
    "inspect": (4, 1),
    "tables": (4, 2),
    "kafka": (5, 1),
    "write": (6, 1),
    "read": (6, 2),
    "groups": (7, 2),
    "log": (8, 1),
    "state": (10, 1),
    "columns": (11, 0),
    "values": (11, 1),
    "storage": (10, 2),
    "segments": (13, 1),
}
"""The row and the column of each folder of the code."""


def floors() -> str:
    """The folders of the code, and which way imports go."""
    picture = Picture(820, 740, "Imports go down from the faces to the bytes")

    def top(row: int) -> int:
        return 14 + 52 * row

    for room, (row, column) in ROOMS.items():
        picture.box(20 + 270 * column, top(row), 240, 32)
        picture.text(140 + 270 * column, top(row) + 21, f"{room}/", "code bold middle")
    everywhere = ("arguments", "clock", "config", "display", "errors", "hooks", "limits")
    everywhere += ("metric", "names", "schema", "serializers", "time_limits")
    for row, modules in (
        (2, "store, producer, consumer, consumer_config, snapshot, scan, schemas, results"),
        (12, ", ".join(everywhere)),
    ):
        picture.box(20, top(row), 780, 32)
        picture.text(410, top(row) + 21, modules, "code bold middle")
    for row, words in (
        (4, "what operators ask for"),
        (5, "other formats, in and out"),
        (6, "data, in and out"),
        (8, "logs of small files, and their state"),
        (10, "what entries mean: no I/O, no clock"),
        (13, "record batches, indexes: bytes"),
    ):
        picture.text(20, top(row) + 21, words, "small")
    for row, x, until in (
        (0, 140, 1),
        (0, 680, 1),
        (1, 140, 2),
        (1, 410, 2),
        (1, 680, 2),
        (2, 140, 3),
        (3, 710, 4),
        (4, 410, 5),
        (4, 710, 6),
        (5, 410, 6),
        (6, 410, 8),
        (6, 710, 7),
        (8, 410, 10),
        (10, 410, 11),
        (10, 710, 12),
        (11, 140, 12),
        (11, 410, 12),
        (12, 410, 13),
    ):
        picture.arrow((x, top(row) + 32), (x, top(until) - 3))
    picture.arrow((260, top(3) + 16), (557, top(3) + 16))
    picture.arrow((590, top(3) + 32), (500, top(4) - 3))
    picture.arrow((530, top(5) + 16), (630, top(5) + 16), (630, top(6) - 3))
    picture.arrow((710, top(7) + 32), (710, top(8) + 16), (533, top(8) + 16))
    picture.arrow((530, top(10) + 16), (557, top(10) + 16))
    picture.arrow((290, top(10) + 16), (250, top(10) + 16), (250, top(11) - 3))
    return picture.done()


def batch() -> str:
    """The modules and the files that a batch goes through."""
    picture = Picture(820, 390, "A batch, from the producer through files to a reader")
    for x, head, boxes in (
        (
            20,
            "a writer",
            (
                (0, "box", "Producer.send_batch", ""),
                (1, "box", "write/record_buffers", "write/partitioner"),
                (2, "box", "write/segment_uploads", "segments/writer"),
                (3, "box", "write/coordinator", ""),
            ),
        ),
        (
            320,
            "files",
            (
                (1, "committed", "topics/t/data/0/*.log", "segments"),
                (3, "committed", "topics/t/log/", "entries and markers"),
                (4, "decision", "transactions/id/", "Ongoing, PrepareCommit, ..."),
            ),
        ),
        (
            620,
            "a reader",
            (
                (0, "box", "Scan.to_batches", ""),
                (1, "box", "read/stored_reader", "segments/reader"),
                (2, "box", "read/pin", ""),
                (3, "box", "log/topic_log", "state/topic"),
                (4, "box", "log/settlement", ""),
            ),
        ),
    ):
        picture.text(x, 24, head, "small")
        for row, kind, first, second in boxes:
            y = 36 + 72 * row
            picture.box(x, y, 180, 46, kind)
            picture.text(x + 90, y + (20 if second else 28), first, "code middle")
            font = "code middle" if "/" in second else "small middle"
            picture.text(x + 90, y + 37, second, font)
    for row in range(3):
        picture.arrow((110, 82 + 72 * row), (110, 105 + 72 * row))
    for row in range(4):
        picture.arrow((710, 108 + 72 * row), (710, 85 + 72 * row))
    for row in (1, 3, 4):
        picture.arrow((500, 59 + 72 * row), (616, 59 + 72 * row))
    picture.arrow((200, 195), (316, 138))
    picture.arrow((200, 275), (316, 275))
    picture.text(258, 267, "append, mark", "small middle")
    picture.arrow((110, 298), (110, 347), (316, 347))
    picture.text(213, 339, "decide", "small middle")
    return picture.done()


PICTURES = {
    "floors.svg": floors,
    "batch.svg": batch,
    "idea.svg": idea,
    "transaction.svg": transaction,
    "levels.svg": levels,
    "outage.svg": outage,
    "election.svg": election,
    "return.svg": returning,
    "standby.svg": standby,
}

if __name__ == "__main__":
    FOLDER.mkdir(exist_ok=True)
    for name, draw in PICTURES.items():
        (FOLDER / name).write_text(draw(), encoding="utf-8")
