"""File, end and read reservations. Form, REST, API and CLI all come through here.

What is refused leaves nothing behind. A request is stored whole. The same id filed twice is one reservation.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from sqlalchemy import func, select
from sqlalchemy.orm import Session, load_only

from gpudev_core import lifecycle, maintenance, quotas, requests
from gpudev_core.catalogue import Catalogue
from gpudev_core.errors import Conflict, NotFound, Refused
from gpudev_core.models import (
    HOLDING,
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
from gpudev_core.settings import Limits, Settings
from gpudev_core.store import Store
from gpudev_core.tables import DiskRow, GpuTypeRow, ReservationEventRow, ReservationRow

RESERVATION_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9-]{0,63}")
_OPEN = [status.value for status in OPEN]
_BY_AGE = (ReservationRow.created_at, ReservationRow.reservation_id)
_AT_A_GLANCE = (
    ReservationRow.status,
    ReservationRow.gpu_type,
    ReservationRow.gpu_count,
    ReservationRow.duration_hours,
    ReservationRow.priority,
    ReservationRow.created_at,
    ReservationRow.planned_start,
    ReservationRow.no_later_than,
    ReservationRow.expected_start,
    ReservationRow.expires_at,
    ReservationRow.latest_end,
)


@dataclass(frozen=True)
class Filing:
    """A request, whose it is and where it came from. ``server_name`` None: made from the name."""

    user: str
    request: Request
    filed_from: str
    server_name: str | None = None
    reservation_id: str | None = None
    groups: tuple[str, ...] = ()
    """The person's groups in the hub at this moment."""


def file(
    store: Store, filing: Filing, catalogue: Catalogue, settings: Settings, *, now: datetime
) -> ReservationRow:
    """Check against catalogue, site and quota, and put it into the queue."""
    with store.write() as session:
        return file_in(session, store, filing, catalogue, settings, now=now)


def file_in(
    session: Session,
    store: Store,
    filing: Filing,
    catalogue: Catalogue,
    settings: Settings,
    *,
    now: datetime,
    actor: str | None = None,
) -> ReservationRow:
    """As ``file``, in a transaction of the caller."""
    _check_id(filing)
    store.lock(session, f"user:{filing.user}")
    if filing.reservation_id:
        store.lock(session, f"reservation:{filing.reservation_id}")
        known = session.get(ReservationRow, filing.reservation_id)
        if known is not None:
            return _same_owner(known, filing.user)
    mine = open_of(session, filing.user)
    gpu_type, disk = check(session, filing, catalogue, settings, mine, now=now)
    row = _new_row(filing, gpu_type, _server_name(filing, mine), now)
    row.priority = quotas.priority_of(settings, filing.groups)
    row.zone = disk.zone if disk is not None else None
    session.add(row)
    session.flush()
    lifecycle.record(
        session,
        row.reservation_id,
        "filed",
        now=now,
        actor=actor or filing.user,
        new=Status.PENDING,
        detail={"from": filing.filed_from},
    )
    return row


def check(
    session: Session,
    filing: Filing,
    catalogue: Catalogue,
    settings: Settings,
    others: Sequence[ReservationRow],
    *,
    now: datetime,
) -> tuple[GpuType, DiskRow | None]:
    """Raise ``Refused`` when this may not be asked for beside the person's ``others``; else type and disk."""
    request, gpu_type = filing.request, catalogue.find(filing.request.gpu_type)
    offered = _check_offered(session, gpu_type, filing)
    use = use_of(session, filing.user, others, settings.limits, now)
    allowed = quotas.limits_for(settings, filing.user, filing.groups, gpu_type.name)
    quotas.check(request, gpu_type, allowed, use)
    disk = _check_disk(session, filing, others)
    _check_zone(disk, offered, gpu_type, request)
    return gpu_type, disk


def check_running(session: Session, row: ReservationRow, settings: Settings) -> None:
    """Raise ``Refused`` when the row would pass its owner's limits beside what the owner holds.

    For one that waits, that is all the owner holds. One that holds already gives way to those admitted
    before it, so that of two that are one too many the same one is always refused.
    """
    held = [other for other in _holding_of(session, row.user_id) if _comes_before(other, row)]
    allowed = quotas.limits_for(settings, row.user_id, row.groups, row.gpu_type)
    quotas.check_held(row.gpu_count, row.gpu_type, allowed, _use_held(held))


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


