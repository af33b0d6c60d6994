from __future__ import annotations

from dataclasses import replace
from itertools import count
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from slow_search import Booking, Slow

from gpudev_core.ledger import Ledger, Plan
from gpudev_core.placement import Need, Places, Slot
from gpudev_core.profile import EVER

HOUR = 3600


def ledger_of(*units: int) -> Ledger:
    """Nodes ``n0``, ``n1``, ... with so many units each, at time 0."""
    ledger = Ledger(0)
    for number, of_node in enumerate(units):
        ledger.set_node(f"n{number}", of_node)
    return ledger


def begin_due(ledger: Ledger) -> None:
    for key in [key for key, plan in ledger.plans.items() if plan.start == ledger.now]:
        ledger.begin(key)


def starts(ledger: Ledger) -> dict[str, int]:
    return {key: plan.start for key, plan in ledger.plans.items()}


def slots(ledger: Ledger) -> dict[str, Slot]:
    return {key: Slot(plan.start, plan.nodes) for key, plan in ledger.plans.items()}


def snapshot(ledger: Ledger) -> Any:
    """All that the book says."""
    return (
        {key: (dict(held.units), held.start, held.end) for key, held in ledger.held.items()},
        {
            key: (plan.need, plan.start, plan.nodes, plan.promise, plan.rank)
            for key, plan in ledger.plans.items()
        },
        {name: (p.units, list(p.times), list(p.free)) for name, p in ledger.places.profiles.items()},
    )


def rebuilt(ledger: Ledger, without: str = "") -> Places:
    """Places that were never asked, from what is held and planned."""
    places = Places()
    for name, profile in ledger.places.profiles.items():
        places.set_node(name, profile.units, ledger.places.zone_of(name))
    for held in ledger.held.values():
        for name, units in held.units.items():
            places.take((name,), max(held.start, ledger.now), held.end, units)
    for plan in ledger.plans.values():
        if plan.key != without:
            places.take(plan.nodes, max(plan.start, ledger.now), plan.end, plan.need.units)
    return places


def from_now(places: Places, now: int) -> dict[str, tuple[list[int], list[int]]]:
    places.forget_before(now)
    return {name: (list(p.times), list(p.free)) for name, p in places.profiles.items()}


def plainly_moved(ledger: Ledger) -> dict[str, Slot]:
    """What one pass must give: each in its turn lifted, looked for on all nodes, put back.

    Those of one node that are not late are moved only if they can start at once.
    """
    book = Ledger(ledger.now)
    for name, profile in ledger.places.profiles.items():
        book.set_node(name, profile.units, ledger.places.zone_of(name))
    for held in ledger.held.values():
        book.hold(held.key, held.units, held.start, held.end)
    for plan in sorted(ledger.plans.values(), key=lambda plan: plan.rank):
        book.adopt(plan.key, plan.need, Slot(plan.start, plan.nodes), plan.promise, plan.rank)
    for plan in book.plans.values():
        if plan.start > book.now:
            only_now = plan.need.nodes == 1 and not plan.is_late
            before = book.now + 1 if only_now else plan.start
            slot = rebuilt(book, without=plan.key).earliest(plan.need, book.now, before)
            if slot is not None:
                plan.start, plan.nodes = slot.start, slot.nodes
    return slots(book)


# Any course of events

needs = st.builds(
    lambda units, nodes, length, zone: Need(8 if nodes > 1 else units, nodes, length, zone),
    st.sampled_from([1, 2, 4, 8]),
    st.sampled_from([1, 1, 1, 2, 3]),
    st.integers(2, 20),
    st.sampled_from(["", "", "", "x", "y"]),
)
anywhere = needs.map(lambda need: replace(need, zone=""))
which = st.integers(0, 99)


