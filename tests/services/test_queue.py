"""What becomes of those who wait: decided from rows, nodes and limits alone."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from gpudev_core.catalogue import Catalogue
from gpudev_core.models import Node, Reason
from gpudev_core.settings import Settings
from gpudev_core.tables import GpuTypeRow, ReservationRow
from gpudev_services.controller import queue as q

NOW = datetime(2026, 11, 15, 12, 0, tzinfo=UTC)
HOUR = timedelta(hours=1)
NODES = [Node("gpu-node-1", "h100", 8), Node("gpu-node-2", "h100", 8)]
SETTINGS = Settings()


def row(number: int, gpu_count: int = 8, **columns: Any) -> ReservationRow:
    given = {
        "reservation_id": f"r{number}",
        "user_id": "ada",
        "server_name": f"x{number}",
        "gpu_type": "h100",
        "gpu_count": gpu_count,
        "duration_hours": 1.0,
        "request": {"gpu_type": "h100", "gpu_count": gpu_count, "hours": 1.0},
        "status": "pending",
        "created_at": NOW - timedelta(minutes=1) + timedelta(seconds=number),
        "groups": [],
        "priority": 0,
        **columns,
    }
    return ReservationRow(**given)


def running(number: int, node: str, units: int, until: datetime = NOW + HOUR) -> ReservationRow:
    placement = [{"node": node, "units": list(range(units))}]
    return row(number, units, status="active", placement=placement, preparing_at=NOW, expires_at=until)


class Desk:
    """A queue that is asked, and rows that then are as it said."""

    def __init__(self) -> None:
        self.queue = q.Queue(Catalogue(), SETTINGS)
        self.types = {"h100": GpuTypeRow(gpu_type="h100", maintenance=False, maintenance_allowed=[])}

    def decide(
        self, *rows: ReservationRow, nodes: Any = NODES, over: Any = None, now: datetime = NOW
    ) -> dict[str, q.Verdict]:
        return self.queue.decide(rows, self.types, nodes, over or {}, now)

    def is_due(self, *rows: ReservationRow, nodes: Any = NODES, now: datetime = NOW) -> bool:
        return self.queue.is_due(rows, self.types.values(), nodes, now)

    def written(self, *rows: ReservationRow) -> None:
        self.queue.written(rows, self.types.values(), NODES)


@pytest.fixture
def desk() -> Desk:
    return Desk()


def units_of(verdicts: dict[str, q.Verdict]) -> list[tuple[str, int]]:
    admitted = [verdict for verdict in verdicts.values() if isinstance(verdict, q.Admit)]
    return [(share.node, unit) for a in admitted for share in a.placement.shares for unit in share.units]


def test_what_fits_is_admitted_and_what_does_not_is_promised_a_time(desk: Desk) -> None:
    found = desk.decide(row(1, 8), row(2, 16), row(3, 8))
    assert isinstance(found["r1"], q.Admit) and isinstance(found["r2"], q.Wait)
    waits = found["r2"].planned
    assert waits.start == waits.no_later_than and waits.start > NOW + HOUR
    assert found["r2"].reason is not None and found["r2"].reason.code == "needs_empty_nodes"


def test_a_small_one_goes_first_only_where_the_large_one_is_not_delayed(desk: Desk) -> None:
    """Node 1 is busy for two hours, node 2 idle: one hour fits before the gang, three do not."""
    busy = running(9, "gpu-node-1", 8, NOW + 2 * HOUR)
    short, long = row(3, 8), row(4, 8, request={"gpu_type": "h100", "gpu_count": 8, "hours": 3.0})
    alone = desk.decide(busy, row(2, 16))["r2"]
    found = Desk().decide(busy, row(2, 16), short, long)
    assert isinstance(found["r3"], q.Admit)
    assert isinstance(found["r4"], q.Wait) and isinstance(found["r2"], q.Wait) and isinstance(alone, q.Wait)
    assert found["r2"].planned.no_later_than == alone.planned.no_later_than
    assert found["r4"].reason is not None and found["r4"].reason.code == "promised_to_others"


def test_units_of_two_admissions_in_one_round_never_overlap(desk: Desk) -> None:
    found = desk.decide(row(1, 4), row(2, 4), row(3, 8))
    taken = units_of(found)
    assert len(found) == 3 and len(taken) == len(set(taken)) == 16


def test_the_end_that_others_build_on_is_preparation_and_duration_after_the_start(desk: Desk) -> None:
    found = desk.decide(row(1))["r1"]
    assert isinstance(found, q.Admit)
    assert found.latest_end == NOW + timedelta(seconds=SETTINGS.servers.start_timeout_s) + HOUR


def test_priority_goes_first_and_age_after_it(desk: Desk) -> None:
    busy = running(9, "gpu-node-1", 8)
    found = desk.decide(
        busy, row(1, 8, created_at=NOW), row(2, 8, priority=5, created_at=NOW), nodes=NODES[:1]
    )
    first, second = found["r2"], found["r1"]
    assert isinstance(first, q.Wait) and isinstance(second, q.Wait)
    assert first.planned.start is not None and second.planned.start is not None
    assert first.planned.start < second.planned.start
    assert q.positions([row(1), row(2, priority=5)]) == {"r2": (1, 2), "r1": (2, 2)}


def test_positions_are_counted_for_each_type(desk: Desk) -> None:
    other = row(3, gpu_type="t4", request={"gpu_type": "t4", "gpu_count": 1, "hours": 1.0})
    assert q.positions([row(1), row(2), other]) == {"r1": (1, 2), "r2": (2, 2), "r3": (1, 1)}


@pytest.mark.parametrize(
    ("columns", "code"),
    [
        pytest.param({"created_at": NOW - timedelta(minutes=6)}, "not_picked_up", id="nobody took it"),
        pytest.param(
            {"status": "queued", "created_at": NOW - 49 * HOUR}, "waited_too_long", id="two days and more"
        ),
        pytest.param({"gpu_type": "v100"}, "not_offered", id="its type is gone"),
    ],
)
def test_what_is_given_up_holds_up_nobody(desk: Desk, columns: dict[str, Any], code: str) -> None:
    found = desk.decide(row(1, 16, **columns), row(2, 8))
    assert isinstance(found["r1"], q.GiveUp) and found["r1"].cause.code == code
    assert isinstance(found["r2"], q.Admit)


def test_what_waits_within_its_time_is_not_given_up(desk: Desk) -> None:
    found = desk.decide(row(1, status="queued", created_at=NOW - 47 * HOUR))
    assert isinstance(found["r1"], q.Admit)


def test_what_is_promised_a_later_time_waits_for_it(desk: Desk) -> None:
    """A promise holds, though it lies beyond the time for which something may wait without one."""
    old = {"status": "queued", "created_at": NOW - 49 * HOUR}
    busy = running(9, "gpu-node-1", 8), running(8, "gpu-node-2", 8)
    ahead = row(1, **old, no_later_than=NOW + 3 * HOUR)
    assert isinstance(desk.decide(*busy, ahead)["r1"], q.Wait)
    passed = row(1, **old, no_later_than=NOW - HOUR)
    assert isinstance(Desk().decide(*busy, passed)["r1"], q.GiveUp)


def test_what_can_never_fit_now_waits_without_a_time_and_lets_others_pass(desk: Desk) -> None:
    down = [NODES[0], Node("gpu-node-2", "h100", 8, ready=False)]
    found = desk.decide(row(1, 16), row(2, 8), nodes=down)
    assert isinstance(found["r1"], q.Wait) and found["r1"].planned.start is None
    assert found["r1"].reason is not None and found["r1"].reason.code == "does_not_fit"
    assert isinstance(found["r2"], q.Admit)


def test_a_closed_type_blocks_all_but_those_who_are_allowed(desk: Desk) -> None:
    desk.types["h100"].maintenance, desk.types["h100"].maintenance_allowed = True, ["bob", "@admins"]
    found = desk.decide(row(1, 1), row(2, 1, user_id="bob"), row(3, 1, groups=["admins"]))
    assert isinstance(found["r1"], q.Blocked) and found["r1"].reason.code == "maintenance"
    assert isinstance(found["r2"], q.Admit) and isinstance(found["r3"], q.Admit)


def test_one_over_its_limit_waits_and_holds_no_place(desk: Desk) -> None:
    found = desk.decide(row(1, 16), row(2, 16), over={"r1": Reason(q.OVER_QUOTA, {})})
    assert isinstance(found["r1"], q.Blocked) and isinstance(found["r2"], q.Admit)


def test_it_is_planned_again_only_when_something_changed_or_a_time_has_come(desk: Desk) -> None:
    busy, waiting = running(9, "gpu-node-1", 8), row(1, 16, status="queued")
    assert desk.is_due(busy, waiting)
    found = desk.decide(busy, waiting)["r1"]
    assert isinstance(found, q.Wait) and found.planned.start is not None
    waiting.planned_start, waiting.no_later_than = found.planned.start, found.planned.no_later_than
    waiting.planned_nodes, waiting.queue_reason = list(found.planned.nodes), {"code": "x"}
    desk.written(busy, waiting)
    assert not desk.is_due(busy, waiting)
    assert not desk.is_due(busy, waiting, now=found.planned.start - timedelta(seconds=1))
    assert desk.is_due(busy, waiting, now=found.planned.start)
    assert desk.is_due(waiting), "somebody left"
    assert desk.is_due(busy, waiting, nodes=NODES[:1]), "a node went away"
    busy.expires_at = NOW + 2 * HOUR
    assert desk.is_due(busy, waiting), "somebody was given more time"
    desk.written(busy, waiting)
    desk.types["h100"].maintenance = True
    assert desk.is_due(busy, waiting), "the type was closed"


def test_a_type_of_which_nothing_is_left_does_not_keep_the_queue_awake(desk: Desk) -> None:
    desk.decide(running(9, "gpu-node-1", 8))
    desk.decide()
    desk.written()
    assert not desk.is_due(now=NOW + 48 * HOUR)
