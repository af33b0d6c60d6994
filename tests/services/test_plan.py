"""What the controller decides, as a table: one row, one world, the step that follows."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from gpudev_core import failures
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
    return p.plan(rows, seen, Settings())


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
        preparing(start_attempts=3, failure_reason="no such image", failure_code="image_not_found"),
        None,
        {},
        [p.WantEnd("r1", Status.FAILED, "no such image", "image_not_found")],
    ),
    (
        "failed a moment ago and to be tried later: wait",
        preparing(start_attempts=1, retry_at=NOW + timedelta(seconds=1)),
        None,
        {"missing_since": GONE},
        [],
    ),
    (
        "the time to try again has come: start again",
        preparing(start_attempts=1, retry_at=NOW),
        None,
        {"missing_since": GONE},
        [p.Start("r1")],
    ),
    (
        "its node is known to be lost: fails and says so",
        active(),
        READY,
        {"losses": {"r1": failures.cause("node_lost", node="gpu-node-1")}},
        [
            p.WantEnd(
                "r1", Status.FAILED, "the node gpu-node-1 was lost, and the programs with it", "node_lost"
            )
        ],
    ),
    (
        "lost, but its time is up as well: it has expired",
        active(expires_at=NOW),
        None,
        {"losses": {"r1": failures.cause("node_lost", node="gpu-node-1")}},
        [p.WantEnd("r1", Status.EXPIRED, "time_up")],
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
        "the hub hangs while stopping, within grace: wait",
        active(end_wanted="expired", expires_at=NOW - timedelta(seconds=5)),
        STOPPING,
        {"processes": {"r1"}},
        [],
    ),
    (
        "the hub hangs while stopping, past grace: end without it",
        active(end_wanted="expired", expires_at=LATE),
        STOPPING,
        {"processes": {"r1"}},
        [p.EndProcesses("r1")],
    ),
    (
        "cancelled long before its end, hub silent, past grace: end without it",
        active(end_wanted="cancelled"),
        None,
        {"servers": None, "processes": {"r1"}, "ending_since": {"r1": LATE}},
        [p.EndProcesses("r1")],
    ),
    (
        "cancelled just now, hub silent: wait",
        active(end_wanted="cancelled"),
        None,
        {"servers": None, "processes": {"r1"}, "ending_since": {"r1": NOW}},
        [],
    ),
    (
        "still preparing when all its time is over: it fails, and costs the next one nothing",
        preparing(start_attempts=1, latest_end=NOW),
        STARTING,
        {},
        [p.WantEnd("r1", Status.FAILED, "the server did not start", "start_timeout")],
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
