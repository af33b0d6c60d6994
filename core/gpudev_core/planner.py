"""From rows to the book of one GPU type and back: what each waiting request is planned and promised.

The rows are the truth. A planner keeps its book from one call to the next, brings it up to what the rows and
the nodes say now, and answers with the plan of every waiting request; the caller writes what changed. One
that has just been made reads all of it from the rows, so that nothing is lost with the process that kept it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from gpudev_core.ledger import Ledger
from gpudev_core.models import GpuType, Holding, Node, Reason, Waiting
from gpudev_core.placement import Need, Slot, capacity, counted
from gpudev_core.profile import EVER
from gpudev_core.settings import Settings

OVERDUE_STEP_S = 30
"""What should be gone and is not is expected to be gone so much later, again and again."""


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
            timedelta(seconds=settings.servers.start_timeout_s),
            timedelta(seconds=settings.servers.stop_grace_s + settings.queue.cleanup_s),
        )

    def length(self, hours: float) -> int:
        """Whole seconds that a reservation of so many hours takes in the book."""
        return math.ceil(hours * 3600 + self.total.total_seconds())


@dataclass(frozen=True)
class Planned:
    """``start`` None: no node that is up could hold it. ``moved`` tells why a promise could not be kept."""

    start: datetime | None
    nodes: tuple[str, ...]
    no_later_than: datetime | None
    moved: Reason | None = None

    def starts_now(self, now: datetime) -> bool:
        return self.start is not None and self.start <= now


class Planner:
    def __init__(self, gpu_type: GpuType, allowances: Allowances) -> None:
        self.gpu_type = gpu_type
        self.allowances = allowances
        self.ledger = Ledger(0)
        self._nodes: dict[str, Node] = {}
        self._overdue: set[str] = set()

    def update(
        self, nodes: Iterable[Node], holdings: Iterable[Holding], waiting: Sequence[Waiting], now: datetime
    ) -> dict[str, Planned]:
        """Bring the book up to date and plan what is new. In this order: ends, earlier starts, arrivals.

        To be called at every change, and when something that is planned begins or should be gone.
        """
        self.read(nodes, holdings, waiting, now)
        old = {plan.key: plan.nodes for plan in self.ledger.plans.values()}
        self._postpone_late()
        self.ledger.mend()
        self.ledger.fill()
        self._plan_arrivals(waiting)
        return {
            one.reservation_id: self._planned(one, old.get(one.reservation_id, one.planned_nodes))
            for one in waiting
        }

    def preview(
        self, nodes: Iterable[Node], holdings: Iterable[Holding], waiting: Sequence[Waiting], now: datetime
    ) -> None:
        """The book as it is, with those who have no plan yet at its end: for questions, not for writing."""
        self.read(nodes, holdings, waiting, now)
        self._plan_arrivals(waiting)

    def read(
        self, nodes: Iterable[Node], holdings: Iterable[Holding], waiting: Iterable[Waiting], now: datetime
    ) -> None:
        """Make the book say what the rows and the nodes say, and no more."""
        name = self.gpu_type.name
        self.ledger.set_now(math.floor(now.timestamp()))
        self._read_nodes([node for node in nodes if node.gpu_type == name])
        mine = [one for one in holdings if one.gpu_type == name]
        by_key = {one.reservation_id: one for one in waiting}
        for key in [key for key in self.ledger.plans if not self._still_waits(by_key.get(key), key)]:
            if key in by_key or not self._has_begun(key, mine):
                self.ledger.drop(key)
        self._read_holdings(mine)
        for one in by_key.values():
            self._read_plan(one)

    def need(self, one: Waiting) -> Need:
        return self.need_of(one.request.gpu_count, one.request.hours, one.zone)

    def need_of(self, gpu_count: int, hours: float, zone: str = "") -> Need:
        return Need.of(self.gpu_type, gpu_count, self.allowances.length(hours), zone)

    def ask(self, gpu_count: int, hours: float, zone: str = "") -> Slot | None:
        """Where and when one more request would start, without asking for it."""
        return self.ledger.ask(self.need_of(gpu_count, hours, zone))

    def next_change(self) -> int:
        """When the next plan begins, or the next holding should be gone."""
        starts = (plan.start for plan in self.ledger.plans.values())
        ends = (held.end for held in self.ledger.held.values())
        return min((*starts, *ends), default=EVER)

    # Reading ------------------------------------------------------------------------------------------

    def _read_nodes(self, nodes: Sequence[Node]) -> None:
        seen = {node.name: node for node in nodes}
        for node in nodes:
            self.ledger.set_node(node.name, capacity(node), node.zone)
        for gone in self._nodes.keys() - seen.keys():
            self.ledger.set_node(gone, 0)
        self._nodes = seen

    def _read_holdings(self, holdings: Sequence[Holding]) -> None:
        ledger = self.ledger
        present = {one.reservation_id: one for one in holdings}
        for key in [key for key in ledger.held if key not in present]:
            ledger.release(key)
        self._overdue = set()
        for key, one in present.items():
            units = self._units(one)
            if key in ledger.held and ledger.held[key].units != units:
                ledger.release(key)
            end = self._end(one)
            if key in ledger.plans:
                ledger.begin(key)
            if key not in ledger.held:
                ledger.hold(key, units, ledger.now, end)
            elif ledger.held[key].end != end:
                ledger.hold_until(key, end)

    def _units(self, one: Holding) -> dict[str, int]:
        """Units by node, as far as the node is there and counts them."""
        shares = [share for share in one.placement.shares if share.node in self._nodes]
        found = {share.node: counted(share, self._nodes[share.node]) for share in shares}
        return {name: units for name, units in found.items() if units}

    def _end(self, one: Holding) -> int:
        """When its units are free at the latest. One that should be gone is still there, so not yet."""
        end = math.ceil((one.ends_at + self.allowances.cleanup).timestamp())
        if end > self.ledger.now:
            return end
        self._overdue.update(one.placement.nodes)
        held = self.ledger.held.get(one.reservation_id)
        if held is not None and held.end > self.ledger.now:
            return held.end
        return self.ledger.now + OVERDUE_STEP_S

    def _has_begun(self, key: str, holdings: Iterable[Holding]) -> bool:
        """It holds now what was planned for it, so that its plan becomes its holding."""
        plan = self.ledger.plans[key]
        mine = next((one for one in holdings if one.reservation_id == key), None)
        return mine is not None and self._units(mine) == dict.fromkeys(plan.nodes, plan.need.units)

    def _still_waits(self, one: Waiting | None, key: str) -> bool:
        """The row waits with the same need and the same plan as in the book."""
        if one is None:
            return False
        plan = self.ledger.plans[key]
        stored = (_seconds(one.planned_start), tuple(one.planned_nodes))
        return plan.need == self.need(one) and stored == (plan.start, plan.nodes)

    def _read_plan(self, one: Waiting) -> None:
        known = self.ledger.plans.get(one.reservation_id)
        if known is not None:
            known.promise, known.rank = _seconds(one.no_later_than), _rank(one, known.need)
        elif one.planned_start is not None and self._is_place_for(one):
            slot = Slot(_seconds(one.planned_start), tuple(one.planned_nodes))
            need = self.need(one)
            promise = _seconds(one.no_later_than)
            self.ledger.adopt(one.reservation_id, need, slot, promise, _rank(one, need))

    def _is_place_for(self, one: Waiting) -> bool:
        """Its planned nodes are there, and as many as it needs."""
        return self.need(one).nodes == len(one.planned_nodes) and self._nodes.keys() >= {*one.planned_nodes}

    def _plan_arrivals(self, waiting: Iterable[Waiting]) -> None:
        for one in sorted(waiting, key=order):
            if one.reservation_id in self.ledger.plans:
                continue
            need = self.need(one)
            plan = self.ledger.plan(one.reservation_id, need, _rank(one, need))
            if plan is not None and one.no_later_than is not None:
                plan.promise = _seconds(one.no_later_than)  # promised before, on a node that is gone

    def _postpone_late(self) -> None:
        """A start that this portal could not make in time; a little lateness is what preparation is for."""
        latest = self.ledger.now - self.allowances.preparation.total_seconds() / 2
        for plan in list(self.ledger.plans.values()):
            if plan.start < latest:
                self.ledger.postpone(plan.key)

    # Answering ----------------------------------------------------------------------------------------

    def _planned(self, one: Waiting, old_nodes: tuple[str, ...]) -> Planned:
        plan = self.ledger.plans.get(one.reservation_id)
        broken = one.no_later_than is not None and (plan is None or plan.is_late)
        moved = self._why_moved(one, old_nodes) if broken else None
        if plan is None or plan.start == EVER:
            self.ledger.plans.pop(one.reservation_id, None)
            return Planned(None, (), None, moved)
        if broken:
            plan.promise = plan.start
        return Planned(_time(plan.start), plan.nodes, _time(plan.promise), moved)

    def _why_moved(self, one: Waiting, old_nodes: tuple[str, ...]) -> Reason:
        values = {"old": one.no_later_than}
        for name in old_nodes:
            node = self._nodes.get(name)
            if node is None or not node.ready:
                return Reason("node_down", {"node": name, **values})
            if node.cordoned:
                return Reason("node_cordoned", {"node": name, **values})
            if node.foreign:
                return Reason("used_from_outside", {"node": name, **values})
            if name in self._overdue:
                return Reason("still_ending", {"node": name, **values})
        return Reason("portal_was_late", values)


def order(one: Waiting) -> tuple[int, datetime, str]:
    """The order of the queue: priority, then age."""
    return -one.priority, one.filed_at, one.reservation_id


def rank(priority: int, need: Need) -> tuple[float, ...]:
    """Who is moved earlier first: priority, then what is small. Age comes after it."""
    return -priority, need.size


def _rank(one: Waiting, need: Need) -> tuple[float, ...]:
    return *rank(one.priority, need), one.filed_at.timestamp()


def _seconds(at: datetime | None) -> int:
    return EVER if at is None else math.floor(at.timestamp())


def _time(seconds: int) -> datetime:
    return datetime.fromtimestamp(seconds, UTC)
