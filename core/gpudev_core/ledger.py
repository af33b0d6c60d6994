"""The book of one GPU type: who holds what until when, and who is promised what from when.

Every waiting request has a *plan* (nodes and start) in the same book as what runs, and a *promise*: the plan
that it got when it was filed. On every node, at every instant, what runs and what is planned fit together,
and now <= plan <= promise.

An arrival is planned into what is free, so that nobody moves. An early end only frees. ``fill`` lifts one
plan at a time and puts it back exactly where it was if there is nothing better: its old place is still free,
so nobody ever moves later. Better is a start at once; for gangs, and for those who are late, any earlier one.
Only what takes capacity away can break a promise: ``mend`` then re-places those who stood on it, and nobody
else.

Times are whole seconds. A plan reaches from its start to its start plus its whole length, with preparation
and clean-up.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from gpudev_core.placement import Need, Places, Slot
from gpudev_core.profile import EVER

Rank = tuple[float, ...]
"""Smaller is moved earlier first."""


@dataclass(slots=True)
class Held:
    """Units that a reservation has now, by node, until ``end`` at the latest."""

    key: str
    units: Mapping[str, int]
    start: int
    end: int


@dataclass(slots=True)
class Plan:
    key: str
    need: Need
    start: int
    nodes: tuple[str, ...]
    promise: int
    rank: Rank
    seen: int = 0
    """What had become free by its last look for any earlier start."""

    @property
    def end(self) -> int:
        return self.start + self.need.length

    @property
    def is_late(self) -> bool:
        return self.start > self.promise


class Ledger:
    def __init__(self, now: int) -> None:
        self.now = now
        self.places = Places()
        self.held: dict[str, Held] = {}
        self.plans: dict[str, Plan] = {}
        self._strained: set[str] = set()

    # What there is ------------------------------------------------------------------------------------

    def set_now(self, now: int) -> None:
        self.now = now
        self.places.forget_before(now)

    def set_node(self, name: str, units: int, zone: str = "") -> None:
        if self.places.set_node(name, units, zone):
            self._strained.add(name)

    # What runs ----------------------------------------------------------------------------------------

    def hold(self, key: str, units: Mapping[str, int], start: int, end: int) -> None:
        """Book what somebody has already. It is true, whether it fits or not."""
        self.held[key] = Held(key, units, start, end)
        for name, count in units.items():
            self.places.take((name,), start, end, count)
            self._strained.add(name)

    def hold_until(self, key: str, end: int) -> None:
        held = self.held[key]
        for name, count in held.units.items():
            self.places.give((name,), end, held.end, count)
            if end > held.end:
                self.places.take((name,), held.end, end, count)
                self._strained.add(name)
        held.end = end

    def release(self, key: str) -> None:
        held = self.held.pop(key)
        for name, count in held.units.items():
            self.places.give((name,), max(held.start, self.now), held.end, count)

    # What is planned ----------------------------------------------------------------------------------

    def ask(self, need: Need, before: int = EVER) -> Slot | None:
        """Where one more request would go. Nothing is booked."""
        return self.places.earliest(need, self.now, before)

    def plan(self, key: str, need: Need, rank: Rank) -> Plan | None:
        """Book an arrival at its earliest place, and promise it. None: no node could ever hold it."""
        slot = self.ask(need)
        return self.adopt(key, need, slot, slot.start, rank, self.places.changes) if slot else None

    def adopt(self, key: str, need: Need, slot: Slot, promise: int, rank: Rank, seen: int = 0) -> Plan:
        """Book a plan that was made before. Whether it still fits is found by ``mend``."""
        plan = self.plans[key] = Plan(key, need, slot.start, slot.nodes, promise, rank, seen)
        self._book(plan)
        if seen == 0:
            self._strained.update(plan.nodes)
        return plan

    def drop(self, key: str) -> None:
        plan = self.plans.pop(key)
        self.places.give(plan.nodes, max(plan.start, self.now), plan.end, plan.need.units)

    def begin(self, key: str) -> Held:
        """A plan becomes a session on the same nodes for the same time: the book does not change."""
        plan = self.plans.pop(key)
        units = dict.fromkeys(plan.nodes, plan.need.units)
        held = self.held[key] = Held(key, units, plan.start, plan.end)
        return held

    def postpone(self, key: str) -> None:
        """Its time came and it could not be started: it begins now, for its whole length."""
        plan = self.plans[key]
        self._unbook(plan)
        plan.start = self.now
        self._book(plan)
        self._strained.update(plan.nodes)

    def fill(self) -> None:
        """Let whoever can start at once do so, in the order of rank; to be called whenever time has passed.

        Others of one node stay where they are: what is free before them is for those who can use it now, and
        people wait less than if every plan were moved as early as it goes. Gangs, for which whole nodes must
        come together, and those who are late are moved to any earlier place.
        """
        places, now = self.places, self.now
        idle = {name: free for name, profile in places.profiles.items() if (free := profile.at(now)) > 0}
        full: set[tuple[int, int, str]] = set()
        for plan in sorted(self.plans.values(), key=_rank):
            if plan.start <= now:
                continue
            old, need = plan.nodes, plan.need
            if need.nodes == 1 and old and not plan.is_late:
                size = (need.units, need.length, need.zone)
                if size in full and idle.get(old[0], 0) < need.units:
                    continue
                if not self._start_now(plan, idle, size in full):
                    full.add(size)
                    continue
            elif not self._lift(plan):
                continue
            full.clear()
            for name in (*old, *plan.nodes):
                idle[name] = places.profiles[name].at(now)

    def _start_now(self, plan: Plan, idle: Mapping[str, int], is_full: bool) -> bool:
        """``is_full``: there is no room for its size now, but for what its own place may add to it."""
        need, own = plan.need, plan.nodes[0]
        names = (own,) if is_full else idle
        roomy = [name for name in names if idle.get(name, 0) >= need.units]
        slot = self.places.earlier_on(roomy, need, self.now, plan.start, own, self.now + 1) if roomy else None
        if slot is None:
            return False
        self._move(plan, slot)
        return True

    def mend(self) -> list[Plan]:
        """Re-place the plans that stand where there is no room any more, in the order of their promises.

        Returns those that start later than promised.
        """
        victims = self._take_out_overbooked()
        for plan in _by_promise(victims):
            self._replace(plan, self.ask(plan.need))
        return [plan for plan in victims if plan.is_late]

    # Extension ----------------------------------------------------------------------------------------

    def extend(self, key: str, end: int) -> bool:
        """Let a session go on until ``end`` if every promise can still be kept; else change nothing."""
        before, strained = self.held[key].end, set(self._strained)
        self.hold_until(key, end)
        victims = self._take_out_overbooked()
        old = [(plan, Slot(plan.start, plan.nodes)) for plan in victims]
        placed: list[Plan] = []
        for plan in _by_promise(victims):
            slot = self.ask(plan.need, plan.promise + 1)
            if slot is None:
                self._roll_back(placed, old, key, before, strained)
                return False
            self._replace(plan, slot)
            placed.append(plan)
        return True

    def longest(self, key: str, wanted: int, step: int = 60) -> int:
        """The latest end, no later than ``wanted``, to which it can be extended. The book stays as it is."""
        end = self.held[key].end
        if self._could_extend(key, wanted):
            return wanted
        fits, most = 0, max(0, (wanted - end) // step)
        while fits < most:
            middle = (fits + most + 1) // 2
            fits, most = (
                (middle, most) if self._could_extend(key, end + middle * step) else (fits, middle - 1)
            )
        return end + fits * step

    def _could_extend(self, key: str, end: int) -> bool:
        before, strained = self.held[key].end, set(self._strained)
        slots = {name: Slot(plan.start, plan.nodes) for name, plan in self.plans.items()}
        if not self.extend(key, end):
            return False
        moved = [plan for plan in self.plans.values() if slots[plan.key] != Slot(plan.start, plan.nodes)]
        self._roll_back(moved, [(plan, slots[plan.key]) for plan in moved], key, before, strained)
        return True

    def _roll_back(
        self,
        placed: Iterable[Plan],
        old: Sequence[tuple[Plan, Slot]],
        key: str,
        end: int,
        strained: set[str],
    ) -> None:
        for plan in placed:
            self._unbook(plan)
        for plan, slot in old:
            plan.start, plan.nodes = slot.start, slot.nodes
            self._book(plan)
        self.hold_until(key, end)
        self._strained = strained

    # Moving -------------------------------------------------------------------------------------------

    def _book(self, plan: Plan) -> None:
        self.places.take(plan.nodes, plan.start, plan.end, plan.need.units)

    def _unbook(self, plan: Plan) -> None:
        self.places.give(plan.nodes, plan.start, plan.end, plan.need.units)

    def _lift(self, plan: Plan) -> bool:
        """Move it to any earlier start. Only what has become free since its last look can have made one."""
        slot = self._earlier(plan, self.places.freed_since(plan.seen))
        if slot is not None:
            self._move(plan, slot)
        plan.seen = self.places.changes
        return slot is not None

    def _earlier(self, plan: Plan, freed: Sequence[str]) -> Slot | None:
        need, places, own = plan.need, self.places, plan.nodes
        if need.nodes == 1:
            return places.earlier_on(freed, need, self.now, plan.start, own[0] if own else "")
        if not any(places.is_empty_before(name, need, self.now, plan.start, own) for name in freed):
            return None
        # its own place is in the way of a start that overlaps it
        places.put_back(own, plan.start, plan.end, need.units)
        slot = places.earliest(need, self.now, plan.start)
        self._book(plan)
        return slot

    def _move(self, plan: Plan, slot: Slot) -> None:
        self._unbook(plan)
        plan.start, plan.nodes = slot.start, slot.nodes
        self._book(plan)

    def _replace(self, plan: Plan, slot: Slot | None) -> None:
        plan.start, plan.nodes = (slot.start, slot.nodes) if slot else (EVER, ())
        plan.seen = self.places.changes
        self._book(plan)

    def _take_out_overbooked(self) -> list[Plan]:
        """Unbook the plans that overlap a stretch in which there is too little room.

        One whose time has come goes only if the place is short even without those that come later.
        """
        victims = self._unbook_where_tight([plan for plan in self.plans.values() if plan.start > self.now])
        victims += self._unbook_where_tight([plan for plan in self.plans.values() if plan.start <= self.now])
        self._strained.clear()
        return victims

    def _unbook_where_tight(self, plans: Iterable[Plan]) -> list[Plan]:
        profiles = self.places.profiles
        tight = {name: list(profiles[name].overbooked(self.now)) for name in self._strained}
        victims = [plan for plan in plans if _overlaps(plan, tight)]
        for plan in victims:
            self._unbook(plan)
        return victims


def _overlaps(plan: Plan, tight: Mapping[str, Sequence[tuple[int, int]]]) -> bool:
    return any(
        plan.start < until and since < plan.end for name in plan.nodes for since, until in tight.get(name, ())
    )


def _rank(plan: Plan) -> Rank:
    return plan.rank


def _by_promise(plans: Iterable[Plan]) -> list[Plan]:
    return sorted(plans, key=lambda plan: (plan.promise, plan.rank))
