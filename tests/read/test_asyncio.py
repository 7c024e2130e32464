"""The recipe of docs/CLIENTS.md: calls from asyncio, in threads, by whoever needs them there."""

from __future__ import annotations

import asyncio

import pytest

from txnlog import Consumer, ConsumerRecord, Store
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


def test_a_poll_that_is_given_up_loses_nothing(store: Store) -> None:
    """Its task is kept, and what it returns after all is taken; the next poll goes on."""

    async def poll_for(consumer: Consumer, most_s: float) -> list[ConsumerRecord]:
        polling = asyncio.create_task(asyncio.to_thread(consumer.poll, timeout_ms=60_000))
        try:
            return await asyncio.wait_for(asyncio.shield(polling), most_s)
        except TimeoutError:
            consumer.wakeup()
        try:
            return await polling
        except Wakeup:
            return []

    async def run() -> list[bytes | None]:
        producer = store.producer()
        consumer = store.consumer("t", group_id="g", auto_offset_reset="earliest")
        found: list[bytes | None] = []
        for number in range(30):
            producer.send("t", b"%d" % number)
            await asyncio.to_thread(producer.flush)
            found += [record.value for record in await poll_for(consumer, 0)]
        while len(found) < 30:
            found += [record.value for record in await poll_for(consumer, 60)]
        await asyncio.to_thread(consumer.close)
        return found

    assert asyncio.run(run()) == [b"%d" % number for number in range(30)]
