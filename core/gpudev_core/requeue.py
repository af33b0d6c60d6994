"""What failed, and putting it into the queue again.

A reservation that failed stays as it is. Its whole request is filed again as a new reservation of the same
person, and each names the other. One request is never in the queue twice.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from datetime import datetime

from sqlalchemy import select
from sqlalchemy.orm import Session

from gpudev_core import lifecycle, notices, reservations
from gpudev_core.catalogue import Catalogue
from gpudev_core.errors import NotFound, Refused
from gpudev_core.models import OPEN, Request, Status
from gpudev_core.reservations import RESERVATION_ID, Filing
from gpudev_core.settings import Settings
from gpudev_core.store import Store
from gpudev_core.tables import ReservationRow

FILED_FROM = "requeue"
_SHOWN = 5


def failed(session: Session, since: datetime, limit: int) -> Sequence[ReservationRow]:
    """What failed since then, newest first."""
    query = select(ReservationRow).where(
        ReservationRow.status == Status.FAILED.value, ReservationRow.reservation_ended >= since
    )
    newest = query.order_by(ReservationRow.reservation_ended.desc(), ReservationRow.reservation_id)
    return session.scalars(newest.limit(limit)).all()


def requeued_as(session: Session, reservation_ids: Iterable[str]) -> dict[str, str]:
    """Under which id each was filed again, the newest where it was more than once."""
    query = select(ReservationRow.requeued_from, ReservationRow.reservation_id).where(
        ReservationRow.requeued_from.in_(list(reservation_ids))
    )
    return {str(old): new for old, new in session.execute(query.order_by(ReservationRow.created_at))}


def find_failed(session: Session, prefix: str) -> ReservationRow:
    """The failed reservation of this id, or of an id that begins like this if there is only one."""
    is_id = RESERVATION_ID.fullmatch(prefix)
    known = session.get(ReservationRow, prefix) if is_id else None
    if known is not None:
        return known
    query = select(ReservationRow).where(ReservationRow.reservation_id.startswith(prefix, autoescape=True))
    # SQLite takes small and large letters for the same here; ids do not.
    found = [row for row in session.scalars(query) if row.reservation_id.startswith(prefix)] if is_id else []
    candidates = [row for row in found if row.status == Status.FAILED.value] or found
    if not candidates:
        raise NotFound(f"Reservation {prefix[:64]} not found. `gpu-dev-portal failed` lists what failed.")
    if len(candidates) > 1:
        ids = sorted(row.reservation_id for row in candidates)
        more = f" and {len(ids) - _SHOWN} more" if len(ids) > _SHOWN else ""
        raise Refused(
            f"{len(ids)} reservations begin with {prefix}: {', '.join(ids[:_SHOWN])}{more}. "
            "Give more of the id.",
            reason="ambiguous",
            field="reservation_id",
        )
    return candidates[0]


def requeue(
    store: Store,
    reservation_id: str,
    actor: str,
    catalogue: Catalogue,
    settings: Settings,
    *,
    now: datetime,
) -> ReservationRow:
    """File a failed request again, whole, within the person's limits. Raises ``Refused``."""
    with store.write() as session:
        old = find_failed(session, reservation_id)
        store.lock(session, f"user:{old.user_id}")
        session.refresh(old)
        _check_may(session, old)
        filing = _filing(session, old)
        new = reservations.file_in(session, store, filing, catalogue, settings, now=now, actor=actor)
        new.requeued_from = old.reservation_id
        for row, detail in ((old, {"to": new.reservation_id}), (new, {"from": old.reservation_id})):
            lifecycle.record(session, row.reservation_id, "requeued", now=now, actor=actor, detail=detail)
        notices.tell(session, new, "requeued", {}, notices.channels_of(settings), now)
        return new


def _check_may(session: Session, old: ReservationRow) -> None:
    if old.status != Status.FAILED.value:
        raise Refused(
            f"Reservation {old.reservation_id} is {old.status}. Only what failed can be requeued.",
            reason="not_failed",
            field="reservation_id",
        )
    again = next((row for row in _family(session, old) if Status(row.status) in OPEN), None)
    if again is not None:
        raise Refused(
            f"Reservation {old.reservation_id} was requeued already: {again.reservation_id} is "
            f"{again.status}.",
            reason="already_requeued",
            field="reservation_id",
        )


def _family(session: Session, row: ReservationRow) -> list[ReservationRow]:
    """The first filing of a request and all that it was filed again as."""
    while row.requeued_from and (before := session.get(ReservationRow, row.requeued_from)):
        row = before
    family, newest = [row], [row.reservation_id]
    while newest:
        query = select(ReservationRow).where(ReservationRow.requeued_from.in_(newest))
        children = list(session.scalars(query))
        family += children
        newest = [child.reservation_id for child in children]
    return family


def _filing(session: Session, old: ReservationRow) -> Filing:
    """The same request on the same server, if that is free. A disk that was to be new may be there by now."""
    request = Request(**old.request)
    has_disk = any(disk.disk_name == request.disk for disk in reservations.disks_of(session, old.user_id))
    if request.new_disk and has_disk:
        request = replace(request, new_disk=False)
    is_free = reservations.open_on_server(session, old.user_id, old.server_name) is None
    return Filing(
        old.user_id,
        request,
        filed_from=FILED_FROM,
        server_name=old.server_name if is_free else None,
        groups=tuple(old.groups or ()),
    )
