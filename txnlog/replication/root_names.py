"""Names of files of a store with several roots: epochs, incarnations, standbys.

What lies within each is called as in any store: see ``names``.
"""

from __future__ import annotations

import re
from pathlib import PurePath

from txnlog.names import (
    EXPIRED,
    GROUPS,
    NUMBER_DIGITS,
    STORE_FILE,
    TOPICS,
    TRANSACTIONS,
    LogFile,
    log_file,
    parse_log_file,
    parse_manifest_list,
)

EPOCHS = "epochs"
"""The log of the epochs of a replicated store, on its controller root."""
MEMBER_MARKS = ".replica"
EPOCH_NOTES = f"{MEMBER_MARKS}/{EPOCHS}"
SCRUB_NOTES = f"{MEMBER_MARKS}/scrub"
REPLICA_FILE = "replica.json"
"""In each root of a replicated store: where its controller is, or was before it moved."""
CONTROLLER_FILE = "controller.json"
"""On a controller root that a controller was moved to: put before anything else."""
STANDBY = "standby"
STANDBY_LOGS = f"{STANDBY}/logs"
EXPIRED_LIST = f"{EXPIRED}.json"
"""In an attempt's folder: the versions of the last states of expired ids."""
STANDBY_STORE_FILE = f"{STANDBY}/{STORE_FILE}"
"""In a standby: how far it has followed, the logs as they were then, and what will make it one."""

_POINTER = re.compile(r"controller-([0-9]{5,9})\.json")
_TRIM = "trim-"
_INCARNATION = re.compile(r"incarnation-([0-9]{5,9})")
_ROUND_TOKEN = re.compile(r"([0-9]{20})-[0-9a-f]{32}")


def is_of_store(name: str) -> bool:
    """Whether an object or folder in a root is a store's: no mark, probe or unfinished write."""
    return not name.startswith(".")


# -- replicas ------------------------------------------------------------------------------------


def epoch_file(number: int) -> str:
    """An epoch of a replicated store, below its controller root."""
    return f"{EPOCHS}/{log_file(number, LogFile.ENTRY)}"


def parse_epoch_file(name: str) -> int | None:
    """The number of an epoch by its file's name in ``epochs/``; None if it is something else."""
    parsed = parse_log_file(name)
    return parsed[0] if parsed is not None and parsed[1] is LogFile.ENTRY else None


def controller_pointer(number: int) -> str:
    """In each root, the file that tells where the controller is since its ``number``-th move."""
    return f"controller-{number:05d}.json"


def parse_controller_pointer(name: str) -> int | None:
    """How many times the controller had moved, by a file's name; None if it is something else."""
    match = _POINTER.fullmatch(name)
    return int(match[1]) if match else None


def incarnation_folder(number: int) -> str:
    """The folder of one incarnation's objects, below the root."""
    return f"incarnation-{number:05d}"


def incarnations_around(path: str | None) -> list[PurePath]:
    """A folder on a disk and those above that are called like incarnations; None is on no disk."""
    around = (PurePath(path), *PurePath(path).parents) if path is not None else ()
    return [folder for folder in around if parse_incarnation_folder(folder.name) is not None]


def parse_incarnation_folder(name: str) -> int | None:
    """The number of an incarnation by its folder's name; None if it is something else."""
    match = _INCARNATION.fullmatch(name)
    return int(match[1]) if match else None


def member_mark(member: str, store: str) -> str:
    """The name of the file in each incarnation that identifies it, and its store.

    It tells the incarnation from a disk that is not mounted.
    """
    return f"{MEMBER_MARKS}/{member}-{store}.json"


def trim_note(token: str) -> str:
    """In an incarnation, a note of files about to be deleted there; ``token`` is fresh."""
    return f"{MEMBER_MARKS}/{_TRIM}{token}.json"


def epoch_note(number: int) -> str:
    """In an incarnation, a note of an epoch in which it was in sync and something was written."""
    return f"{MEMBER_MARKS}/{epoch_file(number)}"


def scrub_note(number: int) -> str:
    """In an incarnation, a note of how far the comparison of all objects has come."""
    return f"{SCRUB_NOTES}/{log_file(number, LogFile.ENTRY)}"


def is_trim_note(name: str) -> bool:
    """Whether a name in ``.replica/`` is that of a note of a trim."""
    return name.startswith(_TRIM)


# -- standbys ------------------------------------------------------------------------------------


def round_file(number: int) -> str:
    """The file of a standby's round ``number``."""
    return f"{STANDBY}/{log_file(number, LogFile.ENTRY)}"


def round_token(number: int, token: str) -> str:
    """The name of an attempt at a round: unique, because ``token`` is a new random one."""
    return f"{number:0{NUMBER_DIGITS}d}-{token}"


def parse_round_token(name: str) -> int | None:
    """The round that an attempt was made at; None if it is something else."""
    match = _ROUND_TOKEN.fullmatch(name)
    return int(match[1]) if match else None


def standby_file(attempt: str, name: str) -> str:
    """A standby's copy of a file of a log, put by an attempt at a round."""
    return f"{STANDBY_LOGS}/{attempt}/{name}"


def expired_list(attempt: str) -> str:
    """The list of a standby's expired ids, put by an attempt at a round."""
    return standby_file(attempt, EXPIRED_LIST)


def versioned_log(name: str) -> str | None:
    """The log that a file is of, or a folder is, if a standby keeps versions of it.

    A topic's manifest lists belong to its log. None of data and manifests, which have names that
    are used once.
    """
    parts = name.split("/")
    if parts[0] in (TRANSACTIONS, GROUPS, EXPIRED) and len(parts) > 1:
        return "/".join(parts[:2])
    if parts[0] == TOPICS and len(parts) > 2:
        is_list = parts[2] == "manifests" and (
            len(parts) == 3 or parse_manifest_list(parts[3]) is not None
        )
        return f"{TOPICS}/{parts[1]}/log" if parts[2] == "log" or is_list else None
    return None
