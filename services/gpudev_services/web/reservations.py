"""One reservation: its page, its state once and live, and the ways to end, extend and change it."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

from sqlalchemy.orm import Session
from tornado import web

from gpudev_core import change, extension, notices, requests, reservations, views
from gpudev_core.errors import Refused
from gpudev_core.models import Request, Status
from gpudev_core.tables import ReservationRow
from gpudev_services.web.base import Handler, StreamHandler, refusal

ID = r"([A-Za-z0-9_-]{1,64})"


class ReservationHandler(Handler):
    @web.authenticated
    async def get(self, reservation_id: str) -> None:
        await self.show(reservation_id)

    async def show(self, reservation_id: str, refused: dict[str, Any] | None = None) -> None:
        """``refused``: what was asked for on this page and is not possible, and where it was asked."""
        state = await self.in_thread(reservation_state, self, reservation_id)
        here = self.page_of(reservation_id)
        urls = {f"{name}_url": f"{here}/{name}" for name in ("events", "state", "end", "extend", "change")}
        xsrf = self.xsrf_token.decode("ascii")
        self.finish(self.template("reservation.html", state=state, xsrf=xsrf, refused=refused, **urls))

    def page_of(self, reservation_id: str) -> str:
        return f"{self.context.prefix}reservations/{reservation_id}"


class ReservationStateHandler(Handler):
    @web.authenticated
    async def get(self, reservation_id: str) -> None:
        state = await self.in_thread(reservation_state, self, reservation_id)
        self.answer(state)


class ReservationEventsHandler(StreamHandler):
    @web.authenticated
    async def get(self, reservation_id: str) -> None:
        # Asked once before the stream begins, so that a foreign id is a plain 404.
        await self.in_thread(reservation_state, self, reservation_id)
        await self.stream(lambda: self.in_thread(reservation_state, self, reservation_id))


class ReservationWishHandler(ReservationHandler):
    """A wish, from the page's own form or from a program: each is answered in its own way."""

    where = ""
    """The part of the page that shows a refusal; empty: none of it asks for anything that is refused."""

    def wish(self, reservation_id: str) -> None:
        raise NotImplementedError

    @web.authenticated
    async def get(self, reservation_id: str) -> None:
        """The page of a refused form has this address; loading it again must not ask again."""
        self.redirect(self.page_of(reservation_id), status=303)

    @web.authenticated
    async def post(self, reservation_id: str) -> None:
        try:
            await self.in_thread(self.wish, reservation_id)
        except Refused as error:
            if not (self.where and self._wants_page()):
                raise
            self.set_status(400)
            told = {"where": self.where, "detail": error.message, "reason": error.reason}
            await self.show(reservation_id, told | refusal(error))
            return
        if self._wants_page():
            self.redirect(self.page_of(reservation_id), status=303)
            return
        self.answer(await self.in_thread(reservation_state, self, reservation_id))


def find_reservation(handler: Handler, session: Session, reservation_id: str) -> ReservationRow:
    return reservations.find(session, reservation_id, user=handler.user_name, is_admin=handler.is_admin)


def reservation_state(handler: Handler, reservation_id: str) -> dict[str, Any]:
    now = handler.context.clock()
    with handler.portal.store.read() as session:
        row = find_reservation(handler, session, reservation_id)
        events = reservations.events_of(session, reservation_id)
        waiting = reservations.waiting_by_type(session)
        told = [views.notice(notice) for notice in notices.of(session, reservation_id, now)]
        more = {"sooner": _sooner(handler, session, row), "extension": _room(handler, session, row)}
    length = waiting.get(row.gpu_type, 0)
    return {
        "now": views.iso(now),
        "reservation": views.reservation(row, queue_length=length, lab_url=row.jupyter_url or ""),
        "events": [views.event(event) for event in events],
        "notices": told,
        "simulated": handler.portal.simulated,
        "is_owner": row.user_id == handler.user_name,
        **more,
    }


def _sooner(handler: Handler, session: Session, row: ReservationRow) -> list[dict[str, Any]]:
    """What would start now instead, and whether the place in the queue is kept with it."""
    if row.status != Status.QUEUED:
        return []
    old, now = Request(**row.request), handler.context.clock()
    found = change.alternatives(handler.portal, session, row, _groups_for(handler, row), now)
    return [
        {
            "gpu_type": new.gpu_type,
            "gpu_count": new.gpu_count,
            "hours": new.hours,
            "per_node": handler.portal.catalogue[new.gpu_type].gpus_per_node,
            "starts_now": True,
            "keeps_place": change.keeps_place(old, new),
        }
        for new in found
    ]


def _groups_for(handler: Handler, row: ReservationRow) -> tuple[str, ...]:
    return handler.groups if row.user_id == handler.user_name else tuple(row.groups or ())


def _room(handler: Handler, session: Session, row: ReservationRow) -> dict[str, Any] | None:
    """How far it could be extended. None: not at all now."""
    if row.gpu_type not in handler.portal.catalogue:
        return None
    room = extension.room(handler.portal, session, row, handler.context.clock())
    if room is None or row.expires_at is None:
        return None
    choices = later_ends(row.expires_at, room.until)
    return views.plain({"until": room.until, "bound": room.bound.as_json(), "choices": choices})


def later_ends(end: datetime, latest: datetime) -> list[dict[str, Any]]:
    """The ends to choose from: a few round ones and the longest, whose ``hours`` are None."""
    ends = [(end + timedelta(hours=hours), hours) for hours in (1, 2, 4)]
    found = [{"until": at, "hours": hours} for at, hours in ends if latest - at >= extension.LEAST]
    return [*found, {"until": latest, "hours": None}] if latest - end >= extension.LEAST else []


class ReservationEndHandler(ReservationWishHandler):
    def wish(self, reservation_id: str) -> None:
        with self.portal.store.write() as session:
            row = find_reservation(self, session, reservation_id)
            reservations.end(session, row, now=self.context.clock(), actor=self.user_name, reason="asked_for")


class ReservationExtendHandler(ReservationWishHandler):
    where = "extend"

    def wish(self, reservation_id: str) -> None:
        now = self.context.clock()
        with self.portal.store.read() as session:
            row = find_reservation(self, session, reservation_id)
        until = requests.later_end(self.given(), row.expires_at or now)
        extension.extend(
            self.portal, reservation_id, until, user=self.user_name, is_admin=self.is_admin, now=now
        )


class ReservationChangeHandler(ReservationWishHandler):
    where = "change"

    def wish(self, reservation_id: str) -> None:
        portal = self.portal
        with portal.store.read() as session:
            row = find_reservation(self, session, reservation_id)
        options = requests.changed_options(self.given(), Request(**row.request))
        change.change(
            portal,
            reservation_id,
            requests.from_user_options(options, portal.catalogue, portal.settings.images),
            user=self.user_name,
            is_admin=self.is_admin,
            groups=self.groups,
            now=self.context.clock(),
        )


default_handlers = [
    (rf"reservations/{ID}", ReservationHandler),
    (rf"reservations/{ID}/state", ReservationStateHandler),
    (rf"reservations/{ID}/events", ReservationEventsHandler),
    (rf"reservations/{ID}/end", ReservationEndHandler),
    (rf"reservations/{ID}/extend", ReservationExtendHandler),
    (rf"reservations/{ID}/change", ReservationChangeHandler),
]
