"""What programs read: availability and one's own reservations, with a hub token."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any

from tornado import web

from gpudev_core import availability, reservations, views
from gpudev_core.models import HOLDING, Status
from gpudev_core.tables import GpuTypeRow, ReservationRow
from gpudev_services.web.base import Handler

MOST_JOBS = 500


class ApiHandler(Handler):
    """Answers in JSON, and never sends a program to a login page."""

    def get_login_url(self) -> str:
        raise web.HTTPError(401, "A hub token is needed: Authorization: Bearer TOKEN.")


class AvailabilityHandler(ApiHandler):
    @web.authenticated
    async def get(self) -> None:
        self.answer(await self.in_thread(availability_now, self))


class JobsHandler(ApiHandler):
    @web.authenticated
    async def get(self) -> None:
        self.answer(await self.in_thread(own_jobs, self))


def availability_now(handler: Handler) -> dict[str, Any]:
    portal, user, now = handler.portal, handler.user_name, handler.context.clock()
    with portal.store.read() as session:
        types = availability.offered(session)
        rows = reservations.open_rows(session)
        known = [row for row in types if row.gpu_type in portal.catalogue]
        books = views.board(rows, known, portal.settings, portal.catalogue, now, session)
        shown = {
            row.gpu_type: views.gpu_type_for(row, portal.catalogue[row.gpu_type], books, user, handler.groups)
            for row in known
        }
    found = {row.gpu_type: _figures(row, rows, now) | _for_you(shown[row.gpu_type]) for row in known}
    return {"availability": found, "timestamp": views.iso(now)}


def _figures(row: GpuTypeRow, rows: Sequence[ReservationRow], now: datetime) -> dict[str, Any]:
    """As the cluster has it, whoever asks."""
    same = [r for r in rows if r.gpu_type == row.gpu_type]
    return {
        "gpu_type": row.gpu_type,
        "total": row.total_cluster_gpus,
        "available": row.available_gpus,
        "in_use": sum(max(1, r.gpu_count) for r in same if Status(r.status) in HOLDING),
        "queued": sum(max(1, r.gpu_count) for r in same if Status(r.status).is_waiting),
        "max_per_node": row.max_per_node,
        "max_reservable": row.max_reservable,
        "stale": availability.is_stale(row, now),
        "as_of": views.iso(row.last_availability_update),
    }


def _for_you(shown: dict[str, Any]) -> dict[str, Any]:
    """What is left of it for one more person, and when each size would start."""
    sizes = ("count", "nodes", "starts_now", "about", "no_later_than", "reason")
    return views.plain(
        {
            "free_for_you": shown["free"],
            "promised": shown["promised"],
            "down": shown["down"],
            "nodes": shown["nodes"],
            "maintenance": shown["maintenance"],
            "sizes": [{key: size[key] for key in sizes} for size in shown["counts"]],
        }
    )


def own_jobs(handler: Handler) -> dict[str, Any]:
    with handler.portal.store.read() as session:
        rows = reservations.recent_of(session, handler.user_name, MOST_JOBS)
        waiting = reservations.waiting_by_type(session)
    jobs = [
        views.reservation(row, queue_length=waiting.get(row.gpu_type, 0), lab_url=row.jupyter_url or "")
        for row in rows
    ]
    return {"jobs": jobs, "total": len(jobs), "limit": MOST_JOBS, "offset": 0}


default_handlers = [
    (r"v1/gpu/availability", AvailabilityHandler),
    (r"v1/jobs", JobsHandler),
]
