"""Names: what users may call things, and what the files of a store are called.

The only module that builds or parses a file name, but for ``replication/root_names``. A name that
comes from a user is validated as Kafka validates it, or percent-encoded, so that no name can leave
its folder.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import date
from enum import Enum
from typing import Final, Literal, NamedTuple, TypeAlias
from urllib.parse import quote, unquote

from txnlog.errors import InvalidGroupId, InvalidTopic, InvalidTransactionalId, TxnlogError
from txnlog.limits import MOST_TEXT, Name, PartitionNumber, PartitionOrShared

STORE_FILE = "txnlog.json"
TOPICS = "topics"
TRANSACTIONS = "transactions"
GROUPS = "groups"
EXPIRED = "expired"
OF_LOGS = frozenset((TOPICS, TRANSACTIONS, GROUPS))
"""Where each folder is of a log."""
STAGING = "staging"
TEMPORARY = ".tmp"
"""In each folder that is a storage: files that are being written, and are in no listing."""
TABLES = "tables"

NUMBER_DIGITS = 20
_MAX_TOPIC_CHARS = 249
_MAX_ENCODED_BYTES = 250
"""Local filesystems take 255 bytes for one path component."""
_TOPIC = re.compile(r"[a-zA-Z0-9._-]+")
_LOG_FILE = re.compile(r"([0-9]{20})\.(?:(json|commit|abort|checkpoint)|(seen)-[0-9]{1,16})")
_CLOSING_MARK = re.compile(r"([0-9]{20})\.closed-([1-9])")
_SHARED_DATA = "shared"
"""The folder of files that segments of several partitions share: no partition is called so."""
SHARED: Final = -1
"""Stands for the partition in the key of such a file."""
OWN_FILE: Final = -1
INDEXED_FROM_BYTES: Final = 1 << 20
"""Smaller segments have no offset index and no time index."""
"""The position of a segment that shares its file with no other."""
PARQUET_ENDING: Final = ".parquet"
"""Ends the name of a segment that is a Parquet file, and so that of the file."""
_DATA_FILE = re.compile(
    rf"{TOPICS}/[^/]+/data/(0|[1-9]\d{{0,8}}|{_SHARED_DATA})/"
    r"(?:([^/]+)\.(log|index|timeindex|txnindex)|([^/]+\.parquet))"
)
_SCHEMA_VERSION = re.compile(r"-v([1-9][0-9]{0,8})-[0-9]+\.parquet\Z")
_MANIFEST_LIST = re.compile(r"([0-9]{20})\.list")
_MANIFEST = re.compile(r"([0-9]{20})-[0-9A-Za-z_-]+\.(?:arrow|rewrites)")
_PROPOSAL = re.compile(r"([0-9]{20})-(.+)\.json")
_HEARTBEAT = re.compile(r"([0-9a-f]{32})\.(\d{1,18})\.(\d{1,18})\.(\d{1,18})")
_JOIN_REQUEST = re.compile(r"([0-9a-f]{32})\.(\d{1,18})\.join")
_LEAVE_REQUEST = re.compile(r"([0-9a-f]{32})\.leave")
IndexKind: TypeAlias = Literal["offset", "time", "transaction"]
SEGMENT_ENDING: Final = ".log"
INDEX_ENDINGS: Final[Mapping[IndexKind, str]] = {
    "offset": ".index",
    "time": ".timeindex",
    "transaction": ".txnindex",
}
_FRAMED = re.compile(
    r"\.(?:json|commit|abort|checkpoint|list|rewrites|closed-[1-9]|seen-\d+|join|leave|read|skipped)\Z"
    r"|/[0-9a-f]{32}(?:\.\d{1,18}){3}\Z"  # a heartbeat
)
_READ_NOTE = re.compile(r"([0-9a-f]{32})\.([0-9a-f-]{1,80})\.[0-9a-f]{32}\.read")
_SKIPPED_NOTE = re.compile(r"([0-9a-f]{32})\.[0-9a-f]{32}\.skipped")
_LEFTOVER = re.compile(
    rf"{STAGING}/(?:[\w%-]+-[0-9]{{6,}}\.json|{_READ_NOTE.pattern}|{_SKIPPED_NOTE.pattern})"
    r"|\.tmp/[0-9a-f]{32}"
    r"|\.probe/[0-9a-f]{32}(?:/(?:twice|now|race-[0-9-]+))?"
)
_OF_TABLES = re.compile(
    rf"{TABLES}/[0-9-]{{10}}/[^/]+/(?:"
    r"[^/.]+\.(?:list|[^/.]+\.[0-9]+\.[0-9]+(?:-[^/.]+)?)\.avro"
    r"|[^/.]+\.[0-9]{8,}\.metadata\.json"
    r"|[^/]+\.[0-9a-f]{32}\.parquet)"
)


class TopicPartition(NamedTuple):
    """One partition of one topic, as in Kafka's clients."""

    topic: Name
    partition: PartitionNumber

    def __str__(self) -> str:
        return f"{self.topic}:{self.partition}"


