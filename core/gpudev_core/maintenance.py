"""A GPU type that an admin has closed: nothing new starts on it, what runs goes on.

``maintenance_allowed`` names who may go on using it: user names, and ``@group`` for a group of the hub.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import Any

from sqlalchemy import select
from sqlalchemy.orm import Session

from gpudev_core.errors import PortalError, Refused
from gpudev_core.requests import NOT_TEXT
from gpudev_core.tables import GpuTypeRow

GROUP_MARK = "@"
NOTE_MAX = 500


def begin(session: Session, gpu_type: str, *, note: str = "", allowed: Iterable[str] = ()) -> GpuTypeRow:
    """Close a type, or say something else about one that is closed already."""
    row = _find(session, gpu_type)
    row.maintenance_note = _note(note) or None
    row.maintenance_allowed = sorted({_name(entry) for entry in allowed})
    row.maintenance = True
    return row


def end(session: Session, gpu_type: str) -> bool:
    """Open it again. False when it was not closed."""
    row = _find(session, gpu_type)
    was_closed = row.maintenance
    row.maintenance, row.maintenance_note, row.maintenance_allowed = False, None, []
    return was_closed


def closed_types(session: Session) -> Sequence[GpuTypeRow]:
    query = select(GpuTypeRow).where(GpuTypeRow.maintenance)
    return session.scalars(query.order_by(GpuTypeRow.gpu_type)).all()


def is_closed_to(row: GpuTypeRow, user: str, groups: Collection[str]) -> bool:
    if not row.maintenance:
        return False
    names = {user, *(GROUP_MARK + group for group in groups)}
    return names.isdisjoint(row.maintenance_allowed)


def check_open(row: GpuTypeRow, offered: Iterable[GpuTypeRow], user: str, groups: Collection[str]) -> None:
    """Raise ``Refused`` with the admin's note and the types that are open to this person."""
    if not is_closed_to(row, user, groups):
        return
    others = sorted(r.gpu_type for r in offered if not is_closed_to(r, user, groups))
    note = row.maintenance_note or ""
    why = f": {note}" if note else ""
    end_of_note = "" if note.endswith((".", "!", "?")) else "."
    raise Refused(
        f"{row.gpu_type} is closed for maintenance{why}{end_of_note} "
        + (f"Open: {', '.join(others)}." if others else "No other type is open."),
        reason="maintenance",
        field="gpu_type",
        note=note,
        open=others,
    )


def shown(row: GpuTypeRow, user: str, groups: Collection[str]) -> dict[str, Any] | None:
    """For the form and the API: the note when the type is closed to this person, else None."""
    return {"note": row.maintenance_note or ""} if is_closed_to(row, user, groups) else None


def _find(session: Session, gpu_type: str) -> GpuTypeRow:
    row = session.get(GpuTypeRow, gpu_type, with_for_update=True)
    if row is None:
        known = session.scalars(select(GpuTypeRow.gpu_type).order_by(GpuTypeRow.gpu_type)).all()
        raise PortalError(
            f"There is no GPU type {gpu_type[:50]!r} here. "
            f"Possible: {', '.join(known) or 'none yet; start the portal first'}.",
            reason="unknown_gpu_type",
        )
    return row


def _note(note: str) -> str:
    note = " ".join(note.split())
    if len(note) > NOTE_MAX or NOT_TEXT.search(note):
        raise PortalError(
            f"The note {note[:40]!r}... is not possible. One line, at most {NOTE_MAX} characters.",
            reason="bad_note",
        )
    return note


def _name(entry: str) -> str:
    name = entry.strip()
    if not name.removeprefix(GROUP_MARK) or NOT_TEXT.search(name):
        raise PortalError(
            f"{entry[:60]!r} names nobody. Write a user name, or {GROUP_MARK}name for a group.",
            reason="bad_name",
        )
    return name
