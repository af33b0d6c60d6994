"""File, end and read reservations. Form, REST, API and CLI all come through here.

What is refused leaves nothing behind. A request is stored whole. The same id filed twice is one reservation.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from gpudev_core import lifecycle, quotas, requests
from gpudev_core.catalogue import Catalogue
from gpudev_core.errors import Conflict, NotFound, Refused
from gpudev_core.models import (
    OPEN,
    WAITING,
    GpuType,
    Holding,
    Placement,
    Request,
    Status,
    Waiting,
)
from gpudev_core.quotas import Use
from gpudev_core.settings import Limits
from gpudev_core.store import Store
from gpudev_core.tables import DiskRow, GpuTypeRow, ReservationEventRow, ReservationRow

RESERVATION_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9-]{0,63}")
_OPEN = [status.value for status in OPEN]


@dataclass(frozen=True)
class Filing:
    """A request and where it came from. ``server_name`` None: made from the name."""

    user: str
    request: Request
    filed_from: str
    server_name: str | None = None
    reservation_id: str | None = None


def file(
    store: Store, filing: Filing, catalogue: Catalogue, limits: Limits, *, now: datetime
) -> ReservationRow:
    """Check against catalogue, site and quota, and put it into the queue."""
    _check_id(filing)
    with store.write() as session:
        store.lock(session, f"user:{filing.user}")
        if filing.reservation_id:
            store.lock(session, f"reservation:{filing.reservation_id}")
            known = session.get(ReservationRow, filing.reservation_id)
            if known is not None:
                return _same_owner(known, filing.user)
        request, gpu_type = filing.request, catalogue.find(filing.request.gpu_type)
        mine = open_of(session, filing.user)
        _check_offered(session, gpu_type, request)
        quotas.check(request, gpu_type, limits, use_of(session, filing.user, mine, limits, now))
        _check_disk(session, filing, mine)
        row = _new_row(filing, gpu_type, _server_name(filing, mine), now)
        session.add(row)
        session.flush()
        lifecycle.record(
            session,
            row.reservation_id,
            "filed",
            now=now,
            actor=filing.user,
            new=Status.PENDING,
            detail={"from": filing.filed_from},
        )
        return row


def end(session: Session, row: ReservationRow, *, now: datetime, actor: str, reason: str) -> bool:
    """Take a waiting one out of the queue, or ask for the end of a running one."""
    session.refresh(row, with_for_update=True)  # the controller may be moving it on at this moment
    status = Status(row.status)
    if status in WAITING:
        return lifecycle.transition(
            session,
            row.reservation_id,
            status,
            Status.CANCELLED,
            now=now,
            actor=actor,
            detail={"reason": reason},
            end_reason=reason,
            end_actor=actor,
        )
    if status.is_terminal:
        return False
    return lifecycle.want_end(
        session, row.reservation_id, status, Status.CANCELLED, now=now, actor=actor, reason=reason
    )


def find(session: Session, reservation_id: str, *, user: str, is_admin: bool) -> ReservationRow:
    """One's own reservation (an admin's are all). Foreign and unknown ids look the same."""
    is_id = RESERVATION_ID.fullmatch(reservation_id)
    row = session.get(ReservationRow, reservation_id) if is_id else None
    if row is None or not (is_admin or row.user_id == user):
        raise NotFound(f"Reservation {reservation_id[:64]} not found.")
    return row


def events_of(session: Session, reservation_id: str) -> Sequence[ReservationEventRow]:
    query = select(ReservationEventRow).where(ReservationEventRow.reservation_id == reservation_id)
    return session.scalars(query.order_by(ReservationEventRow.event_id)).all()


def open_rows(session: Session) -> Sequence[ReservationRow]:
    """Everything that waits or holds, in the order of the queue: age, then id."""
    query = select(ReservationRow).where(ReservationRow.status.in_(_OPEN))
    return session.scalars(query.order_by(ReservationRow.created_at, ReservationRow.reservation_id)).all()


def open_of(session: Session, user: str) -> Sequence[ReservationRow]:
    return [row for row in open_rows(session) if row.user_id == user]


def open_on_server(session: Session, user: str, server_name: str) -> ReservationRow | None:
    """The lease of one server, if it has one."""
    query = select(ReservationRow).where(
        ReservationRow.user_id == user,
        ReservationRow.server_name == server_name,
        ReservationRow.status.in_(_OPEN),
    )
    return session.scalars(query).one_or_none()


def recent_of(session: Session, user: str, limit: int) -> Sequence[ReservationRow]:
    query = select(ReservationRow).where(ReservationRow.user_id == user)
    return session.scalars(query.order_by(ReservationRow.created_at.desc()).limit(limit)).all()


def waiting_by_type(session: Session) -> dict[str, int]:
    """How many wait for each GPU type."""
    waiting = [status.value for status in WAITING]
    query = select(ReservationRow.gpu_type, func.count()).where(ReservationRow.status.in_(waiting))
    return dict(session.execute(query.group_by(ReservationRow.gpu_type)).tuples().all())


def disks_of(session: Session, user: str) -> Sequence[DiskRow]:
    query = select(DiskRow).where(DiskRow.user_id == user, DiskRow.is_deleted.is_(False))
    return session.scalars(query.order_by(DiskRow.last_used.desc().nulls_last(), DiskRow.disk_name)).all()


def attach_disk(session: Session, row: ReservationRow, now: datetime) -> None:
    """Mark the disk as this reservation's, making the row of a new one. One attachment at a time."""
    if not row.disk_name:
        return
    query = select(DiskRow).where(DiskRow.user_id == row.user_id, DiskRow.disk_name == row.disk_name)
    disk = session.scalars(query.with_for_update()).one_or_none()
    if disk is None:
        disk = DiskRow(
            disk_id=str(uuid.uuid4()), user_id=row.user_id, disk_name=row.disk_name, created_at=now
        )
        session.add(disk)
    if disk.is_deleted:
        raise Conflict(f"Disk {disk.disk_name} was deleted. Restore it, or choose another one.")
    if disk.in_use and disk.reservation_id != row.reservation_id:
        raise Conflict(f"Disk {disk.disk_name} is still attached to reservation {disk.reservation_id}.")
    disk.in_use, disk.reservation_id, disk.attached_at = True, row.reservation_id, now


