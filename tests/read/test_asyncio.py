"""The recipe of docs/CLIENTS.md: calls from asyncio, in threads, by whoever needs them there."""

from __future__ import annotations

import asyncio

import pytest

from txnlog import Store
from txnlog.errors import Wakeup

pytestmark = pytest.mark.store(on="disk")


def test_a_poll_that_waits_holds_up_nobody_in_the_loop(store: Store) -> None:
    """The consumer waits in its thread while the loop sends what it waits for."""

    async def run() -> list[bytes | None]:
        consumer = store.consumer("t", auto_offset_reset="earliest")
        waiting = asyncio.create_task(asyncio.to_thread(consumer.poll, timeout_ms=60_000))
        producer = await asyncio.to_thread(store.producer)
        for value in (b"1", b"2"):
            producer.send("t", value)
            await asyncio.to_thread(producer.flush)
        found = [record.value for record in await waiting]
        while len(found) < 2:
            records = await asyncio.to_thread(consumer.poll, timeout_ms=60_000)
            found += [record.value for record in records]
        await asyncio.to_thread(consumer.close)
        return found

    assert asyncio.run(run()) == [b"1", b"2"]


def test_the_loop_ends_a_poll_that_waits(store: Store) -> None:
    """wakeup() is for other threads, the loop's too."""

    async def run() -> None:
        consumer = store.consumer("t")
        waiting = asyncio.create_task(asyncio.to_thread(consumer.poll, timeout_ms=60_000))
        await asyncio.sleep(0)
        consumer.wakeup()
        with pytest.raises(Wakeup):
            await waiting

    asyncio.run(run())
