from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import datetime, timedelta
from itertools import count
from typing import Any

import pytest
from builders import NOW, Cluster, ask, hours, minutes
from hypothesis import given, settings
from hypothesis import strategies as st

from gpudev_core.models import Holding, Placement, Share, Waiting
from gpudev_core.placement import choose_units, free_units
from gpudev_core.planner import OVERDUE_STEP_S, Allowances, Planned, Planner, order
from gpudev_core.settings import Settings

AT_ONCE = minutes(0)
NONE = Allowances(AT_ONCE, AT_ONCE)
SOME = Allowances(minutes(2), minutes(1))


class Site:
    """A cluster, its queue, and a planner whose answers are written into the queue as the portal does it."""

    def __init__(self, cluster: Cluster, allowances: Allowances = NONE) -> None:
        self.cluster, self.allowances, self.now = cluster, allowances, NOW
        self.queue: dict[str, Waiting] = {}
        self.planner = Planner(cluster.gpu_type, allowances)

    def file(self, key: str, gpus: int = 8, duration: float = 1, **more: Any) -> Planned:
        """One more request, planned at once."""
        request = ask(self.cluster.gpu_type.name, gpus, duration)
        filed_at = NOW + timedelta(seconds=len(self.queue))
        self.queue[key] = Waiting(key, "ada", request, filed_at, **more)
        return self.update()[key]

    def update(self, after: timedelta = AT_ONCE) -> dict[str, Planned]:
        self.now += after
        answer = self.planner.update(
            iter(self.cluster.nodes), iter(self.cluster.holdings), list(self.queue.values()), self.now
        )
        for key, planned in answer.items():
            self.queue[key] = replace(
                self.queue[key],
                planned_start=planned.start,
                planned_nodes=planned.nodes,
                no_later_than=planned.no_later_than,
            )
        return answer

    def restart(self) -> None:
        """Another process, which knows nothing but the rows."""
        self.planner = Planner(self.cluster.gpu_type, self.allowances)

    def start(self, key: str) -> Holding:
        """What waited holds what was planned for it, until its planned end at the latest."""
        one = self.queue.pop(key)
        need = self.planner.need(one)
        free = free_units(self.cluster.nodes, self.cluster.holdings)
        placement = choose_units(need, one.planned_nodes, free)
        assert placement is not None
        assert one.planned_start is not None
        end = one.planned_start + timedelta(seconds=need.length) - self.allowances.cleanup
        name = self.cluster.gpu_type.name
        self.cluster.holdings.append(Holding(key, one.user, name, placement, self.now, end))
        return self.cluster.holdings[-1]

    def end(self, key: str) -> None:
        self.cluster.holdings = [one for one in self.cluster.holdings if one.reservation_id != key]

    def node(self, name: str, **changes: Any) -> None:
        nodes = self.cluster.nodes
        self.cluster.nodes = [replace(node, **changes) if node.name == name else node for node in nodes]

    def book(self) -> Any:
        return book(self.planner)


def book(planner: Planner) -> Any:
    """What is held and planned from now on."""
    ledger = planner.ledger
    ledger.places.forget_before(ledger.now)
    return (
        {key: (dict(held.units), held.end) for key, held in ledger.held.items()},
        {key: (p.need, p.start, p.nodes, p.promise, p.rank) for key, p in ledger.plans.items()},
        {
            name: (p.times, p.free)
            for name, p in ledger.places.profiles.items()
            if p.units or len(p.times) > 1
        },
    )


def told(planned: Planned) -> tuple[datetime | None, tuple[str, ...], datetime | None]:
    return planned.start, planned.nodes, planned.no_later_than


# Rows in, plans out


def test_a_request_is_planned_and_promised_at_its_earliest_start() -> None:
    site = Site(Cluster().node("a", held=8, until=NOW + hours(2)).node("b", held=8))
    assert told(site.file("first")) == (NOW + hours(1), ("b",), NOW + hours(1))
    assert told(site.file("gang", 16)) == (NOW + hours(2), ("a", "b"), NOW + hours(2))
    assert told(site.file("small", 1, 0.5)) == (NOW + hours(3), ("a",), NOW + hours(3))


