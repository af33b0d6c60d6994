"""When a waiting request starts, first come, first served, by the ends that are enforced.

Each request of a GPU type is placed, in the order of the queue, at the first instant at which it fits and
at which nobody before it in the queue still waits. People who leave early make it sooner, so the times are
what happens when nobody does.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import groupby

from gpudev_core.models import GpuType, Holding, Node, Placement, Reason, Request, Waiting
from gpudev_core.placement import fits_ever, free_units, given_back, place, without
from gpudev_core.settings import Settings


@dataclass(frozen=True)
class Allowances:
    """What is planned beside the hours that were asked for: before they begin, and after they end."""

    preparation: timedelta
    cleanup: timedelta

    @property
    def total(self) -> timedelta:
        return self.preparation + self.cleanup

    @classmethod
    def of(cls, settings: Settings) -> Allowances:
        return cls(
            timedelta(seconds=settings.servers.start_timeout_s), timedelta(seconds=settings.queue.cleanup_s)
        )


@dataclass(frozen=True)
class Forecast:
    """``at`` is None when no node that is up could ever hold the request."""

    at: datetime | None
    placement: Placement | None
    position: int
    reason: Reason | None

    def starts_now(self, now: datetime) -> bool:
        return self.at is not None and self.at <= now


class Timeline:
    """The future of one GPU type: ask ``add`` in the order of the queue."""

    def __init__(
        self,
        gpu_type: GpuType,
        nodes: Iterable[Node],
        holdings: Iterable[Holding],
        now: datetime,
        allowances: Allowances,
    ) -> None:
        self._type = gpu_type
        self._nodes = {node.name: node for node in nodes if node.gpu_type == gpu_type.name}
        held = [h for h in holdings if h.gpu_type == gpu_type.name]
        self._free = free_units(self._nodes.values(), held)
        self._allowances = allowances
        self._now = now
        # A holding past its end is on its way out, but what it holds is not free yet.
        soonest = now + timedelta(seconds=1)
        self._ends = sorted(
            ((max(h.ends_at + allowances.cleanup, soonest), h.placement) for h in held),
            key=lambda end: end[0],
        )
        self._at = now
        self._position = 0

    def add(self, request: Request) -> Forecast:
        """The start of the next request in the queue; it takes its place for those after it."""
        forecast = self.ask(request)
        self._position += 1
        if forecast.at is None or forecast.placement is None:
            return forecast
        self._advance(forecast.at)
        self._free = without(self._free, forecast.placement)
        end = forecast.at + timedelta(hours=request.hours) + self._allowances.total
        self._ends = sorted([*self._ends, (end, forecast.placement)], key=lambda e: e[0])
        return forecast

    def ask(self, request: Request) -> Forecast:
        """The start of one more request behind the queue, which stays as it is."""
        position = self._position + 1
        if not fits_ever(self._type, request.gpu_count, self._nodes.values()):
            return Forecast(None, None, position, self._never(request))
        free, at = self._free, self._at
        found = place(self._type, request.gpu_count, free)
        waited_for: Placement | None = None
        # All that ends at one instant is free before a place is chosen, as it will be when it comes true.
        for instant, ends in groupby(self._ends, key=lambda end: end[0]):
            if found is not None:
                break
            at = instant
            for _, waited_for in ends:
                free = given_back(free, waited_for, self._nodes)
            found = place(self._type, request.gpu_count, free)
        if found is None:
            return Forecast(None, None, position, Reason("held_outside", {"gpu_type": self._type.name}))
        return Forecast(at, found, position, self._why(request, found, at, waited_for))

    def _advance(self, at: datetime) -> None:
        while self._ends and self._ends[0][0] <= at:
            self._free = given_back(self._free, self._ends[0][1], self._nodes)
            self._ends = self._ends[1:]
        self._at = max(self._at, at)

    def _never(self, request: Request) -> Reason:
        up = sum(node.ready for node in self._nodes.values())
        values = {"gpus": request.gpu_count, "gpu_type": self._type.name}
        return Reason("does_not_fit", {**values, "nodes_up": up, "nodes": len(self._nodes)})

    def _why(
        self, request: Request, found: Placement, at: datetime, waited_for: Placement | None
    ) -> Reason | None:
        if waited_for is None:
            return Reason("behind_others", {"at": at}) if at > self._now else None
        if self._type.is_cpu:
            return Reason("needs_free_slot", {"node": found.nodes[0], "at": at})
        if len(found.shares) > 1:
            last = waited_for.nodes[0]
            return Reason("needs_empty_nodes", {"nodes": len(found.shares), "node": last, "at": at})
        values = {"gpus": request.gpu_count, "node": found.nodes[0], "at": at}
        return Reason("needs_free_on_one_node", values)


def plan(
    gpu_type: GpuType,
    nodes: Iterable[Node],
    holdings: Iterable[Holding],
    queue: Sequence[Waiting],
    now: datetime,
    allowances: Allowances,
) -> dict[str, Forecast]:
    """The forecast of every waiting reservation of one type, by its id."""
    timeline = Timeline(gpu_type, nodes, holdings, now, allowances)
    return {waiting.reservation_id: timeline.add(waiting.request) for waiting in queue}
