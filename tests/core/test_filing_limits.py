"""Rules of the site at the desk where people file, and again before what they filed starts."""

from __future__ import annotations

from typing import Any

import pytest
from builders import (
    CATALOGUE,
    NOW,
    ROOMY,
    Cluster,
    Desk,
    Row,
    ask,
    at_once,
    hours,
    minutes,
    row_of,
    save_disk,
)

from gpudev_core import availability, lifecycle, reservations
from gpudev_core.errors import Refused
from gpudev_core.models import Request, Status
from gpudev_core.settings import Settings
from gpudev_core.store import Store
from gpudev_core.tables import ReservationRow


def site(*rules: dict[str, Any], **more: Any) -> Settings:
    return Settings.model_validate({"limits": ROOMY, "quotas": list(rules), **more})


# When it is filed


@pytest.mark.parametrize(
    ("rule", "accepted"),
    [
        pytest.param({"users": ["ada"], "reservations": 6}, 6, id="reservations of a person"),
        pytest.param({"groups": ["vision"], "gpus": 9}, 4, id="GPUs of a group"),
        pytest.param({"gpu_types": ["t4"], "gpu_hours": 7}, 3, id="GPU-hours of a type"),
        pytest.param({"gpu_types": ["t4"], "queued": 5}, 5, id="in the queue, of a type"),
        pytest.param(
            {"groups": ["vision"], "gpu_types": ["t4"], "gpus": 4}, 2, id="GPUs of a group and type"
        ),
    ],
)
def test_fifty_filings_at_once_never_pass_the_limit_of(
    desk: Desk, rule: dict[str, Any], accepted: int
) -> None:
    settings = site(rule)
    jobs = [lambda: desk.file(ask("t4", 2, 1), groups=("vision",), settings=settings)] * 50
    results = at_once(jobs)
    assert [r for r in results if not isinstance(r, ReservationRow | Refused)] == []
    assert sum(isinstance(result, ReservationRow) for result in results) == accepted


def test_a_limit_of_one_type_leaves_the_others_alone(desk: Desk) -> None:
    settings = site({"gpu_types": ["h100"], "reservations": 1})
    desk.file(ask("h100"), settings=settings)
    with pytest.raises(Refused, match=r"^h100: you have 1 of 1 reservations"):
        desk.file(ask("h100"), settings=settings)
    desk.file(ask("t4"), settings=settings)
    desk.file(ask("h100"), user="bob", settings=settings)


def test_what_ended_counts_for_its_own_type(desk: Desk) -> None:
    Row("old").asks(ask("h100", 2, 3)).active(NOW - hours(5)).ended(NOW - hours(2)).save(desk.store)
    settings = site({"gpu_types": ["h100", "t4"], "gpu_hours": 7})
    with pytest.raises(Refused, match="You have 1 of 7 left"):
        desk.file(ask("h100", 2, 1), settings=settings)
    desk.file(ask("t4", 2, 1), settings=settings)


def test_groups_and_their_priority_are_kept_with_the_request(desk: Desk) -> None:
    settings = site(priorities={"vision": 5, "staff": 20})
    row = desk.file(groups=("vision", "staff", "law"), settings=settings)
    kept = row_of(desk.store, row.reservation_id)
    assert (kept.groups, kept.priority) == (["vision", "staff", "law"], 20)
    plain = row_of(desk.store, desk.file(settings=settings).reservation_id)
    assert (plain.groups, plain.priority, plain.zone) == ([], 0, None)


def test_which_one_ends_first_is_told_with_its_time(desk: Desk) -> None:
    Row("late").asks(ask(duration=9)).active(NOW).save(desk.store)
    Row("soon").asks(ask(duration=2)).active(NOW).save(desk.store)
    Row("wait").save(desk.store)
    with pytest.raises(Refused, match="wait: soon ends first") as caught:
        desk.file(settings=site({"users": ["ada"], "reservations": 3}))
    assert caught.value.values["at"] == NOW + hours(2)


def test_gigabytes_of_all_disks_count_before_a_new_one(desk: Desk) -> None:
    settings = site({"users": ["ada"], "disk_gb": 300})
    save_disk(desk.store, "one", size_gb=200)
    save_disk(desk.store, "gone", size_gb=900, is_deleted=True)
    desk.end(desk.file(ask(disk="two", new_disk=True), settings=settings).reservation_id)
    save_disk(desk.store, "three", size_gb=100)
    with pytest.raises(Refused, match="300 GB in use, 0 GB left"):
        desk.file(ask(disk="four", new_disk=True), settings=settings)
    desk.file(ask(disk="one"), settings=settings)


