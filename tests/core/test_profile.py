from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

from hypothesis import given, settings
from hypothesis import strategies as st

from gpudev_core.profile import EVER, Profile

UNITS = 8
LAST_END = 40
HORIZON = 70
"""Past every booking and its length: from here on nothing changes."""

Booking = tuple[int, int, int]

spans = st.tuples(st.integers(0, LAST_END - 1), st.integers(1, 12), st.integers(1, 4))
bookings = st.lists(spans.map(lambda span: (span[0], min(span[0] + span[1], LAST_END), span[2])), max_size=9)
starts = st.integers(0, LAST_END + 5)
lengths = st.integers(1, 15)
wanted = st.integers(1, UNITS + 1)


def booked(taken: list[Booking], units: int = UNITS) -> Profile:
    profile = Profile(units)
    for start, end, count in taken:
        profile.take(start, end, count)
    return profile


def seconds(taken: list[Booking], units: int = UNITS) -> list[int]:
    """What is free, second by second."""
    free = [units] * (HORIZON + 1)
    for start, end, count in taken:
        for second in range(start, end):
            free[second] -= count
    return free


def steps(profile: Profile) -> tuple[list[int], list[int]]:
    return list(profile.times), list(profile.free)


def fits(free: list[int], start: int, end: int, units: int) -> bool:
    return all(count >= units for count in free[start : min(end, HORIZON + 1)])


def runs(numbers: list[int]) -> Iterator[tuple[int, int]]:
    """Stretches of numbers that follow each other, first and last."""
    first = None
    for number in numbers:
        first = number if first is None else first
        if number + 1 not in numbers:
            yield first, number
            first = None


@given(bookings)
@settings(deadline=None)
def test_it_says_what_is_free_at_every_second_and_in_as_few_steps_as_can_be(taken: list[Booking]) -> None:
    profile, free = booked(taken), seconds(taken)
    assert [profile.at(second) for second in range(HORIZON)] == free[:HORIZON]
    assert all(a < b for a, b in pairwise(profile.times))
    assert all(a != b for a, b in pairwise(profile.free))


@given(bookings, bookings, st.randoms(use_true_random=False))
@settings(deadline=None)
def test_what_is_given_back_in_any_order_restores_it_exactly(
    stays: list[Booking], goes: list[Booking], random: object
) -> None:
    profile = booked(stays)
    before = steps(profile)
    for start, end, count in goes:
        profile.take(start, end, count)
    random.shuffle(goes)  # type: ignore[attr-defined]
    for start, end, count in goes:
        profile.give(start, end, count)
    assert steps(profile) == before


@given(bookings, bookings)
@settings(deadline=None)
def test_the_order_of_taking_does_not_matter(some: list[Booking], more: list[Booking]) -> None:
    assert steps(booked(some + more)) == steps(booked(more + some))


def test_nothing_is_taken_for_no_time() -> None:
    profile = booked([(5, 5, 3), (9, 4, 3)])
    assert steps(profile) == ([-EVER], [UNITS])


@given(bookings, wanted, lengths, starts, st.integers(0, HORIZON - 16) | st.just(EVER))
@settings(deadline=None, max_examples=300)
def test_the_earliest_start_is_the_first_from_which_it_fits(
    taken: list[Booking], units: int, length: int, not_before: int, before: int
) -> None:
    free = seconds(taken)
    possible = range(not_before, min(before, LAST_END + 6))
    expected = next((start for start in possible if fits(free, start, start + length, units)), None)
    assert booked(taken).earliest(units, length, not_before, before) == expected


@given(bookings, st.integers(1, UNITS), lengths, starts, st.integers(0, LAST_END))
@settings(deadline=None, max_examples=300)
def test_its_own_place_is_not_in_the_way_of_an_earlier_one(
    taken: list[Booking], units: int, length: int, not_before: int, own: int
) -> None:
    """Looked for with the own place booked, it is what is found with the own place given back."""
    profile, free = booked(taken), seconds(taken)
    if not fits(free, own, own + length, units):
        return
    expected = profile.earliest(units, length, not_before, own)
    profile.take(own, own + length, units)
    assert profile.earliest(units, length, not_before, own, own) == expected


@given(bookings, wanted, lengths, starts, st.integers(0, LAST_END + 9))
@settings(deadline=None, max_examples=300)
def test_windows_are_all_the_starts_at_which_it_fits(
    taken: list[Booking], units: int, length: int, not_before: int, before: int
) -> None:
    free = seconds(taken)
    possible = [s for s in range(not_before, HORIZON + 1) if fits(free, s, s + length, units)]
    expected = [(first, EVER - length if last == HORIZON else last) for first, last in runs(possible)]
    found = list(booked(taken).windows(units, length, not_before, before))
    assert found == [window for window in expected if window[0] < before]


@given(bookings, starts, lengths)
@settings(deadline=None)
def test_the_lowest_of_a_stretch(taken: list[Booking], start: int, length: int) -> None:
    expected = min(seconds(taken)[start : start + length])
    assert booked(taken).lowest(start, start + length) == expected


@given(bookings, st.integers(0, 6), starts)
@settings(deadline=None)
def test_where_more_is_booked_than_there_is(taken: list[Booking], units: int, since: int) -> None:
    profile = booked(taken)
    profile.resize(units)
    found = [range(start, end) for start, end in profile.overbooked(since)]
    covered = [second for stretch in found for second in stretch]
    expected = [second for second, free in enumerate(seconds(taken, units)) if free < 0 and second >= since]
    assert covered == expected


@given(bookings, st.integers(0, 12))
@settings(deadline=None)
def test_other_units_are_as_if_there_had_always_been_so_many(taken: list[Booking], units: int) -> None:
    profile = booked(taken)
    profile.resize(units)
    assert profile.units == units
    assert steps(profile) == steps(booked(taken, units))
    profile.resize(UNITS)
    assert steps(profile) == steps(booked(taken))


@given(bookings, starts, wanted, lengths)
@settings(deadline=None)
def test_what_is_past_is_forgotten_and_nothing_else(
    taken: list[Booking], now: int, units: int, length: int
) -> None:
    profile, whole = booked(taken), booked(taken)
    profile.forget_before(now)
    assert all(time > now for time in profile.times[1:])
    assert [profile.at(s) for s in range(now, HORIZON)] == [whole.at(s) for s in range(now, HORIZON)]
    assert profile.earliest(units, length, now) == whole.earliest(units, length, now)
    for start, end, count in taken:
        profile.give(max(start, now), end, count)
    profile.forget_before(now)
    assert steps(profile) == ([-EVER], [UNITS])
