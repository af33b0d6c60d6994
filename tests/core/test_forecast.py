from __future__ import annotations

from datetime import datetime
from typing import Any

import pytest
from builders import CATALOGUE, NOW, Cluster, ask, hours, minutes

from gpudev_core.forecast import MOST_ALTERNATIVES, Board, sooner
from gpudev_core.models import Request, Waiting
from gpudev_core.planner import Allowances, Planner

ALLOWANCES = Allowances(minutes(2), minutes(1))


def board(*clusters: Cluster, queue: list[Waiting] | None = None, now: datetime = NOW) -> Board:
    nodes = [node for cluster in clusters for node in cluster.nodes]
    holdings = [holding for cluster in clusters for holding in cluster.holdings]
    return Board(CATALOGUE, nodes, holdings, queue or [], ALLOWANCES, now)


def waits(key: str, gpus: int, duration: float, kind: str = "h100", **more: Any) -> Waiting:
    return Waiting(key, "bob", ask(kind, gpus, duration), NOW, **more)


def planned(key: str, gpus: int, duration: float, start: datetime, *nodes: str) -> Waiting:
    return waits(key, gpus, duration, planned_start=start, planned_nodes=nodes, no_later_than=start)


# When it would start


def test_what_fits_would_start_now() -> None:
    now = NOW + minutes(0.5 / 60)
    asked = board(Cluster().node("a", held=6).node("b"), now=now).ask(ask("h100", 2))
    assert (asked.at, asked.expected, asked.nodes, asked.reason) == (now, now, ("a",), None)


def test_what_does_not_is_promised_the_end_of_another_with_its_clean_up() -> None:
    asked = board(Cluster().node("a", held=6)).ask(ask("h100", 4))
    assert (asked.at, asked.expected, asked.nodes) == (NOW + minutes(61), NOW + minutes(61), ("a",))


def test_it_would_stand_behind_all_who_wait_also_those_without_a_plan() -> None:
    queue = [planned("p", 8, 1, NOW + minutes(61), "a"), waits("w", 8, 1)]
    asked = board(Cluster().node("a", held=8), queue=queue).ask(ask("h100", 8))
    assert asked.at == NOW + minutes(61 + 63 + 63)


def test_asking_changes_nothing() -> None:
    books = board(Cluster().node("a", held=8), queue=[waits("w", 8, 1)])
    first = books.ask(ask("h100", 8))
    assert [books.ask(ask("h100", 8)) for _ in range(3)] == [first] * 3


def test_types_do_not_mix() -> None:
    books = board(Cluster("t4").node("x"), Cluster().node("a", held=8), queue=[waits("w", 8, 9)])
    assert books.ask(ask("t4", 4)).at == NOW
    assert [one.reservation_id for one in books.waiting_for("h100")] == ["w"]
    assert books.waiting_for("t4") == []
    assert [one.gpu_type for one in books.holdings_of("h100")] == ["h100"]


def test_a_disk_waits_for_its_zone() -> None:
    books = board(Cluster().node("a", zone="x").node("b", held=8, zone="y"))
    assert books.ask(ask("h100", 8), "x").at == NOW
    assert books.ask(ask("h100", 8), "y").at == NOW + minutes(61)
    never = books.ask(ask("h100", 8), "z")
    assert never.reason is not None
    assert (never.at, never.expected, never.reason.code) == (None, None, "does_not_fit")


def test_what_the_form_says_is_what_the_queue_then_promises() -> None:
    cluster = Cluster().node("a", held=3).node("b", held=8, until=NOW + minutes(20)).node("c", held=1)
    queue = [waits("w0", 8, 2), waits("w1", 16, 1), waits("w2", 2, 5)]
    planner = Planner(cluster.gpu_type, ALLOWANCES)
    for gpus in (1, 4, 8, 16, 24):
        asked = board(cluster, queue=queue).ask(ask("h100", gpus, 3))
        mine = Waiting("mine", "ada", ask("h100", gpus, 3), NOW + minutes(1))
        answer = planner.update(cluster.nodes, cluster.holdings, [*queue, mine], NOW)["mine"]
        assert (answer.no_later_than, answer.nodes) == (asked.at, asked.nodes)


# Why not now