class Heartbeat(NamedTuple):
    """A group member's heartbeat, as in the name of its file.

    ``number`` counts up. ``followed`` is the generation that it follows: it has let go of all that
    was taken from it up to there. ``next_entry`` is how far it has read the group's log.
    """

    member_id: str
    number: int
    followed: int
    next_entry: int


class JoinRequest(NamedTuple):
    """A group member's request to join or leave, as in the name of its file.

    ``next_entry`` is how many entries the log had when the member saw that it still needed an
    entry.
    """

    member_id: str
    next_entry: int


class LogFile(Enum):
    """The kinds of files in a log folder, by the ending of their names."""

    ENTRY = "json"
    COMMIT = "commit"
    ABORT = "abort"
    CHECKPOINT = "checkpoint"
    SEEN = "seen"


_LOG_FILES: Final[Mapping[str, LogFile]] = {kind.value: kind for kind in LogFile}
"""For long listings: it takes a fifth of what a call of the enumeration does."""


@dataclass(frozen=True, slots=True)
class SegmentPaths:
    """The files of one segment: they lie side by side, and differ in their endings alone."""

    stem: str

    @classmethod
    def of(cls, path: str) -> SegmentPaths | None:
        """The files of the segment that ``path`` is a file of; None if it is not named like one."""
        if path.endswith(PARQUET_ENDING):
            return cls(path)
        for ending in (SEGMENT_ENDING, *INDEX_ENDINGS.values()):
            if path.endswith(ending):
                return cls(path.removesuffix(ending))
        return None

    @property
    def log(self) -> str:
        """The segment itself."""
        return self.stem if self.is_parquet else self.stem + SEGMENT_ENDING

    @property
    def is_parquet(self) -> bool:
        """Whether it is a Parquet file, whose footer serves for the indexes."""
        return self.stem.endswith(PARQUET_ENDING)

    def index(self, kind: IndexKind) -> str:
        return self.stem + INDEX_ENDINGS[kind]

    @property
    def offset_index(self) -> str:
        return self.index("offset")

    @property
    def time_index(self) -> str:
        return self.index("time")

    @property
    def transaction_index(self) -> str:
        return self.index("transaction")


FileKey: TypeAlias = tuple[PartitionOrShared, Name]
"""Identifies a segment's files within its topic: the partition, or SHARED, and the name."""


class SegmentRef(NamedTuple):
    """One segment of a store. ``name`` is unique among those of its partition, for ever.

    ``position`` is where it begins in a file that it shares with segments of other partitions,
    which have the same name; OWN_FILE if it has files of its own.
    """

    topic: str
    partition: int
    name: str
    position: int = OWN_FILE

    @property
    def file_key(self) -> FileKey:
        """The identity of its files within the topic."""
        return (self.partition if self.position == OWN_FILE else SHARED), self.name

    @property
    def paths(self) -> SegmentPaths:
        """Its files, by their names within the store."""
        return SegmentPaths(f"{topic_data(self.topic, self.file_key[0])}/{self.name}")

    def is_indexed(self, batch_count: int, size_bytes: int) -> bool:
        """Whether there are an offset index and a time index beside it.

        What is small is read from its beginning, in one request: an index would be another one.
        """
        is_large = batch_count > 1 and size_bytes >= INDEXED_FROM_BYTES
        return is_large and self.position == OWN_FILE and not self.paths.is_parquet

    def files(self, batch_count: int, size_bytes: int, *, has_aborted: bool = False) -> list[str]:
        """The names of all the segment's files."""
        indexes = self.indexes(batch_count, size_bytes, has_aborted=has_aborted)
        return [self.paths.log, *indexes.values()]

    def indexes(
        self, batch_count: int, size_bytes: int, *, has_aborted: bool = False
    ) -> dict[IndexKind, str]:
        """The names of the segment's index files."""
        is_indexed = self.is_indexed(batch_count, size_bytes)
        kinds: list[IndexKind] = ["offset", "time"] if is_indexed else []
        if has_aborted:
            kinds.append("transaction")
        return {kind: self.paths.index(kind) for kind in kinds}

    @property
    def start(self) -> int:
        """The segment's position in its file."""
        return max(self.position, 0)

    @property
    def label(self) -> str:
        """The segment's name in messages, where positions count from its beginning."""
        return f"{self.paths.log}+{self.position}" if self.position > 0 else self.paths.log


