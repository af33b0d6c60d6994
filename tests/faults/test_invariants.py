"""Whatever happens, in whatever order: what must always hold, on both databases.

The controller is the real one; the world around it does as hypothesis says. The run is the same every time;
``GPUDEV_TEST_SEED=1000`` looks elsewhere, ``GPUDEV_TEST_SHRINK=1`` makes what fails shorter (in minutes).
"""

from __future__ import annotations

import itertools
import os
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta
from typing import Any, NamedTuple

import pytest
from hypothesis import HealthCheck, Phase, seed, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test
from model_controller import CATALOGUE, NODES, Checker, Scene, clear

from gpudev_core import extension, maintenance, reservations
from gpudev_core.errors import Conflict, Refused
from gpudev_core.models import Request, Status
from gpudev_core.reservations import Filing
from gpudev_core.settings import Limits, Queue, Settings
from gpudev_core.store import Store
from gpudev_core.tables import DiskRow

LEAST_STEPS = 10_000
"""On each database."""
SETTINGS_OF_A_BATCH = settings(
    max_examples=10,
    stateful_step_count=50,
    deadline=None,
    database=None,
    phases=[Phase.generate, *([Phase.shrink] if "GPUDEV_TEST_SHRINK" in os.environ else [])],
    suppress_health_check=list(HealthCheck),
)
MOST_OPEN = 14
ROOMY = Limits(gpus=40, reservations=5, queued=5, gpu_hours=1e6, disks=50)
SETTINGS = Settings(limits=ROOMY, priorities={"urgent": 5}, queue=Queue(queued_hours=10_000))
LOW = SETTINGS.model_copy(update={"limits": ROOMY.model_copy(update={"gpus": 8, "reservations": 2})})
USERS = ("ada", "bob", "cyd", "dan")
steps: Counter[str] = Counter()

asked = st.sampled_from(
    [
        *[("h100", count) for count in (1, 2, 4, 8, 8, 16, 24)],
        *[("t4", count) for count in (1, 2, 4)],
        ("cpu-x86", 0),
    ]
)
which = st.integers(0, 99)


class Wanted(NamedTuple):
    user: str
    what: tuple[str, int]
    hours: float
    disk: str
    groups: tuple[str, ...]

    def filing(self, key: str) -> Filing:
        is_new = self.disk == "new"
        disk = f"new-{key}" if is_new else f"{self.user}-{self.disk}" if self.disk else ""
        if self.what[0] != "h100":
            disk, is_new = "", False
        request = Request(*self.what, self.hours, disk=disk, new_disk=is_new)
        return Filing(self.user, request, "test", reservation_id=key, groups=self.groups)


filings = st.builds(
    Wanted,
    st.sampled_from(USERS),
    asked,
    st.sampled_from([0.25, 0.25, 0.5, 1, 2, 5]),
    st.sampled_from(["", "", "", "a", "b", "new"]),
    st.sampled_from([(), (), ("urgent",)]),
)


