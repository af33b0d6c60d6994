"""What people had over a period, on both databases. The figures are worked out by hand."""

from __future__ import annotations

from typing import Any

import pytest
from builders import NOW, Row, ask, days, hours, minutes

from gpudev_core.figures import Share, Spread, percentile
from gpudev_core.history import By, History, Line, history
from gpudev_core.models import Status
from gpudev_core.store import Store

SINCE = NOW - days(7)


def had(
    number: str,
    user: str = "ada",
    groups: tuple[str, ...] = (),
    *,
    filed: float = 10,
    waited_min: float = 0,
    hours_had: float | None = 2,
    gpus: int = 2,
    asked: float = 4,
    status: Status = Status.CANCELLED,
    **values: Any,
) -> Row:
    """Filed ``filed`` hours ago; ``hours_had`` None: it runs still."""
    row = Row(number, user, ask(values.pop("gpu_type", "t4"), gpus, asked))
    begin = NOW - hours(filed)
    row.filed(begin).active(begin + minutes(waited_min))
    row.with_(groups=list(groups), **values)
    return row if hours_had is None else row.ended(begin + minutes(waited_min) + hours(hours_had), status)


def of(store: Store, by: By = By.USER, since: Any = SINCE, until: Any = NOW) -> History:
    with store.read() as session:
        return history(session, by, since, until, NOW)


def names(found: History) -> list[str]:
    return [line.name for line in found.lines]


def line(found: History, name: str) -> Line:
    return next(line for line in found.lines if line.name == name)


def test_nothing_happened(store: Store) -> None:
    found = of(store)
    assert not found.lines and found.total.reservations == 0 and found.total.gpu_hours == 0
    assert found.total.wait_s == Spread() and found.total.early_share is None


def test_gpu_hours_are_those_that_were_had(store: Store) -> None:
    had("r1", hours_had=2, gpus=4, asked=8).save(store)
    assert of(store).total.gpu_hours == pytest.approx(8)


def test_what_runs_still_counts_up_to_now(store: Store) -> None:
    had("r1", filed=3, waited_min=60, hours_had=None, gpus=2).save(store)
    assert of(store).total.gpu_hours == pytest.approx(4)
    assert of(store, until=NOW + days(1)).total.gpu_hours == pytest.approx(4)
    assert of(store, until=NOW - hours(1)).total.gpu_hours == pytest.approx(2)


def test_hours_outside_the_period_do_not_count(store: Store) -> None:
    had("r1", filed=10, hours_had=6, gpus=1, asked=6).save(store)
    found = of(store, since=NOW - hours(8), until=NOW - hours(7))
    assert found.total.gpu_hours == pytest.approx(1)
    assert found.total.reservations == 0, "it was filed before"
    assert of(store, since=NOW - hours(5)).total.gpu_hours == pytest.approx(1), "it ended in the period"
    for since, until in [(NOW - hours(4), NOW), (NOW - hours(20), NOW - hours(10))]:
        assert of(store, since=since, until=until).total.gpu_hours == 0


def test_a_reservation_belongs_to_the_period_in_which_it_was_filed(store: Store) -> None:
    had("r1", filed=10).save(store)
    at = NOW - hours(10)
    assert of(store, since=at, until=at + minutes(1)).total.reservations == 1
    assert of(store, since=at - minutes(1), until=at).total.reservations == 0, "the end is not part of it"


def test_early_ends_give_hours_back(store: Store) -> None:
    had("r1", hours_had=1, asked=4, gpus=2).save(store)
    had("r2", hours_had=4, asked=4, status=Status.EXPIRED).save(store)
    had("r3", hours_had=4 - 0.5 / 60, asked=4).save(store)
    had("r4", hours_had=1, asked=4, status=Status.FAILED).save(store)
    had("r5", hours_had=None).save(store)
    total = of(store).total
    assert (total.ended, total.early_ends, total.early_share) == (4, 1, 0.25)
    assert total.hours_given_back == pytest.approx(3) and total.gpu_hours_given_back == pytest.approx(6)
    assert total.hours_asked == 16 and total.hours_had == pytest.approx(10, abs=0.01)


def test_waits_are_of_those_that_came_to_work(store: Store) -> None:
    for number, waited in enumerate([0, 10, 20, 30, 90]):
        had(f"r{number}", waited_min=waited).save(store)
    Row("waiting").status(Status.QUEUED).filed(NOW - hours(20)).save(store)
    wait = of(store).total.wait_s
    assert wait == Spread(5, 1800, 1200, 5400, 5400)


def test_outcomes_add_up(store: Store) -> None:
    had("r1").save(store)
    had("r2", status=Status.EXPIRED).save(store)
    had("r3", hours_had=None).save(store)
    Row("r4").filed(NOW - hours(1)).ended(NOW, Status.FAILED).save(store)
    Row("r5").filed(NOW - hours(1)).status(Status.QUEUED).save(store)
    total = of(store).total
    assert total.outcomes == {"cancelled": 1, "expired": 1, "active": 1, "failed": 1, "queued": 1}
    assert total.reservations == sum(total.outcomes.values())


def test_a_start_that_failed_had_nothing(store: Store) -> None:
    Row("r1").filed(NOW - hours(5)).preparing(NOW - hours(5)).ended(NOW, Status.FAILED).save(store)
    total = of(store).total
    assert (total.reservations, total.gpu_hours, total.ended, total.hours_had) == (1, 0, 0, 0)


def test_extensions_are_what_was_added_to_the_request(store: Store) -> None:
    had("r1", asked=4, hours_had=5, duration_hours=6.5).save(store)
    had("r2", asked=4).save(store)
    total = of(store).total
    assert total.extension_hours == pytest.approx(2.5)
    assert total.hours_asked == pytest.approx(10.5)


def test_a_person_in_two_groups_counts_in_both_and_once_in_all(store: Store) -> None:
    had("r1", "ada", ("vision", "speech"), gpus=1).save(store)
    had("r2", "bob", ("vision",), gpus=1).save(store)
    had("r3", "eve", gpus=2).save(store)
    found = of(store, By.GROUP)
    counts = {of_group.name: of_group.reservations for of_group in found.lines}
    assert counts == {"vision": 2, "speech": 1, "": 1}
    assert (found.total.reservations, found.total.gpu_hours) == (3, pytest.approx(8))


def test_by_user_and_by_type_most_gpu_hours_first(store: Store) -> None:
    had("r1", "ada", gpus=1).save(store)
    had("r2", "bob", gpus=4).save(store)
    had("r3", "ada", gpus=1, gpu_type="h100").save(store)
    assert names(of(store)) == ["bob", "ada"] and line(of(store), "ada").reservations == 2
    by_type = of(store, By.TYPE)
    assert names(by_type) == ["t4", "h100"] and line(by_type, "t4").gpu_hours == pytest.approx(10)


def test_figures_of_many() -> None:
    assert percentile(list(range(1, 101)), 0.95) == 95
    assert percentile(list(range(1, 21)), 0.95) == 19
    assert percentile([7], 0.95) == 7
    assert Share.where([True, False]) == Share(1, 2) and Share().part is None
