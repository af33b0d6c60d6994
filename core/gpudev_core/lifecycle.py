"""The life of a reservation: which status may follow which, and nothing else may write one.

A change is compare-and-set on the status it starts from and leaves one line in ``reservation_events``.
Terminal is final. Ending something that runs has two steps: ``want_end`` writes where it is going,
``finish`` writes the end once the server is known to be gone; only then are its GPUs free.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from sqlalchemy import CursorResult, update
from sqlalchemy.orm import Session

from gpudev_core.models import HOLDING, TERMINAL, Status
from gpudev_core.tables import DiskRow, ReservationEventRow, ReservationRow

ALLOWED: Mapping[Status, frozenset[Status]] = {
    Status.PENDING: frozenset({Status.QUEUED, Status.PREPARING, Status.CANCELLED, Status.FAILED}),
    Status.QUEUED: frozenset({Status.PREPARING, Status.CANCELLED, Status.FAILED}),
    Status.PREPARING: frozenset({Status.ACTIVE, Status.CANCELLED, Status.FAILED}),
    Status.ACTIVE: frozenset({Status.EXPIRED, Status.CANCELLED, Status.FAILED}),
    **{status: frozenset() for status in TERMINAL},
}

MAX_STARTS = 3
"""A server that could not be started this often is not tried again."""


class IllegalTransition(Exception):
    """A mistake in our code, not in a request."""


def transition(
    session: Session,
    reservation_id: str,
    old: Status,
    new: Status,
    *,
    now: datetime,
    actor: str,
    detail: Mapping[str, Any] | None = None,
    **columns: Any,
) -> bool:
    """Move from ``old`` to ``new``. False, and nothing written, when the row was not in ``old`` any more."""
    if new not in ALLOWED[old]:
        raise IllegalTransition(f"{old} -> {new}")
    if new.is_terminal:
        columns.setdefault("reservation_ended", now)
        columns.update(queue_position=None, estimated_wait_minutes=None, expected_start=None)
    if not _set(session, reservation_id, old, status=new.value, **columns):
        return False
    record(session, reservation_id, new.value, now=now, actor=actor, old=old, new=new, detail=detail)
    if new.is_terminal:
        _release_disk(session, reservation_id, now)
    return True


def want_end(
    session: Session,
    reservation_id: str,
    current: Status,
    end: Status,
    *,
    now: datetime,
    actor: str,
    reason: str,
) -> bool:
    """Say that a reservation which holds GPUs is to end. The first wish counts; later ones change nothing."""
    if current not in HOLDING or end not in ALLOWED[current] & TERMINAL:
        raise IllegalTransition(f"{current} wants {end}")
    wish = {"end_wanted": end.value, "end_reason": reason, "end_actor": actor}
    if not _set(session, reservation_id, current, ReservationRow.end_wanted.is_(None), **wish):
        return False
    record(
        session, reservation_id, "ending", now=now, actor=actor, detail={"to": end.value, "reason": reason}
    )
    return True


def finish(session: Session, row: ReservationRow, *, now: datetime) -> bool:
    """Write the end that was wanted. The caller knows that nothing of the reservation runs any more."""
    old, end = Status(row.status), Status(str(row.end_wanted))
    columns = {"failure_reason": row.end_reason} if end is Status.FAILED else {}
    return transition(
        session,
        row.reservation_id,
        old,
        end,
        now=now,
        actor=row.end_actor or "controller",
        detail={"reason": row.end_reason},
        **columns,
    )


def record(
    session: Session,
    reservation_id: str,
    event: str,
    *,
    now: datetime,
    actor: str,
    old: Status | None = None,
    new: Status | None = None,
    detail: Mapping[str, Any] | None = None,
) -> None:
    session.add(
        ReservationEventRow(
            reservation_id=reservation_id,
            at=now,
            actor=actor,
            event=event,
            from_status=old.value if old else None,
            to_status=new.value if new else None,
            detail=dict(detail or {}),
        )
    )


def _set(session: Session, reservation_id: str, old: Status, *conditions: Any, **columns: Any) -> bool:
    statement = (
        update(ReservationRow)
        .where(
            ReservationRow.reservation_id == reservation_id, ReservationRow.status == old.value, *conditions
        )
        .values(**columns)
        .execution_options(synchronize_session=False)
    )
    result = session.execute(statement)
    assert isinstance(result, CursorResult)
    return result.rowcount == 1


def _release_disk(session: Session, reservation_id: str, now: datetime) -> None:
    session.execute(
        update(DiskRow)
        .where(DiskRow.reservation_id == reservation_id)
        .values(in_use=False, reservation_id=None, attached_at=None, last_used=now)
        .execution_options(synchronize_session=False)
    )
