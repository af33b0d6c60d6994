"""Forecasts in the running controller: told, logged, refreshed, and never in the way of a start."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest
from sqlalchemy import select
from test_round import Stage

from gpudev_core import outlook
from gpudev_core.portal import open_portal
from gpudev_core.settings import load
from gpudev_core.tables import ForecastRow, ReservationRow


@pytest.fixture
def stage(database: str, tmp_path: Path) -> Iterator[Stage]:
    limits = {"GPUDEV_LIMITS__GPU_HOURS": "9999", "GPUDEV_LIMITS__GPUS": "999"}
    source = {"GPUDEV_GPUS__SOURCE": "simulated", "GPUDEV_DATABASE_URL": database}
    found = Stage(open_portal(load(None, {"GPUDEV_STATE": str(tmp_path), **source, **limits})))
    yield found
    found.controller.close()
    found.portal.store.close()


def forecasts(stage: Stage, reservation_id: str) -> list[ForecastRow]:
    with stage.portal.store.read() as session:
        query = select(ForecastRow).where(ForecastRow.reservation_id == reservation_id)
        return list(session.scalars(query.order_by(ForecastRow.forecast_id)))


def remember_early_leavers(stage: Stage, count: int = 40) -> None:
    """Everybody who asked for 8 h left after 2 h."""
    with stage.portal.store.write() as session:
        for number in range(count):
            began = stage.now - timedelta(days=2) + timedelta(minutes=number)
            session.add(
                ReservationRow(
                    reservation_id=f"old{number}",
                    user_id="zoe",
                    server_name=f"old{number}",
                    name="old",
                    gpu_type="h100",
                    gpu_count=16,
                    duration_hours=8.0,
                    request={"gpu_type": "h100", "gpu_count": 16, "hours": 8.0},
                    filed_from="test",
                    status="cancelled",
                    created_at=began,
                    preparing_at=began,
                    launched_at=began,
                    reservation_ended=began + timedelta(hours=2),
                )
            )


def test_who_waits_is_told_about_and_no_later_than(stage: Stage) -> None:
    stage.file(count=16, hours=2)
    stage.rounds()
    waiting = stage.file(count=16)
    stage.rounds()
    row = stage.row(waiting)
    assert row.expected_start is not None and row.no_later_than is not None
    assert row.expected_start == row.no_later_than, "nothing is known about people yet"
    assert row.estimated_wait_minutes is not None and 119 <= row.estimated_wait_minutes <= 130
    (logged,) = forecasts(stage, waiting)
    assert (logged.method, logged.position, logged.queue_length) == ("plan", 1, 1)
    assert logged.no_later_than == row.no_later_than


def test_what_was_learnt_makes_the_forecast_earlier_than_the_promise(stage: Stage) -> None:
    remember_early_leavers(stage)
    stage.file(count=16, hours=8)
    stage.rounds()
    waiting = stage.file(count=16)
    stage.rounds()
    row = stage.row(waiting)
    assert row.expected_start is not None and row.no_later_than is not None
    assert timedelta(hours=1.5) < row.expected_start - stage.now < timedelta(hours=2.5)
    assert row.no_later_than - stage.now > timedelta(hours=7.9)
    (logged,) = forecasts(stage, waiting)
    assert logged.method == "simulated"
    assert logged.expected_from <= logged.expected_start <= logged.expected_until <= logged.no_later_than


def test_nothing_is_logged_while_nothing_is_news(stage: Stage) -> None:
    stage.file(count=16, hours=2)
    waiting = stage.file(count=16)
    stage.rounds(5)
    told = len(forecasts(stage, waiting))
    stage.file("t4", 1)
    stage.rounds(20)
    assert len(forecasts(stage, waiting)) == told


def test_an_early_end_is_news(stage: Stage) -> None:
    first = stage.file(count=16, hours=8)
    stage.rounds()
    waiting, behind = stage.file(count=16), stage.file(count=16)
    stage.rounds()
    before = stage.row(behind).expected_start
    stage.end(first)
    stage.rounds(6)
    assert stage.row(waiting).status == "active"
    after = stage.row(behind).expected_start
    assert before is not None and after is not None and before - after > timedelta(hours=6)
    told = forecasts(stage, behind)
    assert told[-1].expected_start == after and len(told) >= 2
    assert [row.no_later_than for row in told] == [told[0].no_later_than] * len(told), "the promise stays"


def test_a_forecast_whose_time_has_passed_is_made_anew(stage: Stage) -> None:
    remember_early_leavers(stage)
    stage.file(count=16, hours=8)
    stage.rounds()
    waiting = stage.file(count=16)
    stage.rounds()
    expected = stage.row(waiting).expected_start
    assert expected is not None
    stage.now = expected + timedelta(minutes=5)
    stage.rounds(2)
    again = stage.row(waiting).expected_start
    assert again is not None and again >= stage.now - timedelta(minutes=1)


def test_a_forecast_that_fails_holds_up_nothing(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: object, **__: object) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(outlook, "expect", fails)
    first = stage.file(count=16)
    waiting = stage.file(count=16)
    stage.rounds()
    assert stage.row(waiting).no_later_than is not None and stage.row(waiting).expected_start is None
    stage.end(first)
    stage.rounds(5)
    assert stage.row(waiting).status == "active"
