"""Signals that ask a verb to end; see also what `records write` does then."""

from __future__ import annotations

import os
import signal

import pytest

from txnlog.cli.input.interrupts import stopping


@pytest.mark.skipif(os.name == "nt", reason="sends a POSIX signal")
def test_a_signal_that_is_ignored_stays_so_and_the_other_one_asks_once() -> None:
    """As nohup ignores some: who started it so does not want it to be stopped by that."""
    before = {
        signal.SIGTERM: signal.signal(signal.SIGTERM, signal.SIG_IGN),
        signal.SIGINT: signal.signal(signal.SIGINT, signal.default_int_handler),
    }
    stops = []
    try:
        with stopping(lambda: stops.append("stop")):
            signal.raise_signal(signal.SIGTERM)
            assert not stops
            signal.raise_signal(signal.SIGINT)
            assert stops == ["stop"]
            with pytest.raises(KeyboardInterrupt):
                signal.raise_signal(signal.SIGINT)
        assert signal.getsignal(signal.SIGTERM) == signal.SIG_IGN
    finally:
        for which, handler in before.items():
            signal.signal(which, handler)
