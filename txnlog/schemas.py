"""``Store.schemas``: the schemas of values, in a topic that the store keeps itself.

``_schemas`` is compacted and has one partition, and its records are as Confluent's registry writes
them: a topic that was imported from Kafka is read, and one that is exported is understood there.
Whoever changes it takes over the transactional id ``_schemas``, reads what is there, and commits
what follows from it. Somebody else who does the same in between fences him, and he begins again: so
no two schemas get one id or one version.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Annotated, Any, Final

import msgspec
import pyarrow as pa

from txnlog.admin.dry_run import writes
from txnlog.arguments import names_wrong_arguments
from txnlog.errors import (
    ConcurrentTransactions,
    InvalidOption,
    InvalidRecord,
    InvalidSchema,
    ProducerFenced,
    TopicAlreadyExists,
    UnknownSchema,
    UnknownTopicOrPartition,
)
from txnlog.limits import AnyNumber, Counter, EncodedSchema, LongName
from txnlog.log.open_logs import Logs
from txnlog.producer import Producer
from txnlog.snapshot import Snapshot, take_snapshot
from txnlog.values.codecs import Codec, parse_schema
from txnlog.values.compatibility import (
    DEFAULT_MODE,
    Compatibility,
    check_mode,
    incompatibilities,
)
from txnlog.values.schemas import (
    RegisteredSchema,
    SchemaReference,
    Schemas,
    check_schema_type,
    check_text,
    with_references,
)
from txnlog.write.topic_buffer import WriterSettings

TOPIC: Final = "_schemas"
"""Kafka's registries call theirs so."""
_MOST_CHARS: Final = 512
_TRIES: Final = 100
_PAUSE_S: Final = 0.02
_TIMEOUT_MS: Final = 60_000


class _Key(msgspec.Struct, frozen=True):
    keytype: LongName
    subject: LongName | None = None
    version: Counter | None = None
    magic: Counter = 0


class _Reference(msgspec.Struct, frozen=True):
    name: LongName
    subject: LongName
    version: Counter


class _Value(msgspec.Struct, frozen=True, omit_defaults=True):
    """The value of a record of any kind in ``_schemas``, without the fields that are not used."""

    subject: LongName | None = None
    version: Counter = 0
    id: Counter = 0
    schemaType: LongName | None = None  # noqa: N815 - Confluent's name
    references: Annotated[tuple[_Reference, ...], AnyNumber] | None = None
    schema: EncodedSchema = ""
    deleted: bool = False
    compatibilityLevel: LongName | None = None  # noqa: N815 - Confluent's name


_KEYS: Final = msgspec.json.Decoder(_Key)
_VALUES: Final = msgspec.json.Decoder(_Value)


@dataclass(frozen=True, slots=True)
class _State:
    """What the topic says: each subject's versions, those that are deleted apart, ids and modes.

    ``ids`` has deleted schemas too, since values were written under them; ``given_ids`` also those
    that are gone for good, since none is given twice. ``keys`` are those of each version's records,
    the newest last: registries write JSON in different ways, and compaction compares bytes.
    """

    versions: dict[str, dict[int, RegisteredSchema]] = field(default_factory=dict)
    deleted: dict[str, dict[int, RegisteredSchema]] = field(default_factory=dict)
    last_versions: dict[str, int] = field(default_factory=dict)
    ids: dict[int, RegisteredSchema] = field(default_factory=dict)
    given_ids: set[int] = field(default_factory=set)
    modes: dict[str | None, Compatibility] = field(default_factory=dict)
    keys: dict[tuple[str | None, int | None], list[bytes]] = field(default_factory=dict)

    def mode(self, subject: str | None) -> Compatibility:
        return self.modes.get(subject, self.modes.get(None, DEFAULT_MODE))

    def by_id(self, schema_id: int) -> RegisteredSchema:
        if schema_id not in self.ids:
            raise UnknownSchema(f"there is no schema with id {schema_id} in topic {TOPIC}")
        return self.ids[schema_id]

    def version(self, subject: str, version: int | None = None) -> RegisteredSchema:
        mine = self.versions.get(subject, {})
        if version is None and mine:
            return mine[max(mine)]
        gone = self.deleted.get(subject, {})
        if version in mine or version in gone:
            assert version is not None
            return mine[version] if version in mine else gone[version]
        if mine:
            raise UnknownSchema(
                f"subject {subject!r:.200} has no version {version}; it has {sorted(mine)!r:.200}"
            )
        if gone:
            raise UnknownSchema(
                f"all versions of subject {subject!r:.200} were deleted; `txnlog schemas ls "
                "--deleted` lists them"
            )
        raise UnknownSchema(f"there is no subject {subject!r:.200}; `txnlog schemas ls` lists them")

    def find(self, schema: RegisteredSchema) -> RegisteredSchema | None:
        """The version of its subject that is the same.

        Else another subject's, or one that is deleted, for its id: without the subject.
        """
        same = _meaning(schema)
        for one in self.versions.get(schema.subject or "", {}).values():
            if _meaning(one) == same:
                return one
        for one in self.ids.values():
            if _meaning(one) == same:
                return replace(one, subject=None)
        return None


