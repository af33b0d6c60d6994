"""The home page: what is free, and my reservations."""

from __future__ import annotations

import json
from typing import Any

from tornado import web

from gpudev_core import notices, reservations, views
from gpudev_core.models import OPEN, Status
from gpudev_services.web.base import Handler, StreamHandler

MOST_SHOWN = 30


class HomeHandler(Handler):
    @web.authenticated
    async def get(self) -> None:
        state = await self.in_thread(home_state, self)
        prefix = self.context.prefix
        urls = {"feed_url": prefix + "events", "state_url": prefix + "state"}
        self.finish(self.template("home.html", state=state, **urls))


class HomeStateHandler(Handler):
    @web.authenticated
    async def get(self) -> None:
        self.set_header("Content-Type", "application/json")
        self.finish(json.dumps(await self.in_thread(home_state, self)))


class HomeEventsHandler(StreamHandler):
    @web.authenticated
    async def get(self) -> None:
        await self.stream(lambda: self.in_thread(home_state, self))


def home_state(handler: Handler) -> dict[str, Any]:
    portal, user, now = handler.portal, handler.user_name, handler.context.clock()
    with portal.store.read() as session:
        state = views.form(session, portal.settings, portal.catalogue, user, now, handler.groups)
        rows = reservations.recent_of(session, user, MOST_SHOWN)
        waiting = reservations.waiting_by_type(session)
        told = {
            row.reservation_id: [views.notice(one) for one in notices.of(session, row.reservation_id, now)]
            for row in rows
            if Status(row.status) in OPEN
        }
    shown = [
        views.reservation(row, queue_length=waiting.get(row.gpu_type, 0), lab_url=row.jupyter_url or "")
        | {"notices": told.get(row.reservation_id, [])}
        for row in rows
    ]
    kept = ("now", "user", "as_of", "stale", "types", "quota")
    return {key: state[key] for key in kept} | {"reservations": shown, "simulated": portal.simulated}


default_handlers = [
    (r"", HomeHandler),
    (r"state", HomeStateHandler),
    (r"events", HomeEventsHandler),
]