def test_what_fits_starts_now() -> None:
    planned = Site(Cluster().node("a")).file("now")
    assert told(planned) == (NOW, ("a",), NOW)
    assert planned.starts_now(NOW)
    assert not planned.starts_now(NOW - timedelta(seconds=1))


def test_nodes_and_holdings_of_other_types_do_not_matter() -> None:
    site = Site(Cluster("t4").node("x"))
    other = Cluster("h100").node("a", held=8)
    site.cluster.nodes += other.nodes
    site.cluster.holdings += other.holdings
    assert told(site.file("r", 4)) == (NOW, ("x",), NOW)
    assert set(site.planner.ledger.places.profiles) == {"x"}


def test_those_who_arrive_together_are_planned_by_priority_then_by_age() -> None:
    site = Site(Cluster().node("a"))
    rows = [
        Waiting("young", "ada", ask("h100", 8), NOW + minutes(1)),
        Waiting("old", "ada", ask("h100", 8), NOW - minutes(1)),
        Waiting("urgent", "ada", ask("h100", 8), NOW + minutes(2), priority=5),
    ]
    assert [one.reservation_id for one in sorted(rows, key=order)] == ["urgent", "old", "young"]
    site.queue = {one.reservation_id: one for one in rows}
    found = {key: planned.start for key, planned in site.update().items()}
    assert found == {"urgent": NOW, "old": NOW + hours(1), "young": NOW + hours(2)}


def test_an_early_end_lets_the_small_ones_go_first_and_no_promise_moves() -> None:
    site = Site(Cluster().node("a", held=8, until=NOW + hours(5)))
    site.file("large", 8, 3)
    site.file("small", 8, 1)
    site.end("h100-1")
    found = site.update(minutes(1))
    assert told(found["small"]) == (NOW + minutes(1), ("a",), NOW + hours(8))
    assert told(found["large"]) == (NOW + hours(5), ("a",), NOW + hours(5))
    site.start("small")
    site.update()
    site.end("small")
    assert site.update(minutes(10))["large"].start == NOW + minutes(11)


def test_priority_goes_before_what_is_small_also_when_it_is_given_later() -> None:
    site = Site(Cluster().node("a", held=8, until=NOW + hours(5)))
    site.file("large", 8, 3)
    site.file("small", 8, 1)
    site.queue["large"] = replace(site.queue["large"], priority=5)
    site.end("h100-1")
    found = site.update(minutes(1))
    assert (found["large"].start, found["small"].start) == (NOW + minutes(1), NOW + hours(8))


def test_preparation_and_clean_up_are_in_the_length() -> None:
    site = Site(Cluster().node("a"), SOME)
    assert site.file("first").start == NOW
    assert site.file("second").start == NOW + minutes(63)
    held = site.start("first")
    assert held.ends_at == NOW + minutes(62), "prepared, then its whole hour"
    assert site.update()["second"].start == NOW + minutes(63), "then it is cleaned up"


def test_one_that_was_prepared_quickly_gives_the_rest_back() -> None:
    site = Site(Cluster().node("a"), SOME)
    site.file("first")
    site.file("second")
    site.start("first")
    site.update()
    site.cluster.holdings[0] = replace(site.cluster.holdings[0], ends_at=NOW + minutes(60.5))
    assert told(site.update(minutes(0.5))["second"]) == (NOW + minutes(63), ("a",), NOW + minutes(63))
    assert site.planner.ask(8, 0.5) is not None
    site.end("first")
    assert site.update(minutes(60.5))["second"].start == NOW + minutes(61)


def test_allowances_come_from_the_settings() -> None:
    settings = Settings()
    total = settings.servers.start_timeout_s + settings.servers.stop_grace_s + settings.queue.cleanup_s
    assert Allowances.of(settings).length(2) == 7200 + total
    assert Allowances.of(settings).length(0.001) == 4 + total, "whole seconds, rounded up"