class Book(RuleBasedStateMachine):
    """The promises are kept here a second time, so that the ledger cannot change one unseen."""

    @initialize(
        units=st.lists(st.sampled_from([4, 8, 8]), min_size=1, max_size=4),
        first=st.lists(needs, min_size=4, max_size=12),
    )
    def open(self, units: list[int], first: list[Need]) -> None:
        self.ledger = ledger_of()
        for number, of_node in enumerate(units):
            self.ledger.set_node(f"n{number}", of_node, "xy"[number % 2])
        self.promises: dict[str, int] = {}
        self.late: dict[str, int] = {}
        self.running: set[str] = set()
        self.numbers = count()
        for need in first:
            self.arrives(need, 0)
        self.start_due()

    # What people do

    @rule(
        wanted=st.lists(needs, min_size=1, max_size=4),
        priority=st.integers(0, 1),
        slack=st.sampled_from([0, 0, 8, -8]),
    )
    def arrive(self, wanted: list[Need], priority: int, slack: int) -> None:
        for need in wanted:
            self.arrives(need, priority, slack)

    def arrives(self, need: Need, priority: int, slack: int = 0) -> None:
        """``slack``: as if it had been promised a later start, and moved earlier since; below 0: late."""
        number = next(self.numbers)
        before, expected = slots(self.ledger), self.slow().earliest(need, self.now, EVER, self.names)
        plan = self.ledger.plan(f"r{number}", need, (-priority, need.size, number))
        assert (plan and plan.start) == (expected and expected.start)
        assert {key: slot for key, slot in slots(self.ledger).items() if key in before} == before
        if plan is not None:
            assert need.nodes > 1 or (expected and plan.nodes == expected.nodes)
            assert plan.promise == plan.start
            plan.promise = self.promises[plan.key] = plan.start + slack
            if slack < 0:
                self.late[plan.key] = plan.start

    @precondition(lambda self: self.running)
    @rule(which=which)
    def ends_early(self, which: int) -> None:
        key = self.pick(self.running, which)
        self.ledger.release(key)
        self.running.discard(key)
        self.fill()

    @precondition(lambda self: self.promises)
    @rule(which=which)
    def is_cancelled(self, which: int) -> None:
        key = self.pick(self.promises, which)
        self.ledger.drop(key)
        del self.promises[key]
        self.fill()

    @precondition(lambda self: self.promises)
    @rule(which=which, random=st.randoms(use_true_random=False))
    def is_cancelled_and_others_are_moved_in_any_order(self, which: int, random: Any) -> None:
        ranks = [plan.rank for plan in self.ledger.plans.values()]
        random.shuffle(ranks)
        for plan, rank in zip(self.ledger.plans.values(), ranks, strict=True):
            plan.rank = rank
        self.is_cancelled(which)

    @precondition(lambda self: self.running)
    @rule(which=which, more=st.integers(1, 60), step=st.integers(1, 9))
    def wants_more_time(self, which: int, more: int, step: int) -> None:
        ledger, key = self.ledger, self.pick(self.running, which)
        end, before, slow = ledger.held[key].end, snapshot(ledger), self.slow()
        longest = ledger.longest(key, end + more, step)
        assert snapshot(ledger) == before
        assert end <= longest <= end + more
        granted = ledger.extend(key, end + more)
        assert granted == (longest == end + more)
        if self.is_free(slow, key, end, end + more):
            assert granted
            assert slots(ledger) == {name: Slot(row[1], row[2]) for name, row in before[1].items()}
        if not granted:
            assert snapshot(ledger) == before
            if longest + step <= end + more:
                assert not ledger.extend(key, longest + step)
                assert snapshot(ledger) == before
            assert ledger.extend(key, longest)
        assert ledger.held[key].end == longest

    @precondition(lambda self: len(self.running) > 1)
    @rule(which=which, more=st.integers(1, 60))
    def wants_more_time_before_what_is_free_was_looked_at(self, which: int, more: int) -> None:
        key = self.pick(self.running, which)
        self.ledger.release(key)
        self.running.discard(key)
        self.wants_more_time(which, more, 5)
        self.fill()

    # Time

    @rule(events=st.integers(1, 4))
    def time_passes_from_event_to_event(self, events: int) -> None:
        for _ in range(events):
            self.start_due()
            self.pass_to(self.next_event())
            self.fill()

    @rule(which=which, seconds=st.integers(1, 5))
    def a_start_is_late(self, which: int, seconds: int) -> None:
        due = [key for key, plan in self.ledger.plans.items() if plan.start == self.now]
        if due:
            late = self.pick(due, which)
            self.start_due(but=late)
            self.pass_to(min(self.now + seconds, self.next_event()))
            nodes = self.ledger.plans[late].nodes
            self.ledger.postpone(late)
            assert self.ledger.plans[late].start == self.now
            self.mend(set(nodes), also={late})

    # The cluster

    @rule(which=which, units=st.sampled_from([0, 4, 8, 8]))
    def a_node_has_other_units(self, which: int, units: int) -> None:
        name = self.pick(self.names, which)
        fewer = units < self.ledger.places.profiles[name].units
        self.ledger.set_node(name, units, self.ledger.places.zone_of(name))
        self.mend({name} if fewer else set())

    # What always holds

    @invariant()
    def nowhere_is_more_booked_than_there_is(self) -> None:
        slow = self.slow()
        for plan in self.ledger.plans.values():
            for name in plan.nodes:
                assert slow.lowest(name, plan.start, plan.end) >= 0

    @invariant()
    def the_profiles_are_what_is_held_and_planned(self) -> None:
        found = from_now(self.ledger.places, self.now)
        assert found == from_now(rebuilt(self.ledger), self.now)

    @invariant()
    def every_promise_is_kept(self) -> None:
        assert self.ledger.plans.keys() == self.promises.keys()
        assert self.ledger.held.keys() == self.running
        for key, plan in self.ledger.plans.items():
            assert plan.promise == self.promises[key]
            assert self.now <= plan.start <= self.latest(key)

    @invariant()
    def everybody_has_the_nodes_that_were_asked_for(self) -> None:
        places = self.ledger.places
        for plan in self.ledger.plans.values():
            assert len(set(plan.nodes)) == len(plan.nodes) == plan.need.nodes
            assert all(places.is_in(plan.need.zone, name) for name in plan.nodes)
            assert all(places.profiles[name].units >= plan.need.units for name in plan.nodes)

    # Inside

    @property
    def now(self) -> int:
        return self.ledger.now

    @property
    def names(self) -> list[str]:
        return list(self.ledger.places.profiles)

    def pick(self, keys: Any, which: int) -> str:
        return sorted(keys)[which % len(keys)]

    def slow(self) -> Slow:
        ledger, profiles = self.ledger, self.ledger.places.profiles
        slow = Slow(
            {name: profile.units for name, profile in profiles.items()},
            {name: ledger.places.zone_of(name) for name in profiles},
        )
        for held in ledger.held.values():
            for name, units in held.units.items():
                slow.bookings.append(Booking(name, held.start, held.end, units, Need(units, 1, 1)))
        for plan in ledger.plans.values():
            for name in plan.nodes:
                slow.bookings.append(Booking(name, plan.start, plan.end, plan.need.units, plan.need))
        return slow

    def is_free(self, slow: Slow, key: str, start: int, end: int) -> bool:
        units = self.ledger.held[key].units
        return all(slow.lowest(name, start, end) >= wanted for name, wanted in units.items())

    def latest(self, key: str) -> int:
        """Its promise; for one that is late, where it stood last: it too moves only earlier."""
        return self.late.get(key, self.promises[key])

    def fill(self) -> None:
        before, expected = starts(self.ledger), plainly_moved(self.ledger)
        self.ledger.fill()
        assert slots(self.ledger) == expected
        assert all(start <= before[key] for key, start in starts(self.ledger).items())
        self.late = {plan.key: plan.start for plan in self.late_plans()}

    def start_due(self, but: str = "") -> None:
        for key, plan in list(self.ledger.plans.items()):
            if plan.start == self.now and key != but:
                held = self.ledger.begin(key)
                assert held.start == plan.start <= self.latest(key)
                del self.promises[key]
                assert (dict(held.units), held.end) == (
                    dict.fromkeys(plan.nodes, plan.need.units),
                    self.now + plan.need.length,
                )
                self.running.add(key)

    def next_event(self) -> int:
        ends = [held.end for held in self.ledger.held.values()]
        return min(
            (time for time in [*starts(self.ledger).values(), *ends] if time > self.now), default=self.now + 1
        )

    def pass_to(self, time: int) -> None:
        before = slots(self.ledger)
        self.ledger.set_now(time)
        for key in [key for key, held in self.ledger.held.items() if held.end <= time]:
            self.ledger.release(key)
            self.running.discard(key)
        assert slots(self.ledger) == before

    def mend(self, struck: set[str], also: set[str] = frozenset()) -> None:  # type: ignore[assignment]
        """Only those who stood where there is no room are moved, and only they may become late.

        They are late while plans are moved earlier; after that they are promised what they have then.
        """
        before, slow = slots(self.ledger), self.slow()
        known = {plan.key for plan in self.late_plans()}
        shaken = {key for key, plan in self.ledger.plans.items() if _stands_badly(slow, plan)}
        late = self.ledger.mend()
        after = slots(self.ledger)
        assert all(after[key] == before[key] for key in after.keys() - shaken)
        assert {plan.key for plan in late} <= shaken | also
        assert {plan.key for plan in self.late_plans()} <= {plan.key for plan in late} | also | known
        assert all(struck & {*before[p.key].nodes} for p in self.late_plans() if p.key not in known)
        self.fill()
        for plan in self.late_plans():
            if plan.start == EVER:
                self.ledger.drop(plan.key)
                del self.promises[plan.key]
            else:
                plan.promise = self.promises[plan.key] = plan.start

    def late_plans(self) -> list[Plan]:
        return [plan for plan in self.ledger.plans.values() if plan.is_late]