def holdings(rows: Iterable[ReservationRow], preparing_allowance: timedelta) -> list[Holding]:
    """Who holds which units until when. One that is still preparing is planned with its whole time."""
    return [
        Holding(
            row.reservation_id,
            row.user_id,
            row.gpu_type,
            Placement.from_json(row.placement or ()),
            row.expires_at
            or (row.preparing_at or row.created_at)
            + preparing_allowance
            + timedelta(hours=row.duration_hours),
        )
        for row in rows
        if Status(row.status).holds_gpus
    ]


def waiting(rows: Iterable[ReservationRow]) -> list[Waiting]:
    return [
        Waiting(row.reservation_id, row.user_id, Request(**row.request))
        for row in rows
        if Status(row.status).is_waiting
    ]


def use_of(session: Session, user: str, mine: Sequence[ReservationRow], limits: Limits, now: datetime) -> Use:
    """What counts against the limits: all that is open, and the GPU-hours of the rolling window."""
    since = now - timedelta(days=limits.window_days)
    query = select(ReservationRow).where(
        ReservationRow.user_id == user, ReservationRow.reservation_ended > since
    )
    ended = sum(_hours_within(row, since) * row.gpu_count for row in session.scalars(query))
    new_disks = sum(bool(row.request.get("new_disk")) for row in mine if Status(row.status).is_waiting)
    return Use(
        reservations=len(mine),
        gpus=sum(row.gpu_count for row in mine),
        gpu_hours=ended + sum(row.gpu_count * row.duration_hours for row in mine),
        disks=len(disks_of(session, user)) + new_disks,
        names=tuple(row.name for row in mine),
    )


def _hours_within(row: ReservationRow, since: datetime) -> float:
    """Hours that were really had. A start that failed had none."""
    if row.launched_at is None or row.reservation_ended is None:
        return 0.0
    return max(0.0, (row.reservation_ended - max(row.launched_at, since)).total_seconds() / 3600)