def test_times_with_fractions_of_seconds_are_rounded_to_the_safe_side() -> None:
    end = NOW + hours(1) + timedelta(microseconds=1)
    site = Site(Cluster().node("a", held=8, until=end))
    site.now = NOW + timedelta(microseconds=999_999)
    assert site.file("r").start == NOW + hours(1) + timedelta(seconds=1)
    free = Site(Cluster().node("a"))
    free.now = NOW + timedelta(microseconds=999_999)
    planned = free.file("r")
    assert planned.start == NOW
    assert planned.starts_now(free.now)
    assert free.update()["r"] == planned


def test_a_plan_stays_as_it_is_from_round_to_round() -> None:
    site = Site(Cluster().node("a", held=8).node("b", held=8))
    for number in range(5):
        site.file(f"r{number}", 4)
    first = site.update()
    for _ in range(4):
        assert site.update(timedelta(seconds=7.3)) == first


# The rows are the truth


@given(
    st.lists(
        st.tuples(st.sampled_from([1, 2, 4, 8, 16]), st.sampled_from([0.5, 1, 3]), st.integers(0, 1)),
        max_size=8,
    ),
    st.lists(st.integers(0, 9), max_size=6),
)
@settings(deadline=None, max_examples=60)
def test_nothing_is_lost_with_the_process(asked: list[tuple[int, float, int]], events: list[int]) -> None:
    """After every round a new planner has the same book as the old one, and goes on in the same way."""
    site = Site(Cluster().node("a", held=6, until=NOW + minutes(45)).node("b", held=8), SOME)
    for number, (gpus, duration, priority) in enumerate(asked):
        site.file(f"r{number}", gpus, duration, priority=priority)
    for event in events:
        due = [key for key, one in site.queue.items() if one.planned_start and one.planned_start <= site.now]
        if event < 4 and due:
            site.start(due[event % len(due)])
        elif event < 8 and site.cluster.holdings:
            site.end(site.cluster.holdings[event % len(site.cluster.holdings)].reservation_id)
        elif site.queue:
            del site.queue[sorted(site.queue)[event % len(site.queue)]]
        site.update(minutes(0.5))
        kept = site.planner
        site.restart()
        site.planner.read(site.cluster.nodes, site.cluster.holdings, list(site.queue.values()), site.now)
        assert site.book() == book(kept)
        queue = list(site.queue.values())
        assert site.update() == kept.update(site.cluster.nodes, site.cluster.holdings, queue, site.now)
        assert site.book() == book(kept)


rounds = st.lists(
    st.tuples(
        st.integers(1, 45),
        st.lists(
            st.tuples(st.sampled_from([1, 2, 4, 8, 16]), st.sampled_from([0.02, 0.05, 0.1])), max_size=2
        ),
        st.integers(0, 9),
        st.booleans(),
    ),
    min_size=10,
    max_size=30,
)


@given(rounds)
@settings(deadline=None, max_examples=60)
def test_while_the_cluster_stays_whole_no_promise_moves(
    rounds: list[tuple[int, list[tuple[int, float]], int, bool]],
) -> None:
    """Rounds come when they come, sessions end when they like, and now and then the portal is restarted."""
    site = Site(Cluster().node("a").node("b"), SOME)
    promised: dict[str, datetime | None] = {}
    numbers = count()
    for seconds, arrivals, early, is_restarted in rounds:
        site.now += timedelta(seconds=seconds, microseconds=seconds)
        over = [one.reservation_id for one in site.cluster.holdings if one.ends_at <= site.now]
        for key in over + [one.reservation_id for one in site.cluster.holdings[early:][:1]]:
            site.end(key)
        if is_restarted:
            site.restart()
        for gpus, duration in arrivals:
            key = f"r{next(numbers)}"
            site.queue[key] = Waiting(key, "ada", ask("h100", gpus, duration), site.now)
        for key, planned in site.update().items():
            assert planned.start is not None
            assert planned.no_later_than is not None
            assert planned.no_later_than == promised.setdefault(key, planned.no_later_than)
            assert planned.start <= planned.no_later_than
            assert planned.moved is None
            if planned.starts_now(site.now):
                held = site.start(key)
                site.end(key)
                quick = replace(held, ends_at=held.ends_at - timedelta(seconds=early))
                site.cluster.holdings.append(quick)