@names_wrong_arguments()
class SchemaAdmin:
    """The schemas of a store: :attr:`txnlog.Store.schemas`."""

    def __init__(self, logs: Logs) -> None:
        self._logs = logs
        self._last: tuple[object, _State] = (None, _State())
        """The state that was read last, and what it was read of."""

    def __reduce__(self) -> tuple[type[SchemaAdmin], tuple[object, ...]]:
        # Travels as the place of its store; what it has read is read again where it arrives.
        return SchemaAdmin, (self._logs,)

    def by_id(self, schema_id: int) -> RegisteredSchema:
        """The schema with an id. The topic is read if the id is not known yet.

        Raises UnknownSchema.
        """
        state = self._last[1]
        if schema_id not in state.ids:
            state = self._read()
        return state.by_id(schema_id)

    def version(self, subject: str, version: int | None = None) -> RegisteredSchema:
        """A version of a subject; None: the newest that is not deleted.

        One that was deleted is found by its number until it is deleted for good: others refer to
        it. Raises UnknownSchema.
        """
        state = self._last[1]
        if version is None or version not in state.versions.get(subject, {}):
            state = self._read()
        return state.version(subject, version)

    def list(
        self, subject: str | None = None, *, deleted: bool = False
    ) -> Sequence[RegisteredSchema]:
        """All versions of a subject, or of each one: by name, then by version.

        Args:
            subject: whose; None: of all.
            deleted: those that were deleted instead, and are not gone for good yet.

        Raises UnknownSchema: there is no such subject.
        """
        state = self._read()
        among = state.deleted if deleted else state.versions
        if subject is not None and not among.get(subject):
            if deleted and state.versions.get(subject):
                return []
            state.version(subject)
        chosen = sorted(among) if subject is None else [subject]
        return [one for name in chosen for _, one in sorted(among[name].items())]

    def pinned(self) -> Schemas:
        """The schemas as they are now: what is registered or deleted later is none of theirs."""
        try:
            snapshot = take_snapshot(self._logs, [TOPIC])
        except UnknownTopicOrPartition:
            return PinnedSchemas(self._logs, None)
        return PinnedSchemas(self._logs, snapshot.token(), self._state_of(snapshot))

    def compatibility(self, subject: str | None = None) -> Compatibility:
        """The mode of a subject; None: the mode of subjects without one of their own."""
        return self._read().mode(subject)

    @writes
    def set_compatibility(self, mode: Compatibility, subject: str | None = None) -> None:
        """Set the mode of a subject; None: the mode of subjects without one of their own.

        Raises InvalidOption: there is no such mode, or subject names cannot be so.
        """
        checked = check_mode(mode)
        if subject is not None:
            _check_subject(subject)
        key = msgspec.json.encode(_Key("CONFIG", subject))
        value = msgspec.json.encode(_Value(compatibilityLevel=checked))
        self._change(lambda _: ([(key, value)], None))

    def check(
        self,
        subject: str,
        text: str,
        schema_type: str = "AVRO",
        references: Iterable[SchemaReference] = (),
    ) -> Sequence[str]:
        """What stands against a schema as the next version of a subject; nothing if it may be.

        docs/VALUES.md says what is compared for each kind of schema.

        Raises:
            InvalidSchema: it is none.
            InvalidOption: an argument is not valid.
            UnknownSchema: one that it refers to is not there.
        """
        given = self._given(subject, text, schema_type, references)
        state = self._read()
        return self._against(given, _codec(given, state), state)

    @writes
    def add(
        self,
        subject: str,
        text: str,
        schema_type: str = "AVRO",
        references: Iterable[SchemaReference] = (),
    ) -> RegisteredSchema:
        """Register a schema as the next version of a subject.

        One that the subject has already is returned as it is. One that another subject has gets
        the same id. The first one makes the topic ``_schemas``.

        Args:
            subject: whose it is: of the values of topic ``orders`` by custom ``orders-value``.
            text: JSON of Avro or of JSON Schema; of Protobuf a .proto, or a descriptor set in
                base64.
            schema_type: 'AVRO', 'PROTOBUF' or 'JSON'.
            references: the schemas that it uses, which are registered already.

        Raises:
            InvalidSchema: it is none, or it is not compatible: see :meth:`check`.
            InvalidOption: an argument is not valid.
            UnknownSchema: one that it refers to is not there.
            ConcurrentTransactions: others have changed the topic again and again meanwhile.
        """
        given = self._given(subject, text, schema_type, references)
        state = self._read()
        codec = _codec(given, state)
        found = state.find(given)
        if found is not None and found.subject == subject:
            return found

        def decide(state: _State) -> tuple[_Records, RegisteredSchema]:
            found = state.find(given)
            if found is not None and found.subject == subject:
                return [], found
            with_references(state, given)  # one may have been deleted meanwhile
            if reasons := self._against(given, codec, state):
                more = f" (and {len(reasons) - 5} more)" if len(reasons) > 5 else ""
                raise InvalidSchema(
                    f"the schema cannot be the next of {subject!r:.200}, whose compatibility is "
                    f"{state.mode(subject)}: {'; '.join(reasons[:5])}{more}"
                )
            new_id = max(state.given_ids, default=0) + 1 if found is None else found.id
            version = state.last_versions.get(subject, 0) + 1
            made = replace(given, id=new_id, version=version)
            return [_record_of(made)], made

        changed: RegisteredSchema = self._change(decide)
        return changed

    @writes
    def delete(
        self,
        subject: str,
        version: int | None = None,
        *,
        permanent: bool = False,
        dry_run: bool = False,
    ) -> Sequence[RegisteredSchema]:
        """Delete a version of a subject, or all that it has.

        What was deleted is no subject's version any more; by its id it is still found, so values
        that were written under it can be read. Only then it can be deleted for good.

        Args:
            subject: whose.
            version: which; None: all.
            permanent: for good, what was deleted before: values with its id, unless another version
                has it too, become dead letters. The id is not given again.
            dry_run: delete nothing.

        Returns:
            What is deleted.

        Raises:
            UnknownSchema: there is nothing to delete.
            InvalidOption: other schemas refer to one; or ``permanent`` comes first.
            ConcurrentTransactions: others have changed the topic again and again meanwhile.
        """
        state = self._read()
        doomed = _doomed(state, subject, version, permanent=permanent)
        if dry_run:
            return doomed

        def decide(state: _State) -> tuple[_Records, Sequence[RegisteredSchema]]:
            doomed = _doomed(state, subject, version, permanent=permanent)
            return _deletions(state, doomed, permanent=permanent), doomed

        deleted: Sequence[RegisteredSchema] = self._change(decide)
        self._last = (None, _State())
        return deleted

    # -- what is asked for -----------------------------------------------------------------------

    def _given(
        self,
        subject: str,
        text: str,
        schema_type: str,
        references: Iterable[SchemaReference],
    ) -> RegisteredSchema:
        kind = check_schema_type(schema_type)
        _check_subject(subject)
        return RegisteredSchema(0, kind, check_text(text), tuple(references), subject)

    def _against(self, given: RegisteredSchema, codec: Codec, state: _State) -> Sequence[str]:
        assert given.subject is not None
        mode = state.mode(given.subject)
        earlier = sorted(state.versions.get(given.subject, {}).items())
        if not mode.endswith("_TRANSITIVE"):
            earlier = earlier[-1:]
        codecs: list[tuple[int, Codec]] = []
        unreadable: list[str] = []
        for version, one in earlier if mode != "NONE" else ():
            try:
                codecs.append((version, _codec(one, state)))
            except (InvalidSchema, UnknownSchema) as error:
                unreadable.append(f"version {version} cannot be compared: {error}")
        return [*unreadable, *incompatibilities(mode, codec, codecs)]

    # -- the topic -------------------------------------------------------------------------------

    def _read(self) -> _State:
        """The state of now. Raises what :func:`_state_in` does."""
        try:
            snapshot = take_snapshot(self._logs, [TOPIC])
        except UnknownTopicOrPartition:
            return _State()
        return self._state_of(snapshot)

    def _state_of(self, snapshot: Snapshot) -> _State:
        view = snapshot.view(TOPIC)
        place = (view.topic_id, view.beginning_offsets, view.end_offsets)
        read, state = self._last
        if place != read:
            state = _state_in(snapshot)
            self._last = (place, state)
        return state

    def _change(self, decide: Callable[[_State], tuple[_Records, Any]]) -> Any:  # noqa: ANN401
        """Write what follows from the state, while nobody else changes it."""
        self._make_topic()
        clock = self._logs.clock
        for _ in range(_TRIES):
            producer = Producer(
                self._logs,
                WriterSettings(),
                transactional_id=TOPIC,
                transaction_timeout_ms=_TIMEOUT_MS,
            )
            try:
                with producer:
                    producer.init_transactions()
                    state = self._read()
                    records, result = decide(state)
                    if records:
                        with producer.transaction():
                            for key, value in records:
                                producer.send(TOPIC, value, key=key, partition=0)
                    return result
            except (ProducerFenced, ConcurrentTransactions):
                clock.sleep(_PAUSE_S * (1 + clock.jitter()))
        raise ConcurrentTransactions(
            f"topic {TOPIC} was changed by others {_TRIES} times meanwhile; try again"
        )

    def _make_topic(self) -> None:
        from txnlog.admin.topics import TopicAdmin

        topics = TopicAdmin(self._logs)
        try:
            topics.create(TOPIC, config={"cleanup.policy": "compact"})
        except TopicAlreadyExists:
            return


