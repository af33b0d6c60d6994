"""The search for a place as one would do it by hand: every node, every instant at which something ends."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from gpudev_core.placement import Need, Slot


@dataclass
class Booking:
    node: str
    start: int
    end: int
    units: int
    need: Need


@dataclass
class Slow:
    """The same figures as a list of bookings, and the search without any shortcut."""

    units: dict[str, int] = field(default_factory=dict)
    zones: dict[str, str] = field(default_factory=dict)
    bookings: list[Booking] = field(default_factory=list)

    def free(self, name: str, at: int) -> int:
        return self.units[name] - sum(
            b.units for b in self.bookings if b.node == name and b.start <= at < b.end
        )

    def lowest(self, name: str, start: int, end: int) -> int:
        edges = [b.start for b in self.bookings if b.node == name and start < b.start < end]
        return min(self.free(name, at) for at in [start, *edges])

    def fits(self, name: str, need: Need, start: int) -> bool:
        return self.lowest(name, start, start + need.length) >= need.units

    def earliest(self, need: Need, now: int, before: int, names: Iterable[str]) -> Slot | None:
        names = [name for name in names if need.zone in ("", self.zones[name])]
        for start in sorted({now, *(b.end for b in self.bookings if b.end > now)}):
            possible = [name for name in names if self.fits(name, need, start)]
            if start >= before or len(possible) < need.nodes:
                continue
            if need.nodes > 1:
                return Slot(start, tuple(sorted(possible)[: need.nodes]))
            return Slot(start, (min(possible, key=lambda name: (self.free(name, start), name)),))
        return None