def test_a_stored_plan_that_was_changed_elsewhere_is_taken_over() -> None:
    """As when somebody was granted an extension, and this plan went to another node."""
    site = Site(Cluster().node("a", held=8).node("b", held=8, until=NOW + hours(3)))
    site.file("r")
    later = NOW + hours(3)
    site.queue["r"] = replace(site.queue["r"], planned_start=later, planned_nodes=("b",), no_later_than=later)
    site.planner.read(site.cluster.nodes, site.cluster.holdings, list(site.queue.values()), site.now)
    plan = site.planner.ledger.plans["r"]
    assert (plan.start, plan.nodes) == (later.timestamp(), ("b",))
    site.cluster.holdings[0] = replace(site.cluster.holdings[0], ends_at=NOW + hours(4))
    assert told(site.update()["r"]) == (later, ("b",), later)
    assert site.file("next").start == NOW + hours(4)


def test_a_promise_that_was_changed_elsewhere_is_taken_over() -> None:
    site = Site(Cluster().node("a", held=8))
    site.file("r")
    site.queue["r"] = replace(site.queue["r"], no_later_than=NOW + hours(3))
    assert told(site.update()["r"]) == (NOW + hours(1), ("a",), NOW + hours(3))
    assert site.planner.ledger.plans["r"].promise == (NOW + hours(3)).timestamp()


def test_one_that_is_cancelled_leaves_its_place() -> None:
    site = Site(Cluster().node("a", held=8))
    site.file("first")
    site.file("second")
    del site.queue["first"]
    assert told(site.update()["second"]) == (NOW + hours(2), ("a",), NOW + hours(2))
    assert site.file("third").start == NOW + hours(1), "its place is free"


def test_one_that_becomes_a_holding_keeps_its_place_in_the_book() -> None:
    site = Site(Cluster().node("a"), SOME)
    site.file("first")
    site.file("second")
    before = site.planner.ledger.places.profiles["a"].times[1:]
    changes = site.planner.ledger.places.changes
    site.start("first")
    site.update()
    assert set(site.planner.ledger.plans) == {"second"}
    assert site.planner.ledger.held["first"].units == {"a": 8}
    assert site.planner.ledger.places.profiles["a"].times[1:] == before
    assert site.planner.ledger.places.changes == changes, "nothing became free"


def test_one_that_started_elsewhere_than_planned_holds_what_it_holds() -> None:
    site = Site(Cluster().node("a").node("b"))
    site.file("r", 4)
    del site.queue["r"]
    placement = Placement((Share("b", (0, 1, 2, 3)),))
    site.cluster.holdings.append(Holding("r", "ada", "h100", placement, NOW, NOW + hours(1)))
    site.update()
    assert site.planner.ledger.held["r"].units == {"b": 4}
    assert site.planner.ledger.plans == {}
    assert told(site.file("gang", 16)) == (NOW + hours(1), ("a", "b"), NOW + hours(1))


def test_one_that_goes_back_to_the_queue_is_planned_again() -> None:
    site = Site(Cluster().node("a"))
    site.file("r")
    row = site.queue["r"]
    site.start("r")
    site.update(minutes(1))
    site.end("r")
    site.queue["r"] = replace(row, planned_start=None, planned_nodes=(), no_later_than=None)
    assert told(site.update()["r"]) == (NOW + minutes(1), ("a",), NOW + minutes(1))


