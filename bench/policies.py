"""Four ways to run a queue, for ``trace.py``: the portal's, greedy backfill, FIFO, and the predecessor's.

Each says at submit when a request will start at the latest if everybody stays to the enforced end. The
portal's plans, the predecessor's sum of what frees, and for the other two their own rule run forward.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from workload import Request, Workload

from gpudev_core.ledger import Ledger
from gpudev_core.placement import Need

NEVER = 1 << 60


@dataclass
class Record:
    """What came of one request."""

    request: Request
    promise: int = NEVER
    start: int = -1
    end: int = -1
    nodes: tuple[str, ...] = ()

    @property
    def wait(self) -> int:
        return self.start - self.request.at


@dataclass
class Replay:
    """``watch`` is called after every change with the time and, after an arrival, its number."""

    workload: Workload
    watch: Callable[[int, int | None], None] = lambda now, came: None
    records: list[Record] = field(default_factory=list)

    def run(self, policy: Policy, progress: Callable[[int], None] = lambda done: None) -> list[Record]:
        """At equal times: ends, then starts, then arrivals."""
        requests = self.workload.requests
        records = self.records = [Record(request) for request in requests]
        ends: list[tuple[int, int]] = []
        came = 0
        while came < len(requests) or ends or policy.next_start() < NEVER:
            now = min(policy.next_start(), requests[came].at if came < len(requests) else NEVER)
            now = min(now, ends[0][0]) if ends else now
            ended = []
            while ends and ends[0][0] <= now:
                ended.append(heapq.heappop(ends)[1])
            policy.end(now, ended)
            self._begin(policy, now, ends)
            if ended:
                self.watch(now, None)
            while came < len(requests) and requests[came].at <= now:
                records[came].promise = policy.arrive(now, came, requests[came])
                self._begin(policy, now, ends)
                self.watch(now, came)
                came += 1
                progress(came)
        return records

    def _begin(self, policy: Policy, now: int, ends: list[tuple[int, int]]) -> None:
        for number, nodes in policy.start(now):
            record = self.records[number]
            record.start, record.end, record.nodes = now, now + record.request.run, nodes
            heapq.heappush(ends, (record.end, number))


class Policy:
    def arrive(self, now: int, number: int, request: Request) -> int:
        """The promised start."""
        raise NotImplementedError

    def end(self, now: int, numbers: Iterable[int]) -> None:
        raise NotImplementedError

    def start(self, now: int) -> list[tuple[int, tuple[str, ...]]]:
        raise NotImplementedError

    def next_start(self) -> int:
        """When something is to be started although nothing ends or comes."""
        return NEVER


class Ours(Policy):
    """The product's own ledger."""

    def __init__(self, workload: Workload) -> None:
        self.ledger = Ledger(0)
        for name in workload.nodes:
            self.ledger.set_node(name, workload.units)

    def arrive(self, now: int, number: int, request: Request) -> int:
        need = Need(request.units, request.nodes, request.length)
        plan = self.ledger.plan(str(number), need, (need.size, now))
        assert plan is not None
        return plan.promise

    def end(self, now: int, numbers: Iterable[int]) -> None:
        self.ledger.set_now(now)
        for number in numbers:
            self.ledger.release(str(number))
        self.ledger.fill()

    def start(self, now: int) -> list[tuple[int, tuple[str, ...]]]:
        due = [(key, plan.nodes) for key, plan in self.ledger.plans.items() if plan.start <= now]
        for key, _ in due:
            self.ledger.begin(key)
        return [(int(key), nodes) for key, nodes in due]

    def next_start(self) -> int:
        return min([plan.start for plan in self.ledger.plans.values()], default=NEVER)


class Floor:
    """Free units by node, and who holds which until when."""

    def __init__(self, free: dict[str, int], units: int) -> None:
        self.free, self.units = free, units

    def take(self, request: Request) -> tuple[str, ...] | None:
        """Best fit on one node, or the first whole nodes."""
        if request.nodes == 1:
            fitting = [(free, name) for name, free in self.free.items() if free >= request.units]
            nodes = (min(fitting)[1],) if fitting else ()
        else:
            nodes = tuple([name for name, free in self.free.items() if free == self.units][: request.nodes])
        if len(nodes) < request.nodes:
            return None
        for name in nodes:
            self.free[name] -= request.units
        return nodes

    def give(self, request: Request, nodes: Iterable[str]) -> None:
        for name in nodes:
            self.free[name] += request.units


