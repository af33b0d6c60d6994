"""What a waiting person is told beside the times: why it takes so long, and what would start sooner."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime

from gpudev_core import learning
from gpudev_core.catalogue import Catalogue
from gpudev_core.ledger import Held
from gpudev_core.models import GpuType, Holding, Node, Reason, Request, Waiting
from gpudev_core.outlook import Life, Lives, Typical
from gpudev_core.placement import Need, Places, Slot, fits_ever
from gpudev_core.planner import Allowances, Planner, rank

MOST_ALTERNATIVES = 3
MOST_TYPICAL = 100
"""In a longer queue only the promise is told to somebody who has not asked yet."""
SHORTER_HOURS = (8.0, 4.0, 2.0, 1.0)


class Board:
    """The books of all GPU types at one moment, to ask "when would this start?". Nothing in it is written."""

    def __init__(
        self,
        catalogue: Catalogue,
        nodes: Sequence[Node],
        holdings: Sequence[Holding],
        waiting: Sequence[Waiting],
        allowances: Allowances,
        now: datetime,
        lives: Callable[[str], Sequence[Life]] = lambda gpu_type: (),
    ) -> None:
        """``lives``: how long people stayed on a type, asked for only where something would wait."""
        self.now = now
        self._catalogue = catalogue
        self._nodes, self._holdings, self._waiting = nodes, holdings, waiting
        self._allowances = allowances
        self._lives = lives
        self._planners: dict[str, Planner] = {}
        self._typical: dict[str, Typical] = {}

    def planner(self, name: str) -> Planner:
        if name not in self._planners:
            planner = self._planners[name] = Planner(self._catalogue[name], self._allowances)
            planner.preview(self._nodes, self._holdings, self.waiting_for(name), self.now)
        return self._planners[name]

    def waiting_for(self, name: str) -> list[Waiting]:
        return [one for one in self._waiting if one.request.gpu_type == name]

    def holdings_of(self, name: str) -> list[Holding]:
        return [one for one in self._holdings if one.gpu_type == name]

    def ask(self, request: Request, zone: str = "") -> Answer:
        """When one more request would start, behind everybody who waits already."""
        planner = self.planner(request.gpu_type)
        slot = planner.ask(request.gpu_count, request.hours, zone)
        if slot is None:
            return Answer(None, (), self._never(planner.gpu_type, request, zone))
        at = datetime.fromtimestamp(slot.start, UTC)
        if at <= self.now:
            return Answer(self.now, slot.nodes, None, self.now)
        need = planner.need_of(request.gpu_count, request.hours, zone)
        return Answer(
            at, slot.nodes, why(planner, need, slot, running_only(planner)), self._expected(planner, need, at)
        )

    def starts_now(self, request: Request, zone: str = "") -> bool:
        """Only that, which is far cheaper than ``ask``."""
        slot = self.planner(request.gpu_type).ask(request.gpu_count, request.hours, zone)
        return slot is not None and datetime.fromtimestamp(slot.start, UTC) <= self.now

    def _expected(self, planner: Planner, need: Need, promise: datetime) -> datetime:
        """When it would probably start, as far as that can be told while somebody looks at a page."""
        name = planner.gpu_type.name
        if len(planner.ledger.plans) > MOST_TYPICAL:
            return promise
        if name not in self._typical:
            book = learning.book(planner, self._holdings, self.now)
            self._typical[name] = Typical(book, Lives(self._lives(name), book.now))
        start = self._typical[name].ask([(need, (*rank(0, need), self.now.timestamp()))])[0]
        return promise if start is None else min(promise, datetime.fromtimestamp(start, UTC))

    def idle(self, node: Node) -> tuple[int, int]:
        """Units of a node that are free for one more person, and those that are idle but promised."""
        ledger = self.planner(node.gpu_type).ledger
        profile = ledger.places.profiles[node.name]
        idle = max(0, profile.at(ledger.now))
        free = max(0, profile.lowest(ledger.now, ledger.now + self._allowances.length(1.0)))
        return free, idle - free

    def _never(self, gpu_type: GpuType, request: Request, zone: str) -> Reason:
        nodes = [node for node in self._nodes if node.gpu_type == gpu_type.name]
        return never(gpu_type, request, nodes, zone)


@dataclass(frozen=True)
class Answer:
    """``at`` would be the promise, ``expected`` the guess. None: it does not fit, for the reason told."""

    at: datetime | None
    nodes: tuple[str, ...]
    reason: Reason | None
    expected: datetime | None = None


def never(gpu_type: GpuType, request: Request, nodes: Sequence[Node], zone: str = "") -> Reason:
    """Why a request has no time: too large for the nodes that are up, or strangers use them."""
    if fits_ever(gpu_type, request.gpu_count, nodes, zone):
        return Reason("held_outside", {"gpu_type": gpu_type.name})
    up = sum(node.is_usable for node in nodes)
    values = {"gpus": request.gpu_count, "gpu_type": gpu_type.name}
    return Reason("does_not_fit", {**values, "nodes_up": up, "nodes": len(nodes)})


def running_only(planner: Planner) -> Places:
    """The same nodes without what is planned: it tells whether the nodes or the queue are in the way."""
    places = Places()
    for name, profile in planner.ledger.places.profiles.items():
        places.set_node(name, profile.units, planner.ledger.places.zone_of(name))
    for held in _running(planner):
        for name, units in held.units.items():
            places.take((name,), held.start, held.end, units)
    return places


def _running(planner: Planner) -> list[Held]:
    """What runs, and what starts at this moment."""
    ledger = planner.ledger
    starting = [plan for plan in ledger.plans.values() if plan.start <= ledger.now]
    return [
        *ledger.held.values(),
        *(Held(p.key, dict.fromkeys(p.nodes, p.need.units), p.start, p.end) for p in starting),
    ]


def why(planner: Planner, need: Need, slot: Slot, running: Places) -> Reason:
    """Why not before ``slot``: nothing is free, or what is free is promised to somebody."""
    at = datetime.fromtimestamp(slot.start, UTC)
    alone = running.earliest(need, planner.ledger.now)
    if alone is not None and alone.start < slot.start:
        values = {"promised_node": alone.nodes[0], "node": slot.nodes[0], "at": at}
        since = _promised_since(planner, alone, need)
        return Reason("promised_to_others", {**values, "promised_from": since} if since else values)
    if planner.gpu_type.is_cpu:
        return Reason("needs_free_slot", {"node": slot.nodes[0], "at": at})
    if need.nodes > 1:
        last = _last_to_end(planner, slot.nodes)
        return Reason("needs_empty_nodes", {"nodes": need.nodes, "node": last, "at": at})
    return Reason("needs_free_on_one_node", {"gpus": need.units, "node": slot.nodes[0], "at": at})


def _promised_since(planner: Planner, alone: Slot, need: Need) -> datetime | None:
    """From when the node that would have been free is somebody's."""
    end = alone.start + need.length
    starts = [
        plan.start
        for plan in planner.ledger.plans.values()
        if alone.nodes[0] in plan.nodes and plan.start < end and plan.end > alone.start
    ]
    return datetime.fromtimestamp(min(starts), UTC) if starts else None