class PinnedSchemas:
    """The schemas that a store had at one time: whoever asks, and whenever, gets the same answer.

    ``token`` is that of a snapshot of the topic; None: there was none. ``state`` is what it says,
    if that was read.
    """

    def __init__(self, logs: Logs, token: str | None, state: _State | None = None) -> None:
        self._logs = logs
        self._token = token
        if state is not None:
            self._state = state

    def __reduce__(self) -> tuple[type[PinnedSchemas], tuple[object, ...]]:
        return PinnedSchemas, (self._logs, self._token)

    def by_id(self, schema_id: int) -> RegisteredSchema:
        """The schema with an id.

        Raises UnknownSchema; SnapshotExpired: the records that the snapshot pinned are deleted.
        """
        return self._state.by_id(schema_id)

    def version(self, subject: str, version: int | None = None) -> RegisteredSchema:
        """A version of a subject; None: the newest of then. Raises what :meth:`by_id` does."""
        return self._state.version(subject, version)

    def pinned(self) -> PinnedSchemas:
        """Itself."""
        return self

    @cached_property
    def _state(self) -> _State:
        if self._token is None:
            return _State()
        return _state_in(take_snapshot(self._logs, [TOPIC], at=self._token))


_Records = Sequence[tuple[bytes, bytes | None]]


