"""When a waiting request will probably start, learnt from how early people leave.

A plan counts on everybody staying to the end, so that it can be promised; most leave earlier. Three methods,
the best that is affordable:

- ``plan``: nothing is known about people yet, so they are taken to stay.
- ``typical``: everybody leaves at the median. For the form, and for long queues.
- ``simulated``: the real policy is run several times, each time with lengths of stay drawn from those of the
  past and with recent arrivals replayed; the answer is the median start.

The interval around the answer, in which four of five starts should fall, is as wide as the errors of earlier
answers to similar waits make it. Only what was over at the time of a forecast is learnt from.

Plain data in, plain data out, the same answer for the same seed: it can be asked in a thread.
"""

from __future__ import annotations

import heapq
from bisect import bisect_left, bisect_right
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from math import ceil, floor, log2
from random import Random

from gpudev_core.ledger import Ledger, Rank
from gpudev_core.placement import Need, Slot
from gpudev_core.profile import EVER

SAMPLES = 12
MOST_SIMULATED = 150
"""With more in the queue one run at the median takes the place of the samples ..."""
MOST_RUN = 600
"""... and with still more they are only placed once, one after the other."""
MOST_LIVES = 2_000
MOST_ARRIVALS = 1_500
MOST_REPLAYED = 1_000
MOST_MORE = 50
"""By so many a simulated queue may grow: those behind them hardly matter to those who wait now."""
MOST_ERRORS = 1_000
ENOUGH_LIVES = 20
ENOUGH_LEFT = 5
"""Of those who stayed as long as this one has, so many must be known to say how they went on."""
ENOUGH_ERRORS = 30
SIMILAR_ERRORS = 120
SLACK_S = 300
"""Errors count relative to the wait that was told plus this: a wait of one minute is not told to seconds."""


# What is known ------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Life:
    """A session that is over: ``length`` seconds were planned, ``had`` were used, until ``ended``."""

    length: int
    had: int
    ended: int


@dataclass(frozen=True, slots=True)
class Arrival:
    """Somebody asked. ``rank`` is as in the ledger, without the age at its end."""

    at: int
    need: Need
    rank: Rank


@dataclass(frozen=True, slots=True)
class Outcome:
    """What was told at ``made_at`` to one who waited, and the ``actual`` start."""

    expected: int
    low: int
    high: int
    actual: int
    made_at: int


@dataclass(frozen=True, slots=True)
class Running:
    """``length`` is the planned occupancy, ``end`` the enforced end."""

    key: str
    units: Mapping[str, int]
    start: int
    length: int
    end: int


@dataclass(frozen=True, slots=True)
class Planned:
    key: str
    need: Need
    start: int
    nodes: tuple[str, ...]
    promise: int
    rank: Rank


@dataclass(frozen=True, slots=True)
class Book:
    """The book of one GPU type at one moment: ``nodes`` are units and zone by name."""

    now: int
    nodes: Mapping[str, tuple[int, str]]
    running: Sequence[Running]
    plans: Sequence[Planned]

    @classmethod
    def of(cls, ledger: Ledger, begun: Mapping[str, tuple[int, int]] | None = None) -> Book:
        """``begun``: begin and planned length of those who hold, where the ledger's are not the real ones."""
        begun = begun or {}
        running = [
            Running(one.key, dict(one.units), *begun.get(one.key, (one.start, one.end - one.start)), one.end)
            for one in ledger.held.values()
        ]
        plans = [
            Planned(one.key, one.need, one.start, one.nodes, one.promise, one.rank)
            for one in ledger.plans.values()
        ]
        places = ledger.places
        nodes = {name: (profile.units, places.zone_of(name)) for name, profile in places.profiles.items()}
        return cls(ledger.now, nodes, running, plans)


@dataclass(frozen=True, slots=True)
class Expected:
    """``method``: ``plan``, ``typical`` or ``simulated``."""

    start: int
    low: int
    high: int
    method: str


class Lives:
    """How long people stay, as a part of what they asked for, by what they asked for."""

    def __init__(self, lives: Iterable[Life], now: int) -> None:
        known = sorted((life for life in lives if life.ended <= now), key=lambda life: life.ended)
        self._all: list[float] = []
        self._alike: dict[int, list[float]] = {}
        for life in known[-MOST_LIVES:]:
            if life.length > 0:
                part = min(1.0, max(0.0, life.had / life.length))
                self._all.append(part)
                self._alike.setdefault(_bucket(life.length), []).append(part)
        for parts in (self._all, *self._alike.values()):
            parts.sort()

    @property
    def is_empty(self) -> bool:
        return len(self._all) < ENOUGH_LIVES

    def median(self, length: int, elapsed: int = 0) -> int:
        """Seconds still to come of a session of ``length`` that has run for ``elapsed``."""
        return self._left(length, elapsed, 0.5)

    def sample(self, random: Random, length: int, elapsed: int = 0) -> int:
        return self._left(length, elapsed, random.random())

    def _left(self, length: int, elapsed: int, quantile: float) -> int:
        so_far = elapsed / length if length > 0 else 1.0
        for parts in (self._alike.get(_bucket(length), ()), self._all):
            if len(parts) >= ENOUGH_LIVES:
                gone = bisect_right(parts, so_far)
                left = len(parts) - gone
                if left >= ENOUGH_LEFT:
                    return max(1, int(parts[gone + int(quantile * left)] * length) - elapsed)
        return max(1, length - elapsed)