def check_topic(topic: str) -> str:
    """Return ``topic`` if Kafka would accept it as a topic's name, else raise InvalidTopic."""
    if not isinstance(topic, str) or not topic:
        raise InvalidTopic(f"a topic's name must be a non-empty string, not {topic!r}")
    if topic in (".", ".."):
        raise InvalidTopic(f"a topic cannot be called {topic!r}")
    if len(topic) > _MAX_TOPIC_CHARS:
        raise InvalidTopic(
            f"topic name {topic[:40]!r}... has {len(topic)} characters; "
            f"at most {_MAX_TOPIC_CHARS} are allowed"
        )
    if not _TOPIC.fullmatch(topic):
        raise InvalidTopic(
            f"topic name {topic!r} has characters other than ASCII letters, digits, "
            "'.', '_' and '-'"
        )
    return topic


def check_group_id(group_id: str) -> str:
    """Return ``group_id`` if it can name a consumer group, else raise InvalidGroupId."""
    return _check_id(group_id, "group id", InvalidGroupId)


def check_transactional_id(transactional_id: str) -> str:
    """Return ``transactional_id`` if it is usable, else raise InvalidTransactionalId."""
    return _check_id(transactional_id, "transactional id", InvalidTransactionalId)


def _check_id(name: str, what: str, error: type[TxnlogError]) -> str:
    if not isinstance(name, str) or not name:
        raise error(f"a {what} must be a non-empty string, not {name!r}")
    check_text(name, what, error)
    if len(_encode(name)) > _MAX_ENCODED_BYTES:
        raise error(f"{what} {name[:40]!r}... is too long for a file name")
    return name


def check_text(
    name: str, what: str, error: type[TxnlogError], *, most_chars: int = MOST_TEXT
) -> None:
    """Raise ``error`` if a string cannot be written: too long, or with half a surrogate pair."""
    if len(name) > most_chars:
        raise error(
            f"{what} {name[:40]!r}... has {len(name)} characters; at most {most_chars} are allowed"
        )
    try:
        name.encode()
    except UnicodeEncodeError:
        raise error(
            f"{what} {name!r:.60} is not valid text: it holds half of a surrogate pair"
        ) from None


def _encode(name: str) -> str:
    """Percent-encode everything but ``[A-Za-z0-9_-]``: also the dot, so '..' is harmless."""
    return quote(name, safe="", errors="surrogatepass").replace(".", "%2E").replace("~", "%7E")


# -- folders -------------------------------------------------------------------------------------


def topic_folder(topic: str) -> str:
    return f"{TOPICS}/{check_topic(topic)}"


def is_topic_log_file(path: str) -> bool:
    """Whether it is a file of a topic's log, a manifest or a proposal: no data."""
    return path.split("/")[2:3] in (["log"], ["manifests"], ["proposals"])


def is_unique(path: str) -> bool:
    """Whether nobody else ever puts an object of this name: it is data, or a manifest.

    What is in it is of no account before an entry or a list names it.
    """
    folder, _, last = path.rpartition("/")
    return parse_data_file(path) is not None or (
        folder.endswith("/manifests") and parse_manifest(last) is not None
    )


