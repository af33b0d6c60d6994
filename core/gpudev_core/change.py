"""Another request in the place of one that waits.

One that asks for no more (the same type, no more GPUs, no more hours) keeps its place, its promise and its
plan, on as many of the planned nodes as it still needs: giving the plan back first would let others move into
it before it is planned again. Anything else goes to the end of the queue, and its promise is given up.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime

from sqlalchemy.orm import Session

from gpudev_core import availability, forecast, lifecycle, maintenance, quotas, reservations, views
from gpudev_core.errors import Refused
from gpudev_core.extension import PLAN_LOCK
from gpudev_core.models import GpuType, Request, Status
from gpudev_core.portal import Portal
from gpudev_core.reservations import Filing
from gpudev_core.tables import DiskRow, ReservationRow

SHOWN = ("gpu_type", "gpu_count", "hours", "disk", "image")
"""What may be changed. The name is part of the server's address, and stays."""


def change(
    portal: Portal,
    reservation_id: str,
    request: Request,
    *,
    user: str,
    is_admin: bool = False,
    groups: Sequence[str] = (),
    now: datetime,
) -> ReservationRow:
    """Ask for ``request`` instead, under the rules of a new filing. Raises ``Refused``; then nothing changed.

    ``groups`` are those of ``user``; for somebody else's reservation those count with which it was filed.
    """
    with portal.store.write() as session:
        portal.store.lock(session, PLAN_LOCK)
        row = reservations.find(session, reservation_id, user=user, is_admin=is_admin)
        portal.store.lock(session, f"user:{row.user_id}")
        session.refresh(row, with_for_update=True)
        _check_waits(row)
        old = Request(**row.request)
        new = replace(request, name=old.name)
        if _shown(new) == _shown(old):
            return row
        known = tuple(groups if user == row.user_id else row.groups or ())
        gpu_type, disk = check(session, portal, row, new, known, now)
        kept = _write(row, new, gpu_type, disk, now)
        row.groups, row.priority = list(known), quotas.priority_of(portal.settings, known)
        detail = {"old": _shown(old), "new": _shown(new), "kept_place": kept}
        lifecycle.record(session, reservation_id, "changed", now=now, actor=user, detail=detail)
        return row


def check(
    session: Session,
    portal: Portal,
    row: ReservationRow,
    request: Request,
    groups: Sequence[str],
    now: datetime,
) -> tuple[GpuType, DiskRow | None]:
    """Raise ``Refused`` when the row's owner may not have this instead of it."""
    others = [other for other in reservations.open_of(session, row.user_id) if other is not row]
    filing = Filing(row.user_id, request, filed_from=row.filed_from, groups=tuple(groups))
    return reservations.check(session, filing, portal.catalogue, portal.settings, others, now=now)


def alternatives(
    portal: Portal, session: Session, row: ReservationRow, groups: Sequence[str], now: datetime
) -> list[Request]:
    """What would start now in the place of one that waits, as far as its owner may have it."""
    rows = [other for other in reservations.open_rows(session) if other is not row]
    types = [kind for kind in availability.offered(session) if kind.gpu_type in portal.catalogue]
    board = views.board(rows, types, portal.settings, portal.catalogue, now, session)
    offered = [kind.gpu_type for kind in types if not maintenance.is_closed_to(kind, row.user_id, groups)]
    found = forecast.sooner(board, Request(**row.request), offered, row.zone or "")
    return [request for request in found if _may_have(session, portal, row, request, groups, now)]


def _may_have(
    session: Session,
    portal: Portal,
    row: ReservationRow,
    request: Request,
    groups: Sequence[str],
    now: datetime,
) -> bool:
    try:
        check(session, portal, row, request, groups, now)
    except Refused:
        return False
    return True


def keeps_place(old: Request, new: Request) -> bool:
    """Whether it asks for no more. The disk may be another one, as long as it is in the same zone."""
    return new.gpu_type == old.gpu_type and new.gpu_count <= old.gpu_count and new.hours <= old.hours


def _check_waits(row: ReservationRow) -> None:
    if not Status(row.status).is_waiting:
        raise Refused(
            f"{row.name} is {row.status}. Only what waits in the queue can be changed.",
            reason="not_waiting",
            field="",
        )


def _write(row: ReservationRow, new: Request, gpu_type: GpuType, disk: DiskRow | None, now: datetime) -> bool:
    """Whether it kept its place."""
    zone = disk.zone if disk is not None else None
    kept = keeps_place(Request(**row.request), new) and zone in (None, row.zone)
    if kept:
        nodes = max(1, -(-new.gpu_count // max(1, gpu_type.gpus_per_node)))
        row.planned_nodes = row.planned_nodes[:nodes] if row.planned_nodes else None
    else:
        row.created_at = now
        row.planned_start = row.planned_nodes = row.no_later_than = None
        row.expected_start = row.estimated_wait_minutes = row.queue_position = None
    row.queue_reason = None
    row.gpu_type, row.gpu_count, row.duration_hours = gpu_type.name, new.gpu_count, new.hours
    row.instance_type, row.image = gpu_type.instance_type, new.image
    row.disk_name, row.zone = new.disk or None, zone
    row.request = new.as_json()
    return kept


def _shown(request: Request) -> dict[str, object]:
    shown = request.as_json()
    return {name: shown[name] for name in SHOWN} | {"new_disk": request.new_disk}
