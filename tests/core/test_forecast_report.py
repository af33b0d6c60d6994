"""How forecasts came true: promises, first forecasts, intervals, and the answer "now" beside them."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

import pytest
from builders import NOW, Row, ask, days, hours, minutes

from gpudev_core import lifecycle
from gpudev_core.figures import Share
from gpudev_core.forecast_report import Forecast, Promises, Told, histogram, report, told
from gpudev_core.models import Status
from gpudev_core.store import Store
from gpudev_core.tables import ForecastRow

FILED = NOW - hours(10)
MONTH_AGO = NOW - days(30)


def at(minute: float) -> datetime:
    return FILED + minutes(minute)


def waited(*forecasts: Forecast, start: float | None = None, until: float | None = None, **more: Any) -> Told:
    started = None if start is None else at(start)
    left = None if until is None else at(until)
    return Told(more.pop("gpu_type", "t4"), FILED, forecasts, started, left, **more)


def said(
    minute: float,
    expected: float | None = None,
    by: float | None = None,
    between: tuple[float, float] | None = None,
) -> Forecast:
    low, high = (at(between[0]), at(between[1])) if between else (None, None)
    return Forecast(
        at(minute), None if expected is None else at(expected), low, high, None if by is None else at(by)
    )


@pytest.mark.parametrize(
    ("row", "expected"),
    [
        pytest.param(waited(said(0, by=60), start=60), Promises(1, kept=1), id="to the instant is kept"),
        pytest.param(waited(said(0, by=60), start=60.02), Promises(1, broken=1), id="a second late is not"),
        pytest.param(
            waited(said(0, by=60), start=70, moved_at=at(30)), Promises(1, moved=1), id="moved, and told"
        ),
        pytest.param(
            waited(said(0, by=60), said(30, by=90), start=70, moved_at=at(30)),
            Promises(1, moved=1),
            id="moved, and the new one kept",
        ),
        pytest.param(
            waited(said(0, by=60), said(30, by=90), start=95, moved_at=at(30)),
            Promises(1, broken=1),
            id="the moved one is a promise as well",
        ),
        pytest.param(
            waited(said(0, by=60), start=50, moved_at=at(30)), Promises(1, kept=1), id="moved, but in time"
        ),
        pytest.param(
            waited(said(0, by=60), said(5, by=40), start=50), Promises(1, broken=1), id="the earliest counts"
        ),
        pytest.param(
            waited(said(0, by=60), said(5, by=80), start=70), Promises(1, broken=1), id="not a later one"
        ),
        pytest.param(
            waited(said(0, expected=9), start=50, promise=at(40)),
            Promises(1, broken=1),
            id="in the row alone",
        ),
        pytest.param(
            waited(said(0, by=60), start=70, moved_at=at(30), promise=at(65)),
            Promises(1, broken=1),
            id="moved, and the one in the row not kept either",
        ),
        pytest.param(waited(said(0, by=60), until=50), Promises(1, undecided=1), id="still waits"),
        pytest.param(waited(said(0, by=60), until=61), Promises(1, broken=1), id="waits past it"),
        pytest.param(waited(said(0, expected=60), start=90), Promises(), id="none was given"),
    ],
)
def test_what_became_of_a_promise(row: Told, expected: Promises) -> None:
    assert report([row]).total.promises == expected


def test_the_first_forecast_is_what_counts() -> None:
    total = report([waited(said(0, expected=60), said(50, expected=100), start=100)]).total
    assert total.within_10_min == Share(0, 1)
    assert report([waited(said(0), said(5, expected=60), start=60)]).total.within_10_min == Share(1, 1)


@pytest.mark.parametrize(
    ("expected", "start", "near", "near_part"),
    [(60, 70, 1, 1), (60, 50, 1, 1), (60, 70.1, 0, 1), (240, 300, 0, 1), (239, 300, 0, 0), (10, 25, 0, 0)],
    ids=[
        "ten minutes late",
        "ten minutes early",
        "a little more, but within a fifth",
        "a fifth of five hours",
        "more than a fifth",
        "short waits have ten minutes",
    ],
)
def test_how_near_it_was(expected: float, start: float, near: int, near_part: int) -> None:
    total = report([waited(said(0, expected=expected), start=start)]).total
    assert (total.within_10_min.hits, total.within_20_percent.hits) == (near, near_part)


def test_when_it_showed_a_quarter_of_an_hour_or_less() -> None:
    rows = [
        waited(said(0, expected=90), said(80, expected=95), said(90, expected=120), start=104),
        waited(said(0, expected=15), start=40),
        waited(said(0, expected=90), start=90),
    ]
    total = report(rows).total
    assert total.when_soon == Share(1, 2), "the first such one of each; the third never showed it"


def test_the_interval_in_which_four_of_five_should_start() -> None:
    rows = [waited(said(0, between=(30, 60)), said(5, between=(0, 900)), start=s) for s in (29, 30, 60, 61)]
    assert report([*rows, waited(said(0, expected=10), start=10)]).total.in_interval == Share(2, 4)


def test_the_answer_now_and_the_waits() -> None:
    rows = [waited(said(0, expected=5), start=s) for s in (5, 10, 15)]
    total = report(rows).total
    assert total.now_is_right == Share(2, 3)
    assert (total.wait_s.mean, total.wait_s.p95, total.wait_s.count) == (600, 900, 3)


def test_who_has_not_started_counts_as_waiting_only() -> None:
    total = report([waited(said(0, expected=5), until=60), waited(said(0, expected=5), start=5)]).total
    assert (total.waited, total.started, total.within_10_min) == (2, 1, Share(1, 1))


def test_each_type_and_all() -> None:
    row = said(0, expected=60)
    found = report([waited(row, start=60), waited(row, start=60, gpu_type="h100"), waited(row, start=99)])
    assert [(f.name, f.started, f.within_10_min.hits) for f in found.types] == [("h100", 1, 1), ("t4", 2, 1)]
    assert (found.total.name, found.total.started, found.total.within_10_min) == ("", 3, Share(2, 3))


def test_the_histogram_has_the_near_ones_in_its_middle() -> None:
    errors = [-61, -60, -30.5, -30, -10.5, -10, 0, 10, 10.5, 30, 60, 60.5]
    assert histogram(timedelta(minutes=error) for error in errors) == (1, 2, 2, 3, 2, 1, 1)


def test_nothing_has_waited() -> None:
    found = report([waited(start=5)])
    assert found.is_empty and found.total.within_10_min.part is None and found.total.wait_s.mean is None


# Out of the database


def save_forecast(store: Store, reservation_id: str, when: datetime, **values: Any) -> None:
    with store.write() as session:
        session.add(
            ForecastRow(
                reservation_id=reservation_id, at=when, position=1, queue_length=1, method="plan", **values
            )
        )


def read(store: Store, since: datetime = MONTH_AGO, gpu_type: str | None = None) -> list[Told]:
    with store.read() as session:
        return told(session, since, NOW, gpu_type)


def test_a_request_and_all_that_it_was_told(store: Store) -> None:
    Row("r1").filed(FILED).active(at(60)).with_(no_later_than=at(80)).save(store)
    first = {"expected_start": at(40), "expected_from": at(20), "expected_until": at(80)}
    save_forecast(store, "r1", at(0), **first, no_later_than=at(90))
    save_forecast(store, "r1", at(30), expected_start=at(50), no_later_than=at(80))
    save_forecast(store, "r1", at(60), expected_start=at(60))
    expected = waited(said(0, 40, 90, (20, 80)), said(30, 50, 80), start=60, promise=at(80))
    assert read(store) == [expected], "what was written at the start itself was no forecast"


def test_who_started_at_once_did_not_wait(store: Store) -> None:
    Row("r1").filed(FILED).active(FILED).save(store)
    save_forecast(store, "r1", FILED, expected_start=FILED)
    Row("r2").filed(FILED).active(FILED).save(store)
    assert read(store) == []


def test_a_promise_that_was_moved_is_known_by_its_event(store: Store) -> None:
    for number in ("r1", "r2"):
        Row(number).filed(FILED).active(at(70)).save(store)
        save_forecast(store, number, at(0), no_later_than=at(60))
    with store.write() as session:
        lifecycle.record(session, "r2", "promise_moved", now=at(20), actor="controller")
    assert [row.moved_at for row in read(store)] == [None, at(20)]
    assert report(read(store)).total.promises == Promises(2, moved=1, broken=1)


def test_what_was_told_before_a_place_was_given_up_is_no_promise_any_more(store: Store) -> None:
    Row("r1").filed(FILED).active(at(60)).save(store)
    save_forecast(store, "r1", at(-30), expected_start=at(5), no_later_than=at(10))
    save_forecast(store, "r1", at(0), expected_start=at(60), no_later_than=at(70))
    assert read(store) == [waited(said(0, 60, 70), start=60)]


def test_one_that_waits_still_and_one_that_left(store: Store) -> None:
    Row("r1").filed(FILED).status(Status.QUEUED).save(store)
    Row("r2").filed(FILED).ended(at(5), Status.CANCELLED).save(store)
    for number in ("r1", "r2"):
        save_forecast(store, number, at(0), no_later_than=at(60))
    assert [row.waited_until for row in read(store)] == [NOW, at(5)]
    assert report(read(store)).total.promises == Promises(2, broken=1, undecided=1)


def test_only_the_period_and_the_type_that_were_asked_for(store: Store) -> None:
    Row("r1").filed(FILED).active(at(60)).save(store)
    Row("r2", request=ask("h100")).filed(FILED).active(at(60)).save(store)
    Row("r3").filed(NOW - days(40)).active(NOW - days(39)).save(store)
    for number in ("r1", "r2", "r3"):
        save_forecast(store, number, at(0) if number != "r3" else NOW - days(40), expected_start=at(60))
    assert [row.gpu_type for row in read(store)] == ["t4", "h100"]
    assert [row.gpu_type for row in read(store, gpu_type="h100")] == ["h100"]
    assert len(read(store, since=NOW - days(50))) == 3