def is_framed(path: str) -> bool:
    """Whether an object has a checksum of all its bytes in itself: it is no data, nor a manifest.

    The log has those of data, or tells its batches', and the list of manifests has theirs. What a
    catalog has put for tables is for others to read, and has none.
    """
    return _FRAMED.search(path) is not None and not path.startswith(f"{TABLES}/")


def topic_log(topic: str) -> str:
    return f"{TOPICS}/{check_topic(topic)}/log"


def topic_manifests(topic: str) -> str:
    return f"{TOPICS}/{check_topic(topic)}/manifests"


def topic_proposals(topic: str) -> str:
    """The folder of a topic's proposals."""
    return f"{TOPICS}/{check_topic(topic)}/proposals"


def topic_data(topic: str, partition: int) -> str:
    """The folder of a partition's files, or of shared ones (SHARED)."""
    folder = _SHARED_DATA if partition == SHARED else f"{partition:d}"
    return f"{TOPICS}/{check_topic(topic)}/data/{folder}"


def topic_data_folder(topic: str) -> str:
    """The folder of the data files of all partitions."""
    return f"{TOPICS}/{check_topic(topic)}/data"


def retired_folder(topic: str) -> str:
    """The folder of notes of segments to which nothing refers any more."""
    return f"{TOPICS}/{check_topic(topic)}/retired"


def is_retired_note(path: str) -> bool:
    """Whether it is a file of ``topics/<topic>/retired``."""
    return path.split("/")[2:3] == ["retired"]


def transaction_log(transactional_id: str) -> str:
    return f"{TRANSACTIONS}/{_encode(check_transactional_id(transactional_id))}"


def is_state(path: str) -> bool:
    """Whether an object is a state of a transactional id."""
    folder, _, last = path.rpartition("/")
    parsed = parse_log_file(last)
    return (
        folder.startswith(f"{TRANSACTIONS}/") and parsed is not None and parsed[1] is LogFile.ENTRY
    )


def expired_log(transactional_id: str) -> str:
    """The folder of an expired transactional id's last state, under its number."""
    return f"{EXPIRED}/{_encode(check_transactional_id(transactional_id))}"


def group_log(group_id: str) -> str:
    return f"{GROUPS}/{_encode(check_group_id(group_id))}"


def is_log_folder(folder: str) -> bool:
    """Whether it is the folder of a topic's log, a transactional id's or a group's."""
    match folder.split("/"):
        case [kind, _, "log"]:
            return kind == TOPICS
        case [kind, _]:
            return kind in (TRANSACTIONS, GROUPS)
    return False


def group_members(group_id: str) -> str:
    """The folder of a group's heartbeats and requests."""
    return f"{group_log(group_id)}/members"


def heartbeat(group_id: str, beat: Heartbeat) -> str:
    """The file of a heartbeat: ``<member>.<number>.<generation>.<entry>``."""
    return f"{group_members(group_id)}/{'.'.join(map(str, beat))}"


def join_request(group_id: str, request: JoinRequest) -> str:
    """The file of a request to join: ``<member>.<entry>.join``."""
    return f"{group_members(group_id)}/{request.member_id}.{request.next_entry:d}.join"


def leave_request(group_id: str, member_id: str) -> str:
    """The file of a request to leave: ``<member>.leave``."""
    return f"{group_members(group_id)}/{member_id}.leave"


def topic_of_folder(folder: str) -> str | None:
    """The topic that a folder below ``topics`` is of; None if no topic can be called so."""
    try:
        return check_topic(folder)
    except InvalidTopic:
        return None


def group_of_folder(folder: str) -> str | None:
    """The group that a folder below ``groups`` is of; None if it is of none."""
    return _id_of_folder(folder, check_group_id)


def transactional_id_of_folder(folder: str) -> str | None:
    """The id that a folder below ``transactions`` or ``expired`` is of; None if it is of none."""
    return _id_of_folder(folder, check_transactional_id)


def _id_of_folder(folder: str, check: Callable[[str], str]) -> str | None:
    try:
        found = check(unquote(folder, errors="surrogatepass"))
    except (InvalidGroupId, InvalidTransactionalId, UnicodeDecodeError):
        return None
    return found if _encode(found) == folder else None


# -- files ---------------------------------------------------------------------------------------


