"""Another request in the place of one that waits: who keeps the place, who gives it up, what is refused."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from builders import CATALOGUE, NOW, Cluster, Row, ask, events_of, hours, minutes, row_of, save_disk

from gpudev_core import availability, change, maintenance, reservations
from gpudev_core.errors import NotFound, Refused
from gpudev_core.machine import discover
from gpudev_core.models import Request, Status
from gpudev_core.planner import Allowances, Planner
from gpudev_core.portal import Portal
from gpudev_core.settings import QuotaRule, load
from gpudev_core.store import Store
from gpudev_core.tables import ReservationRow

FILED = NOW - hours(1)
PROMISED = NOW + hours(2)

Site = Callable[..., Portal]


@pytest.fixture
def site(store: Store, tmp_path: Path) -> Site:
    """Two h100 nodes, of which a stranger holds the first nearly until ``PROMISED``; a t4 node, empty."""

    def make(**environ: str) -> Portal:
        simulated = {"GPUDEV_STATE": str(tmp_path), "GPUDEV_GPUS__SOURCE": "simulated", **environ}
        settings = load(None, simulated)
        nodes = [*Cluster("h100").node("h-1").node("h-2").nodes, *Cluster("t4").node("t-1").nodes]
        availability.save(store, CATALOGUE, nodes, [], now=NOW, by="test")
        held = Row("held", "stranger", ask("h100", 8, 4)).active(NOW, h_1=range(8))
        end = PROMISED - minutes(5)  # and the clean-up after it
        held.with_(expires_at=end, latest_end=end).save(store)
        return Portal(settings, CATALOGUE, discover(settings), store)

    return make


def wait(store: Store, request: Request, **more: Any) -> None:
    given = {
        "planned_start": PROMISED,
        "planned_nodes": ["h-1", "h-2"][: max(1, request.gpu_count // 8)],
        "no_later_than": PROMISED,
        "expected_start": PROMISED - minutes(30),
        "queue_position": 2,
        "queue_reason": {"code": "held_outside"},
    }
    Row("r1", request=request).filed(FILED).status(Status.QUEUED).with_(**{**given, **more}).save(store)


def ask_for(portal: Portal, request: Request, user: str = "ada", **more: Any) -> ReservationRow:
    return change.change(portal, "r1", request, user=user, now=NOW, **more)


def test_less_of_the_same_keeps_place_promise_and_plan(site: Site) -> None:
    portal = site()
    wait(portal.store, ask("h100", 16, 4, name="mine"))
    ask_for(portal, ask("h100", 8, 4, name="another name"))
    row = row_of(portal.store, "r1")
    assert (row.gpu_count, row.request["gpu_count"], row.request["name"]) == (8, 8, "mine")
    assert (row.created_at, row.no_later_than, row.queue_position) == (FILED, PROMISED, 2)
    assert (row.planned_start, row.planned_nodes, row.queue_reason) == (PROMISED, ["h-1"], None)
    event = events_of(portal.store, "r1")[-1]
    assert (event.event, event.actor, event.detail["kept_place"]) == ("changed", "ada", True)
    assert (event.detail["old"]["gpu_count"], event.detail["new"]["gpu_count"]) == (16, 8)


def test_its_place_is_not_taken_by_others_before_it_is_planned_again(site: Site) -> None:
    """Somebody who waits behind it, and would gladly have its place, must not get it."""
    portal = site()
    wait(portal.store, ask("h100", 16, 4))
    behind = Row("r2", "bob", ask("h100", 16, 4)).filed(NOW - minutes(1)).status(Status.QUEUED)
    later = PROMISED + hours(5)
    behind.with_(planned_start=later, planned_nodes=["h-1", "h-2"], no_later_than=later).save(portal.store)
    ask_for(portal, ask("h100", 16, 3))
    with portal.store.read() as session:
        rows = reservations.open_rows(session)
        nodes = availability.nodes_of(availability.offered(session))
    planner = Planner(CATALOGUE["h100"], Allowances.of(portal.settings))
    planned = planner.update(nodes, reservations.holdings(rows), reservations.waiting(rows), NOW)
    mine = planned["r1"]
    assert mine.moved is None and mine.no_later_than == PROMISED
    assert mine.start is not None and mine.start <= PROMISED


@pytest.mark.parametrize(
    "request_",
    [ask("h100", 16, 4), ask("h100", 8, 5), ask("t4", 4, 4)],
    ids=["more GPUs", "more hours", "another type"],
)
def test_anything_else_gives_place_and_promise_up(site: Site, request_: Request) -> None:
    portal = site()
    wait(portal.store, ask("h100", 8, 4))
    ask_for(portal, request_)
    row = row_of(portal.store, "r1")
    assert (row.gpu_type, row.gpu_count, row.duration_hours) == (
        request_.gpu_type,
        request_.gpu_count,
        request_.hours,
    )
    assert row.instance_type == CATALOGUE[request_.gpu_type].instance_type
    assert row.created_at == NOW and row.status == Status.QUEUED
    given_up = (row.planned_start, row.planned_nodes, row.no_later_than, row.expected_start)
    assert given_up == (None, None, None, None) and row.queue_position is None
    assert events_of(portal.store, "r1")[-1].detail["kept_place"] is False


def test_a_disk_in_another_zone_is_another_place(site: Site, store: Store) -> None:
    portal = site()
    nodes = Cluster("h100").node("h-1", zone="a").node("h-2", zone="b").nodes
    availability.save(store, CATALOGUE, nodes, [], now=NOW, by="test")
    save_disk(store, "there", zone="b")
    wait(portal.store, ask("h100", 8, 4))
    ask_for(portal, ask("h100", 8, 4, disk="there"))
    row = row_of(store, "r1")
    assert (row.disk_name, row.zone, row.created_at, row.no_later_than) == ("there", "b", NOW, None)


def test_its_own_use_does_not_count_against_it(site: Site) -> None:
    portal = site(GPUDEV_LIMITS__GPUS="8", GPUDEV_LIMITS__RESERVATIONS="1", GPUDEV_LIMITS__QUEUED="1")
    save_disk(portal.store, "main")
    wait(portal.store, ask("h100", 8, 4, disk="main"))
    assert ask_for(portal, ask("h100", 4, 4, disk="main")).gpu_count == 4


@pytest.mark.parametrize(
    ("request_", "reason"),
    [
        (ask("h100", 16, 4), "too_many_gpus"),
        (ask("h100", 8, 30), "too_long"),
        (ask("b200", 8, 4), "type_not_offered"),
        (ask("h100", 8, 4, disk="nobodys"), "unknown_disk"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_is_refused_changes_nothing(site: Site, request_: Request, reason: str) -> None:
    portal = site(GPUDEV_LIMITS__GPUS="8")
    wait(portal.store, ask("h100", 8, 4))
    before = row_of(portal.store, "r1").__dict__
    with pytest.raises(Refused) as caught:
        ask_for(portal, request_)
    assert caught.value.reason == reason
    after = row_of(portal.store, "r1").__dict__
    assert {key: after[key] for key in after if key[0] != "_"} == {k: before[k] for k in after if k[0] != "_"}
    assert events_of(portal.store, "r1") == []


@pytest.mark.parametrize("status", [s for s in Status if not s.is_waiting])
def test_only_what_waits_can_be_changed(site: Site, status: Status) -> None:
    portal = site()
    wait(portal.store, ask("h100", 8, 4), status=status.value)
    with pytest.raises(Refused, match="Only what waits") as caught:
        ask_for(portal, ask("h100", 4, 4))
    assert caught.value.reason == "not_waiting"


def test_somebody_elses_looks_like_none_and_stays(site: Site) -> None:
    portal = site()
    wait(portal.store, ask("h100", 8, 4))
    with pytest.raises(NotFound):
        ask_for(portal, ask("h100", 4, 4), user="mallory")
    assert row_of(portal.store, "r1").gpu_count == 8


def test_an_admin_changes_it_under_its_owners_limits(site: Site) -> None:
    portal = site(GPUDEV_QUOTAS="[{groups: [big], gpus: 64}]", GPUDEV_LIMITS__GPUS="8")
    wait(portal.store, ask("h100", 8, 4))
    with pytest.raises(Refused, match="more than your limit"):
        ask_for(portal, ask("h100", 16, 4), user="root", is_admin=True, groups=("big",))
    assert ask_for(portal, ask("h100", 4, 4), user="root", is_admin=True).gpu_count == 4


def test_the_same_again_writes_nothing(site: Site) -> None:
    portal = site()
    wait(portal.store, ask("h100", 8, 4))
    ask_for(portal, ask("h100", 8, 4))
    assert events_of(portal.store, "r1") == [] and row_of(portal.store, "r1").created_at == FILED


# What would start sooner


def sooner(portal: Portal, groups: tuple[str, ...] = ()) -> list[tuple[str, int, float]]:
    with portal.store.read() as session:
        row = session.get_one(ReservationRow, "r1")
        found = change.alternatives(portal, session, row, groups, NOW)
    return [(one.gpu_type, one.gpu_count, one.hours) for one in found]


def test_sooner_is_what_starts_now_without_its_own_plan_in_the_way(site: Site) -> None:
    portal = site()
    wait(portal.store, ask("h100", 16, 4))
    assert sooner(portal) == [("h100", 8, 4)]


def test_sooner_offers_only_what_its_owner_may_have(site: Site, store: Store) -> None:
    portal = site()
    wait(store, ask("h100", 4, 4))
    Row("held2", "stranger", ask("h100", 8, 4)).active(NOW, h_2=range(8)).save(store)
    assert sooner(portal) == [("t4", 4, 4)]
    one_t4 = portal.settings.model_copy(update={"quotas": [QuotaRule(gpu_types=("t4",), gpus=1)]})
    assert sooner(replace(portal, settings=one_t4)) == []
    with store.write() as session:
        maintenance.begin(session, "t4", allowed=["@staff"])
    assert sooner(portal) == [] and sooner(portal, ("staff",)) == [("t4", 4, 4)]