@pytest.mark.parametrize(
    ("cluster", "queue", "request_", "reason"),
    [
        pytest.param(
            Cluster().node("a", held=8).node("b", held=1),
            [],
            ask("h100", 8),
            {"code": "needs_free_on_one_node", "gpus": 8, "node": "a", "at": NOW + minutes(61)},
            id="GPUs on one node",
        ),
        pytest.param(
            Cluster().node("a", held=1, until=NOW + minutes(5)).node("b", held=1, until=NOW + minutes(9)),
            [],
            ask("h100", 16),
            {"code": "needs_empty_nodes", "nodes": 2, "node": "b", "at": NOW + minutes(10)},
            id="empty nodes, and the last of them by name",
        ),
        pytest.param(
            Cluster("cpu-x86").node("a", held=3),
            [],
            ask("cpu-x86", 0),
            {"code": "needs_free_slot", "node": "a", "at": NOW + minutes(61)},
            id="a slot",
        ),
        pytest.param(
            Cluster().node("a", held=4),
            [planned("p", 8, 1, NOW + minutes(61), "a")],
            ask("h100", 2, 3),
            {
                "code": "promised_to_others",
                "promised_node": "a",
                "promised_from": NOW + minutes(61),
                "node": "a",
                "at": NOW + minutes(61 + 63),
            },
            id="four are idle, and promised from ten on",
        ),
        pytest.param(
            Cluster().node("a").node("b", held=8),
            [planned("p", 16, 1, NOW + minutes(61), "a", "b")],
            ask("h100", 8, 1),
            {
                "code": "promised_to_others",
                "promised_node": "a",
                "promised_from": NOW + minutes(61),
                "node": "a",
                "at": NOW + minutes(61 + 63),
            },
            id="a node is kept for a gang",
        ),
        pytest.param(
            Cluster().node("a", held=4),
            [planned("s", 4, 0.5, NOW, "a"), planned("p", 8, 1, NOW + minutes(61), "a")],
            ask("h100", 8, 1),
            {
                "code": "promised_to_others",
                "promised_node": "a",
                "promised_from": NOW + minutes(61),
                "node": "a",
                "at": NOW + minutes(61 + 63),
            },
            id="promised from when it would be in the way",
        ),
        pytest.param(
            Cluster("cpu-x86").node("a", held=3),
            [waits("w", 0, 1, "cpu-x86")] * 3,
            ask("cpu-x86", 0),
            {"code": "needs_free_slot", "node": "a", "at": NOW + minutes(61)},
            id="the queue leaves it the same start",
        ),
        pytest.param(
            Cluster().node("a").node("b", ready=False).node("c", cordoned=True),
            [],
            ask("h100", 16),
            {"code": "does_not_fit", "gpus": 16, "gpu_type": "h100", "nodes_up": 1, "nodes": 3},
            id="too few nodes that are up",
        ),
        pytest.param(
            Cluster().node("a", foreign={3}),
            [],
            ask("h100", 8),
            {"code": "held_outside", "gpu_type": "h100"},
            id="somebody outside the portal",
        ),
    ],
)
def test_the_reason_is(
    cluster: Cluster, queue: list[Waiting], request_: Request, reason: dict[str, object]
) -> None:
    asked = board(cluster, queue=queue).ask(request_)
    assert asked.reason is not None
    assert asked.reason.as_json() == reason
    assert asked.at == reason.get("at")


def test_a_short_one_goes_before_a_promise_and_a_long_one_not() -> None:
    queue = [planned("p", 8, 1, NOW + minutes(120), "a")]
    books = board(Cluster().node("a", held=4, until=NOW + minutes(119)), queue=queue)
    assert books.ask(ask("h100", 4, 1.95)).at == NOW
    assert books.ask(ask("h100", 4, 1.96)).at == NOW + minutes(183)


# Cells


@pytest.mark.parametrize(
    ("queue", "expected"),
    [
        pytest.param([], (6, 0), id="idle is free"),
        pytest.param([planned("p", 8, 1, NOW + minutes(61), "a")], (0, 6), id="all is promised in an hour"),
        pytest.param([planned("p", 4, 1, NOW + minutes(30), "a")], (2, 4), id="some are promised"),
        pytest.param([planned("p", 4, 1, NOW + minutes(63), "a")], (6, 0), id="not within an hour"),
        pytest.param([planned("p", 4, 1, NOW, "a")], (2, 0), id="what starts now is not idle any more"),
    ],
)
def test_idle_gpus_are_free_or_promised(queue: list[Waiting], expected: tuple[int, int]) -> None:
    cluster = Cluster().node("a", held=2, until=NOW + minutes(60))
    assert board(cluster, queue=queue).idle(cluster.nodes[0]) == expected


