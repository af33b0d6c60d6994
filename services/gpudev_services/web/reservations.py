"""One reservation: its page, its state once and live, and the way to end it."""

from __future__ import annotations

import json
from typing import Any

from sqlalchemy.orm import Session
from tornado import web

from gpudev_core import reservations, views
from gpudev_core.tables import ReservationRow
from gpudev_services.web.base import Handler, StreamHandler

ID = r"([A-Za-z0-9_-]{1,64})"


class ReservationHandler(Handler):
    @web.authenticated
    async def get(self, reservation_id: str) -> None:
        state = await self.in_thread(reservation_state, self, reservation_id)
        here = f"{self.context.prefix}reservations/{reservation_id}"
        urls = {"feed_url": here + "/events", "state_url": here + "/state", "end_url": here + "/end"}
        xsrf = self.xsrf_token.decode("ascii")
        self.finish(self.template("reservation.html", state=state, xsrf=xsrf, **urls))


class ReservationStateHandler(Handler):
    @web.authenticated
    async def get(self, reservation_id: str) -> None:
        state = await self.in_thread(reservation_state, self, reservation_id)
        self.set_header("Content-Type", "application/json")
        self.finish(json.dumps(state))


class ReservationEventsHandler(StreamHandler):
    @web.authenticated
    async def get(self, reservation_id: str) -> None:
        # Asked once before the stream begins, so that a foreign id is a plain 404.
        await self.in_thread(reservation_state, self, reservation_id)
        await self.stream(lambda: self.in_thread(reservation_state, self, reservation_id))


class ReservationEndHandler(Handler):
    @web.authenticated
    async def post(self, reservation_id: str) -> None:
        await self.in_thread(end, self, reservation_id)
        if self._wants_page():
            self.redirect(f"{self.context.prefix}reservations/{reservation_id}", status=303)
            return
        self.set_header("Content-Type", "application/json")
        self.finish(json.dumps(await self.in_thread(reservation_state, self, reservation_id)))


def find_reservation(handler: Handler, session: Session, reservation_id: str) -> ReservationRow:
    return reservations.find(session, reservation_id, user=handler.user_name, is_admin=handler.is_admin)


def reservation_state(handler: Handler, reservation_id: str) -> dict[str, Any]:
    with handler.portal.store.read() as session:
        row = find_reservation(handler, session, reservation_id)
        events = reservations.events_of(session, reservation_id)
        waiting = reservations.waiting_by_type(session)
    length = waiting.get(row.gpu_type, 0)
    return {
        "now": views.iso(handler.context.clock()),
        "reservation": views.reservation(row, queue_length=length, lab_url=row.jupyter_url or ""),
        "events": [views.event(event) for event in events],
        "simulated": handler.portal.simulated,
        "is_owner": row.user_id == handler.user_name,
    }


def end(handler: Handler, reservation_id: str) -> None:
    with handler.portal.store.write() as session:
        row = find_reservation(handler, session, reservation_id)
        reservations.end(
            session, row, now=handler.context.clock(), actor=handler.user_name, reason="asked_for"
        )


default_handlers = [
    (rf"reservations/{ID}", ReservationHandler),
    (rf"reservations/{ID}/state", ReservationStateHandler),
    (rf"reservations/{ID}/events", ReservationEventsHandler),
    (rf"reservations/{ID}/end", ReservationEndHandler),
]