def _check_id(filing: Filing) -> None:
    if filing.reservation_id and not RESERVATION_ID.fullmatch(filing.reservation_id):
        raise Refused(
            f"The id {filing.reservation_id[:64]!r} is not possible. Letters, digits and hyphens, no hyphen "
            "first, at most 64 characters.",
            reason="bad_id",
            field="reservation_id",
        )


def _same_owner(row: ReservationRow, user: str) -> ReservationRow:
    if row.user_id != user:
        raise Conflict(f"The id {row.reservation_id} is taken. Choose another one.")
    return row


def _check_offered(session: Session, gpu_type: GpuType, request: Request) -> None:
    offered = session.scalars(select(GpuTypeRow).where(GpuTypeRow.is_active)).all()
    row = next((row for row in offered if row.gpu_type == gpu_type.name), None)
    if row is None:
        names = ", ".join(sorted(r.gpu_type for r in offered)) or "none yet"
        raise Refused(
            f"There is no {gpu_type.name} here. Possible: {names}.",
            reason="type_not_offered",
            field="gpu_type",
        )
    nodes = -(-request.gpu_count // gpu_type.gpus_per_node) if request.gpu_count else 1
    if nodes > len(row.nodes):
        raise Refused(
            f"{request.gpu_count} × {gpu_type.name} need {nodes} nodes; there are {len(row.nodes)} here.",
            reason="too_many_nodes",
            field="gpu_count",
            fits=len(row.nodes) * gpu_type.gpus_per_node or None,
        )


def _check_disk(session: Session, filing: Filing, mine: Sequence[ReservationRow]) -> None:
    name = filing.request.disk
    if not name:
        return
    holder = next((row for row in mine if row.disk_name == name), None)
    if holder is not None:
        raise Refused(
            f"Disk {name} is in use by {holder.name}. End that one first, or choose another disk.",
            reason="disk_in_use",
            field="disk",
            holder=holder.reservation_id,
        )
    known = [disk.disk_name for disk in disks_of(session, filing.user)]
    if filing.request.new_disk and _is_deleted(session, filing.user, name):
        raise Refused(
            f"You deleted a disk {name}, and it can still be restored. Choose another name for the new one.",
            reason="disk_deleted",
            field="disk",
        )
    if filing.request.new_disk and name in known:
        raise Refused(
            f"You have a disk {name} already. Choose it from the list, or choose another name.",
            reason="disk_exists",
            field="disk",
        )
    if not filing.request.new_disk and name not in known:
        yours = f"Yours: {', '.join(known)}." if known else "You have none yet."
        raise Refused(
            f"You have no disk {name}. {yours} A new one is written as +{name}.",
            reason="unknown_disk",
            field="disk",
        )


def _is_deleted(session: Session, user: str, name: str) -> bool:
    query = select(DiskRow).where(DiskRow.user_id == user, DiskRow.disk_name == name, DiskRow.is_deleted)
    return session.scalars(query).first() is not None


def _server_name(filing: Filing, mine: Sequence[ReservationRow]) -> str:
    taken = {row.server_name for row in mine}
    if filing.server_name is None:
        wanted = requests.slug(filing.request.name) or requests.slug(filing.request.gpu_type)
        return requests.free_slug(wanted, taken)
    if filing.server_name in taken:
        raise Conflict(f"Server {filing.server_name or 'default'} has a reservation already. End it first.")
    return filing.server_name


def _new_row(filing: Filing, gpu_type: GpuType, server_name: str, now: datetime) -> ReservationRow:
    request = filing.request
    return ReservationRow(
        reservation_id=filing.reservation_id or str(uuid.uuid4()),
        user_id=filing.user,
        server_name=server_name,
        name=request.name or server_name or gpu_type.name,
        gpu_type=gpu_type.name,
        gpu_count=request.gpu_count,
        instance_type=gpu_type.instance_type,
        duration_hours=request.hours,
        image=request.image,
        disk_name=request.disk or None,
        request=request.as_json(),
        filed_from=filing.filed_from,
        status=Status.PENDING.value,
        created_at=now,
    )