def log_file(number: int, kind: LogFile) -> str:
    """The name of a file in a log folder: ``00000000000000000041.commit``."""
    return f"{number:0{NUMBER_DIGITS}d}.{kind.value}"


def log_file_prefix(number: int) -> str:
    """Sorts before every file of entry ``number`` and after every file of those before it."""
    return f"{number:0{NUMBER_DIGITS}d}"


def parse_log_file(name: str) -> tuple[int, LogFile] | None:
    """The entry number and kind of a file in a log folder; None if it is something else."""
    match = _LOG_FILE.fullmatch(name)
    return (int(match[1]), _LOG_FILES[match[2] or match[3]]) if match else None


def witness_file(number: int, at_ms: int) -> str:
    """The name of a witness: by somebody's clock, entry ``number`` was there at that time."""
    return f"{log_file(number, LogFile.SEEN)}-{max(at_ms, 0):d}"


def witness_time_ms(name: str) -> int:
    """The time in the name of a witness."""
    return int(name.rpartition("-")[2])


def parse_heartbeat(name: str) -> Heartbeat | None:
    """The heartbeat that a name in ``members/`` tells of; None if it is something else."""
    match = _HEARTBEAT.fullmatch(name)
    if match is None:
        return None
    return Heartbeat(match[1], int(match[2]), int(match[3]), int(match[4]))


def parse_join_request(name: str) -> JoinRequest | None:
    """The request that a name in ``members/`` tells of; None if it is something else."""
    match = _JOIN_REQUEST.fullmatch(name)
    return JoinRequest(match[1], int(match[2])) if match else None


def parse_leave_request(name: str) -> str | None:
    """The member that asks to leave by a name in ``members/``; None if it is something else."""
    match = _LEAVE_REQUEST.fullmatch(name)
    return match[1] if match else None


def closing_mark(first: int, level: int) -> str:
    """The name of a mark that closes the entries of one block: ``00000000000000000064.closed-1``.

    ``first`` is the block's first entry; how many there are follows from the level.
    """
    return f"{first:0{NUMBER_DIGITS}d}.closed-{level:d}"


def parse_closing_mark(name: str) -> tuple[int, int] | None:
    """The first entry and the level in the name of a closing mark; None if it is something else."""
    match = _CLOSING_MARK.fullmatch(name)
    return (int(match[1]), int(match[2])) if match else None


def is_closing_mark(path: str) -> bool:
    """Whether an object is a closing mark of a log."""
    folder, _, last = path.rpartition("/")
    return parse_closing_mark(last) is not None and is_log_folder(folder)


def manifest_list(number: int) -> str:
    """The name of a manifest list in its folder: ``00000000000000000007.list``."""
    return f"{number:0{NUMBER_DIGITS}d}.list"


def manifest(number: int, token: str) -> str:
    """The name of a manifest that was made for list ``number``: unique, because of the token."""
    return f"{number:0{NUMBER_DIGITS}d}-{token}.arrow"


def rewrites_file(number: int, token: str) -> str:
    """The name of a file of rewrites that was made for list ``number``."""
    return f"{number:0{NUMBER_DIGITS}d}-{token}.rewrites"


def parse_manifest_list(name: str) -> int | None:
    """The number of a manifest list; None if it is something else."""
    match = _MANIFEST_LIST.fullmatch(name)
    return int(match[1]) if match else None


def parse_manifest(name: str) -> int | None:
    """The number of the list that a manifest, or a file of rewrites, was made for; else None."""
    match = _MANIFEST.fullmatch(name)
    return int(match[1]) if match else None


def proposal(entry: int, segment: str) -> str:
    """The name of a proposal: the entry that it was built for, and its first segment's name."""
    return f"{entry:0{NUMBER_DIGITS}d}-{segment}.json"


def parse_proposal(name: str) -> tuple[int, str] | None:
    """The entry and the segment in the name of a proposal; None if it is something else."""
    match = _PROPOSAL.fullmatch(name)
    return (int(match[1]), match[2]) if match else None


def segment_name(writer: str, counter: int, *, schema_version: int = 0) -> str:
    """The stem of a segment's files: unique, because ``writer`` is a fresh random token.

    Of a typed topic it tells how many schemas there were before the one that it is written under.
    """
    version = f"-v{schema_version:d}" if schema_version else ""
    return f"{writer}{version}-{counter:d}"


