"""Where and when a request fits: exact nodes and the first instant, or never.

Up to one node's GPUs go on one node: the one with the earliest start and, of those, the one that is left
with the fewest free units (best fit), so that whole nodes stay whole. More than one node means whole nodes,
all or nothing. CPU machines have user slots. Nodes that are down or cordoned take nothing; a disk holds a
request to its zone. Admission, forecast, "what would start now" and a dry run all ask here.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from gpudev_core.models import GpuType, Holding, Node, Placement, Share
from gpudev_core.profile import EVER, Profile


@dataclass(frozen=True, slots=True)
class Need:
    """``units`` on each of ``nodes`` nodes for ``length`` seconds; ``zone`` "" is anywhere."""

    units: int
    nodes: int
    length: int
    zone: str = ""

    @property
    def size(self) -> int:
        return self.units * self.nodes * self.length

    @classmethod
    def of(cls, gpu_type: GpuType, count: int, length: int, zone: str = "") -> Need:
        """``count`` GPUs; 0 is one CPU slot."""
        per_node = gpu_type.units_per_node
        if gpu_type.is_cpu or count <= per_node:
            return cls(count or 1, 1, length, zone)
        return cls(per_node, -(-count // per_node), length, zone)


@dataclass(frozen=True, slots=True)
class Slot:
    start: int
    nodes: tuple[str, ...]


class Places:
    """The free units of every node of one GPU type over time, and the search in them."""

    def __init__(self) -> None:
        self.profiles: dict[str, Profile] = {}
        self._zones: dict[str, str] = {}
        self._searches: dict[tuple[int, int, str], _Search] = {}
        self._freed: dict[str, int] = {}
        self._bounds: dict[str, dict[tuple[int, int], int]] = {}
        self.changes = 0
        """Grows whenever something becomes free: who has seen all up to a number need not look again."""

    def set_node(self, name: str, units: int, zone: str = "") -> bool:
        """Add a node, or give it other figures. True when it has fewer units than before."""
        profile = self.profiles.get(name)
        if profile is None:
            self.profiles[name], self._zones[name] = Profile(units), zone
            self._has_freed(name)
            return False
        if self._zones[name] != zone:
            self._zones[name] = zone
            self._searches.clear()
            self._has_freed(name)
        fewer, more = units < profile.units, units > profile.units
        profile.resize(units)
        if more:
            self._has_freed(name)
        return fewer

    def take(self, nodes: Iterable[str], start: int, end: int, units: int) -> None:
        for name in nodes:
            self.profiles[name].take(start, end, units)

    def give(self, nodes: Iterable[str], start: int, end: int, units: int) -> None:
        if start >= end:
            return
        for name in nodes:
            self.profiles[name].give(start, end, units)
            self._has_freed(name)

    def put_back(self, nodes: Iterable[str], start: int, end: int, units: int) -> None:
        """Undo a ``take`` of the same, which frees nothing that was not free before."""
        for name in nodes:
            self.profiles[name].give(start, end, units)

    def freed_since(self, change: int) -> list[str]:
        found = []
        for name in reversed(self._freed):
            if self._freed[name] <= change:
                break
            found.append(name)
        return found

    def earliest(self, need: Need, now: int, before: int = EVER) -> Slot | None:
        """The first place earlier than ``before``."""
        if need.nodes > 1:
            return self._earliest_gang(need, now, before)
        key = (need.units, need.length, need.zone)
        search = self._searches.get(key)
        if search is None:
            search = self._searches[key] = _Search(self, need)
        return search.find(now, before)

    def earlier_on(
        self, names: Iterable[str], need: Need, now: int, start: int, node: str, before: int = EVER
    ) -> Slot | None:
        """An earlier place on these nodes for a request of one node that has ``node`` from ``start`` on.

        Its own place is not in its way. On other nodes a start once looked for bounds every later answer
        from below, until something there becomes free.
        """
        best: tuple[int, int, str] | None = None
        before, size = min(before, start), (need.units, need.length)
        for name in names:
            bounds = self._bounds[name]
            bound = bounds.get(size, now)
            if (name != node and bound >= before) or not self.is_in(need.zone, name):
                continue
            profile = self.profiles[name]
            if name == node:
                found = profile.earliest(need.units, need.length, now, before, start)
            else:
                found = profile.earliest(need.units, need.length, max(now, bound), before)
                bounds[size] = before if found is None else found
            if found is not None:
                place = (found, profile.at(found), name)
                best, before = (place if best is None else min(best, place)), found + 1
        return Slot(best[0], (best[2],)) if best else None

    def zone_of(self, name: str) -> str:
        return self._zones[name]

    def is_empty_before(self, name: str, need: Need, now: int, start: int, own: Sequence[str]) -> bool:
        """Could a gang that has ``own`` from ``start`` on have this node earlier?"""
        until = start if name in own else EVER
        return self.profiles[name].earliest(need.units, need.length, now, start, until) is not None

    def is_in(self, zone: str, name: str) -> bool:
        return not zone or self._zones[name] == zone

    def forget_before(self, time: int) -> None:
        for profile in self.profiles.values():
            profile.forget_before(time)

    def _has_freed(self, name: str) -> None:
        self.changes += 1
        self._freed.pop(name, None)
        self._freed[name] = self.changes
        self._bounds[name] = {}

    def _earliest_gang(self, need: Need, now: int, before: int) -> Slot | None:
        """The first instant at which enough whole nodes are empty together."""
        edges: list[tuple[int, int, str]] = []
        for name, profile in self.profiles.items():
            if profile.units < need.units or not self.is_in(need.zone, name):
                continue
            for first, last in profile.windows(need.units, need.length, now, before):
                edges += [(first, 0, name), (last, 1, name)]
        empty: set[str] = set()
        for at, closes, name in sorted(edges):
            if closes:
                empty.discard(name)
                continue
            empty.add(name)
            if len(empty) >= need.nodes:
                return Slot(at, tuple(sorted(empty)[: need.nodes]))
        return None


class _Search:
    """The earliest start of one size and length on any node.

    What is booked only makes a start later, so that a start once found on a node bounds every later answer
    from below, until something on that node becomes free. The nodes stand in a heap by these bounds, and
    only those whose bound may still win are looked at.
    """

    __slots__ = ("_bound", "_heap", "_length", "_places", "_seen", "_units", "_zone")

    def __init__(self, places: Places, need: Need) -> None:
        self._places = places
        self._units, self._length, self._zone = need.units, need.length, need.zone
        self._bound: dict[str, int] = {}
        self._heap: list[tuple[int, str]] = []
        self._seen = 0

    def find(self, now: int, before: int) -> Slot | None:
        self._notice_freed(now)
        heap, bound, profiles = self._heap, self._bound, self._places.profiles
        units, length = self._units, self._length
        best = before
        found: list[tuple[int, str]] = []
        looked: list[tuple[int, str]] = []
        while heap and (heap[0][0] <= best if found else heap[0][0] < best):
            lower, name = heapq.heappop(heap)
            if bound.get(name) != lower:
                continue
            del bound[name]
            start = profiles[name].earliest(units, length, max(now, lower), before)
            if start is None:
                if before < EVER:
                    looked.append((before, name))
                continue
            looked.append((start, name))
            if start > best:
                continue
            if start < best:
                best, found = start, []
            found.append((profiles[name].at(start), name))
        for entry in looked:
            bound[entry[1]] = entry[0]
            heapq.heappush(heap, entry)
        return Slot(best, (min(found)[1],)) if found else None

    def _notice_freed(self, now: int) -> None:
        for name in self._places.freed_since(self._seen):
            if self._places.is_in(self._zone, name):
                self._bound[name] = now
                heapq.heappush(self._heap, (now, name))
        self._seen = self._places.changes


def free_units(nodes: Iterable[Node], holdings: Iterable[Holding]) -> dict[str, frozenset[int]]:
    """What nobody holds, on nodes that may be used."""
    taken: dict[str, set[int]] = {}
    for holding in holdings:
        for share in holding.placement.shares:
            taken.setdefault(share.node, set()).update(share.units)
    return {
        node.name: frozenset(range(node.units)) - node.foreign - taken.get(node.name, set())
        for node in nodes
        if node.is_usable
    }


def choose_units(need: Need, nodes: Sequence[str], free: Mapping[str, frozenset[int]]) -> Placement | None:
    """The exact units on the nodes that were planned, or None while they are not free."""
    if any(len(free.get(name, ())) < need.units for name in nodes):
        return None
    return Placement(tuple(Share(name, tuple(sorted(free[name])[: need.units])) for name in nodes))


def fits_ever(gpu_type: GpuType, count: int, nodes: Iterable[Node], zone: str = "") -> bool:
    """Would it fit if nobody held anything, inside or outside the portal?"""
    need = Need.of(gpu_type, count, 1, zone)
    roomy = [n for n in nodes if n.is_usable and n.units >= need.units and (not zone or n.zone == zone)]
    return len(roomy) >= need.nodes


def capacity(node: Node) -> int:
    """Units that may be planned on: none of a node that is down or cordoned, nor what strangers use."""
    return node.units - len(node.foreign) if node.is_usable else 0


def counted(share: Share, node: Node) -> int:
    """Units of a share that count against the node's capacity."""
    return len(frozenset(share.units) - node.foreign) if node.is_usable else 0
