from __future__ import annotations

from dataclasses import replace
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpudev_core import outlook
from gpudev_core.ledger import Ledger
from gpudev_core.outlook import Arrival, Book, Errors, Expected, Life, Lives, Outcome, Typical, expect
from gpudev_core.placement import Need

HOUR = 3600
NOW = 1_000_000


def book(queued: int, seed: int = 0, nodes: int = 3) -> Book:
    """Full nodes, sessions that began at different times, and a queue."""
    rng = Random(seed)
    ledger = Ledger(NOW)
    for i in range(nodes):
        ledger.set_node(f"n{i}", 8)
        for j in range(4):
            begun = NOW - rng.randrange(1, 4 * HOUR)
            ledger.hold(f"held{i}{j}", {f"n{i}": 2}, begun, begun + 4 * HOUR)
    for i in range(queued):
        several = rng.random() < 0.1
        need = Need(
            8 if several else rng.choice((1, 2, 4)), 2 if several else 1, rng.choice((1, 2, 4)) * HOUR
        )
        ledger.plan(f"r{i}", need, (need.size, NOW + i))
    return Book.of(ledger)


def third(count: int = 50, ended: int = NOW - 1) -> list[Life]:
    """People who always leave after a third of the time."""
    return [Life(length, length // 3, ended) for length in (HOUR, 2 * HOUR, 4 * HOUR) for _ in range(count)]


def mixed(seed: int, count: int = 200) -> list[Life]:
    rng = Random(seed)
    lengths = rng.choices((HOUR, 2 * HOUR, 4 * HOUR), k=count)
    return [Life(length, rng.randrange(1, length + 1), NOW - rng.randrange(HOUR)) for length in lengths]


def came(count: int = 60) -> list[Arrival]:
    need = Need(1, 1, HOUR)
    return [Arrival(NOW - 90 * i, need, (need.size,)) for i in range(count)]


def off_by(seconds: int, count: int = 100) -> list[Outcome]:
    return [
        Outcome(made + HOUR, made, made, made + HOUR + seconds, made) for made in range(1000, 1000 + count)
    ]


# What always holds


@given(
    queued=st.integers(1, 12),
    seed=st.integers(0, 99),
    learnt=st.booleans(),
    most=st.sampled_from([0, 2, 150]),
)
@settings(max_examples=40, deadline=None)
def test_expected_starts_lie_between_now_and_the_plan_and_inside_their_interval(
    queued: int, seed: int, learnt: bool, most: int
) -> None:
    one = book(queued, seed)
    errors = (
        [replace(error, actual=error.actual + i) for i, error in enumerate(off_by(-900))] if learnt else []
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(outlook, "MOST_SIMULATED", most)
        patch.setattr(outlook, "MOST_RUN", 4)
        told = expect(one, mixed(seed), came(), errors, samples=3)
    assert told.keys() == {plan.key for plan in one.plans}
    for plan in one.plans:
        expected = told[plan.key]
        assert NOW <= expected.start <= plan.start <= plan.promise
        assert NOW <= expected.low <= expected.start <= expected.high <= plan.promise
        assert expected.method == ("simulated" if queued <= most else "typical")


def test_while_nothing_is_known_the_plan_is_expected() -> None:
    one = book(10)
    told = expect(one, third(count=6), came(), ())
    assert {key: expected.start for key, expected in told.items()} == {p.key: p.start for p in one.plans}
    assert {expected.method for expected in told.values()} == {"plan"}


def test_the_same_seed_gives_the_same_answer_and_another_one_another() -> None:
    one, lives = book(12), mixed(1)
    first = expect(one, lives, came(), (), seed=3)
    assert first == expect(one, lives, came(), (), seed=3)
    assert first != expect(one, lives, came(), (), seed=4)


def test_only_what_is_over_is_learnt_from() -> None:
    one = book(10)
    later = [replace(life, ended=NOW + 1) for life in third()]
    assert {expected.method for expected in expect(one, later, came(), ()).values()} == {"plan"}
    lives = mixed(2)
    told = expect(one, lives, came(), off_by(900))
    assert told == expect(
        one,
        [*lives, *later],
        [*came(), Arrival(NOW + 5, Need(8, 1, HOUR), (0,))],
        [*off_by(900), *(replace(error, actual=NOW + 1) for error in off_by(9000))],
    )


# People who leave after a third of the time


def full_node() -> Ledger:
    ledger = Ledger(NOW)
    ledger.set_node("n0", 8)
    ledger.hold("x", {"n0": 8}, NOW, NOW + 3 * HOUR)
    ledger.plan("a", Need(8, 1, 3 * HOUR), (1, 1))
    ledger.plan("b", Need(8, 1, 3 * HOUR), (1, 2))
    return ledger


@pytest.mark.parametrize(("most", "method"), [(150, "simulated"), (0, "typical")])
@pytest.mark.parametrize("most_run", [600, 0])
def test_who_waits_for_people_that_leave_after_a_third_starts_after_a_third(
    most: int, method: str, most_run: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(outlook, "MOST_SIMULATED", most)
    monkeypatch.setattr(outlook, "MOST_RUN", most_run)
    lives = [Life(3 * HOUR, HOUR, NOW)] * 30
    told = expect(Book.of(full_node()), lives, (), ())
    assert told["a"] == Expected(NOW + HOUR, told["a"].low, told["a"].high, method)
    assert told["b"] == Expected(NOW + 2 * HOUR, told["b"].low, told["b"].high, method)


def test_one_more_is_asked_for_behind_those_who_go_before_it() -> None:
    lives = Lives([Life(3 * HOUR, HOUR, NOW)] * 30, NOW)
    need = Need(8, 1, 3 * HOUR)
    assert Typical(Book.of(full_node()), lives).ask(
        [(need, (1, 3)), (need, (0, 0)), (Need(9, 1, 1), (1, 1))]
    ) == [
        NOW + 3 * HOUR,
        NOW + HOUR,
        None,
    ]
    assert Typical(Book.of(full_node()), Lives((), NOW)).ask([(need, (0, 0))]) == [NOW + 9 * HOUR]


def test_who_has_stayed_longer_than_most_is_compared_with_those_who_stayed_as_long() -> None:
    lives = Lives([Life(HOUR, 600, 0)] * 30 + [Life(HOUR, 3000, 0)] * 10, NOW)
    assert lives.median(HOUR) == 600
    assert lives.median(HOUR, 300) == 300
    assert lives.median(HOUR, 900) == 2100
    assert lives.median(HOUR, 3100) == 500, "nobody stayed so long: to the end"
    assert {lives.sample(Random(i), HOUR, 900) for i in range(9)} == {2100}


def test_a_length_of_which_little_is_known_is_judged_by_all() -> None:
    lives = Lives([Life(HOUR, HOUR // 2, 0)] * 30 + [Life(24 * HOUR, HOUR, 0)] * 3, NOW)
    assert lives.median(24 * HOUR) == 12 * HOUR


def test_the_newest_lives_count(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outlook, "MOST_LIVES", 30)
    old, new = [Life(HOUR, 600, 1)] * 30, [Life(HOUR, 1200, 2)] * 30
    assert Lives([*new, *old], NOW).median(HOUR) == 1200


# Arrivals, horizons, intervals


def test_small_ones_that_keep_coming_delay_a_large_one() -> None:
    ledger = Ledger(NOW)
    ledger.set_node("n0", 8)
    for i in range(8):
        ledger.hold(f"x{i}", {"n0": 1}, NOW - 60 * i, NOW + 4 * HOUR)
    ledger.plan("large", Need(8, 1, HOUR), (8 * HOUR, NOW))
    lives = [Life(4 * HOUR + 60 * i, 1800, NOW) for i in range(8) for _ in range(5)]
    quiet = expect(Book.of(ledger), lives, (), ())["large"]
    busy = expect(Book.of(ledger), lives, came(), ())["large"]
    assert quiet.start < busy.start <= NOW + 4 * HOUR


def test_a_short_look_ahead_tells_of_those_who_start_soon() -> None:
    lives = [Life(3 * HOUR, HOUR, NOW)] * 30
    one = Book.of(full_node())
    assert expect(one, lives, (), (), within=HOUR + 60).keys() == {"a"}
    assert expect(one, lives, (), (), only=["b"]).keys() == {"b"}


def test_the_interval_is_as_wide_as_earlier_errors() -> None:
    assert Errors(off_by(600, count=10), NOW).interval(HOUR) is None
    assert Errors(off_by(600), NOW).interval(HOUR) == (0, 600)
    assert Errors(off_by(-600), NOW).interval(HOUR) == (-600, 0)
    both = Errors([*off_by(600), *off_by(-600)], NOW).interval(2 * HOUR)
    assert both == (-1153, 1153), "twice as far away, nearly twice as uncertain"
    one = Book.of(full_node())
    told = expect(one, [Life(3 * HOUR, HOUR, NOW)] * 30, (), [*off_by(600), *off_by(-600)])["a"]
    assert (told.low, told.high) == (told.start - 600, told.start + 600)


def test_four_of_five_new_errors_fall_inside_what_was_learnt_from_the_old() -> None:
    rng = Random(1)
    past = [Outcome(HOUR, 0, 0, HOUR + int(rng.gauss(0, 900)), 0) for _ in range(120)]
    low, high = Errors(past, NOW).interval(HOUR) or (0, 0)
    inside = [low <= rng.gauss(0, 900) <= high for _ in range(5000)]
    assert 0.75 <= sum(inside) / len(inside) <= 0.9


def test_what_no_node_can_hold_has_no_expected_start() -> None:
    ledger = full_node()
    ledger.set_node("n0", 4)
    ledger.mend()
    assert expect(Book.of(ledger), third(), came(), ()) == {}


def test_real_begin_and_length_of_a_session_take_the_place_of_those_in_the_ledger() -> None:
    lives = [Life(6 * HOUR, 4 * HOUR, NOW)] * 30
    one = Book.of(full_node(), {"x": (NOW - 3 * HOUR, 6 * HOUR)})
    assert expect(one, lives, (), ())["a"].start == NOW + HOUR


def test_a_session_that_should_be_gone_does_not_stop_the_forecast() -> None:
    ledger = full_node()
    ledger.set_now(NOW + 3 * HOUR + 100)
    told = expect(Book.of(ledger), third(), came(), ())
    assert told["a"].start == ledger.now


def test_a_place_that_was_given_back_is_expected_even_while_nothing_is_known_about_people() -> None:
    ledger = full_node()
    ledger.drop("a")
    ledger.fill()
    assert ledger.plans["b"].start == NOW + 6 * HOUR
    told = expect(Book.of(ledger), (), (), ())["b"]
    assert (told.start, told.method) == (NOW + 3 * HOUR, "plan")
