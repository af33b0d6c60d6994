"""What is to be done about each reservation that holds GPUs. Pure: rows and the world in, steps out.

"Don't know" (``servers`` is None) never ends, frees or starts anything; only what the database alone says
is written then. Doing a step twice is harmless, so a crash at any point is mended by the next round.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from gpudev_core import failures
from gpudev_core.failures import Cause
from gpudev_core.lifecycle import MAX_STARTS
from gpudev_core.models import Node, Status
from gpudev_core.settings import Settings
from gpudev_core.tables import ReservationRow
from gpudev_services.hub import Server, Servers

MISSING_FOR = timedelta(seconds=5)
"""A server must be gone this long before it is started again: the hub may still be writing its end."""


@dataclass(frozen=True)
class World:
    """What was seen outside the database. ``servers`` None: the hub gave no answer."""

    now: datetime
    nodes: Sequence[Node]
    servers: Servers | None
    processes: Set[str] = frozenset()
    """Reservations of which a process runs on this machine."""
    busy: Set[str] = frozenset()
    """Reservations for which a call to the hub is under way, or was put off."""
    missing_since: Mapping[str, datetime] = field(default_factory=dict)
    ending_since: Mapping[str, datetime] = field(default_factory=dict)
    """Since when each that is to end has been seen so: the grace counts from there, whoever wanted it."""
    losses: Mapping[str, Cause] = field(default_factory=dict)
    """Reservations whose servers are known to be lost, and to what: a node, an eviction, memory."""

    def server_of(self, row: ReservationRow) -> Server | None:
        return (self.servers or {}).get((row.user_id, row.server_name))


@dataclass(frozen=True)
class Activate:
    reservation_id: str
    url: str


@dataclass(frozen=True)
class Settle:
    """A server that had to be started again answers: earlier attempts no longer count."""

    reservation_id: str


@dataclass(frozen=True)
class WantEnd:
    reservation_id: str
    end: Status
    reason: str
    code: str | None = None
    """Of a failure."""


@dataclass(frozen=True)
class Finish:
    reservation_id: str


@dataclass(frozen=True)
class Start:
    reservation_id: str
    again: bool = False


@dataclass(frozen=True)
class Stop:
    reservation_id: str


@dataclass(frozen=True)
class EndProcesses:
    """The hub does not answer and the time is up: end them without it."""

    reservation_id: str


Step = Activate | Settle | WantEnd | Finish | Start | Stop | EndProcesses
WRITES = (Activate, Settle, WantEnd, Finish)
"""Steps that only write rows; the others talk to the outside."""


def plan(rows: Iterable[ReservationRow], world: World, settings: Settings) -> list[Step]:
    steps = (
        _about_holding(row, world, settings)
        for row in rows
        if Status(row.status).holds_gpus and row.reservation_id not in world.busy
    )
    return [step for step in steps if step is not None]


def _about_holding(row: ReservationRow, world: World, settings: Settings) -> Step | None:
    if row.end_wanted is not None:
        return _about_ending(row, world, settings)
    if row.expires_at is not None and world.now >= row.expires_at:
        return WantEnd(row.reservation_id, Status.EXPIRED, "time_up")
    if row.status == Status.PREPARING and row.latest_end is not None and world.now >= row.latest_end:
        late = failures.cause("start_timeout")  # all its time went by: it must not cost the next one's
        return WantEnd(row.reservation_id, Status.FAILED, late.phrase, late.code)
    if lost := world.losses.get(row.reservation_id):
        return WantEnd(row.reservation_id, Status.FAILED, lost.phrase, lost.code)
    if world.servers is None:
        return None
    server = world.server_of(row)
    if server is None:
        return _about_missing(row, world)
    if row.status == Status.PREPARING and server.ready:
        return Activate(row.reservation_id, server.url)
    if row.status == Status.ACTIVE and server.ready and row.start_attempts > 1:
        return Settle(row.reservation_id)
    return None


def _about_ending(row: ReservationRow, world: World, settings: Settings) -> Step | None:
    """Through the hub. Where it gives no answer, or hangs, until the grace is over: without it."""
    grace = timedelta(seconds=settings.servers.stop_grace_s)
    times = (row.expires_at or row.latest_end, world.ending_since.get(row.reservation_id))
    overdue = any(at is not None and world.now >= at + grace for at in times)
    runs = row.reservation_id in world.processes
    server = world.server_of(row)
    if world.servers is None or (server is not None and server.pending == "stop"):
        return EndProcesses(row.reservation_id) if overdue and runs else None
    if server is not None:
        return Stop(row.reservation_id)
    return EndProcesses(row.reservation_id) if runs else Finish(row.reservation_id)


def _about_missing(row: ReservationRow, world: World) -> Step | None:
    """The hub says clearly that there is no server: start it, the first time or again."""
    if row.start_attempts >= MAX_STARTS:
        why = row.failure_reason or "the server could not start"
        return WantEnd(row.reservation_id, Status.FAILED, why, row.failure_code or "unknown")
    if row.retry_at is not None and world.now < row.retry_at:
        return None
    if row.start_attempts == 0:
        return Start(row.reservation_id)
    since = world.missing_since.get(row.reservation_id)
    if since is None or world.now - since < MISSING_FOR:
        return None
    return Start(row.reservation_id, again=row.status == Status.ACTIVE)