# The zone of a disk


@pytest.fixture
def zones(store: Store) -> Store:
    """t4 in zone a and b, h100 in b alone."""
    nodes = [
        *Cluster("t4").node("node-1", zone="a").node("node-2", zone="b").nodes,
        *Cluster("h100").node("node-3", zone="b").node("node-4", zone="b").node("node-6", zone="c").nodes,
    ]
    availability.save(store, CATALOGUE, nodes, [], now=NOW, by="test")
    save_disk(store, "main", zone="a")
    save_disk(store, "other", zone="c")
    return store


class Counter(Desk):
    """The desk of a site whose nodes are known already."""

    def __init__(self, store: Store) -> None:
        self.store = store


def test_a_reservation_goes_where_its_disk_is(zones: Store) -> None:
    row = Counter(zones).file(ask("t4", disk="main"))
    assert row_of(zones, row.reservation_id).zone == "a"


@pytest.mark.parametrize(
    ("request_", "said"),
    [
        pytest.param(
            ask("h100", disk="main"),
            "Disk main is in zone a, h100 nodes are in zone b, c. "
            "Clone it to another zone, or choose another type.",
            id="no node there",
        ),
        pytest.param(
            ask("h100", 16, disk="other"),
            "Disk other is in zone c, where h100 has 1 of the 2 nodes that are needed. "
            "Clone it to another zone, or choose another type.",
            id="not enough nodes there",
        ),
    ],
)
def test_a_disk_in_another_zone_is_refused(zones: Store, request_: Request, said: str) -> None:
    with pytest.raises(Refused) as caught:
        Counter(zones).file(request_)
    assert (caught.value.message, caught.value.reason, caught.value.field) == (said, "disk_zone", "disk")


def test_a_new_disk_and_one_without_a_zone_go_anywhere(zones: Store) -> None:
    save_disk(zones, "anywhere")
    for request in (ask("h100", disk="anywhere"), ask("h100", disk="fresh", new_disk=True)):
        assert row_of(zones, Counter(zones).file(request).reservation_id).zone is None


# Before it starts


def check_running(store: Store, reservation_id: str, *rules: dict[str, Any]) -> None:
    with store.read() as session:
        row = session.get_one(ReservationRow, reservation_id)
        reservations.check_running(session, row, site(*rules))


def test_beside_what_is_held_it_must_be_within_the_limits(store: Store) -> None:
    Row("runs").asks(ask("h100", 4)).active().save(store)
    Row("waits-too").asks(ask("h100", 8)).status(Status.QUEUED).save(store)
    Row("bobs", user="bob").asks(ask("h100", 8)).active().save(store)
    Row("next").asks(ask("h100", 4)).status(Status.QUEUED).with_(groups=["vision"]).save(store)
    check_running(store, "next", {"users": ["ada"], "gpus": 8, "reservations": 2})
    for rule in (
        {"users": ["ada"], "gpus": 7},
        {"groups": ["vision"], "gpus": 7},
        {"gpu_types": ["h100"], "gpus": 7},
        {"users": ["ada"], "reservations": 1},
        {"gpu_types": ["h100"], "reservations": 1},
    ):
        with pytest.raises(Refused):
            check_running(store, "next", rule)
    check_running(store, "next", {"gpu_types": ["t4"], "gpus": 0}, {"groups": ["law"], "gpus": 0})


def test_one_that_was_admitted_a_moment_ago_in_the_same_transaction_counts(store: Store) -> None:
    Row("first").status(Status.QUEUED).save(store)
    Row("second").status(Status.QUEUED).save(store)
    settings = site({"users": ["ada"], "reservations": 1})
    with store.write() as session:
        first, second = reservations.open_rows(session)
        reservations.check_running(session, first, settings)
        lifecycle.transition(
            session, "first", Status.QUEUED, Status.PREPARING, now=NOW, actor="test", preparing_at=NOW
        )
        with pytest.raises(Refused, match="You have 1 of 1 reservations"):
            reservations.check_running(session, second, settings)


def test_of_two_that_are_one_too_many_the_later_one_is_refused(store: Store) -> None:
    Row("first").preparing(NOW - minutes(1)).save(store)
    Row("second").preparing(NOW).save(store)
    rule = {"users": ["ada"], "reservations": 1}
    check_running(store, "first", rule)
    with pytest.raises(Refused, match="You have 1 of 1 reservations"):
        check_running(store, "second", rule)
