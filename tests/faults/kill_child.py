"""A controller that kills itself at its n-th step to the outside; run by ``test_kill``, never by itself.

Reads one JSON object from each line of its input, lives the life below in a fork of itself, and answers with
the fork's wait status. A fork, because a new process for each of many lives would only load the same code.
The clock is a file, so that the next life goes on where this one was cut off.
"""

from __future__ import annotations

import itertools
import json
import logging
import os
import signal
import sys
from collections.abc import Iterator, Sequence, Set
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import httpx
from model_controller import NoGuesses
from sqlalchemy.orm import Session

from gpudev_core import extension, reservations
from gpudev_core.catalogue import Catalogue
from gpudev_core.machine import Machine
from gpudev_core.models import Node, Request, Status
from gpudev_core.portal import Portal
from gpudev_core.reservations import Filing
from gpudev_core.settings import Settings
from gpudev_core.store import Store
from gpudev_core.tables import ReservationRow
from gpudev_services.controller.leader import leader_of
from gpudev_services.controller.round import Controller
from gpudev_services.hub import Hub, Servers, StartAnswer

START = datetime(2026, 11, 16, 8, 0, tzinfo=UTC)
NODE = Node("node-1", "t4", 4)
FIRST, SECOND = "first", "second"
MOST_ROUNDS = 60


class Points:
    """Counts what goes out. At the chosen one the process is gone, as when somebody pulls the plug."""

    def __init__(self, kill_at: int, log: Path) -> None:
        self._kill_at, self._log, self._numbers = kill_at, log, itertools.count(1)

    def __call__(self, what: str) -> None:
        number = next(self._numbers)
        with self._log.open("a") as log:
            log.write(f"{number} {what}\n")
        if number == self._kill_at:
            os.kill(os.getpid(), signal.SIGKILL)


class KilledStore(Store):
    def __init__(self, url: str, point: Points) -> None:
        super().__init__(url)
        self._point = point

    @contextmanager
    def write(self) -> Iterator[Session]:
        with super().write() as session:
            yield session
            session.flush()
            self._point("before a commit")
        self._point("after a commit")


class KilledHub(Hub):
    def __init__(self, url: str, point: Points) -> None:
        super().__init__(url + "/hub/api", "token")
        self._point = point

    def servers(self) -> Servers:
        self._point("before asking for servers")
        found = super().servers()
        self._point("after asking for servers")
        return found

    def start(self, user: str, server_name: str, reservation_id: str) -> StartAnswer:
        self._point("before a start")
        answer = super().start(user, server_name, reservation_id)
        self._point("after a start")
        return answer

    def stop(self, user: str, server_name: str) -> None:
        self._point("before a stop")
        super().stop(user, server_name)
        self._point("after a stop")


class KilledBox:
    """The processes of the machine, which outlive the controller."""

    def __init__(self, url: str, point: Points) -> None:
        self._url, self._point = url + "/box/", point

    def nodes(self) -> Sequence[Node]:
        return [NODE]

    def processes(self) -> Set[str]:
        return set(httpx.get(self._url, trust_env=False).json())

    def end(self, reservation_id: str) -> None:
        self._point("before ending processes")
        httpx.delete(self._url + reservation_id, trust_env=False)
        self._point("after ending processes")

    def sweep(self, open_ids: Set[str]) -> None:
        for key in self.processes() - open_ids:
            self.end(key)


class Life:
    """One reservation is filed, runs, is extended and expires; a second waits for it, and its stop hangs."""

    def __init__(self, url: str, state: Path, hub: str, kill_at: int) -> None:
        self._clock_file = state / "clock"
        point = Points(kill_at, state / "points")
        settings = Settings(state=state, database_url=url)
        store = KilledStore(url, point)
        self.portal = Portal(settings, Catalogue(), Machine(simulated=True, nodes=(NODE,)), store)
        self.leader = leader_of(self.portal)
        box: Any = KilledBox(hub, point)
        self.controller = Controller(
            self.portal, KilledHub(hub, point), box, lambda: self.now, guard=self.leader.guard
        )
        self.controller._forecaster.close()
        self.controller._forecaster = NoGuesses()  # type: ignore[assignment]

    @property
    def now(self) -> datetime:
        text = self._clock_file.read_text() if self._clock_file.exists() else "0"
        return START + timedelta(seconds=float(text))

    @now.setter
    def now(self, value: datetime) -> None:
        new = self._clock_file.with_suffix(".new")
        new.write_text(str((value - START).total_seconds()))
        new.replace(self._clock_file)

    def row(self, key: str) -> ReservationRow | None:
        with self.portal.store.read() as session:
            return session.get(ReservationRow, key)

    def live(self) -> None:
        for _ in range(MOST_ROUNDS):
            if self.leader.leads():
                self.controller.round()
                self.controller.wait_for_calls()
            second = self.row(SECOND)
            if second is not None and Status(second.status).is_terminal:
                return
            self._people()
            self.now = self._next()
        raise AssertionError("it never came to its end")

    def _people(self) -> None:
        first = self.row(FIRST)
        if first is None:
            self._file(FIRST, Request("t4", 4, 1.0, disk="work", new_disk=True))
        elif first.status == "active" and first.duration_hours < 1.1 and first.expires_at is not None:
            longer = first.expires_at + timedelta(minutes=15)
            extension.extend(self.portal, FIRST, longer, user="ada", now=self.now)
        elif first.status == "active" and self.row(SECOND) is None:
            self._file(SECOND, Request("t4", 4, 0.5))

    def _file(self, key: str, request: Request) -> None:
        filing = Filing("ada", request, "test", server_name=key, reservation_id=key)
        reservations.file(
            self.portal.store, filing, self.portal.catalogue, self.portal.settings, now=self.now
        )

    def _next(self) -> datetime:
        now = self.now
        with self.portal.store.read() as session:
            rows = reservations.open_rows(session)
        settled = all(row.status in ("active", "queued") and not row.end_wanted for row in rows)
        if any(row.end_wanted for row in rows):
            return now + timedelta(seconds=11)
        if not settled or self.row(SECOND) is None:
            return now + timedelta(seconds=6)
        times = [at for row in rows for at in (row.planned_start, row.expires_at) if at and at > now]
        return min(times, default=now + timedelta(seconds=6))


def main() -> None:
    logging.disable(logging.CRITICAL)
    for line in sys.stdin:
        told = json.loads(line)
        child = os.fork()
        if child == 0:
            status = 1
            try:
                Life(told["url"], Path(told["state"]), told["hub"], told["kill_at"]).live()
                status = 0
            finally:
                os._exit(status)
        print(os.waitpid(child, 0)[1], flush=True)


if __name__ == "__main__":
    main()
