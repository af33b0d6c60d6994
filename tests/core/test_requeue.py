"""What failed, and putting it into the queue again: once, whole, and under the person's limits."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
from builders import (
    CATALOGUE,
    NOW,
    ROOMY,
    Desk,
    Row,
    ask,
    at_once,
    days,
    events_of,
    hours,
    minutes,
    row_counts,
    row_of,
    save_disk,
)

from gpudev_core import notices
from gpudev_core import requeue as requeues
from gpudev_core.errors import NotFound, PortalError, Refused
from gpudev_core.models import Request, Status
from gpudev_core.settings import Limits, Settings
from gpudev_core.store import Store
from gpudev_core.tables import ReservationRow

FAILED_AT = NOW - hours(1)


def fail(store: Store, number: str = "r1", request: Request | None = None, **values: Any) -> str:
    row = Row(number, request=request).filed(NOW - hours(2)).ended(FAILED_AT, Status.FAILED)
    return row.with_(failure_code="node_lost", start_attempts=3, **values).save(store)


def again(desk: Desk, number: str = "r1", limits: Limits = ROOMY) -> ReservationRow:
    settings = Settings(limits=limits)
    return requeues.requeue(desk.store, number, "root", CATALOGUE, settings, now=NOW)


def end(store: Store, number: str, status: Status) -> None:
    with store.write() as session:
        row = session.get_one(ReservationRow, number)
        row.status, row.reservation_ended = status.value, NOW


# What failed


def test_what_failed_newest_first(store: Store) -> None:
    for number, age in (("old", days(8)), ("b", hours(5)), ("c", hours(1)), ("a", hours(5))):
        Row(number).ended(NOW - age, Status.FAILED).save(store)
    Row("fine").ended(NOW, Status.EXPIRED).save(store)
    with store.read() as session:
        assert [r.reservation_id for r in requeues.failed(session, NOW - days(7), 10)] == ["c", "a", "b"]
        assert [r.reservation_id for r in requeues.failed(session, NOW - days(7), 1)] == ["c"]


@pytest.mark.parametrize(
    ("prefix", "expected"),
    [("train-1", "train-1"), ("train-12", "train-12"), ("othe", "other-1"), ("other-", "other-1")],
    ids=["the whole id wins over longer ones", "also the longer", "a beginning", "what did not fail is out"],
)
def test_ids_may_be_cut_short(store: Store, prefix: str, expected: str) -> None:
    for number in ("train-1", "train-12", "other-1", "Other-9"):
        fail(store, number)
    Row("other-2").active().save(store)
    with store.read() as session:
        assert requeues.find_failed(session, prefix).reservation_id == expected


def test_a_beginning_of_several_ids_says_so(store: Store) -> None:
    for number in range(7):
        fail(store, f"train-{number}")
    with store.read() as session:
        with pytest.raises(
            Refused, match=r"7 .* train-0, train-1, .*train-4 and 2 more\. Give more"
        ) as error:
            requeues.find_failed(session, "trai")
        assert error.value.reason == "ambiguous"
        for unknown in ("x", "", "%", "trai_", "TRAI"):
            with pytest.raises(NotFound, match="gpu-dev-portal failed"):
                requeues.find_failed(session, unknown)


# Again


def test_the_whole_request_is_filed_again_for_the_same_person(desk: Desk) -> None:
    save_disk(desk.store, "main")
    request = ask("h100", 4, 6.0, disk="main", name="train", image="local")
    fail(desk.store, request=request, groups=["vision"], duration_hours=9.0, server_name="first")
    new = row_of(desk.store, again(desk).reservation_id)
    assert new.request == request.as_json() and new.duration_hours == 6.0
    assert (new.user_id, new.status, new.server_name, new.groups) == ("ada", "pending", "first", ["vision"])
    assert (new.created_at, new.start_attempts, new.failure_code) == (NOW, 0, None)


def test_each_names_the_other_and_who_did_it(desk: Desk) -> None:
    fail(desk.store)
    new = again(desk).reservation_id
    assert row_of(desk.store, new).requeued_from == "r1"
    assert row_of(desk.store, "r1").status == "failed", "terminal is final"
    (of_old,) = events_of(desk.store, "r1")
    assert (of_old.event, of_old.actor, of_old.detail) == ("requeued", "root", {"to": new})
    filed, of_new = events_of(desk.store, new)
    assert (filed.event, filed.actor) == ("filed", "root")
    assert (of_new.event, of_new.actor, of_new.detail) == ("requeued", "root", {"from": "r1"})
    with desk.store.read() as session:
        assert requeues.requeued_as(session, ["r1", new]) == {"r1": new}


@pytest.mark.parametrize("status", [Status.QUEUED, Status.ACTIVE, Status.EXPIRED, Status.CANCELLED])
def test_only_what_failed(desk: Desk, status: Status) -> None:
    Row("r1").status(status).save(desk.store)
    before = row_counts(desk.store)
    with pytest.raises(Refused, match=f"is {status.value}") as error:
        again(desk)
    assert error.value.reason == "not_failed" and row_counts(desk.store) == before


def test_not_twice_while_the_first_is_open(desk: Desk) -> None:
    fail(desk.store)
    new = again(desk).reservation_id
    before = row_counts(desk.store)
    with pytest.raises(Refused, match=f"already: {new} is pending"):
        again(desk)
    assert row_counts(desk.store) == before
    end(desk.store, new, Status.CANCELLED)
    assert again(desk).requeued_from == "r1"


def test_one_request_is_not_in_the_queue_twice_by_another_of_its_ids(desk: Desk) -> None:
    fail(desk.store)
    second = again(desk).reservation_id
    end(desk.store, second, Status.FAILED)
    for before in (second, "r1"):
        third = again(desk, before).reservation_id
        for number in ("r1", second):
            with pytest.raises(Refused, match=third):
                again(desk, number)
        end(desk.store, third, Status.FAILED)


def test_two_admins_at_once(desk: Desk) -> None:
    fail(desk.store)
    answers = at_once([partial(again, desk)] * 2)
    kinds = sorted(a.reason if isinstance(a, PortalError) else type(a).__name__ for a in answers)
    assert kinds == ["ReservationRow", "already_requeued"]


def test_the_persons_limits_hold(desk: Desk) -> None:
    fail(desk.store, request=ask("t4", 4))
    tight = Limits(gpus=2)
    before = row_counts(desk.store)
    with pytest.raises(Refused) as error:
        again(desk, limits=tight)
    assert error.value.field == "gpu_count" and row_counts(desk.store) == before
    assert again(desk).gpu_count == 4


def test_the_person_is_told(desk: Desk) -> None:
    fail(desk.store)
    new = again(desk)
    with desk.store.read() as session:
        (told,) = notices.of(session, new.reservation_id, NOW)
    assert (told.kind, told.user_id) == ("requeued", new.user_id)


def test_what_is_not_here_is_refused(desk: Desk) -> None:
    fail(desk.store, request=ask("b200", 8))
    with pytest.raises(Refused) as error:
        again(desk)
    assert error.value.field == "gpu_type"


@pytest.mark.parametrize("made", [True, False], ids=["it was made before the failure", "it was not"])
def test_a_disk_that_was_to_be_new(desk: Desk, made: bool) -> None:
    fail(desk.store, request=ask(disk="data", new_disk=True))
    if made:
        save_disk(desk.store, "data")
    assert again(desk).request["new_disk"] is not made


def test_a_server_that_has_another_reservation_by_now(desk: Desk) -> None:
    fail(desk.store, request=ask(name="train"), server_name="train")
    desk.file(ask(name="train"), now=NOW - minutes(5))
    assert again(desk).server_name == "train-2"
