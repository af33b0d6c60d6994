"""Carries what is due to its channels. One thread for each, so that a channel that hangs delays nobody else.

At least once: a delivery is marked when the send has come back, and not before. Whoever dies in between sends
it again; the copies carry the same key.
"""

from __future__ import annotations

import logging
import threading
import time
import traceback
from collections.abc import Callable, Sequence
from datetime import datetime, timedelta

from sqlalchemy.orm import Session

from gpudev_core import notices
from gpudev_core.notices import Errand
from gpudev_core.portal import Portal
from gpudev_core.sessions import Sessions
from gpudev_core.store import Store
from gpudev_services.notify.channel import Channel, Message, SendFailed, Undeliverable
from gpudev_services.notify.feed import Feed
from gpudev_services.notify.mail import Mail
from gpudev_services.notify.terminal import Terminals
from gpudev_services.notify.webhook import Webhook

log = logging.getLogger("gpudev.notify")

LOOK_AT_LEAST_EVERY_S = 5.0


def channels(portal: Portal) -> list[Channel]:
    """Those that the settings set up."""
    notify = portal.settings.notify
    makers: dict[str, Callable[[], Channel]] = {
        notices.FEED: Feed,
        notices.TERMINAL: lambda: Terminals(Sessions(portal.settings.state_dir / "sessions")),
        notices.WEBHOOK: lambda: Webhook(notify.webhook_url_file or portal.settings.state_dir),
        notices.EMAIL: lambda: Mail(notify.email),
    }
    return [makers[name]() for name in notices.channels_of(portal.settings)]


class Postman:
    """``may_send``: whether this process leads. Asked before every message."""

    def __init__(
        self,
        store: Store,
        channels: Sequence[Channel],
        clock: Callable[[], datetime],
        may_send: Callable[[], bool],
    ) -> None:
        self._routes = [Route(store, channel, clock, may_send) for channel in channels]

    def start(self) -> None:
        for route in self._routes:
            route.start()

    def wake(self) -> None:
        """Something may be due. Never waits."""
        for route in self._routes:
            route.wake()

    def once(self) -> None:
        """One pass over every channel, here and now."""
        for route in self._routes:
            route.guarded_pass()

    def close(self, timeout: float) -> None:
        """End all threads. One that hangs in a send is left behind; what it carries is sent again."""
        deadline = time.monotonic() + timeout
        for route in self._routes:
            route.end()
        for route in self._routes:
            route.join(max(0.0, deadline - time.monotonic()))


class Route:
    """One channel and the thread that serves it."""

    def __init__(
        self,
        store: Store,
        channel: Channel,
        clock: Callable[[], datetime],
        may_send: Callable[[], bool],
    ) -> None:
        self._store = store
        self._channel = channel
        self._clock = clock
        self._may_send = may_send
        self._sent: set[int] = set()
        """Sent, not marked yet: while nothing can be written, nobody is sent the same thing each second."""
        self._woken = threading.Event()
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"notify-{channel.name}", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def wake(self) -> None:
        self._woken.set()

    def end(self) -> None:
        self._ending.set()
        self._woken.set()

    def join(self, timeout: float) -> None:
        if self._thread.is_alive():
            self._thread.join(timeout)

    def _run(self) -> None:
        while not self._ending.is_set():
            self.guarded_pass()
            self._woken.wait(LOOK_AT_LEAST_EVERY_S)
            self._woken.clear()

    def guarded_pass(self) -> None:
        """Whatever goes wrong is told and tried again; it never ends the thread."""
        try:
            while not self._ending.is_set() and self._may_send():
                errand = self._next()
                if errand is None:
                    return
                self._carry(errand)
        except Exception as error:
            log.error("%s: a pass failed: %s", self._channel.name, _where(error))

    def _next(self) -> Errand | None:
        """One at a time, read just before it is sent: a minute ago it may still have been true."""
        with self._store.read() as session:
            return next(iter(notices.due(session, self._channel.name, self._clock(), 1)), None)

    def _carry(self, errand: Errand) -> None:
        notice_id, channel, now = errand.notice.notice_id, self._channel.name, self._clock()
        if why := notices.pointless(errand.notice, errand.row, now):
            self._mark(lambda session: notices.dropped(session, notice_id, channel, why))
            return
        try:
            self._send(message_of(errand, now))
        except Undeliverable as error:
            why = str(error)
            log.warning("%s: notice %s is dropped: %s", channel, notice_id, why)
            self._mark(lambda session: notices.dropped(session, notice_id, channel, why))
        except Exception as error:
            self._failed(notice_id, error)
        else:
            self._mark(lambda session: notices.delivered(session, notice_id, channel, self._clock()))
            self._sent.discard(notice_id)

    def _send(self, message: Message) -> None:
        if message.notice_id not in self._sent:
            self._channel.send(message)
            self._sent.add(message.notice_id)

    def _failed(self, notice_id: int, error: Exception) -> None:
        channel = self._channel.name
        if isinstance(error, SendFailed):
            why, shown, wait = str(error), str(error), timedelta(seconds=error.retry_after_s)
        else:
            why, shown, wait = type(error).__name__, _where(error), timedelta(0)
        log.warning("%s: notice %s will be tried again: %s", channel, notice_id, shown)
        self._mark(lambda session: notices.try_later(session, notice_id, channel, self._clock(), why, wait))

    def _mark(self, write: Callable[[Session], None]) -> None:
        with self._store.write() as session:
            write(session)


def message_of(errand: Errand, now: datetime) -> Message:
    notice, row = errand
    return Message(
        notice_id=notice.notice_id,
        reservation_id=row.reservation_id,
        user=notice.user_id,
        name=row.name,
        kind=notice.kind,
        text=notices.words(notice, row, now),
        due_at=notice.due_at,
        at=now,
        detail=dict(notice.detail),
    )


def _where(error: Exception) -> str:
    """The kind of an error nobody foresaw, and where, but not its text: that may hold a secret."""
    return f"{type(error).__name__}\n{''.join(traceback.format_tb(error.__traceback__))}".rstrip()