def _stands_badly(slow: Slow, plan: Plan) -> bool:
    return any(slow.lowest(name, plan.start, plan.end) < 0 for name in plan.nodes)


Book.TestCase.settings = settings(max_examples=120, stateful_step_count=40, deadline=None)
TestBook = Book.TestCase


# Examples


@pytest.mark.parametrize("first", ["A", "B"])
def test_an_early_end_breaks_no_promise_where_planning_anew_would(first: str) -> None:
    """Planned anew, A would begin at 3 and B at 7, four hours after its promise."""
    ledger = ledger_of(8)
    ledger.hold("x", {"n0": 4}, 0, 3 * HOUR)
    ledger.hold("y", {"n0": 2}, 0, 8 * HOUR)
    ledger.plan("A", Need(8, 1, 4 * HOUR), (first != "A",))
    ledger.plan("B", Need(4, 1, 4 * HOUR), (first != "B",))
    assert starts(ledger) == {"A": 8 * HOUR, "B": 3 * HOUR}
    ledger.release("y")
    ledger.fill()
    assert starts(ledger) == {"A": 8 * HOUR, "B": 0}


@given(st.lists(anywhere, max_size=15))
@settings(deadline=None)
def test_when_nobody_leaves_early_everybody_starts_at_the_promise_to_the_second(wanted: list[Need]) -> None:
    ledger = ledger_of(8, 8, 8)
    promised = {}
    for number, need in enumerate(wanted):
        plan = ledger.plan(f"r{number}", need, (need.size, number))
        assert plan is not None
        promised[plan.key] = plan.promise
    begun = {}
    while ledger.plans:
        ledger.set_now(min(starts(ledger).values()))
        for key in [key for key, held in ledger.held.items() if held.end <= ledger.now]:
            ledger.release(key)
        ledger.fill()
        for key in [key for key, plan in ledger.plans.items() if plan.start == ledger.now]:
            begun[key] = ledger.begin(key).start
    assert begun == promised


