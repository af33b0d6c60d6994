from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from gpudev_core.ledger import Ledger
from gpudev_core.placement import Need, Slot

HOUR = 3600

needs = st.builds(
    lambda units, nodes, length: Need(8 if nodes > 1 else units, nodes, length),
    st.sampled_from([1, 2, 4, 8]),
    st.sampled_from([1, 1, 1, 2]),
    st.integers(2, 20),
)


def begin_due(ledger: Ledger) -> None:
    for key in [key for key, plan in ledger.plans.items() if plan.start == ledger.now]:
        ledger.begin(key)


@given(st.lists(needs, min_size=6, max_size=25), st.lists(st.integers(0, 99), max_size=12))
@settings(max_examples=150, deadline=None)
def test_nobody_moves_later_no_node_is_overbooked_and_only_gangs_move_to_a_later_place(
    wanted: list[Need], leave: list[int]
) -> None:
    ledger = Ledger(0)
    for name in ("n0", "n1", "n2"):
        ledger.set_node(name, 8)
    for i, need in enumerate(wanted):
        ledger.plan(f"r{i}", need, (need.size, i))
    begin_due(ledger)
    for which in leave:
        before = {key: Slot(plan.start, plan.nodes) for key, plan in ledger.plans.items()}
        ledger.release(sorted(ledger.held)[which % len(ledger.held)])
        ledger.fill()
        for key, plan in ledger.plans.items():
            moved = Slot(plan.start, plan.nodes) != before[key]
            assert ledger.now <= plan.start <= before[key].start <= plan.promise
            assert not moved or plan.need.nodes > 1 or plan.start == ledger.now
            assert (
                plan.need.nodes > 1
                or plan.start == ledger.now
                or ledger.ask(plan.need, ledger.now + 1) is None
            )
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
    ledger = Ledger(0)
    ledger.set_node("n0", 8)
    ledger.hold("x", {"n0": 4}, 0, 2 * HOUR)
    ledger.hold("y", {"n0": 4}, 0, 4 * HOUR)
    ledger.plan("large", Need(8, 1, HOUR), (8 * HOUR, 1))
    ledger.release("y")
    ledger.fill()
    assert ledger.plans["large"].start == 4 * HOUR
    assert ledger.ask(Need(4, 1, 3 * HOUR)) == Slot(0, ("n0",))
    ledger.release("x")
    ledger.fill()
    assert ledger.plans["large"].start == 0


def test_one_may_start_now_where_its_own_place_is_in_the_way_of_others() -> None:
    ledger = Ledger(0)
    ledger.set_node("n0", 8)
    ledger.hold("x", {"n0": 8}, 0, HOUR)
    ledger.plan("first", Need(8, 1, 2 * HOUR), (1,))
    ledger.plan("second", Need(8, 1, 2 * HOUR), (0,))
    ledger.release("x")
    ledger.fill()
    assert {key: plan.start for key, plan in ledger.plans.items()} == {"first": 0, "second": 3 * HOUR}


def test_what_was_free_only_later_is_taken_when_its_time_has_come() -> None:
    """Nothing becomes free at that time: it is the calling again that counts."""
    ledger = Ledger(0)
    ledger.set_node("n0", 8)
    ledger.hold("x", {"n0": 8}, 0, HOUR)
    ledger.plan("first", Need(8, 1, HOUR), (1,))
    ledger.plan("second", Need(8, 1, HOUR), (2,))
    ledger.drop("first")
    ledger.fill()
    assert ledger.plans["second"].start == 2 * HOUR
    ledger.set_now(HOUR)
    ledger.fill()
    assert ledger.plans["second"].start == HOUR


def test_gangs_and_those_who_are_late_move_to_any_earlier_place() -> None:
    ledger = Ledger(0)
    for name in ("n0", "n1"):
        ledger.set_node(name, 8)
        ledger.hold(f"x{name}", {name: 8}, 0, HOUR)
        ledger.hold(f"y{name}", {name: 8}, HOUR, 3 * HOUR)
    ledger.plan("gang", Need(8, 2, HOUR), (9,))
    ledger.plan("late", Need(8, 1, HOUR), (1,))
    ledger.plans["late"].promise = HOUR
    assert {key: plan.start for key, plan in ledger.plans.items()} == {"gang": 3 * HOUR, "late": 4 * HOUR}
    ledger.release("yn0")
    ledger.release("yn1")
    ledger.fill()
    assert ledger.plans["late"].start == HOUR
    assert ledger.plans["gang"].start == 2 * HOUR