class Queue(Policy):
    """Starts what fits, in the order of arrival; ``is_strict``: nobody before the one at the head."""

    def __init__(self, workload: Workload, is_strict: bool) -> None:
        self._floor = Floor(dict.fromkeys(workload.nodes, workload.units), workload.units)
        self._is_strict = is_strict
        self._waiting: dict[int, Request] = {}
        self._running: dict[int, tuple[Request, tuple[str, ...], int]] = {}

    def arrive(self, now: int, number: int, request: Request) -> int:
        self._waiting[number] = request
        return self._promise(now, number)

    def end(self, now: int, numbers: Iterable[int]) -> None:
        for number in numbers:
            request, nodes, _ = self._running.pop(number)
            self._floor.give(request, nodes)

    def start(self, now: int) -> list[tuple[int, tuple[str, ...]]]:
        started = self._fill(self._floor, self._waiting)
        for number, nodes in started:
            request = self._waiting.pop(number)
            self._running[number] = (request, nodes, now + request.length)
        return started

    def _fill(self, floor: Floor, waiting: dict[int, Request]) -> list[tuple[int, tuple[str, ...]]]:
        started, too_large = [], set()
        for number, request in waiting.items():
            if (request.units, request.nodes) in too_large:
                continue
            nodes = floor.take(request)
            if nodes is not None:
                started.append((number, nodes))
            elif self._is_strict:
                break
            else:
                too_large.add((request.units, request.nodes))
        return started

    def _promise(self, now: int, number: int) -> int:
        """The same rule run forward, everybody staying to the enforced end."""
        floor, waiting = Floor(dict(self._floor.free), self._floor.units), dict(self._waiting)
        ends = [(end, i, request, nodes) for i, (request, nodes, end) in self._running.items()]
        heapq.heapify(ends)
        while True:
            for i, nodes in self._fill(floor, waiting):
                request = waiting.pop(i)
                if i == number:
                    return now
                heapq.heappush(ends, (now + request.length, i, request, nodes))
            now = ends[0][0]
            while ends and ends[0][0] <= now:
                _, _, request, nodes = heapq.heappop(ends)
                floor.give(request, nodes)


class SeedEta(Queue):
    """Greedy starts; the promise is the predecessor's: when so many GPUs, anywhere, have expired."""

    MINUTES_PER_PLACE = 15

    def __init__(self, workload: Workload) -> None:
        super().__init__(workload, is_strict=False)

    def _promise(self, now: int, number: int) -> int:
        request = self._waiting[number]
        free, wanted = sum(self._floor.free.values()), request.units * request.nodes
        for end, freed in sorted((end, one.units * one.nodes) for one, _, end in self._running.values()):
            if free >= wanted:
                break
            now, free = end, free + freed
        return now if free >= wanted else now + len(self._waiting) * self.MINUTES_PER_PLACE * 60


def check(workload: Workload, records: Sequence[Record]) -> None:
    """From starts and ends alone: everybody ran, whole, and no node had more than it has."""
    changes: dict[str, list[tuple[int, int]]] = {name: [] for name in workload.nodes}
    for one in records:
        request = one.request
        assert request.at <= one.start, f"started before it was asked for, or never: {one}"
        assert one.end == one.start + request.run <= one.start + request.length, f"wrong length: {one}"
        assert len(set(one.nodes)) == request.nodes, f"wrong number of nodes: {one}"
        for name in one.nodes:
            changes[name] += [(one.start, request.units), (one.end, -request.units)]
    for name, steps in changes.items():
        used = 0
        for at, by in sorted(steps):
            used += by
            assert used <= workload.units, f"{name} has {workload.units} GPUs, and {used} were used at {at}"
