from __future__ import annotations

import itertools
import threading
from typing import Any

import pytest
from builders import NOW, Row, ask, at_once, disk_of, events_of, minutes, row_counts, row_of, save_disk
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from gpudev_core import lifecycle
from gpudev_core.lifecycle import IllegalTransition
from gpudev_core.models import HOLDING, TERMINAL, Status
from gpudev_core.store import Store
from gpudev_core.tables import ReservationRow

LIFE = {
    ("pending", "queued"),
    ("pending", "preparing"),
    ("pending", "cancelled"),
    ("pending", "failed"),
    ("queued", "preparing"),
    ("queued", "cancelled"),
    ("queued", "failed"),
    ("preparing", "active"),
    ("preparing", "cancelled"),
    ("preparing", "failed"),
    ("active", "expired"),
    ("active", "cancelled"),
    ("active", "failed"),
}


def move(store: Store, old: Status, new: Status, reservation_id: str = "r1", **more: Any) -> bool:
    with store.write() as session:
        return lifecycle.transition(
            session, reservation_id, old, new, **{"now": NOW, "actor": "controller", **more}
        )


def want_end(
    store: Store,
    current: Status,
    end: Status,
    reason: str = "time is up",
    actor: str = "controller",
    row_id: str = "r1",
) -> bool:
    with store.write() as session:
        return lifecycle.want_end(session, row_id, current, end, now=NOW, actor=actor, reason=reason)


def finish(store: Store) -> bool:
    with store.write() as session:
        return lifecycle.finish(session, session.get_one(ReservationRow, "r1"), now=NOW + minutes(1))


# Which status may follow which


@pytest.mark.parametrize("old", Status)
def test_only_the_steps_of_a_life_are_taken_from(store: Store, old: Status) -> None:
    for new in Status:
        row_id = Row(f"to-{new}").status(old).save(store)
        if (old, new) in LIFE:
            assert move(store, old, new, row_id)
        else:
            with pytest.raises(IllegalTransition):
                move(store, old, new, row_id)

        is_taken = (old, new) in LIFE
        assert row_of(store, row_id).status == (new if is_taken else old)
        lines = [(event.event, event.from_status, event.to_status) for event in events_of(store, row_id)]
        assert lines == ([(new, old, new)] if is_taken else [])


def test_terminal_is_final() -> None:
    assert {status for status in Status if not lifecycle.ALLOWED[status]} == TERMINAL


@pytest.mark.parametrize("actual", [s for s in Status if s is not Status.PREPARING])
def test_a_row_that_moved_on_is_left_alone(store: Store, actual: Status) -> None:
    Row("r1").status(actual).save(store)
    assert not move(store, Status.PREPARING, Status.ACTIVE, launched_at=NOW)
    row = row_of(store, "r1")
    assert (row.status, row.launched_at) == (actual, None)
    assert events_of(store, "r1") == []


def test_an_unknown_reservation_is_not_moved(store: Store) -> None:
    assert not move(store, Status.PENDING, Status.QUEUED, "none")
    assert row_counts(store)["reservation_events"] == 0


def test_a_step_writes_its_columns_and_says_who_and_why(store: Store) -> None:
    Row("r1").status(Status.PREPARING).save(store)
    until = NOW + minutes(60)
    detail = {"node": "a"}
    assert move(store, Status.PREPARING, Status.ACTIVE, detail=detail, launched_at=NOW, expires_at=until)
    row = row_of(store, "r1")
    assert (row.launched_at, row.expires_at, row.reservation_ended) == (NOW, until, None)
    [event] = events_of(store, "r1")
    assert (event.at, event.actor, event.detail) == (NOW, "controller", detail)


@pytest.mark.parametrize("end", sorted(TERMINAL))
def test_an_end_has_its_time_and_no_place_in_the_queue(store: Store, end: Status) -> None:
    old = Status.ACTIVE if end is Status.EXPIRED else Status.QUEUED
    Row("r1").status(old).with_(queue_position=3, estimated_wait_minutes=9, expected_start=NOW).save(store)
    assert move(store, old, end)
    row = row_of(store, "r1")
    assert row.reservation_ended == NOW
    assert (row.queue_position, row.estimated_wait_minutes, row.expected_start) == (None, None, None)


