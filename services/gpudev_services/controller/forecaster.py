"""When waiting people will probably start, found beside the rounds: a guess must never delay a start.

A round leaves the book of each type whose queue changed; one thread takes the latest, asks ``outlook``, and
writes what is news. Each forecast that a person was told is logged, to be compared with what came true.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta

from sqlalchemy import select
from sqlalchemy.orm import Session

from gpudev_core import learning, outlook, reservations
from gpudev_core.models import Status
from gpudev_core.outlook import Book, Expected
from gpudev_core.planner import Allowances
from gpudev_core.portal import Portal
from gpudev_core.tables import ForecastRow, ReservationRow
from gpudev_services.controller.queue import Queue
from gpudev_services.controller.writes import minutes_until

log = logging.getLogger("gpudev.forecaster")

MOVES_BY = timedelta(minutes=2)
"""A forecast that moves by less is not news."""
OVERTAKEN_AFTER = timedelta(minutes=1)
"""One whose time has passed is made anew, so often."""


class Forecaster:
    def __init__(
        self, portal: Portal, guard: Callable[[Session], None], clock: Callable[[], datetime]
    ) -> None:
        self._portal = portal
        self._guard = guard
        self._clock = clock
        self._allowances = Allowances.of(portal.settings)
        self._books: dict[str, Book] = {}
        self._made_at: dict[str, datetime] = {}
        self._told: dict[str, tuple[datetime | None, datetime | None]] = {}
        self._changed = threading.Condition()
        self._busy = self._closing = False
        self._thread = threading.Thread(target=self._run, name="forecaster", daemon=True)
        self._thread.start()

    def submit(self, queue: Queue, rows: Sequence[ReservationRow], now: datetime) -> None:
        """The queue was planned anew: forecast every type in which somebody waits."""
        holdings = reservations.holdings(rows)
        waiting = {row.reservation_id: row.gpu_type for row in rows if Status(row.status).is_waiting}
        planners = [queue.planner(name) for name in queue.known(waiting.values())]
        books = {one.gpu_type.name: learning.book(one, holdings, now) for one in planners}
        self._made_at |= dict.fromkeys(books, now)
        with self._changed:
            self._told = {key: told for key, told in self._told.items() if key in waiting}
            self._books |= books
            self._changed.notify_all()

    def is_overtaken(self, rows: Iterable[ReservationRow], now: datetime) -> bool:
        """Somebody still waits past what was told."""
        return any(
            row.expected_start is not None
            and row.expected_start < now
            and now - self._made_at.get(row.gpu_type, row.created_at) >= OVERTAKEN_AFTER
            for row in rows
            if Status(row.status).is_waiting
        )

    def wait(self) -> None:
        """Until everything that was submitted is written."""
        with self._changed:
            self._changed.wait_for(lambda: not self._books and not self._busy)

    def close(self) -> None:
        with self._changed:
            self._closing = True
            self._changed.notify_all()
        self._thread.join()

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._books or self._closing)
                if self._closing:
                    return
                name, book = self._books.popitem()
                self._busy = True
            try:
                self._forecast(name, book)
            except Exception:
                log.exception("no forecast for %s this time; promises are not touched by it", name)
            finally:
                with self._changed:
                    self._busy = False
                    self._changed.notify_all()

    def _forecast(self, name: str, book: Book) -> None:
        at = _time(book.now)
        with self._portal.store.read() as session:
            lives = learning.lives(session, name, self._allowances, at)
            arrivals = learning.arrivals(session, self._portal.catalogue[name], self._allowances, at)
            outcomes = learning.outcomes(session, name, at)
        found = outlook.expect(book, lives, arrivals, outcomes, seed=book.now)
        if found:
            with self._portal.store.write() as session:
                self._guard(session)
                self._write(session, found)

    def _write(self, session: Session, found: Mapping[str, Expected]) -> None:
        now = self._clock()
        query = select(ReservationRow).where(
            ReservationRow.reservation_id.in_(list(found)), ReservationRow.status == Status.QUEUED.value
        )
        rows = session.scalars(query.with_for_update()).all()
        for row in rows:
            what = found[row.reservation_id]
            expected = _bounded(_time(what.start), row)
            if self._is_news(row, expected):
                row.expected_start = expected
                row.estimated_wait_minutes = minutes_until(expected, now)
                session.add(_logged(row, what, len(rows), now))
                self._told[row.reservation_id] = (expected, row.no_later_than)

    def _is_news(self, row: ReservationRow, expected: datetime) -> bool:
        """Also when the plan, moved earlier, took the time that is shown with it."""
        told = self._told.get(row.reservation_id)
        if told is None or told != (row.expected_start, row.no_later_than) or told[0] is None:
            return True
        return abs(expected - told[0]) >= MOVES_BY


def _bounded(expected: datetime, row: ReservationRow) -> datetime:
    """The plan may have moved since the book was taken; nobody is told a time after the promise."""
    return min(at for at in (expected, row.planned_start, row.no_later_than) if at is not None)


def _logged(row: ReservationRow, what: Expected, queue_length: int, now: datetime) -> ForecastRow:
    return ForecastRow(
        reservation_id=row.reservation_id,
        at=now,
        position=row.queue_position or 0,
        queue_length=queue_length,
        planned_start=row.planned_start,
        no_later_than=row.no_later_than,
        expected_start=row.expected_start,
        expected_from=min(_time(what.low), row.expected_start or _time(what.low)),
        expected_until=_time(what.high),
        method=what.method,
    )


def _time(seconds: int) -> datetime:
    return datetime.fromtimestamp(seconds, UTC)