def _state_in(snapshot: Snapshot) -> _State:
    """What the topic says in a snapshot. Raises InvalidRecord: a record is none of a registry's."""
    if len(snapshot.partitions(TOPIC)) > 1 or snapshot.view(TOPIC).schema is not None:
        raise InvalidOption(
            f"topic {TOPIC} has columns, or more than one partition: it was not made by "
            "`txnlog schemas add`, nor by a registry of Kafka's"
        )
    state = _State()
    for batch in snapshot.scan(TOPIC, columns=["key", "value", "offset"]).to_batches():
        for key, value, offset in zip(*map(pa.Array.to_pylist, batch.columns), strict=True):
            try:
                _fold(state, key, value)
            except (ValueError, RecursionError, InvalidOption) as error:
                raise InvalidRecord(
                    f"{TOPIC}:0 has a record at offset {offset} that is none of a schema "
                    f"registry's: {error}"
                ) from error
    for versions in (*state.versions.values(), *state.deleted.values()):
        for one in versions.values():
            state.ids.setdefault(one.id, one)
    return state


def _codec(schema: RegisteredSchema, state: _State) -> Codec:
    return parse_schema(schema.schema_type, schema.text, with_references(state, schema))


def _check_subject(subject: object) -> None:
    if (
        not isinstance(subject, str)
        or not 0 < len(subject) <= _MOST_CHARS
        or not subject.isprintable()
    ):
        raise InvalidOption(
            f"{subject!r:.60} cannot be a subject: it is a text of up to {_MOST_CHARS} characters "
            "that can be printed"
        )


