"""Rows as JSON for pages, API and widgets: state, figures, reason codes. Who shows them writes the words."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from sqlalchemy.orm import Session

from gpudev_core import availability, forecast, quotas, reservations
from gpudev_core.catalogue import Catalogue
from gpudev_core.forecast import Allowances
from gpudev_core.models import GpuType, Holding, Node, Request, Status, Waiting
from gpudev_core.settings import Settings
from gpudev_core.tables import DiskRow, GpuTypeRow, ReservationEventRow, ReservationRow

FREE, MINE, OTHERS, DOWN = "f", "m", "o", "d"


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
            "created_at": row.created_at,
            "preparing_at": row.preparing_at,
            "launched_at": row.launched_at,
            "expires_at": row.expires_at,
            "reservation_ended": row.reservation_ended,
            "queue_position": row.queue_position,
            "queue_length": queue_length,
            "expected_start": row.expected_start,
            "reason": row.queue_reason,
            "step": row.current_detailed_status,
            "failure_reason": row.failure_reason,
            "end_reason": row.end_reason,
            "end_actor": row.end_actor,
            "lab_url": lab_url if row.status == Status.ACTIVE and not row.end_wanted else "",
            "request": row.request,
        }
    )


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


def form(
    session: Session, settings: Settings, catalogue: Catalogue, user: str, now: datetime
) -> dict[str, Any]:
    """All that the spawn form shows: what is free, what each size would wait, what the quota leaves."""
    types = [row for row in availability.offered(session) if row.gpu_type in catalogue]
    open_rows = reservations.open_rows(session)
    mine = [row for row in open_rows if row.user_id == user]
    use = reservations.use_of(session, user, mine, settings.limits, now)
    return plain(
        {
            "now": now,
            "user": user,
            "as_of": min(
                (t.last_availability_update for t in types if t.last_availability_update), default=None
            ),
            "stale": any(availability.is_stale(row, now) for row in types),
            "types": [
                gpu_type(row, catalogue[row.gpu_type], open_rows, settings, user, now)
                for row in sorted(types, key=lambda row: list(catalogue).index(row.gpu_type))
            ],
            "quota": quotas.left(settings.limits, use),
            "disks": [disk(row, mine) for row in reservations.disks_of(session, user)],
            "images": list(settings.images),
            "taken_names": sorted(row.server_name for row in mine),
        }
    )


def gpu_type(
    row: GpuTypeRow,
    kind: GpuType,
    open_rows: Sequence[ReservationRow],
    settings: Settings,
    user: str,
    now: datetime,
) -> dict[str, Any]:
    """One GPU type: the picture of its nodes, and for each size whether it starts now, or when."""
    preparation = Allowances.of(settings).preparation
    held = [h for h in reservations.holdings(open_rows, preparation) if h.gpu_type == kind.name]
    queue = [w for w in reservations.waiting(open_rows) if w.request.gpu_type == kind.name]
    nodes = availability.nodes_of([row])
    cells = [{"name": node.name, "cells": _cells(node, held, user)} for node in nodes]
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
        "down": every.count(DOWN),
        "queued": len(queue),
        "nodes": cells,
        "counts": _sizes(kind, nodes, held, queue, settings, now),
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


def _cells(node: Node, held: Iterable[Holding], user: str) -> str:
    if not node.ready:
        return DOWN * node.units
    cells = [OTHERS if unit in node.foreign else FREE for unit in range(node.units)]
    for holding in held:
        for share in holding.placement.shares:
            if share.node == node.name:
                for unit in {*share.units} & {*range(node.units)}:
                    cells[unit] = MINE if holding.user == user else OTHERS
    return "".join(cells)


def _sizes(
    kind: GpuType,
    nodes: Sequence[Node],
    held: Sequence[Holding],
    queue: Sequence[Waiting],
    settings: Settings,
    now: datetime,
) -> list[dict[str, Any]]:
    timeline = forecast.Timeline(kind, nodes, held, now, Allowances.of(settings))
    for request in queue:
        timeline.add(request.request)
    sizes = []
    for count in kind.counts:
        asked = timeline.ask(Request(kind.name, count, 1.0))
        sizes.append(
            {
                "count": count,
                "nodes": max(1, -(-count // max(1, kind.gpus_per_node))),
                "possible": asked.at is not None,
                "starts_now": asked.starts_now(now),
                "about": asked.at,
                "on": list(asked.placement.nodes) if asked.placement else [],
                "reason": asked.reason.as_json() if asked.reason else None,
            }
        )
    return sizes