def open_rows(session: Session, *, locked: bool = False) -> Sequence[ReservationRow]:
    """Everything that waits or holds, by age. ``locked``: nobody else changes it in this transaction."""
    query = select(ReservationRow).where(ReservationRow.status.in_(_OPEN)).order_by(*_BY_AGE)
    return session.scalars(query.with_for_update() if locked else query).all()


def glance(session: Session) -> Sequence[ReservationRow]:
    """As ``open_rows``, but of those that wait only what tells whether there is something to do.

    Read at every round, so that a long queue must not make it slow. Other columns of theirs raise.
    """
    holding, waiting = [status.value for status in HOLDING], [status.value for status in WAITING]
    rows = session.scalars(select(ReservationRow).where(ReservationRow.status.in_(holding))).all()
    query = select(ReservationRow).where(ReservationRow.status.in_(waiting))
    rows = [*rows, *session.scalars(query.options(load_only(*_AT_A_GLANCE, raiseload=True)))]
    return sorted(rows, key=lambda row: (row.created_at, row.reservation_id))


def holding_now(session: Session) -> list[tuple[str, str | None]]:
    """Status and wanted end of all that hold GPUs."""
    holding = [status.value for status in HOLDING]
    query = select(ReservationRow.status, ReservationRow.end_wanted)
    found = session.execute(query.where(ReservationRow.status.in_(holding)))
    return [(status, end_wanted) for status, end_wanted in found]


def open_of(session: Session, user: str) -> Sequence[ReservationRow]:
    query = select(ReservationRow).where(ReservationRow.user_id == user, ReservationRow.status.in_(_OPEN))
    return session.scalars(query.order_by(*_BY_AGE)).all()


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


def holdings(rows: Iterable[ReservationRow]) -> list[Holding]:
    """Who holds which units until when. One that is still preparing is planned with its whole time."""
    return [
        Holding(
            row.reservation_id,
            row.user_id,
            row.gpu_type,
            Placement.from_json(row.placement or ()),
            row.preparing_at or row.created_at,
            row.expires_at or row.latest_end or row.created_at + timedelta(hours=row.duration_hours),
        )
        for row in rows
        if Status(row.status).holds_gpus
    ]


def waiting(rows: Iterable[ReservationRow]) -> list[Waiting]:
    return [
        Waiting(
            row.reservation_id,
            row.user_id,
            Request(**row.request),
            row.created_at,
            row.priority or 0,
            row.zone or "",
            row.planned_start,
            tuple(row.planned_nodes or ()),
            row.no_later_than,
        )
        for row in rows
        if Status(row.status).is_waiting
    ]


def use_of(session: Session, user: str, mine: Sequence[ReservationRow], limits: Limits, now: datetime) -> Use:
    """What counts against the limits: all that is open, and the GPU-hours of the rolling window."""
    since = now - timedelta(days=limits.window_days)
    query = select(ReservationRow).where(
        ReservationRow.user_id == user, ReservationRow.reservation_ended > since
    )
    ended = [(row.gpu_type, _hours_within(row, since) * row.gpu_count) for row in session.scalars(query)]
    new_disks = sum(bool(row.request.get("new_disk")) for row in mine if Status(row.status).is_waiting)
    disks = disks_of(session, user)
    types = {*(row.gpu_type for row in mine), *(gpu_type for gpu_type, _ in ended)}
    return replace(
        _use_of_open(mine, sum(hours for _, hours in ended)),
        disks=len(disks) + new_disks,
        disk_gb=sum(disk.size_gb or 0 for disk in disks),
        by_type={
            name: _use_of_open(
                [row for row in mine if row.gpu_type == name],
                sum(hours for gpu_type, hours in ended if gpu_type == name),
            )
            for name in types
        },
    )


def _use_held(rows: Sequence[ReservationRow]) -> Use:
    types = {row.gpu_type for row in rows}
    by_type = {name: _use_of_open([row for row in rows if row.gpu_type == name]) for name in types}
    return replace(_use_of_open(rows), by_type=by_type)