def _doomed(
    state: _State, subject: str, version: int | None, *, permanent: bool
) -> Sequence[RegisteredSchema]:
    """The schemas that a deletion is about. Raises UnknownSchema, InvalidOption."""
    live, gone = state.versions.get(subject, {}), state.deleted.get(subject, {})
    if permanent and (live if version is None else version in live):
        raise InvalidOption(
            f"versions {sorted(live)!r:.200} of {subject!r:.200} are not deleted yet: delete "
            "first without permanent (--permanent), and for good when nobody misses them"
        )
    mine = gone if permanent else live
    doomed = [one for number, one in sorted(mine.items()) if version in (None, number)]
    if not doomed:
        if version in gone:
            raise UnknownSchema(f"version {version} of {subject!r:.200} was deleted already")
        state.version(subject, version)
        raise UnknownSchema(f"no version of {subject!r:.200} was deleted")
    places = {(one.subject, one.version) for one in doomed}
    others = [*state.versions.values(), *(state.deleted.values() if permanent else ())]
    for one in (one for versions in others for one in versions.values()):
        used = [r for r in one.references if (r.subject, r.version) in places]
        if used and (one.subject, one.version) not in places:
            raise InvalidOption(
                f"version {one.version} of {one.subject!r:.200} refers to version "
                f"{used[0].version} of {subject!r:.200}: delete that first"
            )
    return doomed


def _deletions(
    state: _State, doomed: Sequence[RegisteredSchema], *, permanent: bool
) -> list[tuple[bytes, bytes | None]]:
    newest = max(state.given_ids)
    records: list[tuple[bytes, bytes | None]] = []
    for one in doomed:
        *others, key = state.keys[one.subject, one.version]
        if not permanent:
            records.append((key, _record_of(one, deleted=True)[1]))
            continue
        # What has the greatest id leaves a record without a text: compaction would forget the id.
        left = _record_of(replace(one, text="", references=()), deleted=True)[1]
        records += [(other, None) for other in others]
        records.append((key, left if one.id == newest else None))
    return records


def _record_of(schema: RegisteredSchema, *, deleted: bool = False) -> tuple[bytes, bytes]:
    key = _Key("SCHEMA", schema.subject, schema.version, 1)
    value = _Value(
        subject=schema.subject,
        version=schema.version or 0,
        id=schema.id,
        schemaType=None if schema.schema_type == "AVRO" else schema.schema_type,
        references=tuple(_Reference(r.name, r.subject, r.version) for r in schema.references)
        or None,
        schema=schema.text,
        deleted=deleted,
    )
    return msgspec.json.encode(key), msgspec.json.encode(value)


def _fold(state: _State, key: bytes | None, value: bytes | None) -> None:
    """Add one record. Raises ValueError: it is none of a registry's."""
    if key is None:
        return
    where = _KEYS.decode(key)
    found = None if value is None else _VALUES.decode(value)
    subject = where.subject
    if where.keytype == "CONFIG":
        state.modes.pop(subject, None)
        if found is not None and found.compatibilityLevel is not None:
            state.modes[subject] = check_mode(found.compatibilityLevel)
    elif where.keytype == "DELETE_SUBJECT" and subject is not None and found is not None:
        mine = state.versions.get(subject, {})
        for number in [number for number in mine if number <= found.version]:
            state.deleted.setdefault(subject, {})[number] = mine.pop(number)
    elif where.keytype == "SCHEMA" and subject is not None and where.version is not None:
        mine = state.versions.setdefault(subject, {})
        gone = state.deleted.setdefault(subject, {})
        mine.pop(where.version, None)
        gone.pop(where.version, None)
        keys = state.keys.setdefault((subject, where.version), [])
        if key in keys:
            keys.remove(key)
        if found is None:
            return
        keys.append(key)
        made = RegisteredSchema(
            found.id,
            check_schema_type(found.schemaType or "AVRO"),
            found.schema,
            tuple(SchemaReference(r.name, r.subject, r.version) for r in found.references or ()),
            subject,
            where.version,
        )
        state.given_ids.add(found.id)
        last = state.last_versions.get(subject, 0)
        state.last_versions[subject] = max(last, where.version)
        if not found.deleted:
            mine[where.version] = made
        elif made.text:
            gone[where.version] = made


def _meaning(schema: RegisteredSchema) -> tuple[object, ...]:
    """What schemas that are the same have in common: the order of JSON's keys does not count."""
    text = schema.text
    if schema.schema_type != "PROTOBUF":
        try:
            text = json.dumps(json.loads(text), sort_keys=True)
        except (ValueError, RecursionError):
            return schema.schema_type, text, schema.references
    return schema.schema_type, text, schema.references
