"""What the controller decides, as a table: one row, one world, the step that follows."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from gpudev_core.catalogue import Catalogue
from gpudev_core.models import Node, Status
from gpudev_core.settings import Settings
from gpudev_core.tables import ReservationRow
from gpudev_services.controller import plan as p
from gpudev_services.controller.plan import World
from gpudev_services.hub import Server

NOW = datetime(2026, 11, 15, 12, 0, tzinfo=UTC)
HOUR = timedelta(hours=1)
NODES = [Node("gpu-node-1", "h100", 8), Node("gpu-node-2", "h100", 8)]
READY, STARTING = Server(True, "", "/user/ada/x/"), Server(False, "spawn", "")
STOPPING = Server(True, "stop", "/user/ada/x/")


def row(number: int = 1, **columns: Any) -> ReservationRow:
    count = columns.pop("gpu_count", 8)
    request = {"gpu_type": "h100", "gpu_count": count, "hours": 1.0}
    given = {
        "reservation_id": f"r{number}",
        "user_id": "ada",
        "server_name": "x" if number == 1 else f"x{number}",
        "gpu_type": "h100",
        "gpu_count": count,
        "duration_hours": 1.0,
        "request": request,
        "status": "pending",
        "created_at": NOW - timedelta(minutes=1) + timedelta(seconds=number),
        "start_attempts": 0,
        **columns,
    }
    return ReservationRow(**given)


def preparing(**columns: Any) -> ReservationRow:
    placement = [{"node": "gpu-node-1", "units": list(range(8))}]
    return row(status="preparing", placement=placement, preparing_at=NOW, **columns)


def active(**columns: Any) -> ReservationRow:
    given = {"launched_at": NOW - HOUR / 2, "expires_at": NOW + HOUR / 2, "start_attempts": 1, **columns}
    found = preparing(**given)
    found.status = "active"
    return found


def steps(rows: list[ReservationRow], server: Server | None = None, **world: Any) -> list[p.Step]:
    servers = {("ada", "x"): server} if server else {}
    seen = World(**{"now": NOW, "nodes": NODES, "servers": servers, **world})
    return p.plan(rows, seen, Catalogue(), Settings())


GONE = {"r1": NOW - timedelta(seconds=6)}
LATE = NOW - timedelta(minutes=2)

CASES = [
    ("admitted and not started: start it", preparing(), None, {}, [p.Start("r1")]),
    ("being started: wait", preparing(start_attempts=1), STARTING, {}, []),
    ("a call is under way: wait", preparing(), None, {"busy": {"r1"}}, []),
    ("answers: active", preparing(start_attempts=1), READY, {}, [p.Activate("r1", "/user/ada/x/")]),
    ("failed once a moment ago: wait", preparing(start_attempts=1), None, {}, []),
    (
        "failed once and gone for a while: start again",
        preparing(start_attempts=1),
        None,
        {"missing_since": GONE},
        [p.Start("r1")],
    ),
    (
        "failed three times: fails with the cause",
        preparing(start_attempts=3, failure_reason="no such image"),
        None,
        {},
        [p.WantEnd("r1", Status.FAILED, "no such image")],
    ),
    ("active and well: nothing", active(), READY, {}, []),
    ("active, server gone a moment: nothing yet", active(), None, {}, []),
    (
        "active, server gone for a while: start again",
        active(),
        None,
        {"missing_since": GONE},
        [p.Start("r1", again=True)],
    ),
    ("started again and well: settled", active(start_attempts=2), READY, {}, [p.Settle("r1")]),
    ("time is up: ends", active(expires_at=NOW), READY, {}, [p.WantEnd("r1", Status.EXPIRED, "time_up")]),
    (
        "time is up and the hub is silent: the wish is written",
        active(expires_at=NOW),
        None,
        {"servers": None},
        [p.WantEnd("r1", Status.EXPIRED, "time_up")],
    ),
    ("to be ended and running: stop", active(end_wanted="cancelled"), READY, {}, [p.Stop("r1")]),
    ("to be ended and stopping: wait", active(end_wanted="cancelled"), STOPPING, {}, []),
    ("to be ended and gone: finish", active(end_wanted="cancelled"), None, {}, [p.Finish("r1")]),
    (
        "to be ended, unknown to the hub, but a process runs: end it",
        active(end_wanted="cancelled"),
        None,
        {"processes": {"r1"}},
        [p.EndProcesses("r1")],
    ),
    ("hub silent, active: nothing", active(), None, {"servers": None}, []),
    ("hub silent, preparing: nothing", preparing(), None, {"servers": None}, []),
    (
        "hub silent, to be ended, within grace: nothing",
        active(end_wanted="expired", expires_at=NOW - timedelta(seconds=5)),
        None,
        {"servers": None, "processes": {"r1"}},
        [],
    ),
    (
        "hub silent, past grace: end without it",
        active(end_wanted="expired", expires_at=LATE),
        None,
        {"servers": None, "processes": {"r1"}},
        [p.EndProcesses("r1")],
    ),
    (
        "hub silent, past grace, nothing runs: still not finished",
        active(end_wanted="expired", expires_at=LATE),
        None,
        {"servers": None},
        [],
    ),
]


@pytest.mark.parametrize(
    ("found", "server", "world", "expected"), [c[1:] for c in CASES], ids=[c[0] for c in CASES]
)
def test_one_that_holds_gpus(
    found: ReservationRow, server: Server | None, world: dict[str, Any], expected: list[p.Step]
) -> None:
    assert steps([found], server, **world) == expected


def test_what_fits_is_admitted_and_what_does_not_is_queued_in_order() -> None:
    rows = [row(1, gpu_count=8), row(2, gpu_count=16), row(3, gpu_count=1)]
    found = steps(rows)
    assert [type(step) for step in found] == [p.Admit, p.Enqueue, p.Enqueue]
    assert [step.forecast.position for step in found[1:]] == [2, 3]  # type: ignore[union-attr]


def test_a_small_request_does_not_pass_a_large_one_that_waits() -> None:
    held = preparing(start_attempts=1)
    found = steps([held, row(2, gpu_count=16), row(3, gpu_count=1)], STARTING)
    assert [type(step) for step in found] == [p.Enqueue, p.Enqueue]


def test_units_of_two_admissions_in_one_round_never_overlap() -> None:
    found = steps([row(1, gpu_count=4), row(2, gpu_count=4), row(3, gpu_count=8)])
    taken = [
        (share.node, unit)
        for step in found
        for share in step.forecast.placement.shares  # type: ignore[union-attr]
        for unit in share.units
    ]
    assert len(found) == 3 and len(taken) == len(set(taken)) == 16


def test_a_pending_request_that_nobody_picked_up_fails_and_does_not_hold_up_others() -> None:
    old = row(1, gpu_count=16, created_at=NOW - timedelta(minutes=6))
    found = steps([old, row(2, gpu_count=8)])
    assert (
        isinstance(found[0], p.WantEnd) and found[0].end is Status.FAILED and "5 minutes" in found[0].reason
    )
    assert isinstance(found[1], p.Admit)


def test_a_queued_request_may_wait_two_days_and_no_longer() -> None:
    held = preparing(start_attempts=1)
    within = row(2, status="queued", created_at=NOW - timedelta(hours=47), queue_position=1)
    beyond = row(3, status="queued", created_at=NOW - timedelta(hours=49), queue_position=1)
    assert [type(s) for s in steps([held, within], STARTING)] == [p.Admit]
    assert [type(s) for s in steps([held, beyond], STARTING)] == [p.WantEnd]


def test_a_forecast_is_written_again_only_when_it_moves_by_two_minutes() -> None:
    blocker = active()
    waiting = row(2, gpu_count=16)
    first = steps([blocker, waiting], READY)[0]
    assert isinstance(first, p.Enqueue) and first.forecast.at is not None
    waiting.status, waiting.queue_position = "queued", 1
    for moved, expected in ((60, []), (180, [p.Enqueue])):
        waiting.expected_start = first.forecast.at + timedelta(seconds=moved)
        assert [type(step) for step in steps([blocker, waiting], READY)] == expected


def test_what_can_never_fit_now_waits_without_a_time_and_lets_others_pass() -> None:
    down = [NODES[0], Node("gpu-node-2", "h100", 8, ready=False)]
    found = steps([row(1, gpu_count=16), row(2, gpu_count=8)], nodes=down)
    assert isinstance(found[0], p.Enqueue) and found[0].forecast.at is None
    assert found[0].forecast.reason is not None and found[0].forecast.reason.code == "does_not_fit"
    assert isinstance(found[1], p.Admit)
