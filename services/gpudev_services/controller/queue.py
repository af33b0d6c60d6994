"""The queue: who is planned when, who may start now, and what each waiting person is told.

It keeps one planner for each GPU type from round to round. The rows are the truth: what they say is read in
the same transaction in which the answer is written, and when that transaction fails the planners are
forgotten and made again from the rows.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from gpudev_core import failures, forecast, maintenance, placement, reservations
from gpudev_core.catalogue import Catalogue
from gpudev_core.failures import Cause
from gpudev_core.models import Holding, Node, Placement, Reason, Status
from gpudev_core.placement import Places
from gpudev_core.planner import Allowances, Planned, Planner
from gpudev_core.planner import order as planner_order
from gpudev_core.settings import Settings
from gpudev_core.tables import GpuTypeRow, ReservationRow

OVER_QUOTA = "over_quota"


@dataclass(frozen=True)
class GiveUp:
    """It waited too long, or can never start."""

    cause: Cause


@dataclass(frozen=True)
class Blocked:
    """It waits without a time, because somebody closed its way; it keeps its place."""

    reason: Reason


@dataclass(frozen=True)
class Admit:
    placement: Placement
    planned: Planned
    latest_end: datetime


@dataclass(frozen=True)
class Wait:
    planned: Planned
    reason: Reason | None
    """None: nothing new since it was written."""


Verdict = GiveUp | Blocked | Admit | Wait


class Queue:
    def __init__(self, catalogue: Catalogue, settings: Settings) -> None:
        self._catalogue = catalogue
        self._settings = settings
        self._allowances = Allowances.of(settings)
        self._planners: dict[str, Planner] = {}
        self._seen: Any = None

    def forget(self) -> None:
        """What was planned was not written: the rows are read anew."""
        self._planners.clear()
        self._seen = None

    def planner(self, name: str) -> Planner:
        if name not in self._planners:
            self._planners[name] = Planner(self._catalogue[name], self._allowances)
        return self._planners[name]

    def known(self, names: Iterable[str]) -> list[str]:
        """Of these types, those that have been planned."""
        return sorted(self._planners.keys() & set(names))

    def next_change(self) -> float:
        """When the next plan begins, or the next holding should be gone, in seconds since the epoch."""
        return min((planner.next_change() for planner in self._planners.values()), default=math.inf)

    def is_due(
        self,
        rows: Sequence[ReservationRow],
        types: Iterable[GpuTypeRow],
        nodes: Sequence[Node],
        now: datetime,
    ) -> bool:
        """Whether anything changed since the last plan, or the time of something in it has come."""
        if self._seen != _fingerprint(rows, types, nodes):
            return True
        return self.next_change() <= now.timestamp() or any(
            self._gives_up(row, now) for row in rows if Status(row.status).is_waiting
        )

    def written(
        self, rows: Sequence[ReservationRow], types: Iterable[GpuTypeRow], nodes: Sequence[Node]
    ) -> None:
        """The rows are now as the plan wants them."""
        self._seen = _fingerprint(rows, types, nodes)

    def decide(
        self,
        rows: Sequence[ReservationRow],
        types: Mapping[str, GpuTypeRow],
        nodes: Sequence[Node],
        is_over_quota: Mapping[str, Reason],
        now: datetime,
    ) -> dict[str, Verdict]:
        """What becomes of every waiting reservation, by its id.

        ``is_over_quota``: those that would pass their owner's limits now, and why.
        """
        found: dict[str, Verdict] = {}
        held = reservations.holdings(rows)
        waiting = [row for row in rows if Status(row.status).is_waiting]
        for name in sorted({*(row.gpu_type for row in rows), *self._planners}):
            queue = [row for row in waiting if row.gpu_type == name]
            found |= self._decide_type(name, queue, held, types.get(name), nodes, is_over_quota, now)
        return found

    def _decide_type(
        self,
        name: str,
        queue: Sequence[ReservationRow],
        held: Sequence[Holding],
        type_row: GpuTypeRow | None,
        nodes: Sequence[Node],
        is_over_quota: Mapping[str, Reason],
        now: datetime,
    ) -> dict[str, Verdict]:
        found: dict[str, Verdict] = {}
        for row in queue:
            if cause := self._gives_up(row, now):
                found[row.reservation_id] = GiveUp(cause)
            elif reason := _closed(row, type_row) or is_over_quota.get(row.reservation_id):
                found[row.reservation_id] = Blocked(reason)
        if name not in self._catalogue:
            return found
        planner = self.planner(name)
        free = [row for row in queue if row.reservation_id not in found]
        planned = planner.update(nodes, held, reservations.waiting(free), now)
        units = placement.free_units([n for n in nodes if n.gpu_type == name], held)
        running = forecast.running_only(planner)
        for row in free:
            verdict = self._verdict(planner, row, planned[row.reservation_id], units, running, nodes, now)
            if isinstance(verdict, Admit):
                for share in verdict.placement.shares:
                    units[share.node] -= frozenset(share.units)
            found[row.reservation_id] = verdict
        return found

    def _verdict(
        self,
        planner: Planner,
        row: ReservationRow,
        what: Planned,
        units: Mapping[str, frozenset[int]],
        running: Places,
        nodes: Sequence[Node],
        now: datetime,
    ) -> Verdict:
        one = reservations.waiting([row])[0]
        need = planner.need(one)
        if what.start is not None and what.starts_now(now):
            chosen = placement.choose_units(need, what.nodes, units)
            if chosen is not None:
                latest = what.start + timedelta(seconds=need.length) - self._allowances.cleanup
                return Admit(chosen, what, latest)
        if what.start is None:
            mine = [node for node in nodes if node.gpu_type == row.gpu_type]
            return Wait(what, forecast.never(planner.gpu_type, one.request, mine, one.zone))
        if what.start == row.planned_start and row.queue_reason:
            return Wait(what, None)
        plan = planner.ledger.plans[row.reservation_id]
        return Wait(what, forecast.why(planner, need, placement.Slot(plan.start, plan.nodes), running))

    def _gives_up(self, row: ReservationRow, now: datetime) -> Cause | None:
        limits = self._settings.queue
        age = now - row.created_at
        if row.gpu_type not in self._catalogue:
            return failures.cause("not_offered", gpu_type=row.gpu_type)
        if row.status == Status.PENDING and age > timedelta(minutes=limits.pending_minutes):
            return failures.cause("not_picked_up", minutes=limits.pending_minutes)
        is_promised = row.no_later_than is not None and row.no_later_than >= now
        if row.status == Status.QUEUED and age > timedelta(hours=limits.queued_hours) and not is_promised:
            return failures.cause("waited_too_long", hours=limits.queued_hours)
        return None


def positions(rows: Iterable[ReservationRow]) -> dict[str, tuple[int, int]]:
    """Place and length of the queue of its type, for every reservation that waits."""
    found: dict[str, tuple[int, int]] = {}
    waiting = sorted(reservations.waiting(rows), key=planner_order)
    for name in {one.request.gpu_type for one in waiting}:
        queue = [one.reservation_id for one in waiting if one.request.gpu_type == name]
        found |= {key: (place, len(queue)) for place, key in enumerate(queue, 1)}
    return found


def _closed(row: ReservationRow, type_row: GpuTypeRow | None) -> Reason | None:
    if type_row is None or not maintenance.is_closed_to(type_row, row.user_id, row.groups or ()):
        return None
    return Reason("maintenance", {"gpu_type": row.gpu_type, "note": type_row.maintenance_note or ""})


def _fingerprint(
    rows: Sequence[ReservationRow], types: Iterable[GpuTypeRow], nodes: Sequence[Node]
) -> tuple[Any, ...]:
    """All that a plan depends on, apart from the clock."""
    return (
        tuple(
            (
                row.reservation_id,
                row.status,
                row.gpu_type,
                row.planned_start,
                row.no_later_than,
                row.expires_at or row.latest_end,
                row.duration_hours,
                row.gpu_count,
                row.priority,
            )
            for row in rows
        ),
        tuple((t.gpu_type, t.maintenance, tuple(t.maintenance_allowed or ())) for t in types),
        tuple(nodes),
    )