@pytest.mark.parametrize(
    ("gpus", "duration", "nodes"),
    [
        pytest.param(16, 1, ("a", "b"), id="fewer hours"),
        pytest.param(8, 3, ("a",), id="fewer GPUs"),
        pytest.param(1, 0.5, ("a",), id="fewer of both"),
    ],
)
def test_a_request_that_is_made_smaller_keeps_its_promise(
    gpus: int, duration: float, nodes: tuple[str, ...]
) -> None:
    cluster = Cluster().node("a", held=8).node("b", held=8)
    site = Site(cluster)
    site.file("r", 16, 3)
    site.file("behind", 8, 1)
    smaller = replace(site.queue["r"], request=ask("h100", gpus, duration), planned_nodes=nodes)
    site.queue["r"] = smaller
    found = site.update()
    assert told(found["r"]) == (NOW + hours(1), nodes, NOW + hours(1))
    assert told(found["behind"]) == (NOW + hours(4), ("a",), NOW + hours(4))
    room = site.file("more", 8, 1).start
    assert room == (NOW + hours(1) if gpus < 16 else NOW + hours(1 + duration)), "what it gave up is free"


def test_a_request_on_other_nodes_than_it_needs_is_planned_anew() -> None:
    """Units on two nodes for a request of one would be more than was asked for."""
    site = Site(Cluster().node("a", held=8).node("b", held=8))
    site.file("r", 16)
    site.queue["r"] = replace(site.queue["r"], request=ask("h100", 4))
    assert told(site.update()["r"]) == (NOW + hours(1), ("a",), NOW + hours(1))
    site.queue["r"] = replace(site.queue["r"], request=ask("h100", 16))
    assert told(site.update()["r"]) == (NOW + hours(1), ("a", "b"), NOW + hours(1))


def test_the_next_change_is_the_next_start_or_the_next_end() -> None:
    site = Site(Cluster().node("a", held=8, until=NOW + hours(2)).node("b", held=4, until=NOW + hours(1)))
    site.update()
    assert site.planner.next_change() == (NOW + hours(1)).timestamp()
    site.file("now", 4)
    assert site.planner.next_change() == NOW.timestamp()


# What ends too late, what starts too late


def test_what_should_be_gone_and_is_not_is_not_free_yet() -> None:
    site = Site(Cluster().node("a", held=8, until=NOW - hours(3)))
    planned = site.file("r")
    step = timedelta(seconds=OVERDUE_STEP_S)
    assert told(planned) == (NOW + step, ("a",), NOW + step)
    assert site.update(step / 2)["r"] == planned, "not again before that is over"
    moved = site.update(step / 2)["r"]
    assert told(moved) == (NOW + 2 * step, ("a",), NOW + 2 * step)
    assert moved.moved is not None
    assert moved.moved.as_json() == {"code": "still_ending", "node": "a", "old": NOW + step}
    site.end("h100-1")
    last = site.update()["r"]
    assert (last.start, last.moved) == (NOW + step, None)


def test_a_little_lateness_is_what_preparation_is_for() -> None:
    site = Site(Cluster().node("a"), SOME)
    planned = site.file("r")
    site.file("next")
    assert site.update(minutes(1))["r"] == planned
    late = site.update(timedelta(seconds=1))
    assert told(late["r"]) == (site.now, ("a",), site.now)
    assert late["r"].moved is not None
    assert late["r"].moved.as_json() == {"code": "portal_was_late", "old": NOW}
    assert late["next"].start == site.now + minutes(63)
    assert late["next"].moved is not None
    assert late["next"].moved.code == "portal_was_late"


def test_a_late_start_within_the_promise_breaks_nothing() -> None:
    site = Site(Cluster().node("a", held=8))
    site.file("r")
    site.end("h100-1")
    assert site.update()["r"].start == NOW
    found = site.update(minutes(5))["r"]
    assert told(found) == (NOW + minutes(5), ("a",), NOW + hours(1))
    assert found.moved is None


# What the cluster takes away


