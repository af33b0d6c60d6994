"""What forecasts learn from: only what is over, only of the same type, the latest first."""

from __future__ import annotations

import pytest
from builders import CATALOGUE, NOW, Cluster, Row, ask, hours, minutes

from gpudev_core import learning
from gpudev_core.models import Status
from gpudev_core.outlook import MOST_LIVES
from gpudev_core.planner import Allowances, Planner
from gpudev_core.store import Store
from gpudev_core.tables import ForecastRow

ALLOWANCES = Allowances(minutes(2), minutes(1))
SECONDS = int(NOW.timestamp())


def over(number: int, gpu_type: str = "t4", left_after: float = 0.5) -> Row:
    """Asked for 2 h, admitted 5 h ago, left early."""
    began = NOW - hours(5)
    row = (
        Row(f"r{number}", request=ask(gpu_type, 1, 2.0)).active(began).with_(preparing_at=began - minutes(1))
    )
    return row.ended(began + hours(left_after), Status.CANCELLED)


def test_a_life_is_what_was_held_beside_what_was_planned(store: Store) -> None:
    over(1).save(store)
    with store.read() as session:
        (life,) = learning.lives(session, "t4", ALLOWANCES, NOW)
    assert life.length == 2 * 3600 + 180
    assert life.had == 1800 + 60
    assert life.ended == SECONDS - int(4.5 * 3600)


def test_only_sessions_of_the_type_that_ran_and_are_over_count(store: Store) -> None:
    over(1).save(store)
    over(2, "h100").save(store)
    Row("runs", request=ask("t4")).active(NOW - hours(1)).save(store)
    Row("never ran", request=ask("t4")).with_(preparing_at=NOW - hours(3)).ended(
        NOW - hours(2), Status.FAILED
    ).save(store)
    with store.read() as session:
        assert len(learning.lives(session, "t4", ALLOWANCES, NOW)) == 1
        assert learning.lives(session, "t4", ALLOWANCES, NOW - hours(5)) == [], "it was not over then"


def test_the_latest_count_when_there_are_many(store: Store) -> None:
    with store.write() as session:
        for number in range(MOST_LIVES + 3):
            values = over(number, left_after=1 + number / 10_000).values
            session.add(learning.ReservationRow(**values))
    with store.read() as session:
        found = learning.lives(session, "t4", ALLOWANCES, NOW)
    assert len(found) == MOST_LIVES
    assert min(life.ended for life in found) > SECONDS - 4 * 3600


def test_arrivals_carry_what_was_asked_for_and_its_rank(store: Store) -> None:
    Row("r1", request=ask("h100", 16, 1.0)).with_(priority=3).filed(NOW - minutes(5)).save(store)
    Row("r2", request=ask("t4")).save(store)
    with store.read() as session:
        (arrival,) = learning.arrivals(session, CATALOGUE["h100"], ALLOWANCES, NOW)
    assert (arrival.need.units, arrival.need.nodes, arrival.need.length) == (8, 2, 3780)
    assert arrival.rank == (-3, 2 * 8 * 3780) and arrival.at == SECONDS - 300


def test_an_extension_does_not_change_what_was_asked_for(store: Store) -> None:
    Row("r1", request=ask("t4", 1, 1.0)).active(NOW - hours(1)).with_(duration_hours=9.0).save(store)
    with store.read() as session:
        (arrival,) = learning.arrivals(session, CATALOGUE["t4"], ALLOWANCES, NOW)
    assert arrival.need.length == 3780


def test_an_outcome_is_the_first_forecast_and_the_start(store: Store) -> None:
    Row("r1", request=ask("t4")).active(NOW).with_(preparing_at=NOW).save(store)
    Row("waits", request=ask("t4")).status(Status.QUEUED).save(store)
    with store.write() as session:
        for key, at in (("r1", 60), ("r1", 30), ("waits", 60)):
            session.add(
                ForecastRow(
                    reservation_id=key,
                    at=NOW - minutes(at),
                    position=1,
                    queue_length=1,
                    expected_start=NOW - minutes(at - 10),
                    expected_from=NOW - minutes(at - 5),
                    expected_until=NOW - minutes(at - 20),
                    method="simulated",
                )
            )
    with store.read() as session:
        (outcome,) = learning.outcomes(session, "t4", NOW)
        assert learning.outcomes(session, "t4", NOW - minutes(1)) == [], "it had not started then"
    assert (outcome.made_at, outcome.expected) == (SECONDS - 3600, SECONDS - 3000)
    assert (outcome.low, outcome.high, outcome.actual) == (SECONDS - 3300, SECONDS - 2400, SECONDS)


@pytest.mark.parametrize("gone", [0, 1800])
def test_a_book_has_the_real_beginning_of_what_runs(gone: int) -> None:
    cluster = Cluster("t4").node("a", held=4, until=NOW + hours(1))
    planner = Planner(CATALOGUE["t4"], ALLOWANCES)
    planner.update(cluster.nodes, cluster.holdings, [], NOW)
    now = NOW + minutes(gone / 60)
    (running,) = learning.book(planner, cluster.holdings, now).running
    began = int(cluster.holdings[0].began.timestamp())
    assert running.start == began
    assert running.start + running.length == running.end == SECONDS + 3600 + 60