def test_a_gang_does_not_starve_behind_a_stream_of_small_ones() -> None:
    ledger = ledger_of(8, 8)
    for unit in range(16):
        ledger.hold(f"old{unit}", {f"n{unit % 2}": 1}, 0, (1 + unit) * 600)
    gang = ledger.plan("gang", Need(8, 2, HOUR), (16 * HOUR, 0))
    assert gang is not None
    assert gang.promise == 16 * 600
    for minute in range(1, 160):
        ledger.set_now(minute * 60)
        for key in [key for key, held in ledger.held.items() if held.end <= ledger.now]:
            ledger.release(key)
        ledger.fill()
        ledger.plan(f"small{minute}", Need(1, 1, HOUR), (HOUR, minute))
        begin_due(ledger)
        assert ledger.plans["gang"].start <= gang.promise
    assert len(ledger.held) > 1, "small ones went before it where they were not in its way"
    ledger.set_now(16 * 600)
    assert ledger.begin("gang").units == {"n0": 8, "n1": 8}


def test_of_two_equal_requests_the_one_with_priority_is_moved_first() -> None:
    for ranks in [((0, 1), (-5, 2)), ((0, 1), (0, 2))]:
        ledger = ledger_of(8)
        ledger.hold("x", {"n0": 8}, 0, HOUR)
        ledger.plan("older", Need(8, 1, HOUR), ranks[0])
        ledger.plan("newer", Need(8, 1, HOUR), ranks[1])
        assert starts(ledger) == {"older": HOUR, "newer": 2 * HOUR}
        ledger.drop("older")
        ledger.plan("third", Need(8, 1, 2 * HOUR), (-9, 0))
        assert starts(ledger) == {"newer": 2 * HOUR, "third": 3 * HOUR}
        ledger.release("x")
        ledger.fill()
        assert starts(ledger) == {"third": 0, "newer": 2 * HOUR}


