"""What the database knows about how long people stay, how often they come, and how forecasts came true."""

from __future__ import annotations

import math
from collections.abc import Iterable
from datetime import datetime

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from gpudev_core.models import GpuType, Holding
from gpudev_core.outlook import (
    MOST_ARRIVALS,
    MOST_ERRORS,
    MOST_LIVES,
    Arrival,
    Book,
    Life,
    Outcome,
)
from gpudev_core.placement import Need
from gpudev_core.planner import Allowances, Planner, rank
from gpudev_core.tables import ForecastRow, ReservationRow


def lives(session: Session, gpu_type: str, allowances: Allowances, now: datetime) -> list[Life]:
    """Sessions that are over, the latest ones."""
    columns = ReservationRow.duration_hours, ReservationRow.preparing_at, ReservationRow.reservation_ended
    query = (
        select(*columns)
        .where(
            ReservationRow.gpu_type == gpu_type,
            ReservationRow.launched_at.is_not(None),
            ReservationRow.reservation_ended <= now,
        )
        .order_by(ReservationRow.reservation_ended.desc())
        .limit(MOST_LIVES)
    )
    return [
        Life(allowances.length(hours), math.ceil((ended - began).total_seconds()), _seconds(ended))
        for hours, began, ended in session.execute(query)
        if began is not None and ended is not None
    ]


def arrivals(session: Session, gpu_type: GpuType, allowances: Allowances, now: datetime) -> list[Arrival]:
    """What was asked for lately."""
    columns = ReservationRow.created_at, ReservationRow.priority, ReservationRow.request
    query = (
        select(*columns)
        .where(ReservationRow.gpu_type == gpu_type.name, ReservationRow.created_at <= now)
        .order_by(ReservationRow.created_at.desc())
        .limit(MOST_ARRIVALS)
    )
    found = []
    for at, priority, request in session.execute(query):
        need = Need.of(gpu_type, request["gpu_count"], allowances.length(float(request["hours"])))
        found.append(Arrival(_seconds(at), need, rank(priority, need)))
    return found


def outcomes(session: Session, gpu_type: str, now: datetime) -> list[Outcome]:
    """The first forecast of each request that has started since, and its start."""
    first = select(func.min(ForecastRow.forecast_id)).group_by(ForecastRow.reservation_id)
    query = (
        select(ForecastRow, ReservationRow.preparing_at)
        .join(ReservationRow, ReservationRow.reservation_id == ForecastRow.reservation_id)
        .where(
            ForecastRow.forecast_id.in_(first),
            ForecastRow.expected_start.is_not(None),
            ReservationRow.gpu_type == gpu_type,
            ReservationRow.preparing_at <= now,
        )
        .order_by(ReservationRow.preparing_at.desc())
        .limit(MOST_ERRORS)
    )
    return [
        Outcome(
            expected=_seconds(row.expected_start),
            low=_seconds(row.expected_from or row.expected_start),
            high=_seconds(row.expected_until or row.expected_start),
            actual=_seconds(started),
            made_at=_seconds(row.at),
        )
        for row, started in session.execute(query)
        if row.expected_start is not None and started is not None
    ]


def book(planner: Planner, holdings: Iterable[Holding], now: datetime) -> Book:
    """The planner's book at this moment, with the real beginnings of those who hold."""
    planner.ledger.set_now(_seconds(now))
    cleanup = planner.allowances.cleanup
    begun = {
        one.reservation_id: (
            _seconds(one.began),
            math.ceil((one.ends_at + cleanup).timestamp()) - _seconds(one.began),
        )
        for one in holdings
        if one.gpu_type == planner.gpu_type.name
    }
    return Book.of(planner.ledger, begun)


def _seconds(at: datetime) -> int:
    return math.floor(at.timestamp())
