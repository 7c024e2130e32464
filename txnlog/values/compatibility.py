"""Which schemas may follow others in a subject: the modes of Kafka's schema registries."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final, Literal, TypeAlias

from txnlog.errors import InvalidOption
from txnlog.values.codecs import Codec

Compatibility: TypeAlias = Literal[
    "BACKWARD",
    "BACKWARD_TRANSITIVE",
    "FORWARD",
    "FORWARD_TRANSITIVE",
    "FULL",
    "FULL_TRANSITIVE",
    "NONE",
]
MODES: Final[tuple[Compatibility, ...]] = (
    "BACKWARD",
    "BACKWARD_TRANSITIVE",
    "FORWARD",
    "FORWARD_TRANSITIVE",
    "FULL",
    "FULL_TRANSITIVE",
    "NONE",
)
DEFAULT_MODE: Final[Compatibility] = "BACKWARD"


def check_mode(text: object) -> Compatibility:
    """A mode as it is written, in any case. Raises InvalidOption."""
    for mode in MODES:
        if isinstance(text, str) and text.upper().replace("-", "_") == mode:
            return mode
    raise InvalidOption(f"compatibility is {text!r:.60}; it is one of {', '.join(MODES)}")


def incompatibilities(
    mode: Compatibility, new: Codec, earlier: Sequence[tuple[int, Codec]]
) -> Iterator[str]:
    """What stands against a schema as the next of a subject; nothing if it may be.

    BACKWARD: the new one reads what the last one wrote; FORWARD: the other way round; FULL: both;
    with TRANSITIVE of all earlier ones. ``earlier`` has the subject's versions with their numbers,
    ascending.
    """
    if mode == "NONE":
        return
    against = earlier if mode.endswith("_TRANSITIVE") else earlier[-1:]
    for version, other in against:
        if type(new) is not type(other):
            yield f"version {version} is a schema of another kind"
            continue
        if mode.startswith(("BACKWARD", "FULL")):
            for reason in new.why_not(other):
                yield f"it cannot read what version {version} wrote: {reason}"
        if mode.startswith(("FORWARD", "FULL")):
            for reason in other.why_not(new):
                yield f"version {version} cannot read what it writes: {reason}"