def test_a_later_filing_of_higher_priority_takes_no_promised_place() -> None:
    ledger = ledger_of(8)
    ledger.hold("x", {"n0": 8}, 0, HOUR)
    ledger.plan("older", Need(8, 1, HOUR), (0, 1))
    ledger.plan("urgent", Need(8, 1, HOUR), (-5, 2))
    ledger.fill()
    assert starts(ledger) == {"older": HOUR, "urgent": 2 * HOUR}


def test_a_lost_node_delays_only_those_who_stood_on_it_in_the_order_of_their_promises() -> None:
    ledger = ledger_of(8, 8)
    ledger.hold("x", {"n0": 8}, 0, HOUR)
    ledger.hold("y", {"n1": 8}, 0, 2 * HOUR)
    for key, rank in [("a", 3), ("b", 2), ("c", 1)]:
        ledger.plan(key, Need(8, 1, HOUR), (rank,))
    assert {key: (slot.start, slot.nodes) for key, slot in slots(ledger).items()} == {
        "a": (HOUR, ("n0",)),
        "b": (2 * HOUR, ("n0",)),
        "c": (2 * HOUR, ("n1",)),
    }
    ledger.set_node("n0", 0)
    late = ledger.mend()
    assert [plan.key for plan in late] == ["a", "b"]
    assert starts(ledger) == {"a": 3 * HOUR, "b": 4 * HOUR, "c": 2 * HOUR}
    ledger.set_node("n0", 8)
    assert ledger.mend() == late[:0]
    ledger.fill()
    assert starts(ledger) == {"c": 2 * HOUR, "b": HOUR, "a": 2 * HOUR}, "the late ones, in the order of rank"


def test_what_no_node_can_hold_has_no_start_until_the_node_is_back() -> None:
    ledger = ledger_of(8, 4)
    ledger.hold("x", {"n0": 8}, 0, HOUR)
    ledger.plan("big", Need(8, 1, HOUR), (1,))
    ledger.set_node("n0", 4)
    [late] = ledger.mend()
    assert (late.start, late.nodes) == (EVER, ())
    ledger.set_node("n0", 8)
    ledger.fill()
    assert slots(ledger) == {"big": Slot(HOUR, ("n0",))}


def test_one_whose_time_has_come_gives_way_to_nobody_who_comes_later() -> None:
    """It lost its second and books its whole length anew: the next one moves, not this one."""
    ledger = ledger_of(8)
    ledger.plan("first", Need(8, 1, HOUR), (2,))
    ledger.plan("next", Need(8, 1, HOUR), (1,))
    ledger.set_now(100)
    ledger.postpone("first")
    assert [plan.key for plan in ledger.mend()] == ["next"]
    assert starts(ledger) == {"first": 100, "next": HOUR + 100}


