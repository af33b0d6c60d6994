"""What is to be done about each reservation. Pure: rows and the world in, steps out.

"Don't know" (``servers`` is None) never ends, frees or starts anything; only what the database alone says
is written then. Doing a step twice is harmless, so a crash at any point is mended by the next round.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from gpudev_core import forecast, reservations
from gpudev_core.catalogue import Catalogue
from gpudev_core.forecast import Allowances, Forecast
from gpudev_core.lifecycle import MAX_STARTS
from gpudev_core.models import Node, Status
from gpudev_core.settings import Settings
from gpudev_core.tables import ReservationRow
from gpudev_services.hub import Server, Servers

MISSING_FOR = timedelta(seconds=5)
"""A server must be gone this long before it is started again: the hub may still be writing its end."""
FORECAST_MOVES_BY = timedelta(minutes=2)


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

    def server_of(self, row: ReservationRow) -> Server | None:
        return (self.servers or {}).get((row.user_id, row.server_name))


@dataclass(frozen=True)
class Admit:
    reservation_id: str
    forecast: Forecast


@dataclass(frozen=True)
class Enqueue:
    reservation_id: str
    forecast: Forecast


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


Step = Admit | Enqueue | Activate | Settle | WantEnd | Finish | Start | Stop | EndProcesses
WRITES = (Admit, Enqueue, Activate, Settle, WantEnd, Finish)
"""Steps that only write rows; the others talk to the outside."""


def plan(
    rows: Sequence[ReservationRow], world: World, catalogue: Catalogue, settings: Settings
) -> list[Step]:
    steps: list[Step] = []
    for row in rows:
        if Status(row.status).holds_gpus and row.reservation_id not in world.busy:
            step = _about_holding(row, world, settings)
            if step is not None:
                steps.append(step)
    return [*steps, *_about_waiting(rows, world, catalogue, settings)]


def _about_holding(row: ReservationRow, world: World, settings: Settings) -> Step | None:
    if row.end_wanted is not None:
        return _about_ending(row, world, settings)
    if row.expires_at is not None and world.now >= row.expires_at:
        return WantEnd(row.reservation_id, Status.EXPIRED, "time_up")
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
    if world.servers is None:
        grace = timedelta(seconds=settings.servers.stop_grace_s)
        overdue = row.expires_at is not None and world.now >= row.expires_at + grace
        running = row.reservation_id in world.processes
        return EndProcesses(row.reservation_id) if overdue and running else None
    server = world.server_of(row)
    if server is not None:
        return None if server.pending == "stop" else Stop(row.reservation_id)
    if row.reservation_id in world.processes:
        return EndProcesses(row.reservation_id)
    return Finish(row.reservation_id)


def _about_missing(row: ReservationRow, world: World) -> Step | None:
    """The hub says clearly that there is no server: start it, the first time or again."""
    if row.start_attempts >= MAX_STARTS:
        return WantEnd(row.reservation_id, Status.FAILED, row.failure_reason or "the server could not start")
    if row.start_attempts == 0:
        return Start(row.reservation_id)
    since = world.missing_since.get(row.reservation_id)
    if since is None or world.now - since < MISSING_FOR:
        return None
    return Start(row.reservation_id, again=row.status == Status.ACTIVE)


def _about_waiting(
    rows: Sequence[ReservationRow], world: World, catalogue: Catalogue, settings: Settings
) -> Iterable[Step]:
    allowances = Allowances.of(settings)
    held = reservations.holdings(rows, allowances.preparation)
    waiting = [row for row in rows if Status(row.status).is_waiting]
    for name in sorted({row.gpu_type for row in waiting}):
        queue = [row for row in waiting if row.gpu_type == name]
        if name not in catalogue:
            yield from (
                WantEnd(r.reservation_id, Status.FAILED, f"{name} is not offered any more") for r in queue
            )
            continue
        stale = {row.reservation_id: why for row in queue if (why := _stale(row, world.now, settings))}
        for reservation_id, why in stale.items():
            yield WantEnd(reservation_id, Status.FAILED, why)
        fresh = [row for row in queue if row.reservation_id not in stale]
        found = forecast.plan(
            catalogue[name], world.nodes, held, reservations.waiting(fresh), world.now, allowances
        )
        for row in fresh:
            what = found[row.reservation_id]
            if what.starts_now(world.now):
                yield Admit(row.reservation_id, what)
            elif _tells_news(row, what):
                yield Enqueue(row.reservation_id, what)


def _stale(row: ReservationRow, now: datetime, settings: Settings) -> str:
    limits = settings.queue
    age = now - row.created_at
    if row.status == Status.PENDING and age > timedelta(minutes=limits.pending_minutes):
        return f"nobody picked it up within {limits.pending_minutes:g} minutes"
    if row.status == Status.QUEUED and age > timedelta(hours=limits.queued_hours):
        return f"it waited longer than {limits.queued_hours:g} hours"
    return ""


def _tells_news(row: ReservationRow, what: Forecast) -> bool:
    """Written only when it says something new; a forecast that moves by less than 2 minutes does not."""
    if row.status == Status.PENDING or row.queue_position != what.position:
        return True
    if row.expected_start is None or what.at is None:
        return row.expected_start is not what.at
    return abs(row.expected_start - what.at) >= FORECAST_MOVES_BY
