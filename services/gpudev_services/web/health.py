"""Is the web service well? Open to everybody, so it says no more than that."""

from __future__ import annotations

import json
from datetime import datetime

from sqlalchemy.exc import SQLAlchemyError

from gpudev_core import availability, views
from gpudev_core.store import Store
from gpudev_services.web.base import Handler


class HealthHandler(Handler):
    """Always 200: whoever watches reads the body. ``queue`` is well while a controller is at work."""

    async def get(self) -> None:
        database, queue = await self.in_thread(look, self.portal.store, self.context.clock())
        self.set_header("Content-Type", "application/json")
        self.finish(
            json.dumps(
                {
                    "status": _word(database and queue),
                    "database": _word(database),
                    "queue": _word(queue),
                    "timestamp": views.iso(self.context.clock()),
                }
            )
        )


def look(store: Store, now: datetime) -> tuple[bool, bool]:
    """Whether the database answers, and whether a controller is at work."""
    try:
        with store.read() as session:
            types = availability.offered(session)
    except SQLAlchemyError:
        return False, False
    return True, bool(types) and not any(availability.is_stale(row, now) for row in types)


def _word(well: bool) -> str:
    return "healthy" if well else "unhealthy"


default_handlers = [(r"health", HealthHandler)]