def _bucket(length: int) -> int:
    """Two lengths are alike when they differ by less than about four tenths."""
    return round(2 * log2(length)) if length > 0 else 0


class Errors:
    """How far off earlier answers were, by the wait that they told."""

    def __init__(self, outcomes: Iterable[Outcome], now: int) -> None:
        known = sorted((one for one in outcomes if one.actual <= now), key=lambda one: one.actual)
        pairs = sorted(
            (one.expected - one.made_at, one.actual - one.expected) for one in known[-MOST_ERRORS:]
        )
        self._told = [told for told, _ in pairs]
        self._off = [off / (max(0, told) + SLACK_S) for told, off in pairs]

    def interval(self, told: int) -> tuple[int, int] | None:
        """Seconds before and after a start that is ``told`` seconds away, or None while little is known."""
        if len(self._off) < ENOUGH_ERRORS:
            return None
        middle = bisect_left(self._told, told)
        first = max(0, min(middle - SIMILAR_ERRORS // 2, len(self._off) - SIMILAR_ERRORS))
        off = sorted(self._off[first : first + SIMILAR_ERRORS])
        scale = told + SLACK_S
        # of n + 1 equally likely places of the next error: the quantiles of conformal prediction
        below = off[max(0, floor(0.1 * (len(off) + 1)) - 1)]
        above = off[min(len(off), ceil(0.9 * (len(off) + 1))) - 1]
        return int(min(0.0, below) * scale), int(max(0.0, above) * scale)


# The answer ---------------------------------------------------------------------------------------------


def expect(
    book: Book,
    lives: Iterable[Life],
    arrivals: Sequence[Arrival],
    errors: Iterable[Outcome],
    seed: int = 0,
    samples: int = SAMPLES,
    only: Collection[str] | None = None,
    within: int = EVER,
) -> dict[str, Expected]:
    """When those who wait will probably start, never later than planned.

    ``only``: stop when these are answered. ``within``: look so many seconds ahead and no farther; who does
    not start in them is left out.
    """
    known = Lives(lives, book.now)
    plans = {plan.key: plan for plan in book.plans if plan.start < EVER}
    wanted = frozenset(plans) if only is None else frozenset(key for key in only if key in plans)
    if known.is_empty:
        runs, method = [_if_all_stay(book, known, wanted, within)], "plan"
    elif len(book.plans) <= MOST_SIMULATED:
        recent = _recent(arrivals, book.now)
        runs = [
            _Run(book, known, recent, Random(seed * 7919 + i)).starts(wanted, within) for i in range(samples)
        ]
        method = "simulated"
    else:
        runs, method = [Typical(book, known).starts(wanted, within)], "typical"
    off = Errors(errors, book.now)
    found: dict[str, Expected] = {}
    for key in plans if only is None else wanted:
        starts = sorted(min(run.get(key, EVER), plans[key].start) for run in runs)
        if starts[len(starts) // 2] - book.now <= within:
            found[key] = learnt(_middle(plans[key], book.now, starts, method), plans[key], book.now, off)
    return found


def _if_all_stay(book: Book, lives: Lives, wanted: Collection[str], within: int) -> dict[str, int]:
    """Plans are kept, but one may start earlier where another was cancelled: that is known without a past."""
    return _Run(book, lives, (), None).starts(wanted, within) if len(book.plans) <= MOST_RUN else {}


def learnt(expected: Expected, plan: Planned, now: int, errors: Errors) -> Expected:
    """The same with the interval that earlier errors call for, if enough of them are known."""
    around = errors.interval(expected.start - now)
    if around is None:
        return expected
    low, high = expected.start + around[0], expected.start + around[1]
    return replace(expected, low=max(now, low), high=max(expected.start, min(high, plan.promise)))


def _middle(plan: Planned, now: int, starts: Sequence[int], method: str) -> Expected:
    count = len(starts)
    start = max(now, min((starts[(count - 1) // 2] + starts[count // 2]) // 2, plan.start, plan.promise))
    low, high = starts[count // 10], starts[count - 1 - count // 10]
    if method == "typical":
        low, high = now, plan.start
    return Expected(start, max(now, min(low, start)), max(start, min(high, plan.promise)), method)


def _recent(arrivals: Sequence[Arrival], now: int) -> list[tuple[int, Arrival]]:
    """Who came lately, each with the seconds since the one before."""
    known = sorted((one for one in arrivals if one.at <= now), key=lambda one: one.at)[-MOST_ARRIVALS:]
    return [(max(1, one.at - before.at), one) for before, one in pairwise(known)]


# The methods --------------------------------------------------------------------------------------------


class Typical:
    """A copy of the book in which everybody leaves at the median."""

    def __init__(self, book: Book, lives: Lives) -> None:
        self._book, self._lives = book, lives

    def starts(self, wanted: Collection[str], within: int = EVER) -> dict[str, int]:
        if len(self._book.plans) <= MOST_RUN:
            return _Run(self._book, self._lives, (), None).starts(wanted, within)
        return {key: start for key, start in self._placed(()) if key}

    def ask(self, needs: Sequence[tuple[Need, Rank]]) -> list[int | None]:
        """When each of these would start if it came now, each on its own. None: never."""
        order = sorted(range(len(needs)), key=lambda i: needs[i][1])
        starts: list[int | None] = [None] * len(needs)
        if self._lives.is_empty:
            ledger = _ledger(self._book)
            slots = [ledger.ask(need) for need, _ in needs]
            return [slot.start if slot else None for slot in slots]
        asked = [needs[i] for i in order]
        for i, (_, start) in zip(order, (one for one in self._placed(asked) if not one[0]), strict=True):
            starts[i] = start if start < EVER else None
        return starts

    def _placed(self, asked: Sequence[tuple[Need, Rank]]) -> Iterator[tuple[str, int]]:
        """Who is moved earlier first is placed first. What is only asked for is looked for at its turn."""
        book, lives = self._book, self._lives
        ledger = Ledger(book.now)
        for name, (units, zone) in book.nodes.items():
            ledger.set_node(name, units, zone)
        for one in book.running:
            left = lives.median(one.length, book.now - one.start)
            ledger.hold(one.key, one.units, one.start, min(one.end, book.now + left))
        questions = list(asked)
        for plan in sorted(book.plans, key=lambda plan: plan.rank):
            while questions and questions[0][1] < plan.rank:
                yield "", self._look(ledger, questions.pop(0)[0])
            placed = ledger.plan(plan.key, self._shorter(plan.need), plan.rank)
            yield plan.key, placed.start if placed else EVER
        for need, _ in questions:
            yield "", self._look(ledger, need)

    def _look(self, ledger: Ledger, need: Need) -> int:
        slot = ledger.ask(self._shorter(need))
        return slot.start if slot else EVER

    def _shorter(self, need: Need) -> Need:
        return replace(need, length=self._lives.median(need.length))


class _Run:
    """The real policy, once: ends, then earlier plans, then starts, then arrivals."""

    def __init__(
        self, book: Book, lives: Lives, arrivals: Sequence[tuple[int, Arrival]], random: Random | None
    ) -> None:
        """Without ``random`` everybody stays as long as the median."""
        self._ledger = _ledger(book)
        self._now, self._lives, self._random = book.now, lives, random
        self._ends = [
            (min(one.end, book.now + self._left(one.length, book.now - one.start)), one.key)
            for one in book.running
        ]
        heapq.heapify(self._ends)
        self._next, self._came, self._most = EVER, 0, len(book.plans) + MOST_MORE
        if arrivals and random:
            first = random.randrange(len(arrivals))
            self._arrivals = [*arrivals[first:], *arrivals[:first]]
            self._next = book.now + 1 + int(random.random() * arrivals[first][0])

    def starts(self, wanted: Collection[str], within: int) -> dict[str, int]:
        ledger, ends, plans = self._ledger, self._ends, self._ledger.plans
        limit = self._now + within
        found: dict[str, int] = {}
        left = len(wanted)
        while left:
            now = min(self._next, min([plan.start for plan in plans.values()]))
            if ends and ends[0][0] < now:
                now = ends[0][0]
            if now > limit:
                break
            now = ledger.now = max(now, ledger.now)
            while ends and ends[0][0] <= now:
                ledger.release(heapq.heappop(ends)[1])
            ledger.fill()
            for key in [key for key, plan in plans.items() if plan.start <= now]:
                self._begin(key)
                if key in wanted:
                    found[key] = now
                    left -= 1
            if now >= self._next:
                self._arrive(now)
        return found

    def _begin(self, key: str) -> None:
        held = self._ledger.begin(key)
        left = self._left(held.end - held.start, 0)
        heapq.heappush(self._ends, (min(held.end, self._ledger.now + left), key))

    def _arrive(self, now: int) -> None:
        count = len(self._arrivals)
        one = self._arrivals[self._came % count][1]
        self._came += 1
        self._next = now + self._arrivals[self._came % count][0] if self._came < MOST_REPLAYED else EVER
        if len(self._ledger.plans) >= self._most:
            return
        key = f"replayed {self._came}"
        plan = self._ledger.plan(key, one.need, (*one.rank, now))
        if plan is not None and plan.start <= now:
            self._begin(key)

    def _left(self, length: int, elapsed: int) -> int:
        if self._random is None:
            return self._lives.median(length, elapsed)
        return self._lives.sample(self._random, length, elapsed)


def _ledger(book: Book) -> Ledger:
    ledger = Ledger(book.now)
    for name, (units, zone) in book.nodes.items():
        ledger.set_node(name, units, zone)
    for one in book.running:
        ledger.hold(one.key, one.units, one.start, one.end)
    seen = ledger.places.changes
    for plan in book.plans:
        ledger.adopt(plan.key, plan.need, Slot(plan.start, plan.nodes), plan.promise, plan.rank, seen)
    return ledger
