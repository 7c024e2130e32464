"""A process of ``test_real_processes``: commits numbered records, and says so line by line.

Run as ``python commit_worker.py URL OPTIONS NAME COMMITS MODE``. With MODE ``plain`` each commit is
a flush without a transaction; with ``transaction`` it puts one record into each of two topics.
Started again after a kill it goes on where what is committed ends.
"""

from __future__ import annotations

import json
import sys
import time

import txnlog
from txnlog.errors import TxnlogError


def say(*words: object) -> None:
    sys.stdout.write(" ".join(map(str, words)) + "\n")
    sys.stdout.flush()


def plain(store: txnlog.Store, name: str, commits: int) -> None:
    with store.producer() as producer:
        for number in range(commits):
            begun = time.monotonic()
            producer.send("a", f"{name}/{number}")
            producer.flush()
            say("ack", number, round(time.monotonic() - begun, 3))


def transactions(store: txnlog.Store, name: str, commits: int) -> None:
    while True:
        producer = store.producer(transactional_id=name, transaction_timeout_ms=30_000)
        try:
            producer.init_transactions()
            # By the id's own state. What readers see may lie behind somebody else's open
            # transaction, and would be written again.
            last = producer.committed_version(name)
            for number in range(0 if last is None else last + 1, commits):
                begun = time.monotonic()
                producer.begin_transaction(application_id=name, version=number)
                producer.send("a", f"{name}/{number}")
                producer.flush()
                say("open", number)
                producer.send("b", f"{name}/{number}")
                producer.commit_transaction()
                say("ack", number, round(time.monotonic() - begun, 3))
            return
        except TxnlogError as error:
            say("error", type(error).__name__)


if __name__ == "__main__":
    url, options, name, commits, mode = sys.argv[1:]
    opened = txnlog.open(url, storage_options=json.loads(options))
    run = {"plain": plain, "transaction": transactions}[mode]
    run(opened, name, int(commits))
    say("done")