def extended() -> Ledger:
    """Both nodes are held; ``a`` was promised 3 hours and has 1 by now, ``b`` has what it was promised."""
    ledger = ledger_of(8, 8)
    ledger.hold("x", {"n0": 8}, 0, HOUR)
    ledger.hold("y", {"n1": 8}, 0, 2 * HOUR)
    ledger.adopt("a", Need(8, 1, 2 * HOUR), Slot(HOUR, ("n0",)), 3 * HOUR, (1,))
    ledger.adopt("b", Need(8, 1, 9 * HOUR), Slot(2 * HOUR, ("n1",)), 2 * HOUR, (2,))
    assert ledger.mend() == []
    return ledger


def test_an_extension_moves_plans_up_to_their_promises() -> None:
    ledger = extended()
    assert ledger.longest("x", 9 * HOUR) == 3 * HOUR
    assert ledger.extend("x", 3 * HOUR)
    assert starts(ledger) == {"a": 3 * HOUR, "b": 2 * HOUR}


def test_an_extension_is_refused_where_one_second_would_break_a_promise() -> None:
    ledger = extended()
    before = snapshot(ledger)
    assert not ledger.extend("x", 3 * HOUR + 1)
    assert ledger.longest("y", 9 * HOUR) == 2 * HOUR
    assert not ledger.extend("y", 2 * HOUR + 1)
    assert snapshot(ledger) == before


def test_a_refused_extension_leaves_a_lost_node_to_be_mended() -> None:
    """Nothing is promised away while somebody has lost a place and has no other one yet."""
    ledger = extended()
    ledger.set_node("n1", 0)
    before = snapshot(ledger)
    assert ledger.longest("x", 9 * HOUR) == HOUR
    assert not ledger.extend("x", HOUR + 60)
    assert snapshot(ledger) == before
    assert [plan.key for plan in ledger.mend()] == ["b"]
    assert slots(ledger) == {"a": Slot(HOUR, ("n0",)), "b": Slot(3 * HOUR, ("n0",))}


@given(st.lists(anywhere, min_size=6, max_size=25), st.lists(st.integers(0, 99), max_size=12))
@settings(max_examples=150, deadline=None)
def test_when_people_leave_only_gangs_move_without_starting_and_in_the_end_nobody_more_could_start(
    wanted: list[Need], leave: list[int]
) -> None:
    ledger = ledger_of(8, 8, 8)
    for number, need in enumerate(wanted):
        ledger.plan(f"r{number}", need, (need.size, number))
    begin_due(ledger)
    for which in leave:
        before = slots(ledger)
        ledger.release(sorted(ledger.held)[which % len(ledger.held)])
        ledger.fill()
        for key, plan in ledger.plans.items():
            moved = Slot(plan.start, plan.nodes) != before[key]
            assert ledger.now <= plan.start <= before[key].start <= plan.promise
            assert not moved or plan.need.nodes > 1 or plan.start == ledger.now
        for _ in ledger.plans:  # who moves leaves room, which may be for one that had its turn
            ledger.fill()
        waiting = [plan for plan in ledger.plans.values() if plan.start > ledger.now and plan.need.nodes == 1]
        assert all(ledger.ask(plan.need, ledger.now + 1) is None for plan in waiting)
        assert all(min(profile.free) >= 0 for profile in ledger.places.profiles.values())
        begin_due(ledger)
        ledger.set_now(ledger.now + 1)
        for key in [key for key, held in ledger.held.items() if held.end <= ledger.now]:
            ledger.release(key)
        ledger.fill()
        begin_due(ledger)
        if not ledger.held:
            break


def test_one_that_cannot_start_at_once_leaves_what_is_free_to_those_who_can() -> None:
    ledger = ledger_of(8)
    ledger.hold("x", {"n0": 4}, 0, 2 * HOUR)
    ledger.hold("y", {"n0": 4}, 0, 4 * HOUR)
    ledger.plan("large", Need(8, 1, HOUR), (8 * HOUR, 1))
    ledger.release("y")
    ledger.fill()
    assert starts(ledger) == {"large": 4 * HOUR}
    assert ledger.ask(Need(4, 1, 3 * HOUR)) == Slot(0, ("n0",))
    ledger.release("x")
    ledger.fill()
    assert starts(ledger) == {"large": 0}