def _last_to_end(planner: Planner, nodes: Sequence[str]) -> str:
    """The node of a gang on which somebody works longest."""

    def busy_until(name: str) -> int:
        return max((held.end for held in _running(planner) if name in held.units), default=0)

    return max(nodes, key=busy_until)


def sooner(board: Board, request: Request, offered: Iterable[str], zone: str = "") -> list[Request]:
    """Up to three changes of a request that would start now: fewer GPUs, another type, fewer hours."""
    found = []
    for choices in _alternatives(board, request, offered):
        best = next((other for other in choices if board.starts_now(other, zone)), None)
        if best is not None:
            found.append(best)
    return found[:MOST_ALTERNATIVES]


def _alternatives(board: Board, request: Request, offered: Iterable[str]) -> Iterable[list[Request]]:
    """Each a list from the least change to the greatest."""
    own = board.planner(request.gpu_type).gpu_type
    yield [replace(request, gpu_count=n) for n in reversed(own.counts) if 0 < n < request.gpu_count]
    for name in offered:
        kind = board.planner(name).gpu_type
        if name != own.name and kind.is_cpu == own.is_cpu and request.gpu_count in kind.counts:
            yield [replace(request, gpu_type=name)]
    yield [replace(request, hours=hours) for hours in SHORTER_HOURS if hours < request.hours]