def test_only_an_end_releases_the_disk_and_only_its_own(store: Store) -> None:
    save_disk(store, "mine", in_use=True, reservation_id="r1", attached_at=NOW)
    save_disk(store, "other", in_use=True, reservation_id="r2", attached_at=NOW)
    Row("r1", request=ask(disk="mine")).status(Status.PREPARING).save(store)
    assert move(store, Status.PREPARING, Status.ACTIVE)
    assert disk_of(store, "mine").in_use
    assert move(store, Status.ACTIVE, Status.EXPIRED, now=NOW + minutes(5))
    disk = disk_of(store, "mine")
    assert (disk.in_use, disk.reservation_id, disk.attached_at) == (False, None, None)
    assert disk.last_used == NOW + minutes(5)
    assert disk_of(store, "other").reservation_id == "r2"


# Two at one time


@pytest.mark.parametrize(
    ("one", "other"),
    [
        pytest.param(Status.PREPARING, Status.CANCELLED, id="admission and cancel"),
        pytest.param(Status.PREPARING, Status.PREPARING, id="two admissions"),
        pytest.param(Status.CANCELLED, Status.CANCELLED, id="two cancels"),
    ],
)
def test_of_two_steps_at_once_exactly_one_is_taken(store: Store, one: Status, other: Status) -> None:
    for number in range(5):
        reservation_id = Row(f"r{number}").status(Status.QUEUED).save(store)
        start = threading.Barrier(2)

        def race(
            new: Status, reservation_id: str = reservation_id, start: Any = start
        ) -> tuple[Status, bool]:
            start.wait()
            return new, move(store, Status.QUEUED, new, reservation_id)

        results = at_once([lambda: race(one), lambda: race(other)])
        winners = [new for new, won in results if won]
        assert len(winners) == 1
        assert row_of(store, reservation_id).status == winners[0]
        assert [event.to_status for event in events_of(store, reservation_id)] == winners


def test_of_two_wishes_at_once_exactly_one_counts(store: Store) -> None:
    Row("r1").status(Status.ACTIVE).save(store)
    start = threading.Barrier(2)

    def wish(end: Status) -> bool:
        start.wait()
        return want_end(store, Status.ACTIVE, end, reason=f"because {end}")

    results = at_once([lambda: wish(Status.EXPIRED), lambda: wish(Status.CANCELLED)])
    assert sorted(map(bool, results)) == [False, True]
    winner = [Status.EXPIRED, Status.CANCELLED][results.index(True)]
    assert row_of(store, "r1").end_reason == f"because {winner}"
    assert len(events_of(store, "r1")) == 1


# Ends in two steps


@pytest.mark.parametrize("current", Status)
def test_only_an_end_of_what_holds_gpus_can_be_wished_from(store: Store, current: Status) -> None:
    for end in Status:
        row_id = Row(f"to-{end}").status(current).save(store)
        if current in HOLDING and end in TERMINAL and (current, end) in LIFE:
            assert want_end(store, current, end, row_id=row_id)
            assert row_of(store, row_id).end_wanted == end
        else:
            with pytest.raises(IllegalTransition):
                want_end(store, current, end, row_id=row_id)
            assert row_of(store, row_id).end_wanted is None


def test_the_first_wish_counts(store: Store) -> None:
    Row("r1").status(Status.ACTIVE).save(store)
    assert want_end(store, Status.ACTIVE, Status.CANCELLED, "enough", actor="ada")
    assert not want_end(store, Status.ACTIVE, Status.EXPIRED, "time is up")
    row = row_of(store, "r1")
    assert (row.end_wanted, row.end_reason, row.end_actor) == ("cancelled", "enough", "ada")
    assert [(e.event, e.actor, e.detail) for e in events_of(store, "r1")] == [
        ("ending", "ada", {"to": "cancelled", "reason": "enough"})
    ]


def test_a_wish_keeps_gpus_and_disk_until_it_is_finished(store: Store) -> None:
    save_disk(store, "d", in_use=True, reservation_id="r1")
    Row("r1", request=ask(disk="d")).active(a=[0]).save(store)
    want_end(store, Status.ACTIVE, Status.EXPIRED)
    assert row_of(store, "r1").status == "active"
    assert disk_of(store, "d").in_use
    assert finish(store)
    assert row_of(store, "r1").status == "expired"
    assert not disk_of(store, "d").in_use


