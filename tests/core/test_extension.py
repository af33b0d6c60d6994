"""More time, as far as limits and promises allow; what is refused leaves everything as it was."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from builders import CATALOGUE, NOW, Cluster, Row, ask, at_once, events_of, hours, minutes, row_of

from gpudev_core import availability, extension, maintenance, notices
from gpudev_core.errors import NotFound, Refused
from gpudev_core.machine import discover
from gpudev_core.models import Status
from gpudev_core.planner import Allowances
from gpudev_core.portal import Portal
from gpudev_core.settings import Settings, load
from gpudev_core.store import Store
from gpudev_core.tables import ReservationRow

WITHOUT_ALLOWANCES = {
    "GPUDEV_SERVERS__START_TIMEOUT_S": "5",
    "GPUDEV_SERVERS__STOP_GRACE_S": "1",
    "GPUDEV_QUEUE__CLEANUP_S": "0",
    "GPUDEV_GPUS__SOURCE": "simulated",
}
GRACE = timedelta(seconds=1)


@pytest.fixture
def site(store: Store, tmp_path: Path) -> Callable[..., Portal]:
    """A portal with two h100 nodes and the settings that are given."""

    def make(**environ: str) -> Portal:
        settings: Settings = load(None, {"GPUDEV_STATE": str(tmp_path), **WITHOUT_ALLOWANCES, **environ})
        nodes = Cluster("h100").node("node-1").node("node-2").nodes
        availability.save(store, CATALOGUE, nodes, [], now=NOW, by="test")
        return Portal(settings, CATALOGUE, discover(settings), store)

    return make


def running(number: int, until: datetime, **units: Any) -> Row:
    count = sum(len(of) for of in units.values())
    row = Row(f"run{number}", request=ask("h100", count, 1.0)).active(until - hours(1), **units)
    return row.with_(expires_at=until, latest_end=until)


def queued(number: int, start: datetime, count: int = 8, nodes: tuple[str, ...] = (), **more: Any) -> Row:
    row = Row(f"wait{number}", user="bob", request=ask("h100", count, more.pop("duration", 1.0)))
    given = {
        "planned_start": start,
        "planned_nodes": list(nodes),
        "no_later_than": start,
        "queue_position": 1,
    }
    return row.status(Status.QUEUED).with_(**{**given, **more})


def extend(
    portal: Portal, until: datetime, key: str = "run1", user: str = "ada", **more: Any
) -> ReservationRow:
    return extension.extend(portal, key, until, user=user, now=NOW, **more)


def test_into_free_time_it_moves_the_end_and_is_written_down(site: Callable[..., Portal]) -> None:
    portal = site()
    running(1, NOW + hours(1), node_1=range(8)).save(portal.store)
    until = NOW + hours(3)
    assert extend(portal, until).expires_at == until
    row = row_of(portal.store, "run1")
    assert (row.expires_at, row.latest_end, row.duration_hours) == (until, until, 3.0)
    event = events_of(portal.store, "run1")[-1]
    assert (event.event, event.actor) == ("extended", "ada")
    assert event.detail == {"old": "2026-03-02T10:00:00Z", "new": "2026-03-02T12:00:00Z"}


def test_it_is_refused_past_a_promise_and_the_longest_that_fits_is_told(site: Callable[..., Portal]) -> None:
    portal = site()
    running(1, NOW + hours(1), node_1=range(8)).save(portal.store)
    running(2, NOW + hours(9), node_2=range(8)).save(portal.store)
    queued(1, NOW + hours(4), nodes=("node-1",)).save(portal.store)
    before = row_of(portal.store, "wait1").planned_start
    with pytest.raises(Refused) as refused:
        extend(portal, NOW + hours(6))
    assert refused.value.reason == "promised" and refused.value.field == "hours"
    assert "someone in the queue" in refused.value.message and "bob" not in refused.value.message
    fits = refused.value.fits
    assert NOW + hours(4) - minutes(1) <= fits + GRACE <= NOW + hours(4)
    assert row_of(portal.store, "run1").expires_at == NOW + hours(1)
    assert row_of(portal.store, "wait1").planned_start == before
    assert extend(portal, fits).expires_at == fits, "what was offered is granted"


@pytest.mark.parametrize("late", [1, 400_000, 999_999])
def test_a_fraction_of_a_second_past_a_promise_is_refused(site: Callable[..., Portal], late: int) -> None:
    portal = site()
    running(1, NOW + hours(1) - GRACE, node_1=range(8)).save(portal.store)
    running(2, NOW + hours(9), node_2=range(8)).save(portal.store)
    queued(1, NOW + hours(4), nodes=("node-1",)).save(portal.store)
    last = NOW + hours(4) - GRACE
    with pytest.raises(Refused) as refused:
        extend(portal, last + timedelta(microseconds=late))
    assert refused.value.reason == "promised" and refused.value.fits <= last
    assert row_of(portal.store, "run1").expires_at == NOW + hours(1) - GRACE
    assert extend(portal, last).expires_at == last


def test_a_plan_gives_way_to_another_node_as_long_as_its_promise_holds(site: Callable[..., Portal]) -> None:
    portal = site()
    running(1, NOW + hours(1), node_1=range(8)).save(portal.store)
    running(2, NOW + hours(2), node_2=range(8)).save(portal.store)
    queued(1, NOW + hours(1) + GRACE, nodes=("node-1",), no_later_than=NOW + hours(3)).save(portal.store)
    extend(portal, NOW + hours(5))
    moved = row_of(portal.store, "wait1")
    assert moved.planned_nodes == ["node-2"]
    assert NOW + hours(2) <= moved.planned_start <= moved.no_later_than == NOW + hours(3)


def test_a_gang_that_is_promised_is_not_pushed(site: Callable[..., Portal]) -> None:
    portal = site()
    running(1, NOW + hours(1), node_1=range(4)).save(portal.store)
    queued(1, NOW + hours(1) + GRACE, 16, ("node-1", "node-2")).save(portal.store)
    with pytest.raises(Refused) as refused:
        extend(portal, NOW + hours(2))
    assert refused.value.reason == "promised" and refused.value.fits is None


@pytest.mark.parametrize(
    ("environ", "reason", "fits"),
    [
        pytest.param(
            {"GPUDEV_LIMITS__TOTAL_HOURS": "4", "GPUDEV_LIMITS__HOURS": "4"},
            "total_hours",
            hours(4),
            id="hours in all",
        ),
        pytest.param({"GPUDEV_LIMITS__GPU_HOURS": "24"}, "gpu_hours", hours(3), id="GPU-hours of the window"),
    ],
)
def test_limits_bound_it(
    site: Callable[..., Portal], environ: dict[str, str], reason: str, fits: timedelta
) -> None:
    portal = site(**environ)
    running(1, NOW + hours(1), node_1=range(8)).save(portal.store)
    with pytest.raises(Refused) as refused:
        extend(portal, NOW + hours(8))
    assert (refused.value.reason, refused.value.fits) == (reason, NOW + fits)
    assert extend(portal, NOW + fits).duration_hours == pytest.approx(fits / hours(1))
    with pytest.raises(Refused):
        extend(portal, NOW + fits + minutes(1))


def test_a_type_that_is_closed_gives_no_more_time(site: Callable[..., Portal]) -> None:
    portal = site()
    running(1, NOW + hours(1), node_1=range(8)).save(portal.store)
    with portal.store.write() as session:
        maintenance.begin(session, "h100", note="new drivers")
    with pytest.raises(Refused) as refused:
        extend(portal, NOW + hours(2))
    assert refused.value.reason == "maintenance"


@pytest.mark.parametrize(
    ("columns", "reason"),
    [
        pytest.param({"status": "preparing", "expires_at": None}, "not_active", id="not there yet"),
        pytest.param({"status": "expired"}, "not_active", id="over"),
        pytest.param({"end_wanted": "cancelled"}, "ending", id="being ended"),
        pytest.param({"expires_at": NOW}, "ending", id="its time is up"),
    ],
)
def test_only_what_runs_can_be_extended(
    site: Callable[..., Portal], columns: dict[str, Any], reason: str
) -> None:
    portal = site()
    running(1, NOW + hours(1), node_1=range(8)).with_(**columns).save(portal.store)
    with pytest.raises(Refused) as refused:
        extend(portal, NOW + hours(2))
    assert refused.value.reason == reason


@pytest.mark.parametrize("until", [NOW, NOW + hours(1), NOW + hours(1) + timedelta(seconds=59)])
def test_an_end_that_is_not_later_is_refused(site: Callable[..., Portal], until: datetime) -> None:
    portal = site()
    running(1, NOW + hours(1), node_1=range(8)).save(portal.store)
    with pytest.raises(Refused) as refused:
        extend(portal, until)
    assert refused.value.reason == "not_longer"


@pytest.mark.parametrize("key", ["run1", "nobody"])
def test_somebody_elses_looks_like_none(site: Callable[..., Portal], key: str) -> None:
    portal = site()
    running(1, NOW + hours(1), node_1=range(8)).save(portal.store)
    with pytest.raises(NotFound):
        extend(portal, NOW + hours(2), key, user="mallory")
    assert row_of(portal.store, "run1").expires_at == NOW + hours(1)
    assert extend(portal, NOW + hours(2), user="root", is_admin=True).expires_at == NOW + hours(2)


def test_warnings_follow_the_end(site: Callable[..., Portal]) -> None:
    portal = site()
    running(1, NOW + minutes(20), node_1=range(8)).save(portal.store)
    channels = notices.channels_of(portal.settings)
    with portal.store.write() as session:
        notices.schedule(session, session.get_one(ReservationRow, "run1"), channels, NOW)
    extend(portal, NOW + hours(2))
    with portal.store.read() as session:
        told = notices.of(session, "run1", NOW + hours(2))
    assert [notice.due_at for notice in told] == [NOW + hours(2) - minutes(n) for n in (30, 15, 5)]


def test_two_who_extend_at_once_never_break_a_promise_together(site: Callable[..., Portal]) -> None:
    """Either could go on alone: the plan would move to the other's node. Both together cannot."""
    portal = site()
    running(1, NOW + hours(1), node_1=range(8)).save(portal.store)
    running(2, NOW + hours(1), node_2=range(8)).save(portal.store)
    queued(1, NOW + hours(1) + GRACE, nodes=("node-1",), no_later_than=NOW + hours(2)).save(portal.store)
    answers = at_once([lambda key=key: extend(portal, NOW + hours(5), key) for key in ("run1", "run2")])
    assert sorted(type(answer).__name__ for answer in answers) == ["Refused", "ReservationRow"]