def test_one_may_start_now_where_its_own_place_is_in_the_way_of_others() -> None:
    ledger = ledger_of(8)
    ledger.hold("x", {"n0": 8}, 0, HOUR)
    ledger.plan("first", Need(8, 1, 2 * HOUR), (1,))
    ledger.plan("second", Need(8, 1, 2 * HOUR), (0,))
    ledger.release("x")
    ledger.fill()
    assert starts(ledger) == {"first": 0, "second": 3 * HOUR}


def test_what_was_free_only_later_is_taken_when_its_time_has_come() -> None:
    """Nothing becomes free at that time: it is the calling again that counts."""
    ledger = ledger_of(8)
    ledger.hold("x", {"n0": 8}, 0, HOUR)
    ledger.plan("first", Need(8, 1, HOUR), (1,))
    ledger.plan("second", Need(8, 1, HOUR), (2,))
    ledger.drop("first")
    ledger.fill()
    assert starts(ledger) == {"second": 2 * HOUR}
    ledger.set_now(HOUR)
    ledger.fill()
    assert starts(ledger) == {"second": HOUR}


def test_gangs_and_those_who_are_late_move_to_any_earlier_place() -> None:
    ledger = ledger_of(8, 8)
    for name in ("n0", "n1"):
        ledger.hold(f"x{name}", {name: 8}, 0, HOUR)
        ledger.hold(f"y{name}", {name: 8}, HOUR, 3 * HOUR)
    ledger.plan("gang", Need(8, 2, HOUR), (9,))
    ledger.plan("late", Need(8, 1, HOUR), (1,))
    ledger.plans["late"].promise = HOUR
    assert starts(ledger) == {"gang": 3 * HOUR, "late": 4 * HOUR}
    ledger.release("yn0")
    ledger.release("yn1")
    ledger.fill()
    assert starts(ledger) == {"gang": 2 * HOUR, "late": HOUR}


def test_what_no_node_can_hold_and_has_no_promise_does_not_stop_the_others() -> None:
    ledger = ledger_of(8)
    ledger.adopt("odd", Need(8, 1, HOUR), Slot(HOUR, ("n0",)), EVER, (1,))
    ledger.set_node("n0", 4)
    ledger.mend()
    ledger.fill()
    assert starts(ledger) == {"odd": EVER}


def test_who_is_moved_makes_room_for_those_who_come_after_in_the_same_pass() -> None:
    ledger = ledger_of(8, 8)
    ledger.hold("x", {"n0": 4}, 0, 3)
    ledger.adopt("first", Need(4, 1, 6), Slot(30, ("n0",)), 30, (1,))
    ledger.adopt("moves", Need(8, 1, 3), Slot(3, ("n0",)), 3, (2,))
    ledger.adopt("last", Need(4, 1, 6), Slot(40, ("n1",)), 40, (3,))
    ledger.adopt("stays", Need(8, 1, 9), Slot(4, ("n1",)), 4, (4,))
    ledger.fill()
    assert starts(ledger) == {"first": 30, "moves": 0, "last": 0, "stays": 4}


crowd = st.builds(
    lambda units, nodes, length: Need(8 if nodes > 1 else units, nodes, length),
    st.sampled_from([2, 4, 8]),
    st.sampled_from([1, 1, 1, 1, 2]),
    st.sampled_from([2, 3, 6]),
)


@given(
    wanted=st.lists(crowd, min_size=6, max_size=18),
    gone=st.sets(st.integers(0, 17), min_size=1, max_size=6),
    late=st.sets(st.integers(0, 17), max_size=9),
)
@settings(deadline=None, max_examples=300)
def test_a_crowd_is_moved_as_if_every_node_were_looked_at(
    wanted: list[Need], gone: set[int], late: set[int]
) -> None:
    ledger = ledger_of(8, 8)
    for number, need in enumerate(wanted):
        plan = ledger.plan(f"r{number}", need, (need.size, number))
        if plan is not None and plan.start == 0:
            ledger.begin(plan.key)
    for key in [f"r{number}" for number in gone if number < len(wanted)]:
        ledger.release(key) if key in ledger.held else ledger.drop(key)
    for plan in [ledger.plans[f"r{number}"] for number in late if f"r{number}" in ledger.plans]:
        plan.promise = 0
    expected = plainly_moved(ledger)
    ledger.fill()
    assert slots(ledger) == expected
