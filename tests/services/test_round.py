"""Rounds of the controller on a real database, with a hub that misbehaves."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import httpx
import pytest

from gpudev_core import reservations
from gpudev_core.models import Request, Status
from gpudev_core.portal import Portal, open_portal
from gpudev_core.reservations import Filing
from gpudev_core.settings import load
from gpudev_core.tables import ReservationRow
from gpudev_services.controller.box import LocalBox
from gpudev_services.controller.round import Controller
from gpudev_services.hub import Hub

START = datetime(2026, 11, 15, 12, 0, tzinfo=UTC)


class ScriptedHub:
    """A hub that does as it is told: obeys, refuses every start, or says nothing at all."""

    def __init__(self) -> None:
        self.servers: dict[str, dict[str, object]] = {}
        self.silent = False
        self.refuses = False
        self.starts: list[str] = []

    def answer(self, request: httpx.Request) -> httpx.Response:
        if self.silent:
            raise httpx.ConnectError("no answer")
        name = request.url.path.rpartition("/")[2]
        if request.method == "GET":
            items = [{"name": "ada", "servers": self.servers}] if self.servers else []
            return httpx.Response(200, json={"items": items, "_pagination": {"next": None}})
        if request.method == "DELETE":
            self.servers.pop(name, None)
            return httpx.Response(204)
        self.starts.append(name)
        if self.refuses:
            return httpx.Response(500, json={"message": "no room on the disk"})
        self.servers[name] = {"ready": True, "pending": None, "url": f"/user/ada/{name}/"}
        return httpx.Response(201)


class Stage:
    """A controller whose clock and hub are ours."""

    def __init__(self, portal: Portal) -> None:
        self.portal, self.hub, self.now = portal, ScriptedHub(), START
        talking = Hub("http://hub/hub/api", "token", transport=httpx.MockTransport(self.hub.answer))
        self.controller = Controller(portal, talking, LocalBox(portal), lambda: self.now)
        self.controller.round()

    def rounds(self, count: int = 3, step: float = 1.0) -> None:
        for _ in range(count):
            self.controller.round()
            self.controller.wait_for_calls()
            self.now += timedelta(seconds=step)

    def file(self, gpu_type: str = "h100", count: int = 8, hours: float = 1.0) -> str:
        self.now += timedelta(milliseconds=1)  # who comes first is told by the time
        filing = Filing("ada", Request(gpu_type, count, hours), filed_from="test")
        portal = self.portal
        return reservations.file(
            portal.store, filing, portal.catalogue, portal.settings, now=self.now
        ).reservation_id

    def row(self, reservation_id: str) -> ReservationRow:
        with self.portal.store.read() as session:
            return session.get_one(ReservationRow, reservation_id)

    def end(self, reservation_id: str) -> None:
        with self.portal.store.write() as session:
            row = session.get_one(ReservationRow, reservation_id)
            reservations.end(session, row, now=self.now, actor="ada", reason="asked_for")


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[Stage]:
    environ = {
        "GPUDEV_STATE": str(tmp_path),
        "GPUDEV_GPUS__SOURCE": "simulated",
        "GPUDEV_LIMITS__GPU_HOURS": "9999",
    }
    found = Stage(open_portal(load(None, environ)))
    yield found
    found.controller.close()
    found.portal.store.close()


def test_from_filed_to_active_to_expired(stage: Stage) -> None:
    reservation_id = stage.file(hours=2)
    stage.rounds()
    row = stage.row(reservation_id)
    assert row.status == "active" and row.launched_at is not None
    assert row.expires_at == row.launched_at + timedelta(hours=2)
    stage.now = row.expires_at - timedelta(seconds=1)
    stage.rounds(1)
    assert stage.row(reservation_id).status == "active"
    stage.rounds()
    assert stage.row(reservation_id).status == "expired"
    assert stage.hub.servers == {}


def test_a_silent_hub_ends_nothing_and_loses_nothing(stage: Stage) -> None:
    running, waiting = stage.file(count=16), stage.file()
    stage.rounds()
    stage.hub.silent = True
    stage.rounds(20, step=60)
    assert stage.row(running).status == "active"
    assert stage.row(waiting).status == "queued"
    stage.hub.silent = False
    stage.rounds()
    assert stage.row(running).status == "active" and len(stage.hub.starts) == 1


def test_a_start_that_fails_is_tried_three_times_and_then_fails_with_its_cause(stage: Stage) -> None:
    stage.hub.refuses = True
    reservation_id = stage.file()
    stage.rounds(120)
    row = stage.row(reservation_id)
    assert row.status == "failed" and str(row.failure_reason).endswith("no room on the disk")
    assert row.failure_code == "refused_by_hub"
    assert len(stage.hub.starts) == 3
    with stage.portal.store.read() as session:
        mine = reservations.open_of(session, "ada")
        use = reservations.use_of(session, "ada", mine, stage.portal.settings.limits, stage.now)
    assert use.gpu_hours == 0, "what never ran is not counted"


def test_ending_while_the_hub_is_silent_waits_for_its_answer(stage: Stage) -> None:
    reservation_id = stage.file()
    stage.rounds()
    stage.hub.silent = True
    stage.end(reservation_id)
    stage.rounds(5)
    assert stage.row(reservation_id).status == "active", "its GPUs are not free before its server is gone"
    stage.hub.silent = False
    stage.rounds(8)
    assert stage.row(reservation_id).status == "cancelled"


def test_what_waits_starts_in_the_round_after_gpus_are_given_back(stage: Stage) -> None:
    first, second = stage.file(count=16), stage.file(count=16)
    stage.rounds()
    assert stage.row(second).status == "queued"
    assert stage.row(second).expected_start is not None
    stage.end(first)
    stage.rounds(4)
    row = stage.row(second)
    assert row.status == "active" and row.queue_position is None


def test_gpus_are_never_given_twice(stage: Stage) -> None:
    for _ in range(5):
        stage.file("t4", 2)
    stage.rounds(5)
    with stage.portal.store.read() as session:
        held = reservations.holdings(reservations.open_rows(session))
    units = [(share.node, unit) for h in held for share in h.placement.shares for unit in share.units]
    assert len(units) == len(set(units)) == 8


def test_a_type_that_left_the_catalogue_fails_what_waits_for_it_and_nothing_else(stage: Stage) -> None:
    first, second = stage.file(count=16), stage.file("t4", 1)
    with stage.portal.store.write() as session:
        row = session.get_one(ReservationRow, first)
        row.gpu_type = "v100"
    stage.rounds()
    assert stage.row(first).status == "failed"
    assert "v100 is not offered" in str(stage.row(first).failure_reason)
    assert stage.row(second).status == Status.ACTIVE
