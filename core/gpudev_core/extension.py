"""More time for a reservation that runs, as far as limits and promises allow.

A longer stay may push plans of the queue to other nodes or later, none past its promise; where that is not
possible nothing changes, and the longest that fits is told. Whoever plans holds ``PLAN_LOCK``, so that the
controller never plans on a book that is being changed here.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from sqlalchemy.orm import Session

from gpudev_core import availability, lifecycle, maintenance, notices, quotas, reservations, views
from gpudev_core.errors import Refused
from gpudev_core.models import Reason, Status
from gpudev_core.planner import Allowances, Planner
from gpudev_core.portal import Portal
from gpudev_core.tables import GpuTypeRow, ReservationRow

PLAN_LOCK = "plan"
LEAST = timedelta(minutes=1)
"""Less than this is not worth a promise to anybody."""


@dataclass(frozen=True)
class Room:
    """The latest end that is possible, and what stands in the way of a later one."""

    until: datetime
    bound: Reason


def extend(
    portal: Portal, reservation_id: str, until: datetime, *, user: str, is_admin: bool = False, now: datetime
) -> ReservationRow:
    """Move the end to ``until``. Raises ``Refused`` with the latest end that is possible as ``fits``."""
    with portal.store.write() as session:
        portal.store.lock(session, PLAN_LOCK)
        row = reservations.find(session, reservation_id, user=user, is_admin=is_admin)
        session.refresh(row, with_for_update=True)
        old = _check_runs(row, now)
        _check_later(row, until, old)
        planner = _planner(session, portal, row, now)
        room = _room(session, portal, planner, row, until, now)
        if room.until < until or not planner.ledger.extend(row.reservation_id, _book_end(planner, until)):
            raise _refused(row, room, old)
        _write(session, portal, planner, row, until, user, now)
        return row


def room(portal: Portal, session: Session, row: ReservationRow, now: datetime) -> Room | None:
    """How far it could be extended if it were asked now. None: it does not run, or not for long."""
    if row.status != Status.ACTIVE or row.end_wanted or row.expires_at is None or row.expires_at <= now:
        return None
    planner = _planner(session, portal, row, now)
    return _room(session, portal, planner, row, row.expires_at + timedelta(days=366), now)


def _check_runs(row: ReservationRow, now: datetime) -> datetime:
    if row.status != Status.ACTIVE or row.expires_at is None:
        raise Refused(
            f"{row.name} is {row.status}. Only what is active can be extended.", reason="not_active", field=""
        )
    if row.end_wanted or row.expires_at <= now:
        raise Refused(f"{row.name} is being ended. It is too late to extend it.", reason="ending", field="")
    return row.expires_at


def _check_later(row: ReservationRow, until: datetime, old: datetime) -> None:
    if until - old < LEAST:
        raise Refused(
            f"{row.name} runs until {old:%H:%M} UTC already. Choose an end at least a minute later.",
            reason="not_longer",
            field="hours",
            ends_at=old,
        )


def _planner(session: Session, portal: Portal, row: ReservationRow, now: datetime) -> Planner:
    """The book of its type, as the rows have it."""
    rows = [other for other in reservations.open_rows(session) if other.gpu_type == row.gpu_type]
    planner = Planner(portal.catalogue[row.gpu_type], Allowances.of(portal.settings))
    nodes = availability.nodes_of(_types(session, row))
    planner.read(nodes, reservations.holdings(rows), reservations.waiting(rows), now)
    return planner


def _types(session: Session, row: ReservationRow) -> list[GpuTypeRow]:
    found = session.get(GpuTypeRow, row.gpu_type)
    return [found] if found else []


def _room(
    session: Session, portal: Portal, planner: Planner, row: ReservationRow, until: datetime, now: datetime
) -> Room:
    """The nearest of what closes it: an admin, the limits, the promises."""
    end = row.expires_at
    assert end is not None
    for closed in _types(session, row):
        if maintenance.is_closed_to(closed, row.user_id, row.groups or ()):
            return Room(end, Reason("maintenance", {"gpu_type": row.gpu_type}))
    more = _allowed_hours(session, portal, row, now)
    limited = min(until, end + timedelta(hours=more.hours))
    wanted = _book_end(planner, limited)
    longest = planner.ledger.longest(row.reservation_id, wanted)
    if longest < wanted:
        promised = datetime.fromtimestamp(longest, UTC) - planner.allowances.cleanup
        at = promised if promised - end >= LEAST else end
        return Room(at, Reason("promised", {"at": at}))
    return Room(limited, more.bound)


def _allowed_hours(session: Session, portal: Portal, row: ReservationRow, now: datetime) -> quotas.More:
    settings, kind = portal.settings, portal.catalogue[row.gpu_type]
    mine: Sequence[ReservationRow] = reservations.open_of(session, row.user_id)
    use = reservations.use_of(session, row.user_id, mine, settings.limits, now)
    allowed = quotas.limits_for(settings, row.user_id, row.groups or (), row.gpu_type)
    return quotas.longest_extension(row.gpu_count, kind, row.duration_hours, allowed, use)


def _book_end(planner: Planner, until: datetime) -> int:
    return math.ceil((until + planner.allowances.cleanup).timestamp())


def _refused(row: ReservationRow, room: Room, old: datetime) -> Refused:
    fits = room.until if room.until - old >= LEAST else None
    what = f"{row.name} cannot be extended so far." if fits else f"{row.name} cannot be extended."
    hint = f" It can go on until {fits:%a %d %b %H:%M} UTC." if fits else ""
    return Refused(
        f"{what} {_WHY[room.bound.code]}{hint}",
        reason=room.bound.code,
        field="hours",
        fits=fits,
        **room.bound.values,
    )


_WHY = {
    "promised": "After that its GPUs are promised to someone in the queue.",
    "total_hours": "More hours in all than one reservation may have with its extensions.",
    "gpu_hours": "More GPU-hours than your limit leaves.",
    "maintenance": "Its GPU type is closed for maintenance.",
}


def _write(
    session: Session,
    portal: Portal,
    planner: Planner,
    row: ReservationRow,
    until: datetime,
    user: str,
    now: datetime,
) -> None:
    old = row.expires_at
    assert old is not None
    row.duration_hours += (until - old).total_seconds() / 3600
    row.expires_at = row.latest_end = until
    for other in reservations.open_rows(session):
        plan = planner.ledger.plans.get(other.reservation_id)
        if plan is not None:
            start, nodes = datetime.fromtimestamp(plan.start, UTC), list(plan.nodes)
            if (other.planned_start, other.planned_nodes) != (start, nodes):
                other.planned_start, other.planned_nodes = start, nodes
    detail = views.plain({"old": old, "new": until})
    lifecycle.record(session, row.reservation_id, "extended", now=now, actor=user, detail=detail)
    session.flush()
    notices.reschedule(session, row, notices.channels_of(portal.settings), now)
