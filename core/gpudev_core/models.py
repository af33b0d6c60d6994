"""The whole vocabulary on one page. Plain data, no SQL, no clock."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Any


class Status(StrEnum):
    PENDING = "pending"
    QUEUED = "queued"
    PREPARING = "preparing"
    ACTIVE = "active"
    EXPIRED = "expired"
    CANCELLED = "cancelled"
    FAILED = "failed"

    @property
    def is_terminal(self) -> bool:
        return self in TERMINAL

    @property
    def is_waiting(self) -> bool:
        return self in WAITING

    @property
    def holds_gpus(self) -> bool:
        return self in HOLDING


WAITING = frozenset({Status.PENDING, Status.QUEUED})
HOLDING = frozenset({Status.PREPARING, Status.ACTIVE})
OPEN = WAITING | HOLDING
TERMINAL = frozenset({Status.EXPIRED, Status.CANCELLED, Status.FAILED})

CPU_SLOTS_PER_NODE = 3
MAX_NODES = 4


@dataclass(frozen=True)
class GpuType:
    """One line of the catalogue. ``gpus_per_node`` is 0 for CPU machines, which have user slots."""

    name: str
    instance_type: str
    gpus_per_node: int
    cpus: int
    memory_gb: int
    gpu_memory_gb: int = 0
    multinode: bool = False
    description: str = ""

    @property
    def is_cpu(self) -> bool:
        return self.gpus_per_node == 0

    @property
    def units_per_node(self) -> int:
        """Cells of one node: its GPUs, or its user slots."""
        return CPU_SLOTS_PER_NODE if self.is_cpu else self.gpus_per_node

    @property
    def counts(self) -> tuple[int, ...]:
        """What may be asked for: 1, 2, 4, 8 within a node, then whole nodes."""
        if self.is_cpu:
            return (0,)
        single = [n for n in (1, 2, 4, 8) if n <= self.gpus_per_node]
        if self.gpus_per_node not in single:
            single.append(self.gpus_per_node)
        nodes = range(2, MAX_NODES + 1) if self.multinode else ()
        return (*single, *(self.gpus_per_node * n for n in nodes))


@dataclass(frozen=True)
class Node:
    """One machine as the cluster tells it. ``foreign`` units are taken by somebody outside the portal."""

    name: str
    gpu_type: str
    units: int
    ready: bool = True
    cordoned: bool = False
    """An admin wants nothing new on it; what runs there goes on."""
    zone: str = ""
    foreign: frozenset[int] = frozenset()
    device_ids: tuple[str, ...] = ()

    @property
    def is_usable(self) -> bool:
        return self.ready and not self.cordoned


@dataclass(frozen=True)
class Share:
    """The units of one node that one reservation holds."""

    node: str
    units: tuple[int, ...]

    def as_json(self) -> dict[str, Any]:
        return {"node": self.node, "units": list(self.units)}


@dataclass(frozen=True)
class Placement:
    shares: tuple[Share, ...]

    @property
    def nodes(self) -> tuple[str, ...]:
        return tuple(share.node for share in self.shares)

    def as_json(self) -> list[dict[str, Any]]:
        return [share.as_json() for share in self.shares]

    @classmethod
    def from_json(cls, value: Iterable[Mapping[str, Any]]) -> Placement:
        return cls(tuple(Share(item["node"], tuple(item["units"])) for item in value))


@dataclass(frozen=True)
class Request:
    """The whole of what a person asks for. It is stored as it is, so that nothing is lost in the queue."""

    gpu_type: str
    gpu_count: int
    hours: float
    disk: str = ""
    new_disk: bool = False
    name: str = ""
    image: str = ""

    @property
    def gpu_hours(self) -> float:
        return self.gpu_count * self.hours

    def as_json(self) -> dict[str, Any]:
        return {
            "gpu_type": self.gpu_type,
            "gpu_count": self.gpu_count,
            "hours": self.hours,
            "disk": self.disk,
            "new_disk": self.new_disk,
            "name": self.name,
            "image": self.image,
        }


@dataclass(frozen=True)
class Holding:
    """A reservation that holds units since ``began``, until ``ends_at`` at the latest."""

    reservation_id: str
    user: str
    gpu_type: str
    placement: Placement
    began: datetime
    ends_at: datetime


@dataclass(frozen=True)
class Waiting:
    """A reservation in the queue, with what was planned and promised for it so far."""

    reservation_id: str
    user: str
    request: Request
    filed_at: datetime
    priority: int = 0
    zone: str = ""
    planned_start: datetime | None = None
    planned_nodes: tuple[str, ...] = ()
    no_later_than: datetime | None = None


@dataclass(frozen=True)
class Reason:
    """Why something is so: a code with values. Whoever shows it writes the sentence in local time."""

    code: str
    values: Mapping[str, Any] = field(default_factory=dict)

    def as_json(self) -> dict[str, Any]:
        return {"code": self.code, **self.values}
