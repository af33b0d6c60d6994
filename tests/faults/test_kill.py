"""The controller is killed before and after every outside call and every commit; the next one mends it.

SQLite takes every point of a whole life, PostgreSQL every third: only the database is another there.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from model_controller import clear
from sqlalchemy import select

from gpudev_core import reservations
from gpudev_core.store import Store
from gpudev_core.tables import DiskRow, ReservationRow

CHILD = Path(__file__).parent / "kill_child.py"
FIRST, SECOND = "first", "second"
EVERY = {"sqlite": 1, "postgresql": 3}
LEAST_POINTS = 40


@dataclass
class HubStandIn:
    """A hub and its processes, which outlive every controller. A server comes and goes between two looks."""

    servers: dict[str, dict[str, Any]] = field(default_factory=dict)
    processes: dict[str, str] = field(default_factory=dict)
    """Reservation by server."""
    pods: Counter[str] = field(default_factory=Counter)
    """How often something was brought up for a reservation."""
    lock: threading.Lock = field(default_factory=threading.Lock)

    def look(self) -> dict[str, Any]:
        shown = {name: dict(server) for name, server in self.servers.items()}
        for name, server in list(self.servers.items()):
            if server["pending"] == "spawn":
                server.update(pending=None, ready=True)
            elif server["pending"] == "stop" and (name != SECOND or name not in self.processes):
                del self.servers[name]
                self.processes.pop(name, None)
        items = [{"name": "ada", "servers": shown}] if shown else []
        return {"items": items, "_pagination": {"next": None}}

    def start(self, name: str, reservation_id: str) -> int:
        if name in self.servers:
            return 400
        self.servers[name] = {"ready": False, "pending": "spawn", "url": f"/user/ada/{name}/"}
        self.processes[name] = reservation_id
        self.pods[reservation_id] += 1
        return 202

    def stop(self, name: str) -> None:
        if name in self.servers:
            self.servers[name].update(ready=False, pending="stop")

    def end(self, reservation_id: str) -> None:
        self.processes = {name: key for name, key in self.processes.items() if key != reservation_id}


class Handler(BaseHTTPRequestHandler):
    stand_in: HubStandIn

    def do_GET(self) -> None:
        with self.stand_in.lock:
            is_box = self.path.startswith("/box/")
            self._answer(200, list(self.stand_in.processes.values()) if is_box else self.stand_in.look())

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        with self.stand_in.lock:
            code = self.stand_in.start(self.path.rpartition("/")[2], body["reservation_id"])
        self._answer(code, {"message": "ada/first is already running" if code == 400 else ""})

    def do_DELETE(self) -> None:
        self.rfile.read(int(self.headers.get("Content-Length") or 0))
        name = self.path.rpartition("/")[2]
        with self.stand_in.lock:
            self.stand_in.end(name) if self.path.startswith("/box/") else self.stand_in.stop(name)
        self._answer(202, {})

    def _answer(self, code: int, body: Any) -> None:
        data = json.dumps(body).encode()
        self.send_response(code)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_: Any) -> None: ...


class Theatre:
    """Runs one life after the other on one database."""

    def __init__(self, url: str, folder: Path) -> None:
        self.url, self.state, self.store = url, folder / "life", Store(url)
        self.hub = HubStandIn()
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        self._child = subprocess.Popen(
            [sys.executable, str(CHILD)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def reset(self) -> None:
        clear(self.store)
        shutil.rmtree(self.state, ignore_errors=True)
        self.state.mkdir()
        self.hub = HubStandIn()
        Handler.stand_in = self.hub

    def live(self, kill_at: int = 0) -> int:
        """The wait status of a controller that lives until the end, or until its ``kill_at``-th point."""
        hub = f"http://127.0.0.1:{self._server.server_port}"
        told = {"url": self.url, "state": str(self.state), "hub": hub, "kill_at": kill_at}
        assert self._child.stdin is not None and self._child.stdout is not None
        print(json.dumps(told), file=self._child.stdin, flush=True)
        return int(self._child.stdout.readline())

    def points(self) -> list[str]:
        return (self.state / "points").read_text().splitlines()

    def close(self) -> None:
        assert self._child.stdin is not None and self._child.stdout is not None
        self._child.stdin.close()
        self._child.wait(10)
        self._child.stdout.close()
        self._server.shutdown()
        self._server.server_close()
        self.store.close()


@pytest.fixture
def theatre(database: str, tmp_path: Path) -> Iterator[Theatre]:
    made = Theatre(database, tmp_path)
    yield made
    made.close()


def check(theatre: Theatre) -> None:
    """No orphan, no double, nothing lost, promises kept, the disk given back."""
    hub = theatre.hub
    assert hub.servers == {} and hub.processes == {}, "something runs on"
    assert hub.pods == {FIRST: 1, SECOND: 1}, "started twice, or never"
    with theatre.store.read() as session:
        rows = {row.reservation_id: row for row in session.scalars(select(ReservationRow))}
        events = {key: [e.event for e in reservations.events_of(session, key)] for key in rows}
        [disk] = session.scalars(select(DiskRow)).all()
    assert {key: row.status for key, row in rows.items()} == {FIRST: "expired", SECOND: "expired"}
    first, second = rows[FIRST], rows[SECOND]
    assert first.launched_at and first.expires_at and first.duration_hours == 1.25
    assert events[FIRST] == ["filed", "preparing", "active", "extended", "ending", "expired"]
    assert events[SECOND] == ["filed", "queued", "preparing", "active", "ending", "expired"]
    assert second.no_later_than and second.preparing_at and second.preparing_at <= second.no_later_than
    assert (disk.disk_name, disk.in_use, disk.reservation_id) == ("work", False, None)


def test_killed_at_any_point_it_is_mended_by_the_next(theatre: Theatre, database_kind: str) -> None:
    theatre.reset()
    assert theatre.live() == 0
    check(theatre)
    points = theatre.points()
    assert len(points) >= LEAST_POINTS
    kinds = {point.partition(" ")[2] for point in points}
    assert len(kinds) == 10, f"not every kind of call was made: {kinds}"
    failed = {}
    for number in range(1, len(points) + 1, EVERY[database_kind]):
        theatre.reset()
        died = theatre.live(kill_at=number)
        if not os.WIFSIGNALED(died):  # threads took turns in another order, and there was a point less
            continue
        assert os.WTERMSIG(died) == signal.SIGKILL
        assert theatre.live() == 0, f"no life after {points[number - 1]}"
        try:
            check(theatre)
        except AssertionError as error:
            failed[points[number - 1]] = str(error)
    print(f"{database_kind}: {len(points)} points")
    assert not failed
