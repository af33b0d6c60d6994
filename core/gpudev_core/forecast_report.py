"""How forecasts came true, over the requests that had to wait.

A start is ``preparing_at``: GPUs were given. A promise is the earliest ``no_later_than`` that the person was
told, or that was told since it was moved. Promises are made to the second and kept to the second: a start
within the promised one keeps it, a start in the next one has broken it. The answer "now" stands beside every
figure, because in a calm queue it is often right as well.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import groupby

from sqlalchemy import select
from sqlalchemy.orm import Session

from gpudev_core.figures import Share, Spread
from gpudev_core.models import OPEN, Status
from gpudev_core.tables import ForecastRow, ReservationEventRow, ReservationRow

NEAR = timedelta(minutes=10)
NEAR_PART = 0.2
SOON = timedelta(minutes=15)
MOVED = "promise_moved"
EDGES = (-60, -30, -10, 10, 30, 60)
"""Minutes between the bars of the histogram; the middle one is "within 10 minutes"."""


@dataclass(frozen=True)
class Forecast:
    """What was told at ``at``."""

    at: datetime
    expected_start: datetime | None = None
    expected_from: datetime | None = None
    expected_until: datetime | None = None
    no_later_than: datetime | None = None


@dataclass(frozen=True)
class Told:
    """One request that had to wait, what it was told while it waited, and what came."""

    gpu_type: str
    created_at: datetime
    forecasts: tuple[Forecast, ...]
    started_at: datetime | None = None
    waited_until: datetime | None = None
    """Of one that has not started: when it left the queue, or now."""
    moved_at: datetime | None = None
    """When it was told, last, that its promise cannot be kept, and why."""
    promise: datetime | None = None
    """The last one, which may never have been part of a forecast."""


@dataclass(frozen=True)
class Promises:
    """``given`` is the sum of the others."""

    given: int = 0
    kept: int = 0
    moved: int = 0
    """Not kept, and the person was told why and what holds instead, and that was kept."""
    broken: int = 0
    """Not kept, and nobody said so. This must be 0."""
    undecided: int = 0
    """Still waiting, or left the queue before the promised time."""


@dataclass(frozen=True)
class Figures:
    """Of one GPU type, or of all. Shares are of those that started, by their first forecast."""

    name: str
    waited: int
    started: int
    promises: Promises
    within_10_min: Share
    within_20_percent: Share
    """Within 10 minutes or a fifth of the wait, whichever is more."""
    when_soon: Share
    """Within 10 minutes of the first forecast that said "in 15 minutes or less"."""
    in_interval: Share
    """Started within the interval in which four of five should."""
    now_is_right: Share
    """Waits of 10 minutes or less: how often the answer "now" would have been right."""
    wait_s: Spread
    histogram: tuple[int, ...]
    """How many started how much later than first told, between ``EDGES``; negative is earlier."""


@dataclass(frozen=True)
class Report:
    types: Sequence[Figures]
    total: Figures

    @property
    def is_empty(self) -> bool:
        return self.total.waited == 0


def report(rows: Iterable[Told]) -> Report:
    found = [row for row in rows if row.forecasts]
    names = sorted({row.gpu_type for row in found})
    types = [_figures(name, [row for row in found if row.gpu_type == name]) for name in names]
    return Report(tuple(types), _figures("", found))


def told(session: Session, since: datetime, now: datetime, gpu_type: str | None = None) -> list[Told]:
    """Every request that was filed since then and was told a forecast before it started.

    A request that was changed and so lost its place counts from then on: what it was told before is no
    promise any more.
    """
    row, forecast = ReservationRow, ForecastRow
    request = (row.reservation_id, row.gpu_type, row.created_at, row.preparing_at, row.status)
    said = (forecast.at, forecast.expected_start, forecast.expected_from, forecast.expected_until)
    query = (
        select(*request, row.reservation_ended, row.no_later_than, *said, forecast.no_later_than)
        .join(forecast, forecast.reservation_id == row.reservation_id)
        .where(row.created_at >= since, row.created_at < now, forecast.at >= row.created_at)
        .order_by(row.created_at, row.reservation_id, forecast.forecast_id)
    )
    if gpu_type is not None:
        query = query.where(row.gpu_type == gpu_type)
    moved = _moved(session, since)
    found = []
    for (key, *of), lines in groupby(session.execute(query), key=lambda line: tuple(line[:7])):
        forecasts = [Forecast(*line[7:]) for line in lines]
        found.append(_told(*of, forecasts=forecasts, moved_at=moved.get(key), now=now))
    return [row for row in found if row.forecasts]


def _moved(session: Session, since: datetime) -> Mapping[str, datetime]:
    """When the promises that were moved were moved last."""
    event = ReservationEventRow
    query = select(event.reservation_id, event.at).where(event.event == MOVED, event.at >= since)
    found = session.execute(query.order_by(event.event_id)).all()
    return {line[0]: line[1] for line in found}


def _told(
    gpu_type: str,
    created_at: datetime,
    start: datetime | None,
    status: str,
    ended_at: datetime | None,
    promise: datetime | None,
    *,
    forecasts: Iterable[Forecast],
    moved_at: datetime | None,
    now: datetime,
) -> Told:
    while_waiting = tuple(told for told in forecasts if start is None or told.at < start)
    left = now if Status(status) in OPEN else ended_at
    return Told(gpu_type, created_at, while_waiting, start, None if start else left, moved_at, promise)


def _figures(name: str, rows: Sequence[Told]) -> Figures:
    started = [(row, row.started_at) for row in rows if row.started_at is not None]
    waits = [start - row.created_at for row, start in started]
    first = [(row, start, told) for row, start in started if (told := _first(row)) is not None]
    errors = [start - told for _, start, told in first]
    return Figures(
        name=name,
        waited=len(rows),
        started=len(started),
        promises=_promises(rows),
        within_10_min=Share.where(abs(error) <= NEAR for error in errors),
        within_20_percent=Share.where(
            abs(start - told) <= max(NEAR, NEAR_PART * (start - row.created_at)) for row, start, told in first
        ),
        when_soon=Share.where(
            abs(start - soon) <= NEAR for row, start in started if (soon := _first_soon(row)) is not None
        ),
        in_interval=Share.where(
            low <= start <= high for row, start in started for low, high in _first_interval(row)
        ),
        now_is_right=Share.where(wait <= NEAR for wait in waits),
        wait_s=Spread.of(wait.total_seconds() for wait in waits),
        histogram=histogram(errors),
    )


def histogram(errors: Iterable[timedelta]) -> tuple[int, ...]:
    """Both ends of the middle bar belong to it, so that it is exactly "within 10 minutes"."""
    counts = [0] * (len(EDGES) + 1)
    for error in errors:
        minutes = error / timedelta(minutes=1)
        counts[sum(minutes > edge if edge > 0 else minutes >= edge for edge in EDGES)] += 1
    return tuple(counts)


def _promises(rows: Iterable[Told]) -> Promises:
    verdicts = [verdict for row in rows if (verdict := _verdict(row))]
    counts: Mapping[str, int] = {name: verdicts.count(name) for name in _VERDICTS}
    return Promises(given=len(verdicts), **counts)


_VERDICTS = ("kept", "moved", "broken", "undecided")


def _verdict(row: Told) -> str:
    """What became of the promise; empty where none was given. One that was moved is a promise as well."""
    promises = [(told.at, told.no_later_than) for told in row.forecasts if told.no_later_than is not None]
    in_force = [promise for at, promise in promises if row.moved_at is None or at >= row.moved_at]
    in_force += [row.promise] if row.promise else []
    ever = [*in_force, *(promise for _, promise in promises)]
    if not ever:
        return ""
    end = row.started_at or row.waited_until
    if end is not None and in_force and _is_after(end, min(in_force)):
        return "broken"
    if end is not None and _is_after(end, min(ever)):
        return "moved"
    return "kept" if row.started_at else "undecided"


def _is_after(end: datetime, promise: datetime) -> bool:
    return end.replace(microsecond=0) > promise


def _first(row: Told) -> datetime | None:
    return next((told.expected_start for told in row.forecasts if told.expected_start), None)


def _first_soon(row: Told) -> datetime | None:
    soon = (t.expected_start for t in row.forecasts if t.expected_start and t.expected_start - t.at <= SOON)
    return next(soon, None)


def _first_interval(row: Told) -> Iterable[tuple[datetime, datetime]]:
    """None or one."""
    found = [
        (t.expected_from, t.expected_until) for t in row.forecasts if t.expected_from and t.expected_until
    ]
    return [(low, high) for low, high in found[:1] if low is not None and high is not None]