def _use_of_open(rows: Sequence[ReservationRow], ended_gpu_hours: float = 0.0) -> Use:
    """Open rows count as what they may use at most."""
    ends = [(row.expires_at, row.name) for row in rows if row.expires_at is not None]
    at, name = min(ends, default=(None, ""))
    return Use(
        reservations=len(rows),
        gpus=sum(row.gpu_count for row in rows),
        gpu_hours=ended_gpu_hours + sum(row.gpu_count * row.duration_hours for row in rows),
        names=tuple(row.name for row in rows),
        queued=sum(Status(row.status).is_waiting for row in rows),
        next_end=(name, at) if at is not None else None,
    )


def _holding_of(session: Session, user: str) -> Sequence[ReservationRow]:
    """Asked of the database: a status is written past the rows that a session has read already."""
    holding = [status.value for status in HOLDING]
    query = select(ReservationRow).where(ReservationRow.user_id == user, ReservationRow.status.in_(holding))
    return session.scalars(query).all()


def _comes_before(other: ReservationRow, row: ReservationRow) -> bool:
    if other.reservation_id == row.reservation_id:
        return False
    return not Status(row.status).holds_gpus or _admitted(other) < _admitted(row)


def _admitted(row: ReservationRow) -> tuple[datetime, str]:
    return row.preparing_at or row.created_at, row.reservation_id


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


def _check_offered(session: Session, gpu_type: GpuType, filing: Filing) -> GpuTypeRow:
    request = filing.request
    offered = session.scalars(select(GpuTypeRow).where(GpuTypeRow.is_active)).all()
    row = next((row for row in offered if row.gpu_type == gpu_type.name), None)
    if row is None:
        names = ", ".join(sorted(r.gpu_type for r in offered)) or "none yet"
        raise Refused(
            f"There is no {gpu_type.name} here. Possible: {names}.",
            reason="type_not_offered",
            field="gpu_type",
        )
    maintenance.check_open(row, offered, filing.user, filing.groups)
    nodes = _nodes_needed(gpu_type, request)
    if nodes > len(row.nodes):
        raise Refused(
            f"{request.gpu_count} × {gpu_type.name} need {nodes} nodes; there are {len(row.nodes)} here.",
            reason="too_many_nodes",
            field="gpu_count",
            fits=len(row.nodes) * gpu_type.gpus_per_node or None,
        )
    return row


def _nodes_needed(gpu_type: GpuType, request: Request) -> int:
    return -(-request.gpu_count // gpu_type.gpus_per_node) if request.gpu_count else 1


def _check_zone(disk: DiskRow | None, offered: GpuTypeRow, gpu_type: GpuType, request: Request) -> None:
    """A disk cannot leave its zone, so the nodes must be there."""
    if disk is None or not disk.zone:
        return
    zones = [str(node.get("zone") or "") for node in offered.nodes]
    there, needed = zones.count(disk.zone), _nodes_needed(gpu_type, request)
    if there >= needed:
        return
    known = sorted({zone for zone in zones if zone})
    if there:
        where = f"where {gpu_type.name} has {there} of the {needed} nodes that are needed"
    elif known:
        where = f"{gpu_type.name} nodes are in zone {', '.join(known)}"
    else:
        where = f"{gpu_type.name} nodes are in none"
    raise Refused(
        f"Disk {disk.disk_name} is in zone {disk.zone}, {where}. "
        "Clone it to another zone, or choose another type.",
        reason="disk_zone",
        field="disk",
        zone=disk.zone,
        zones=known,
    )


def _check_disk(session: Session, filing: Filing, mine: Sequence[ReservationRow]) -> DiskRow | None:
    """The disk that is asked for, if there is one already."""
    name = filing.request.disk
    if not name:
        return None
    holder = next((row for row in mine if row.disk_name == name), None)
    if holder is not None:
        raise Refused(
            f"Disk {name} is in use by {holder.name}. End that one first, or choose another disk.",
            reason="disk_in_use",
            field="disk",
            holder=holder.reservation_id,
        )
    disks = {disk.disk_name: disk for disk in disks_of(session, filing.user)}
    known = list(disks)
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
    return disks.get(name)


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
        groups=list(filing.groups),
        status=Status.PENDING.value,
        created_at=now,
    )