def test_the_room_that_is_told_is_the_room_that_is_granted(site: Callable[..., Portal]) -> None:
    portal = site()
    running(1, NOW + hours(1), node_1=range(8)).save(portal.store)
    running(2, NOW + hours(9), node_2=range(8)).save(portal.store)
    queued(1, NOW + hours(4), nodes=("node-1",)).save(portal.store)
    with portal.store.read() as session:
        room = extension.room(portal, session, session.get_one(ReservationRow, "run1"), NOW)
        nobody = extension.room(portal, session, session.get_one(ReservationRow, "wait1"), NOW)
    assert room is not None and nobody is None and room.bound.code == "promised"
    assert extend(portal, room.until).expires_at == room.until


def test_allowances_are_kept_between_the_longer_end_and_the_next(site: Callable[..., Portal]) -> None:
    portal = site(GPUDEV_QUEUE__CLEANUP_S="600")
    running(1, NOW + hours(1), node_1=range(8)).save(portal.store)
    running(2, NOW + hours(9), node_2=range(8)).save(portal.store)
    queued(1, NOW + hours(4), nodes=("node-1",)).save(portal.store)
    with pytest.raises(Refused) as refused:
        extend(portal, NOW + hours(4))
    assert refused.value.fits + Allowances.of(portal.settings).cleanup <= NOW + hours(4)