@pytest.mark.parametrize(
    ("change", "code", "start"),
    [
        pytest.param(lambda site: site.node("b", ready=False), "node_down", 3, id="a node goes down"),
        pytest.param(lambda site: site.node("b", cordoned=True), "node_cordoned", 3, id="is cordoned"),
        pytest.param(
            lambda site: site.node("b", foreign=frozenset({3})),
            "used_from_outside",
            3,
            id="is used from outside",
        ),
        pytest.param(lambda site: site.cluster.nodes.pop(), "node_down", 3, id="is in the listing no more"),
    ],
)
@pytest.mark.parametrize("restarted", [False, True], ids=["kept planner", "new planner"])
def test_a_promise_that_cannot_be_kept_moves_and_says_why(
    change: Callable[[Site], None], code: str, start: int, restarted: bool
) -> None:
    site = Site(Cluster().node("a", held=8, until=NOW + hours(2)).node("b", held=8))
    assert site.file("struck", 8, 2).nodes == ("b",)
    assert site.file("other", 4, 1).nodes == ("a",)
    change(site)
    if restarted:
        site.restart()
    found = site.update(minutes(1))
    moved = found["struck"].moved
    assert moved is not None
    assert moved.as_json() == {"code": code, "node": "b", "old": NOW + hours(1)}
    assert told(found["struck"]) == (NOW + hours(start), ("a",), NOW + hours(start))
    assert (found["other"].moved, found["other"].no_later_than) == (None, NOW + hours(2))
    again = site.update(minutes(1))["struck"]
    assert (again.moved, again.no_later_than) == (None, NOW + hours(start)), "it is told once"


def test_what_runs_on_a_node_that_goes_down_is_not_counted_and_comes_back_with_it() -> None:
    site = Site(Cluster().node("a", held=6).node("b", held=6))
    site.update()
    site.node("a", ready=False)
    assert told(site.file("r", 8)) == (NOW + hours(1), ("b",), NOW + hours(1))
    assert site.planner.ledger.held["h100-1"].units == {}
    site.node("a", ready=True)
    site.update()
    assert site.planner.ledger.held["h100-1"].units == {"a": 6}
    assert site.file("s", 2).nodes == ("a",)


def test_a_node_that_was_gone_and_is_back_is_used_again() -> None:
    site = Site(Cluster().node("a", held=8).node("b", held=8, zone="z"))
    nodes = list(site.cluster.nodes)
    site.file("gang", 16)
    site.cluster.nodes.pop()
    gone = site.update()["gang"]
    assert told(gone) == (None, (), None)
    assert gone.moved is not None
    assert gone.moved.code == "node_down"
    assert told(site.update()["gang"]) == (None, (), None)
    site.cluster.nodes = nodes
    assert told(site.update(minutes(1))["gang"]) == (NOW + hours(1), ("a", "b"), NOW + hours(1))
    assert told(site.file("zoned", 1, zone="z"))[1] == ("b",)


@pytest.mark.parametrize("restarted", [False, True], ids=["kept planner", "new planner"])
def test_what_does_not_fit_has_no_time_holds_up_nobody_and_is_planned_when_it_fits(restarted: bool) -> None:
    site = Site(Cluster().node("a").node("b", ready=False))
    never = site.file("gang", 16)
    assert told(never) == (None, (), None)
    assert never.moved is None, "nothing was promised"
    assert site.file("r", 8).start == NOW
    if restarted:
        site.restart()
    site.node("b", ready=True)
    assert told(site.update()["gang"]) == (NOW + hours(1), ("a", "b"), NOW + hours(1))


def test_of_those_who_lost_their_node_the_first_promised_is_placed_first() -> None:
    site = Site(Cluster().node("a", held=8, until=NOW + hours(9)).node("b", held=8))
    site.file("large", 8, 3)
    site.file("small", 8, 1)
    site.node("b", ready=False)
    found = site.update()
    assert (found["large"].start, found["small"].start) == (NOW + hours(9), NOW + hours(12))
    site.node("b", ready=True)
    site.update()
    site.end("h100-2")
    found = site.update(hours(1))
    assert (found["small"].start, found["large"].start) == (NOW + hours(1), NOW + hours(9))