def parquet_name(name: str) -> str:
    """The stem that the files of a segment get if it is a Parquet file."""
    return f"{name}{PARQUET_ENDING}"


def schema_version(stem: str) -> int:
    """The version of the schema that a segment was written under; 0 if its name does not tell."""
    match = _SCHEMA_VERSION.search(stem)
    return int(match[1]) if match else 0


def segment_order(partition: int, stem: str) -> tuple[int, int]:
    """Sorts the segments of one writer by partition, then in the order they were begun."""
    return partition, int(stem.removesuffix(PARQUET_ENDING).rpartition("-")[2])


def is_accelerator(path: str) -> bool:
    """Whether it is an index that only saves time: it can be rebuilt from its segment."""
    return path.endswith((INDEX_ENDINGS["offset"], INDEX_ENDINGS["time"]))


def parse_data_file(name: str) -> tuple[int, str, str] | None:
    """The partition (or SHARED), stem and ending of a file of ``topics/<topic>/data``.

    The ending of a segment's own file is ``log``, in Parquet too. None if it is not a file of a
    segment.
    """
    match = _DATA_FILE.fullmatch(name)
    if match is None:
        return None
    partition = SHARED if match[1] == _SHARED_DATA else int(match[1])
    return partition, match[2] or match[4], match[3] or "log"


def retired_note(topic: str, token: str) -> str:
    """A note of segments that nothing refers to any more; ``token`` is a fresh random one."""
    return f"{retired_folder(topic)}/{token}.json"


def staging_file(token: str, number: int) -> str:
    """The manifest of write ``number`` of a not yet committed Spark transaction.

    All in one folder: a filesystem keeps a folder of its own for each when the files are gone.
    """
    return f"{STAGING}/{_encode(token)}-{number:06d}.json"


def is_leftover(path: str) -> bool:
    """Whether a job or a process may have left it outside of topics: nobody else's is called so."""
    return _LEFTOVER.fullmatch(path) is not None


def is_of_tables(path: str) -> bool:
    """Whether it is a file that a catalog has put for a topic's table on a day."""
    return _OF_TABLES.fullmatch(path) is not None


def table_folder(topic: str, day: date) -> str:
    """The folder of the metadata that a catalog has put for a topic's table on a day."""
    return f"{TABLES}/{day.isoformat()}/{check_topic(topic)}"


def day_of_tables(folder: str) -> date | None:
    """The day that a folder in ``tables/`` is of; None if it is something else."""
    try:
        found = date.fromisoformat(folder)
    except ValueError:
        return None
    return found if found.isoformat() == folder else None


def read_note(transactional_id: str, execution: str, transaction: str) -> str:
    """The note that rows of a Spark read with this id were given to an execution of Spark's.

    ``execution`` has hexadecimal digits and '-' only; ``transaction`` is any text that tells the
    read's from others of the id, since one execution may have rows of both.
    """
    which = hashlib.sha256(transaction.encode()).hexdigest()[:32]
    return f"{STAGING}/{read_note_owner(transactional_id)}.{execution}.{which}.read"


def read_note_owner(transactional_id: str) -> str:
    """How the name of a read's note tells the id: an id may be as long as a name can be."""
    return hashlib.sha256(transactional_id.encode()).hexdigest()[:32]


def parse_read_note(name: str) -> tuple[str, str] | None:
    """The owner and the execution of a note in ``staging/``; None if it is something else."""
    match = _READ_NOTE.fullmatch(name)
    return (match[1], match[2]) if match else None


def skipped_note(transactional_id: str, what: str) -> str:
    """The note that a Spark read with this id has passed damaged records; ``what`` says which."""
    of_what = hashlib.sha256(what.encode()).hexdigest()[:32]
    return f"{STAGING}/{read_note_owner(transactional_id)}.{of_what}.skipped"


def parse_skipped_note(name: str) -> str | None:
    """The owner of a note of skipped records in ``staging/``; None if it is something else."""
    match = _SKIPPED_NOTE.fullmatch(name)
    return match[1] if match else None
