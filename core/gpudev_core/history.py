"""What people had over a period: how many, how long, how long they waited, how it ended.

A reservation belongs to the period in which it was filed; so counts, outcomes and waits add up. GPU-hours are
the one exception: they are counted when they were had, also those of a reservation that was filed earlier.
The database picks the rows; the sums are made here, because percentiles and lists of groups are not the same
on both databases.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import StrEnum

from sqlalchemy import and_, or_, select
from sqlalchemy.orm import Session

from gpudev_core.figures import Spread
from gpudev_core.models import Status
from gpudev_core.tables import ReservationRow

EARLY = timedelta(minutes=1)
"""Less than this before its time is not early: the end itself takes a moment."""


class By(StrEnum):
    USER = "user"
    GROUP = "group"
    TYPE = "type"


@dataclass(frozen=True)
class Past:
    """What of a reservation history is made of."""

    user: str
    groups: tuple[str, ...]
    gpu_type: str
    gpu_count: int
    status: Status
    hours_filed: float
    hours_asked: float
    """With extensions."""
    created_at: datetime
    launched_at: datetime | None = None
    ended_at: datetime | None = None


@dataclass(frozen=True)
class Line:
    """One user, group or type; or all. Hours are of reservations, GPU-hours of their GPUs."""

    name: str
    reservations: int
    gpu_hours: float
    outcomes: Mapping[str, int]
    """By the status that they have now."""
    ended: int
    """Those that ran and have ended: the next five are about them."""
    hours_asked: float
    hours_had: float
    early_ends: int
    """Ended by a person before their time."""
    hours_given_back: float
    gpu_hours_given_back: float
    extension_hours: float
    wait_s: Spread
    """From filing to working, in seconds, of those that came to work."""

    @property
    def early_share(self) -> float | None:
        return self.early_ends / self.ended if self.ended else None


@dataclass(frozen=True)
class History:
    since: datetime
    until: datetime
    by: By
    lines: Sequence[Line] = field(default_factory=tuple)
    """Most GPU-hours first."""
    total: Line = field(kw_only=True)
    """Everybody once, also who is in two groups."""


def history(session: Session, by: By, since: datetime, until: datetime, now: datetime) -> History:
    """Over ``[since, until)``. What runs now counts up to ``now``."""
    return summary(past(session, since, until), by, since, until, now)


def past(session: Session, since: datetime, until: datetime) -> list[Past]:
    """What was filed in the period, and what ran in it."""
    row = ReservationRow
    ran = and_(
        row.launched_at.is_not(None),
        row.launched_at < until,
        or_(row.reservation_ended.is_(None), row.reservation_ended > since),
    )
    query = select(
        row.user_id,
        row.groups,
        row.gpu_type,
        row.gpu_count,
        row.status,
        row.request,
        row.duration_hours,
        row.created_at,
        row.launched_at,
        row.reservation_ended,
    ).where(or_(and_(row.created_at >= since, row.created_at < until), ran))
    return [
        Past(user, tuple(groups or ()), kind, gpus, Status(status), asked.get("hours", hours), hours, *times)
        for user, groups, kind, gpus, status, asked, hours, *times in session.execute(query)
    ]


def summary(rows: Iterable[Past], by: By, since: datetime, until: datetime, now: datetime) -> History:
    found = list(rows)
    lists: dict[str, list[Past]] = defaultdict(list)
    for row in found:
        for name in _NAMES[by](row):
            lists[name].append(row)
    lines = [_line(name, of_name, since, until, now) for name, of_name in lists.items()]
    lines.sort(key=lambda line: (-line.gpu_hours, -line.reservations, line.name))
    return History(since, until, by, tuple(lines), total=_line("", found, since, until, now))


_NAMES: Mapping[By, Callable[[Past], Iterable[str]]] = {
    By.USER: lambda row: (row.user,),
    By.GROUP: lambda row: sorted(set(row.groups)) or ("",),
    By.TYPE: lambda row: (row.gpu_type,),
}


def _line(name: str, rows: Sequence[Past], since: datetime, until: datetime, now: datetime) -> Line:
    filed = [row for row in rows if since <= row.created_at < until]
    ended = [row for row in filed if row.launched_at and row.ended_at]
    early = [row for row in ended if row.status is Status.CANCELLED and _unused(row) > EARLY]
    return Line(
        name=name,
        reservations=len(filed),
        gpu_hours=sum(_hours(_had(row, since, min(until, now))) * row.gpu_count for row in rows),
        outcomes=Counter(row.status.value for row in filed),
        ended=len(ended),
        hours_asked=sum(row.hours_asked for row in ended),
        hours_had=sum(_hours(_had(row)) for row in ended),
        early_ends=len(early),
        hours_given_back=sum(_hours(_unused(row)) for row in early),
        gpu_hours_given_back=sum(_hours(_unused(row)) * row.gpu_count for row in early),
        extension_hours=sum(max(0.0, row.hours_asked - row.hours_filed) for row in filed),
        wait_s=Spread.of(
            (row.launched_at - row.created_at).total_seconds() for row in filed if row.launched_at
        ),
    )


def _had(row: Past, since: datetime | None = None, until: datetime | None = None) -> timedelta:
    """The time that was really had, between the two. A start that failed had none."""
    if row.launched_at is None:
        return timedelta()
    begin = max(row.launched_at, since) if since else row.launched_at
    ends = [at for at in (row.ended_at, until) if at is not None]
    return max(timedelta(), min(ends) - begin) if ends else timedelta()


def _unused(row: Past) -> timedelta:
    return timedelta(hours=row.hours_asked) - _had(row)


def _hours(time: timedelta) -> float:
    return time.total_seconds() / 3600