def test_a_wish_during_preparation_outlives_the_start(store: Store) -> None:
    """The server came up while the person cancelled: it still ends."""
    Row("r1").status(Status.PREPARING).save(store)
    want_end(store, Status.PREPARING, Status.CANCELLED, "enough", actor="ada")
    assert move(store, Status.PREPARING, Status.ACTIVE)
    assert finish(store)
    row = row_of(store, "r1")
    assert (row.status, row.reservation_ended) == ("cancelled", NOW + minutes(1))


@pytest.mark.parametrize("end", [Status.FAILED, Status.CANCELLED, Status.EXPIRED])
def test_a_finish_carries_the_reason_and_who_wished_it(store: Store, end: Status) -> None:
    Row("r1").status(Status.ACTIVE).save(store)
    want_end(store, Status.ACTIVE, end, "node is gone", actor="bob")
    assert finish(store)
    row, last = row_of(store, "r1"), events_of(store, "r1")[-1]
    assert row.failure_reason == ("node is gone" if end is Status.FAILED else None)
    assert (last.event, last.actor, last.detail) == (end, "bob", {"reason": "node is gone"})


def test_a_second_finish_changes_nothing(store: Store) -> None:
    Row("r1").status(Status.ACTIVE).save(store)
    want_end(store, Status.ACTIVE, Status.EXPIRED)
    before = row_of(store, "r1")
    assert finish(store)
    lines = len(events_of(store, "r1"))
    with store.write() as session:
        assert not lifecycle.finish(session, before, now=NOW + minutes(9))
    assert row_of(store, "r1").reservation_ended == NOW + minutes(1)
    assert len(events_of(store, "r1")) == lines


def test_a_step_that_is_rolled_back_leaves_no_line(store: Store) -> None:
    Row("r1").save(store)
    with pytest.raises(ZeroDivisionError), store.write() as session:
        lifecycle.transition(session, "r1", Status.PENDING, Status.QUEUED, now=NOW, actor="controller")
        raise ZeroDivisionError
    assert row_of(store, "r1").status == "pending"
    assert events_of(store, "r1") == []


# Any life at all, against a model of a few lines


class Life(RuleBasedStateMachine):
    numbers = itertools.count(1)

    def __init__(self, store: Store) -> None:
        super().__init__()
        self.store = store
        self.id = f"life-{next(self.numbers)}"
        save_disk(store, self.id, in_use=True, reservation_id=self.id)
        Row(self.id, request=ask(disk=self.id)).save(store)
        self.status, self.wish, self.lines = Status.PENDING, None, 0

    @rule(old=st.sampled_from(Status), new=st.sampled_from(Status))
    def step(self, old: Status, new: Status) -> None:
        if (old, new) not in LIFE:
            with pytest.raises(IllegalTransition):
                move(self.store, old, new, self.id)
            return
        moved = move(self.store, old, new, self.id)
        assert moved == (self.status == old)
        if moved:
            self.status, self.lines = new, self.lines + 1

    @rule(new=st.sampled_from(Status))
    def step_from_where_it_is(self, new: Status) -> None:
        self.step(self.status, new)

    @precondition(lambda self: self.status in HOLDING)
    @rule(end=st.sampled_from(sorted(TERMINAL)))
    def wish_an_end(self, end: Status) -> None:
        if (self.status, end) not in LIFE:
            return
        with self.store.write() as session:
            counted = lifecycle.want_end(
                session, self.id, self.status, end, now=NOW, actor="ada", reason="enough"
            )
        assert counted == (self.wish is None)
        if counted:
            self.wish, self.lines = end, self.lines + 1

    @precondition(lambda self: self.wish is not None and self.status in HOLDING)
    @rule()
    def finish(self) -> None:
        with self.store.write() as session:
            assert lifecycle.finish(session, session.get_one(ReservationRow, self.id), now=NOW)
        self.status, self.lines = self.wish, self.lines + 1

    @invariant()
    def the_row_is_as_the_model_says(self) -> None:
        row = row_of(self.store, self.id)
        assert (row.status, row.end_wanted) == (self.status, self.wish)
        assert (row.reservation_ended is not None) == (self.status in TERMINAL)
        assert disk_of(self.store, self.id).in_use == (self.status not in TERMINAL)
        assert len(events_of(self.store, self.id)) == self.lines


def test_any_life_keeps_the_rules(store: Store) -> None:
    examples = 25 if store.is_sqlite else 10
    run_state_machine_as_test(
        lambda: Life(store),
        settings=settings(
            deadline=None,
            max_examples=examples,
            stateful_step_count=20,
            suppress_health_check=list(HealthCheck),
        ),
    )
