"""Two controllers at once: one is frozen, loses its lead without knowing it, and wakes up in the middle.

What it had begun must write nothing any more: a write of an earlier term is a stale write.
"""

from __future__ import annotations

import fcntl
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from model_controller import CATALOGUE, NoGuesses, Outside
from sqlalchemy import delete, select, text
from sqlalchemy.orm import Session

from gpudev_core import reservations
from gpudev_core.machine import Machine
from gpudev_core.models import Node, Request
from gpudev_core.portal import Portal
from gpudev_core.reservations import Filing
from gpudev_core.settings import Limits, Settings
from gpudev_core.store import Store
from gpudev_core.tables import Base, LeaderRow, ReservationRow
from gpudev_services.controller import leader as leading
from gpudev_services.controller.leader import Leader, LostLeadership, leader_of
from gpudev_services.controller.round import Controller
from gpudev_services.hub import Servers, StartAnswer

ROUNDS = 200
PLACES = ("at the hub", "before a transaction", "in a start")
NODES = tuple(Node(f"node-{number}", "t4", 4) for number in range(4))
LIMITS = Limits(gpus=10**4, reservations=10**4, queued=10**4, gpu_hours=1e6)
PATIENCE_S = 20


class Gate:
    """A place at which a controller can be frozen once, and let go again."""

    def __init__(self) -> None:
        self.frozen_at: str | None = None
        self.reached, self.released = threading.Event(), threading.Event()

    def arm(self, place: str) -> None:
        self.reached.clear()
        self.released.clear()
        self.frozen_at = place

    def passes(self, place: str) -> None:
        if self.frozen_at == place:
            self.frozen_at = None
            self.reached.set()
            assert self.released.wait(PATIENCE_S)


class GatedStore(Store):
    def __init__(self, url: str, gate: Gate) -> None:
        super().__init__(url)
        self.gate = gate

    @contextmanager
    def write(self) -> Iterator[Session]:
        self.gate.passes("before a transaction")
        with super().write() as session:
            yield session


class Candidate:
    """A controller with connections of its own, that shares the world with the other one."""

    def __init__(self, name: str, url: str, settings: Settings, world: Outside, guarded: bool) -> None:
        self.name, self.gate, self._world = name, Gate(), world
        self.store = GatedStore(url, self.gate)
        self.portal = Portal(settings, CATALOGUE, Machine(simulated=True, nodes=NODES), self.store)
        self.leader: Leader = leader_of(self.portal)
        hub, guard = GatedHub(world, self.gate), self.guard if guarded else (lambda session: None)
        box: Any = world
        self.controller = Controller(self.portal, hub, box, lambda: world.now, guard=guard)
        self.controller._forecaster.close()
        self.controller._forecaster = NoGuesses()  # type: ignore[assignment]
        self.lost = 0

    def guard(self, session: Session) -> None:
        self.leader.guard(session)
        self.gate.passes("after the guard")

    def round(self) -> None:
        try:
            self.controller.round()
        except LostLeadership:
            self.lost += 1

    def freeze(self, place: str) -> Callable[[], None]:
        """Begin a round that stops at ``place``. What is returned lets it go on and waits for its end."""
        self.gate.arm(place)
        thread = threading.Thread(target=self.round)
        thread.start()
        assert self.gate.reached.wait(PATIENCE_S), f"{self.name} never came to be {place}"

        def resume() -> None:
            self.gate.released.set()
            thread.join(PATIENCE_S)
            self.controller.wait_for_calls()

        return resume

    def close(self) -> None:
        self.gate.released.set()
        self.controller.close()
        self.leader.give_up()
        self.store.close()


class GatedHub(Outside):
    """The shared hub, as one controller reaches it."""

    def __init__(self, world: Outside, gate: Gate) -> None:
        self._world, self._gate = world, gate

    def servers(self) -> Servers:
        self._gate.passes("at the hub")
        return self._world.servers()

    def start(self, user: str, server_name: str, reservation_id: str) -> StartAnswer:
        self._gate.passes("in a start")
        return self._world.start(user, server_name, reservation_id)

    def stop(self, user: str, server_name: str) -> None:
        self._world.stop(user, server_name)


