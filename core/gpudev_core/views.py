"""Rows as JSON for pages, API and widgets: state, figures, reason codes. Who shows them writes the words."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from sqlalchemy.orm import Session

from gpudev_core import availability, failures, learning, maintenance, notices, quotas, reservations
from gpudev_core.catalogue import Catalogue
from gpudev_core.forecast import SHORTER_HOURS, Board
from gpudev_core.models import GpuType, Node, Request, Status
from gpudev_core.planner import Allowances
from gpudev_core.quotas import Use
from gpudev_core.settings import Settings
from gpudev_core.tables import DiskRow, GpuTypeRow, NoticeRow, ReservationEventRow, ReservationRow

FREE, MINE, OTHERS, PROMISED, DOWN = "f", "m", "o", "p", "d"


def iso(at: datetime | None) -> str | None:
    return at.astimezone(UTC).isoformat(timespec="seconds").replace("+00:00", "Z") if at else None


def plain(values: Mapping[str, Any]) -> dict[str, Any]:
    """Values as JSON has them: times become text, all else stays."""
    return {key: _plain(inner) for key, inner in values.items()}


def _plain(value: Any) -> Any:
    if isinstance(value, datetime):
        return iso(value)
    if isinstance(value, Mapping):
        return plain(value)
    if isinstance(value, list | tuple):
        return [_plain(inner) for inner in value]
    return value


def reservation(row: ReservationRow, *, queue_length: int = 0, lab_url: str = "") -> dict[str, Any]:
    return plain(
        {
            "reservation_id": row.reservation_id,
            "name": row.name,
            "server_name": row.server_name,
            "user_id": row.user_id,
            "status": row.status,
            "ending": row.end_wanted,
            "gpu_type": row.gpu_type,
            "gpu_count": row.gpu_count,
            "duration_hours": row.duration_hours,
            "image": row.image,
            "disk": row.disk_name or "",
            "nodes": [share["node"] for share in row.placement or ()],
            "planned_nodes": list(row.planned_nodes or ()),
            "created_at": row.created_at,
            "preparing_at": row.preparing_at,
            "launched_at": row.launched_at,
            "expires_at": row.expires_at,
            "reservation_ended": row.reservation_ended,
            "queue_position": row.queue_position,
            "queue_length": queue_length,
            "expected_start": row.expected_start,
            "no_later_than": row.no_later_than,
            "reason": row.queue_reason,
            "step": row.current_detailed_status,
            "retry_at": row.retry_at,
            "failure_reason": row.failure_reason,
            "failure_code": row.failure_code,
            "failure_note": _failure_note(row),
            "end_reason": row.end_reason,
            "end_actor": row.end_actor,
            "lab_url": lab_url if row.status == Status.ACTIVE and not row.end_wanted else "",
            "request": row.request,
        }
    )


def _failure_note(row: ReservationRow) -> str:
    """What stands beside the cause of a failure: the files first, then what to do."""
    if row.status != Status.FAILED:
        return ""
    return failures.beside(row.failure_code, row.disk_name, had_started=row.launched_at is not None)


def event(row: ReservationEventRow) -> dict[str, Any]:
    return plain(
        {
            "at": row.at,
            "actor": row.actor,
            "event": row.event,
            "from": row.from_status,
            "to": row.to_status,
            "detail": row.detail,
        }
    )


def notice(row: NoticeRow) -> dict[str, Any]:
    """A message. ``ends_at``: the end that a warning warns of."""
    return plain(
        {
            "notice_id": row.notice_id,
            "reservation_id": row.reservation_id,
            "kind": row.kind,
            "due_at": row.due_at,
            "ends_at": notices.warned_end(row),
            "detail": row.detail,
        }
    )


def form(
    session: Session,
    settings: Settings,
    catalogue: Catalogue,
    user: str,
    now: datetime,
    groups: Sequence[str] = (),
    hours: float = 1.0,
) -> dict[str, Any]:
    """All that the spawn form shows: what is free, what each size would wait, what the quota leaves.

    ``hours``: how long the sizes are asked for; a short one may go before a promise, a long one not.
    """
    types = [row for row in availability.offered(session) if row.gpu_type in catalogue]
    open_rows = reservations.open_rows(session)
    books = board(open_rows, types, settings, catalogue, now, session)
    mine = [row for row in open_rows if row.user_id == user]
    use = reservations.use_of(session, user, mine, settings.limits, now)
    return plain(
        {
            "now": now,
            "user": user,
            "hours": hours,
            "as_of": min(
                (t.last_availability_update for t in types if t.last_availability_update), default=None
            ),
            "stale": any(availability.is_stale(row, now) for row in types),
            "types": [
                gpu_type_for(row, catalogue[row.gpu_type], books, user, groups, hours)
                for row in sorted(types, key=lambda row: list(catalogue).index(row.gpu_type))
            ],
            "quota": _quota(settings, user, groups, [row.gpu_type for row in types], use),
            "disks": [disk(row, mine) for row in reservations.disks_of(session, user)],
            "images": list(settings.images),
            "taken_names": sorted(row.server_name for row in mine),
        }
    )


def _quota(
    settings: Settings, user: str, groups: Sequence[str], gpu_types: Iterable[str], use: Use
) -> dict[str, Any]:
    """The limits of this person; ``types`` has those types for which a rule says something else."""
    overall = quotas.limits_for(settings, user, groups)
    types = {
        name: quotas.left_of_type(name, quotas.limits_for(settings, user, groups, name), overall, use)
        for name in gpu_types
    }
    return quotas.left(overall, use) | {"types": {name: shown for name, shown in types.items() if shown}}


def board(
    rows: Sequence[ReservationRow],
    types: Iterable[GpuTypeRow],
    settings: Settings,
    catalogue: Catalogue,
    now: datetime,
    session: Session,
) -> Board:
    """The books of these types as the rows have them."""
    held, queue = reservations.holdings(rows), reservations.waiting(rows)
    allowances = Allowances.of(settings)
    return Board(
        catalogue,
        availability.nodes_of(types),
        held,
        queue,
        allowances,
        now,
        lambda name: learning.lives(session, name, allowances, now),
    )


def gpu_type_for(
    row: GpuTypeRow, kind: GpuType, books: Board, user: str, groups: Sequence[str], hours: float = 1.0
) -> dict[str, Any]:
    """As ``gpu_type``, for one person: of a type that is closed to them nothing is free."""
    shown, closed = gpu_type(row, kind, books, user, hours), maintenance.shown(row, user, groups)
    return shown | {"maintenance": closed} | ({"free": 0} if closed else {})


def gpu_type(row: GpuTypeRow, kind: GpuType, books: Board, user: str, hours: float = 1.0) -> dict[str, Any]:
    """One GPU type: the picture of its nodes, and for each size whether it starts now, or when."""
    nodes = availability.nodes_of([row])
    cells = [{"name": node.name, "cells": _cells(node, books, user)} for node in nodes]
    every = "".join(node["cells"] for node in cells)
    return {
        "gpu_type": kind.name,
        "is_cpu": kind.is_cpu,
        "gpu_memory_gb": kind.gpu_memory_gb,
        "per_node": kind.units_per_node,
        "multinode": kind.multinode,
        "description": kind.description,
        "total": len(every) - every.count(DOWN),
        "free": every.count(FREE),
        "promised": every.count(PROMISED),
        "down": every.count(DOWN),
        "queued": len(books.waiting_for(kind.name)),
        "nodes": cells,
        "counts": [_size(kind, count, books, hours) for count in kind.counts],
    }


def disk(row: DiskRow, mine: Iterable[ReservationRow]) -> dict[str, Any]:
    holder = next((r for r in mine if r.disk_name == row.disk_name), None)
    return {
        "name": row.disk_name,
        "size_gb": row.size_gb,
        "last_used": row.last_used,
        "snapshots": row.snapshot_count,
        "in_use_by": {
            "reservation_id": holder.reservation_id,
            "name": holder.name,
            "until": holder.expires_at,
        }
        if holder
        else None,
    }


def _cells(node: Node, books: Board, user: str) -> str:
    """One letter for each unit. Of those that are idle the first ones are free, the others promised."""
    if not node.is_usable:
        return DOWN * node.units
    cells = [OTHERS if unit in node.foreign else FREE for unit in range(node.units)]
    for holding in books.holdings_of(node.gpu_type):
        for share in holding.placement.shares:
            if share.node == node.name:
                for unit in {*share.units} & {*range(node.units)}:
                    cells[unit] = MINE if holding.user == user else OTHERS
    free, _ = books.idle(node)
    for unit, cell in enumerate(cells):
        if cell == FREE:
            cells[unit] = FREE if free > 0 else PROMISED
            free -= 1
    return "".join(cells)


def _size(kind: GpuType, count: int, books: Board, hours: float) -> dict[str, Any]:
    asked = books.ask(Request(kind.name, count, hours))
    starts_now = asked.at is not None and asked.at <= books.now
    return {
        "count": count,
        "nodes": max(1, -(-count // max(1, kind.gpus_per_node))),
        "possible": asked.at is not None,
        "starts_now": starts_now,
        "now_for_hours": None if starts_now else _now_for(kind, count, books, hours),
        "about": asked.expected,
        "no_later_than": asked.at,
        "on": list(asked.nodes),
        "reason": asked.reason.as_json() if asked.reason else None,
    }


def _now_for(kind: GpuType, count: int, books: Board, hours: float) -> float | None:
    """The most hours, of the usual ones, for which it would start now: before what is promised begins."""
    if not books.waiting_for(kind.name):
        return None
    shorter = (less for less in SHORTER_HOURS if less < hours)
    return next((h for h in shorter if books.starts_now(Request(kind.name, count, h))), None)
