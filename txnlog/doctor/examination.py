"""An examination of a store: what is checked, and in which order.

Of a hook ``doctor`` the module has ``examine``, which takes logs, failures and ``with_contents``
and yields findings, and ``examine_closed``, which takes a URL, options and the error for which the
store cannot be opened.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from txnlog import names
from txnlog.admin.live_segments import rewritten_files
from txnlog.admin.transactions import TransactionAdmin, why_hanging
from txnlog.doctor.checkpoint_outcomes import GroupClaims, TopicClaims
from txnlog.doctor.data_files import DataFileCheck, OrphanJudge, check_loose_files
from txnlog.doctor.findings import Finding, ReadFailures, guarded
from txnlog.doctor.replay import LogKind, Replay
from txnlog.doctor.rules import (
    Violation,
    group_checkpoint_violations,
    group_violations,
    stable_offset_violations,
    topic_checkpoint_violations,
    topic_violations,
)
from txnlog.doctor.transactional_ids import KnownIds, examine_ids
from txnlog.errors import (
    CorruptEntry,
    NotEnoughReplicas,
    OutdatedController,
    PutIfAbsentBroken,
    StorageError,
    TxnlogError,
    UnknownTopicOrPartition,
    UnsupportedVersion,
)
from txnlog.hooks import registered
from txnlog.inspect.describe import describe_segments, describe_transaction
from txnlog.inspect.descriptions import SegmentDescription
from txnlog.log.manifests import Manifests
from txnlog.log.named_folders import impossible_folders, list_groups, list_topics
from txnlog.log.open_logs import Logs
from txnlog.log.sequence_log import SequenceLog
from txnlog.log.topic_log import TopicLog
from txnlog.log.transaction_log import Head
from txnlog.state import group as group_state
from txnlog.state import topic as topic_state
from txnlog.state import topic_entries
from txnlog.state.group import GroupEntry, GroupState
from txnlog.state.topic import TopicState
from txnlog.state.topic_entries import TopicEntry
from txnlog.storage.base import lasts
from txnlog.storage.probe import probe


@dataclass(frozen=True, slots=True)
class TopicCheckpoints:
    """The checkpoints of one topic."""

    manifests: Manifests

    def unfold(self, checkpoint: TopicState) -> TopicState | None:
        """The whole state; None if it is of a topic that was deleted, whose manifests are gone.

        Raises CorruptEntry, StorageError.
        """
        try:
            return self.manifests.unfold(checkpoint)
        except UnknownTopicOrPartition:
            return None

    def violations(self, replayed: TopicState, checkpoint: TopicState) -> Iterator[Violation]:
        """See :func:`topic_checkpoint_violations`."""
        return topic_checkpoint_violations(
            replayed,
            checkpoint,
            self.manifests.log_start_offsets(),
            self.manifests.left_out_rewrites(),
        )


_IMPOSSIBLE = (
    "nothing in a store can be called so, and everybody passes it over: move it out of the store"
)


def not_examined(why: StorageError) -> Finding:
    """The finding in place of all that is read through the roots of a store."""
    detail = f"topics, groups and transactional ids could not be examined: {why}"
    return Finding("replicas", "", "unreadable", detail)


@dataclass(frozen=True, slots=True)
class Examination:
    """The checks. Read-only, except for the probe, which leaves nothing behind."""

    logs: Logs
    topics: Sequence[str] | None
    with_probe: bool
    with_contents: bool
    orphan_age_ms: int
    read_failures: ReadFailures = field(default_factory=ReadFailures)

    def findings(self) -> Iterator[Finding]:
        """Run every check; yield the findings.

        An unreadable object is a finding, and so is a disk that nothing can be written to. Raises
        StorageError if the probe failed in a way that may pass, if not even the folders of the
        store can be listed, or if nothing can be read any more. Where roots of a replicated store
        fail, that is a finding, too.
        """
        try:
            yield from self._findings()
        except (NotEnoughReplicas, OutdatedController) as error:
            yield not_examined(error)

    def _findings(self) -> Iterator[Finding]:
        if self.with_probe:
            yield self._run_probe()
        if self.topics is None:
            for hook in registered("doctor"):
                yield from hook.examine(
                    self.logs, self.read_failures, with_contents=self.with_contents
                )
        # First, so that topics and groups, read later, are not older than the ids' decisions.
        ids = KnownIds(self.logs)
        yield from examine_ids(ids, self.read_failures)
        yield from guarded("hanging", "", names.TRANSACTIONS, self._check_hanging(ids))
        named = self.topics is not None
        for topic in list_topics(self.logs.storage) if self.topics is None else self.topics:
            folder = names.topic_folder(topic)
            yield from guarded("topic", topic, folder, self._check_topic(topic, ids, named=named))
        if not named:
            for group_id in list_groups(self.logs.storage):
                folder = names.group_log(group_id)
                yield from guarded("group", group_id, folder, self._check_group(group_id, ids))
            for folder in impossible_folders(self.logs.storage):
                yield Finding("files", folder, "note", _IMPOSSIBLE, path=folder)
            yield from check_loose_files(self.logs.storage, self._orphan_judge())

    def _orphan_judge(self) -> OrphanJudge:
        return OrphanJudge(
            self.logs.storage, self.logs.clock.now_ms(), self.orphan_age_ms, self.read_failures
        )

    def _run_probe(self) -> Finding:
        storage = self.logs.storage
        try:
            storage.check_writable()
            probe(storage)
        except (NotEnoughReplicas, OutdatedController) as error:
            return Finding("probe", "", "unreadable", f"it was not tried: {error}")
        except PutIfAbsentBroken as error:
            return Finding("probe", "", "damage", str(error))
        except StorageError as error:
            if not lasts(error):
                raise
            # A full disk, or one that is not ours to write to: what is there can be examined.
            detail = f"{error}; --no-probe, with_probe=False, does not try to write"
            return Finding("probe", "", "unreadable", detail)
        return Finding("probe", "", "ok", "put-if-absent, races, reads, listings, deletes")

    def _check_hanging(self, ids: KnownIds) -> Iterator[Finding]:
        now_ms = self.logs.clock.now_ms()
        for name, state in sorted(ids.heads.items()):
            if state is None or why_hanging(describe_transaction(Head(0, state)), now_ms) is None:
                continue
            try:
                found = why_hanging(TransactionAdmin(self.logs).describe(name), now_ms)
            except StorageError as error:
                folder = names.transaction_log(name)
                yield self.read_failures.add("hanging", name, folder, error)
                continue
            except TxnlogError:
                continue  # a damaged id, which the check of ids reports, or one that is gone
            if found is None:
                continue
            if self.topics is not None and not {*self.topics} & {*found.transaction.topics}:
                continue
            detail = f"{found.transaction.status}, {found.reason}; {found.ended_by}"
            yield Finding("hanging", name, "hanging", detail)

    # -- topics ----------------------------------------------------------------------------------

    def _check_topic(self, topic: str, ids: KnownIds, *, named: bool) -> Iterator[Finding]:
        # Its own logs: a topic's memory is freed before the next one.
        log = Logs(self.logs.storage, self.logs.config, self.logs.clock).topic(topic)
        expiration_ms = self.logs.config.producer_id_expiration_ms
        judge = TopicCheckpoints(log.manifests)
        kind: LogKind[TopicEntry, TopicState] = LogKind(
            "topic",
            lambda: TopicState(producer_id_expiration_ms=expiration_ms),
            topic_entries.ENTRY_DECODER,
            topic_state.CHECKPOINT_DECODER,
            judge.unfold,
            topic_violations,
            judge.violations,
            TopicClaims,
        )
        replay = Replay(kind, log.log, topic, ids, self.read_failures)
        damaged = False
        for finding in replay.findings():
            damaged = True
            yield finding
        if named and not replay.entry_count and not damaged:
            raise UnknownTopicOrPartition(f"topic {topic!r} does not exist and never existed")
        state = replay.state
        if state is not None:
            for rule, detail in stable_offset_violations(state):
                damaged = True
                yield Finding("topic", topic, "damage", detail, rule)
        if not damaged:
            exists = state is not None and state.exists
            detail = f"entries: {replay.entry_count}" + ("" if exists else "; it was deleted")
            yield Finding("topic", topic, "ok", detail)
        try:
            log.refresh()
            placed = describe_segments(log)
        except StorageError as error:
            if not damaged:
                yield self.read_failures.add("topic", topic, log.log.folder, error)
            return  # its expected files are not known
        except (CorruptEntry, UnsupportedVersion) as error:
            if not damaged:
                yield Finding("topic", topic, "damage", str(error))
            return
        aborted = frozenset() if state is None else frozenset(state.aborted)
        files = DataFileCheck(self.logs.storage, topic, self._orphan_judge(), placed, aborted)
        try:
            yield from self._check_data(log, files)
        except StorageError as error:
            yield self.read_failures.add("data", topic, names.topic_folder(topic), error)

    def _check_data(self, log: TopicLog, files: DataFileCheck) -> Iterator[Finding]:
        topic = log.name
        damaged = False
        for finding in files.check_sizes():
            damaged = True
            yield finding

        def read_again() -> list[SegmentDescription]:
            log.refresh()
            return describe_segments(log)

        placed = read_again()
        replaced = rewritten_files(topic, log.whole_segments()) if files.unplaced else ()
        for finding in files.check_listing(placed, replaced):
            damaged = damaged or finding.state in ("damage", "unreadable")
            yield finding
        yield from files.check_times(self.logs.clock.now_ms())
        for finding in files.check_contents(read_again) if self.with_contents else ():
            damaged = True
            yield finding
        if not damaged:
            read = "all read" if self.with_contents else "not read"
            detail = f"segments: {len(files.placed)}, files: {files.file_count}, {read}"
            yield Finding("data", topic, "ok", detail, size_bytes=files.size_bytes)

    # -- groups ----------------------------------------------------------------------------------

    def _check_group(self, group_id: str, ids: KnownIds) -> Iterator[Finding]:
        log = SequenceLog(self.logs.storage, names.group_log(group_id), self.logs.clock)
        replay = Replay(_GROUPS, log, group_id, ids, self.read_failures)
        damaged = False
        for finding in replay.findings():
            damaged = True
            yield finding
        if not damaged:
            yield Finding("group", group_id, "ok", f"entries: {replay.entry_count}")


_GROUPS: LogKind[GroupEntry, GroupState] = LogKind(
    "group",
    GroupState,
    group_state.ENTRY_DECODER,
    group_state.CHECKPOINT_DECODER,
    lambda state: state,
    group_violations,
    group_checkpoint_violations,
    GroupClaims,
)