@pytest.mark.parametrize(
    ("more", "expected"),
    [({"foreign": {6, 7}}, (4, 0)), ({"ready": False}, (0, 0)), ({"cordoned": True}, (0, 0))],
)
def test_what_cannot_be_had_is_neither(more: dict[str, Any], expected: tuple[int, int]) -> None:
    cluster = Cluster().node("a", held=2, **more)
    assert board(cluster).idle(cluster.nodes[0]) == expected


# What would start sooner

H100 = Cluster().node("a", held=4).node("b", held=8)
FREE_T4 = Cluster("t4").node("x").node("z")
FREE_A100 = Cluster("a100").node("y")


@pytest.mark.parametrize(
    ("clusters", "queue", "request_", "expected"),
    [
        pytest.param([H100], [], ask("h100", 8, 1), [("h100", 4, 1)], id="as many GPUs as start now"),
        pytest.param([H100], [], ask("h100", 16, 1), [("h100", 4, 1)], id="instead of a gang, too"),
        pytest.param(
            [H100, FREE_T4, FREE_A100],
            [],
            ask("h100", 8, 1),
            [("h100", 4, 1), ("a100", 8, 1)],
            id="another type, if it comes in such a size",
        ),
        pytest.param(
            [Cluster().node("a", held=8), Cluster("a100").node("y", held=8)],
            [],
            ask("h100", 8, 4),
            [],
            id="nothing that would wait as well",
        ),
        pytest.param(
            [Cluster().node("a", held=4, until=NOW + hours(4))],
            [planned("p", 8, 1, NOW + minutes(241), "a")],
            ask("h100", 4, 12),
            [("h100", 4, 2)],
            id="the most hours that fit before a promise, with their allowances",
        ),
        pytest.param(
            [Cluster("cpu-x86").node("a", held=3), Cluster("cpu-arm").node("b"), FREE_T4],
            [],
            ask("cpu-x86", 0, 1),
            [("cpu-arm", 0, 1)],
            id="for a CPU machine another CPU machine",
        ),
    ],
)
def test_what_would_start_sooner(
    clusters: list[Cluster], queue: list[Waiting], request_: Request, expected: list[tuple[str, int, float]]
) -> None:
    offered = [cluster.gpu_type.name for cluster in clusters]
    books = board(*clusters, queue=queue)
    found = sooner(books, request_, offered)
    assert [(other.gpu_type, other.gpu_count, other.hours) for other in found] == expected
    assert all(books.ask(other).at == NOW for other in found)


def test_it_stays_the_same_request_in_all_else() -> None:
    request = ask("h100", 8, 1, disk="data", name="train", image="pytorch")
    [other] = sooner(board(H100), request, ["h100"])
    assert (other.disk, other.name, other.image) == ("data", "train", "pytorch")


def test_what_starts_now_is_not_told_as_a_change_of_itself() -> None:
    request = ask("h100", 4, 1)
    assert request not in sooner(board(H100), request, ["h100"])


def test_at_most_three_are_told() -> None:
    names = [kind.name for kind in CATALOGUE.values() if 4 in kind.counts and kind.name != "h100"]
    assert len(names) > MOST_ALTERNATIVES
    clusters = [Cluster().node("a", held=6), *(Cluster(name).node(f"of-{name}") for name in names)]
    found = sooner(board(*clusters), ask("h100", 4, 8), ["h100", *names])
    assert [other.gpu_type for other in found] == ["h100", *names[:2]]
    assert len(found) == MOST_ALTERNATIVES


def test_the_zone_of_the_disk_counts_for_the_others_too() -> None:
    clusters = [Cluster().node("a", held=8, zone="x"), Cluster("a100").node("y", zone="z")]
    assert sooner(board(*clusters), ask("h100", 8), ["h100", "a100"], "x") == []
    assert len(sooner(board(*clusters), ask("h100", 8), ["h100", "a100"], "")) == 1