class Portal(RuleBasedStateMachine):
    store: Store
    kind: str

    @initialize(
        local=st.booleans(), hooks=st.booleans(), crowd=st.lists(filings, min_size=4, max_size=MOST_OPEN)
    )
    def open(self, local: bool, hooks: bool, crowd: list[Wanted]) -> None:
        clear(self.store)
        self.scene = Scene(self.store, SETTINGS, local)
        self.scene.outside.hooks = hooks
        self.checker = Checker(self.scene)
        self._make_disks()
        self._round()
        self.file(crowd, True)

    def _make_disks(self) -> None:
        with self.store.write() as session:
            for user in USERS:
                for zone in ("a", "b"):
                    key = f"{user}-{zone}"
                    disk = DiskRow(disk_id=key, user_id=user, disk_name=key, created_at=self.now)
                    disk.zone = zone
                    session.add(disk)

    @property
    def now(self) -> Any:
        return self.scene.outside.now

    def _round(self) -> None:
        self.checker.before_round()
        self.scene.round()

    # What people do -----------------------------------------------------------------------------------

    @rule(wanted=st.lists(filings, min_size=1, max_size=4), and_round=st.booleans())
    def file(self, wanted: list[Wanted], and_round: bool) -> None:
        for one in wanted:
            self._file(one)
        if and_round:
            self._round()

    def _file(self, one: Wanted) -> None:
        rows = self.scene.open_rows()
        if len(rows) >= MOST_OPEN:
            return
        self.scene.outside.tick(self.now + timedelta(milliseconds=7))
        filing = one.filing(f"r{len(self.scene.rows())}")
        portal = self.scene.portal
        mine = [row for row in rows if row.user_id == one.user]
        limits = portal.settings.limits
        gpus = sum(row.gpu_count for row in mine) + filing.request.gpu_count
        try:
            reservations.file(self.store, filing, portal.catalogue, portal.settings, now=self.now)
        except (Refused, Conflict):
            return
        assert gpus <= limits.gpus and len(mine) < limits.reservations, f"{filing} beside {mine}"

    @rule(number=which)
    def cancel(self, number: int) -> None:
        if rows := self.scene.open_rows():
            row = rows[number % len(rows)]
            with self.store.write() as session:
                row = session.merge(row, load=True)
                reservations.end(session, row, now=self.now, actor=row.user_id, reason="asked_for")
            self._round()

    @rule(number=which, minutes=st.sampled_from([1, 7, 30, 60, 600]))
    def extend(self, number: int, minutes: int) -> None:
        rows = self.scene.rows(Status.ACTIVE)
        if not rows:
            return
        row = rows[number % len(rows)]
        assert row.expires_at is not None
        until = row.expires_at + timedelta(minutes=minutes)
        try:
            extension.extend(self.scene.portal, row.reservation_id, until, user=row.user_id, now=self.now)
        except Refused as refused:
            fits = refused.values.get("fits")
            assert fits is None or fits < until
            return
        self._round()

    # What machines do ---------------------------------------------------------------------------------

    @rule(number=which, forgotten=st.booleans())
    def server_is_lost(self, number: int, forgotten: bool) -> None:
        outside = self.scene.outside
        ready = sorted(key for key, pod in outside.running.items() if pod.state == "ready")
        if ready:
            lose = outside.is_forgotten if forgotten and outside.local else outside.dies
            lose(ready[number % len(ready)])
            self._round()

    @rule(
        mood=st.sampled_from(["fine", "fine", "silent", "deaf", "refuses", "busy"]),
        start_s=st.sampled_from([0, 1, 30, 120, 400]),
        stop_s=st.sampled_from([0, 1, 20, 50, 50, 600]),
        comes_up=st.sampled_from([True, True, True, False]),
    )
    def hub_changes(self, mood: str, start_s: float, stop_s: float, comes_up: bool) -> None:
        outside = self.scene.outside
        outside.mood, outside.start_s, outside.stop_s, outside.comes_up = mood, start_s, stop_s, comes_up
        self._look_at_hub()
        self._round()

    @rule(
        name=st.sampled_from([node.name for node in NODES]),
        how=st.sampled_from(["up", "up", "down", "cordoned", "foreign"]),
    )
    def node_changes(self, name: str, how: str) -> None:
        node = next(node for node in NODES if node.name == name)
        changed = {
            "up": node,
            "down": replace(node, ready=False),
            "cordoned": replace(node, cordoned=True),
            "foreign": replace(node, foreign=frozenset({0})),
        }[how]
        if changed != self.scene.outside.nodes_by_name[name]:
            self.scene.outside.nodes_by_name[name] = changed
            self.checker.excuse([node.gpu_type])
            self._pass(10)
            self.checker.excuse([node.gpu_type])

    @rule(name=st.sampled_from(list(CATALOGUE)), allowed=st.sampled_from([None, None, (), ("@urgent",)]))
    def maintenance_changes(self, name: str, allowed: tuple[str, ...] | None) -> None:
        with self.store.write() as session:
            if allowed is None:
                maintenance.end(session, name)
            else:
                maintenance.begin(session, name, note="cooling", allowed=allowed)
                self.checker.excuse([name])
        self._round()

    @rule(low=st.sampled_from([None, None, False, True]))
    def controller_is_restarted(self, low: bool | None) -> None:
        if low is not None:
            self.checker.limits_are_low = low
        self.scene.restart(None if low is None else LOW if low else SETTINGS)
        self.checker.back_since = self.now
        self._round()

    # Time ---------------------------------------------------------------------------------------------

    @rule()
    def next_event(self) -> None:
        self._pass((self.scene.next_event() - self.now).total_seconds())

    @rule(seconds=st.sampled_from([0.4, 1, 13.7, 61, 300, 1300]))
    def time_passes(self, seconds: float) -> None:
        self._pass(seconds)

    @rule(events=st.integers(2, 4))
    def several_events(self, events: int) -> None:
        for _ in range(events):
            self.next_event()

    @rule(seconds=st.sampled_from([3, 45, 100, 400, 4000]))
    def nobody_is_there(self, seconds: float) -> None:
        """The portal is away, and the world goes on."""
        for _ in range(3):
            self.scene.outside.tick(self.now + timedelta(seconds=seconds / 3))
        self.checker.excuse()
        self.checker.is_disturbed()
        self.checker.back_since = self.now
        self._round()

    def _pass(self, seconds: float) -> None:
        """With a round at everything that happens on the way; a long way is cut short."""
        target = self.now + timedelta(seconds=seconds)
        for _ in range(8):
            at = min(self.scene.next_event(), target)
            self.scene.outside.tick(at)
            self._look_at_hub()
            self._round()
            if at >= target:
                return

    def _look_at_hub(self) -> None:
        """Silence, and stops that take longer than is allowed for, are no fault of the controller's."""
        outside = self.scene.outside
        soon = self.now + timedelta(seconds=60)
        slow = any(pod.state == "stop" and pod.until > soon for pod in outside.running.values())
        if outside.mood == "silent" or slow:
            self.checker.is_disturbed()

    # What must hold -----------------------------------------------------------------------------------

    @invariant()
    def all_is_well(self) -> None:
        steps[self.kind] += 1
        self.checker.check()

    def teardown(self) -> None:
        if not hasattr(self, "scene"):
            return
        try:
            self._everything_ends()
        finally:
            self.scene.close()

    def _everything_ends(self) -> None:
        """All is mended and nobody asks for more: whoever waits starts, and everything ends."""
        outside = self.scene.outside
        outside.mood, outside.start_s, outside.stop_s, outside.comes_up = "fine", 1, 1, True
        outside.nodes_by_name = {node.name: node for node in NODES}
        for name in CATALOGUE:
            with self.store.write() as session:
                maintenance.end(session, name)
        for pod in outside.running.values():
            pod.comes_up = True
        self.scene.restart(SETTINGS)
        self.checker.back_since = self.now
        self.checker.excuse()
        self.checker.is_disturbed()
        self._pass(10)
        waiting = {row.reservation_id for row in self.scene.rows(*_WAITING)}
        for _ in range(400):
            if not self.scene.open_rows():
                break
            self._pass((self.scene.next_event() - self.now).total_seconds())
        self.checker.check()
        left = [(row.reservation_id, row.status, row.queue_reason) for row in self.scene.open_rows()]
        assert not left, f"still open: {left}"
        ends = {row.reservation_id: row.status for row in self.scene.rows()}
        assert all(ends[key] == "expired" for key in waiting), f"starved or lost: {ends}"
        assert not outside.running and not outside.known


_WAITING = (Status.PENDING, Status.QUEUED)


@pytest.fixture
def steps_told(database_kind: str, record_property: Any) -> Iterator[None]:
    steps[database_kind] = 0
    yield
    record_property("steps", steps[database_kind])
    print(f"{database_kind}: {steps[database_kind]} steps")


def test_what_must_always_hold(store: Store, database_kind: str, steps_told: None) -> None:
    """Small batches, each from a seed of its own, until there were enough steps."""
    first = int(os.environ.get("GPUDEV_TEST_SEED", 0))
    for number in itertools.count(first):
        if steps[database_kind] >= LEAST_STEPS:
            break
        machine = type("OnThis", (Portal,), {"store": store, "kind": database_kind})
        run_state_machine_as_test(seed(number)(machine), settings=SETTINGS_OF_A_BATCH)
    assert steps[database_kind] >= LEAST_STEPS
