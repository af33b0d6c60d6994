"""Tell an event loop that something changed, so that pages are live without asking again and again."""

from __future__ import annotations

import asyncio
import contextlib
import json
import threading
from collections.abc import AsyncIterator, Mapping
from typing import Any

from gpudev_core.doorbell import Doorbell
from gpudev_core.store import Store

MOST_SILENCE_S = 15.0


def message(state: Mapping[str, Any]) -> str:
    """A state as the event stream carries it."""
    return f"event: state\ndata: {json.dumps(state)}\n\n"


class Feed:
    """Listens in one thread from the first wait on. ``count`` grows at every change."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._thread: threading.Thread | None = None
        self._condition = asyncio.Condition()
        self.count = 0

    async def changed(self, seen: int, timeout: float) -> int:
        """The count, as soon as it is not ``seen`` any more or after ``timeout`` seconds."""
        self._listen()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout), self._condition:
                await self._condition.wait_for(lambda: self.count != seen)
        return self.count

    async def each_change(self) -> AsyncIterator[None]:
        """Once at once, then at every change, and now and then as a sign of life."""
        while True:
            seen = self.count
            yield
            await self.changed(seen, MOST_SILENCE_S)

    def _listen(self) -> None:
        if self._thread is None:
            loop = asyncio.get_running_loop()
            self._thread = threading.Thread(target=self._run, args=(loop,), name="feed", daemon=True)
            self._thread.start()

    def _run(self, loop: asyncio.AbstractEventLoop) -> None:
        bell = Doorbell(self._store)
        while not loop.is_closed():
            if bell.wait(1.0):
                with contextlib.suppress(RuntimeError):
                    asyncio.run_coroutine_threadsafe(self._tell(), loop)

    async def _tell(self) -> None:
        async with self._condition:
            self.count += 1
            self._condition.notify_all()