class Duel:
    def __init__(self, url: str, state: Path, guarded: bool = True) -> None:
        self.settings = Settings(state=state, database_url=url, limits=LIMITS)
        self.store = Store(url)
        portal = Portal(self.settings, CATALOGUE, Machine(simulated=True, nodes=NODES), self.store)
        self.world = Outside(portal, nodes_by_name={node.name: node for node in NODES}, hooks=False)
        self.both = [Candidate(name, url, self.settings, self.world, guarded) for name in ("a", "b")]
        self._filed = 0

    def close(self) -> None:
        for one in self.both:
            one.close()
        self.world.close()
        self.store.close()

    def file(self) -> str:
        self._filed += 1
        filing = Filing("ada", Request("t4", 1, 1.0), "test", reservation_id=f"r{self._filed}")
        row = reservations.file(self.store, filing, CATALOGUE, self.settings, now=self.world.now)
        return row.reservation_id

    def clear(self) -> None:
        """Everybody is gone, so that there is room again."""
        self.world.known.clear()
        self.world.running.clear()
        with self.store.write() as session:
            for table in reversed(Base.metadata.sorted_tables):
                if table.name not in ("leaders", "gpu_types"):
                    session.execute(delete(table))

    def take_lock_from(self, victim: Candidate) -> None:
        """As when its connection dies; a file lock cannot be lost like that, but can be let go of."""
        if self.store.is_sqlite:
            fcntl.flock(victim.leader._lock._descriptor, fcntl.LOCK_UN)  # type: ignore[attr-defined]
            return
        query = "SELECT pg_terminate_backend(pid, 5000) FROM pg_locks WHERE objid = :key"
        with self.store.write() as session:
            assert session.execute(text(query), {"key": leading._KEY}).all() == [(True,)]

    def term(self) -> int:
        with self.store.read() as session:
            return session.get_one(LeaderRow, leading.NAME).term

    def dump(self) -> dict[str, list[Any]]:
        with self.store.read() as session:
            tables = Base.metadata.sorted_tables
            return {
                t.name: [tuple(row) for row in session.execute(select(t).order_by(*t.primary_key))]
                for t in tables
            }

    def pass_time(self, seconds: float = 10) -> datetime:
        self.world.tick(self.world.now + timedelta(seconds=seconds))
        return self.world.now


@pytest.fixture
def duel(database: str, tmp_path: Path) -> Iterator[Duel]:
    made = Duel(database, tmp_path)
    yield made
    made.close()


def one_change_of_leader(duel: Duel, old: Candidate, new: Candidate, place: str) -> bool:
    """True when what the frozen one had begun wrote something after it had been replaced."""
    duel.clear()
    duel.pass_time()
    assert old.leader.leads() and not new.leader.leads()
    duel.file()
    old.round()
    old.controller.wait_for_calls()
    duel.file()
    duel.world.mood = "refuses" if place == "in a start" else "fine"
    resume = old.freeze(place)
    duel.take_lock_from(old)
    before = duel.term()
    assert new.leader.leads() and duel.term() == before + 1
    duel.world.mood = "fine"
    duel.pass_time()
    new.round()
    new.controller.wait_for_calls()
    duel.file()
    was = duel.dump()
    if place == "in a start":
        duel.world.mood = "refuses"
    resume()
    duel.world.mood = "fine"
    is_stale = duel.dump() != was
    assert not old.leader.leads(), "it knows by now"
    return is_stale


def test_no_stale_write_in_200_changes_of_leader(duel: Duel) -> None:
    duel.both[0].leader.leads()
    duel.both[0].round()
    stale = 0
    for number in range(ROUNDS):
        old, new = duel.both[number % 2], duel.both[1 - number % 2]
        stale += one_change_of_leader(duel, old, new, PLACES[number % len(PLACES)])
    assert stale == 0
    assert duel.term() == ROUNDS + 1, "every change of leader was counted"
    assert sum(one.lost for one in duel.both) >= ROUNDS // 2


@pytest.mark.parametrize("place", PLACES)
def test_without_terms_the_frozen_one_would_write(database: str, tmp_path: Path, place: str) -> None:
    duel = Duel(database, tmp_path, guarded=False)
    try:
        duel.both[0].leader.leads()
        duel.both[0].round()
        assert one_change_of_leader(duel, *duel.both, place)
    finally:
        duel.close()


def test_nobody_takes_over_between_the_look_at_the_term_and_the_commit(duel: Duel) -> None:
    old, new = duel.both
    old.leader.leads()
    old.round()
    reservation_id = duel.file()
    resume = old.freeze("after the guard")
    duel.take_lock_from(old)
    takes_over = threading.Thread(target=new.leader.leads)
    takes_over.start()
    takes_over.join(0.3)
    assert takes_over.is_alive(), "it waits for the transaction that was begun under the old term"
    resume()
    takes_over.join(PATIENCE_S)
    with duel.store.read() as session:
        assert session.get_one(ReservationRow, reservation_id).status == "preparing"
    assert new.leader.leads() and not old.leader.leads()
    duel.file()
    was = duel.dump()
    old.round()
    assert duel.dump() == was and old.lost


def test_one_that_lost_its_lock_leads_again_when_the_other_has_gone(duel: Duel) -> None:
    old, new = duel.both
    assert old.leader.leads()
    duel.take_lock_from(old)
    assert new.leader.leads() and not old.leader.leads()
    new.leader.give_up()
    new.leader = replace_leader(new)
    assert old.leader.leads() or old.leader.leads()
    assert duel.term() == 3


def replace_leader(one: Candidate) -> Leader:
    return leader_of(replace(one.portal))
