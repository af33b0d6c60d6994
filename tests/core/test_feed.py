"""Changes reach an event loop as they happen."""

from __future__ import annotations

import asyncio
import json

import pytest
from builders import Row
from sqlalchemy import text

from gpudev_core.feed import Feed, message
from gpudev_core.store import Store

LONG = 30.0


def touch(store: Store) -> None:
    with store.write() as session:
        session.execute(text("UPDATE reservations SET name = 'touched'"))


@pytest.mark.asyncio
async def test_a_commit_wakes_everybody_who_waits(store: Store) -> None:
    Row("r1").save(store)
    feed = Feed(store)
    assert await feed.changed(feed.count, 0.3) == 0, "nothing happened"
    waiting = [asyncio.create_task(feed.changed(0, LONG)) for _ in range(3)]
    await asyncio.sleep(0)
    await asyncio.to_thread(touch, store)
    assert all(count >= 1 for count in await asyncio.gather(*waiting))


@pytest.mark.asyncio
async def test_what_happens_between_two_looks_is_not_missed(store: Store) -> None:
    Row("r1").save(store)
    feed, seen = Feed(store), 0
    await feed.changed(0, 0.1)  # begins to listen
    async for _ in feed.each_change():
        seen += 1
        if seen == 3:
            break
        await asyncio.to_thread(touch, store)
    assert seen == 3


def test_a_message_is_one_event_of_one_line() -> None:
    kind, data, *rest = message({"text": "two\nlines"}).split("\n")
    assert kind == "event: state" and rest == ["", ""]
    assert json.loads(data.removeprefix("data: ")) == {"text": "two\nlines"}
