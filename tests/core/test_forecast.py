from __future__ import annotations

from datetime import timedelta
from itertools import combinations

import pytest
from builders import CATALOGUE, NOW, Cluster, ask, hours, minutes
from hypothesis import given, settings
from hypothesis import strategies as st

from gpudev_core.forecast import Allowances, Forecast, Timeline, plan
from gpudev_core.models import GpuType, Holding, Node, Waiting

CLEANUP = minutes(1)


def forecasts(cluster: Cluster, *asked: tuple[int, float], cleanup: timedelta = CLEANUP) -> list[Forecast]:
    """``asked`` is the queue: GPUs and hours of each."""
    queue = [
        Waiting(f"w{n}", "ada", ask(cluster.gpu_type.name, count, duration))
        for n, (count, duration) in enumerate(asked)
    ]
    found = plan(
        cluster.gpu_type, cluster.nodes, cluster.holdings, queue, NOW, Allowances(minutes(0), cleanup)
    )
    assert list(found) == [waiting.reservation_id for waiting in queue]
    return list(found.values())


@pytest.mark.parametrize(
    ("cluster", "queue", "starts"),
    [
        pytest.param(Cluster().node("a"), [(8, 1)], [0], id="what fits starts now"),
        pytest.param(
            Cluster().node("a", held=4, until=NOW + minutes(30)),
            [(8, 1)],
            [31],
            id="a whole node waits for its last GPU and the clean-up",
        ),
        pytest.param(
            Cluster().node("a", held=8, until=NOW + minutes(30)).node("b", held=8, until=NOW + minutes(20)),
            [(2, 1)],
            [21],
            id="the first end that is enough counts",
        ),
        pytest.param(
            Cluster().node("a", held=6, until=NOW + minutes(30)),
            [(4, 1), (2, 1)],
            [31, 31],
            id="nobody goes first who came later, even where it would fit",
        ),
        pytest.param(
            Cluster().node("a"),
            [(8, 1), (8, 2), (8, 1)],
            [0, 61, 182],
            id="requests wait for each other's ends",
        ),
        pytest.param(
            Cluster().node("a", held=1, until=NOW + minutes(10)).node("b", held=1, until=NOW + minutes(50)),
            [(16, 1)],
            [51],
            id="a gang waits for its last node",
        ),
        pytest.param(
            Cluster().node("a"),
            [(16, 1), (8, 1)],
            [None, 0],
            id="what never fits is passed, and holds up nobody",
        ),
        pytest.param(
            Cluster().node("a", foreign={0}).node("b", held=8),
            [(16, 1), (8, 1)],
            [None, 61],
            id="what is used from outside has no end that is known",
        ),
        pytest.param(
            Cluster().node("a", held=2, until=NOW + minutes(30), ready=False),
            [(1, 1)],
            [None],
            id="an end on a node that is down frees nothing",
        ),
        pytest.param(
            Cluster("cpu-x86").node("a", held=2, until=NOW + minutes(30)),
            [(0, 1), (0, 1)],
            [0, 31],
            id="CPU people wait for a slot",
        ),
    ],
)
def test_a_waiting_request_starts(
    cluster: Cluster, queue: list[tuple[int, float]], starts: list[int | None]
) -> None:
    expected = [None if start is None else NOW + minutes(start) for start in starts]
    assert [forecast.at for forecast in forecasts(cluster, *queue)] == expected


def test_a_holding_past_its_end_is_not_free_yet() -> None:
    [forecast] = forecasts(Cluster().node("a", held=8, until=NOW - hours(3)), (1, 1))
    assert forecast.at is not None
    assert NOW < forecast.at <= NOW + minutes(1)
    assert not forecast.starts_now(NOW)


def test_everything_that_ends_at_one_instant_is_free_before_a_place_is_chosen() -> None:
    """Otherwise the forecast puts a request where the portal would not."""
    cluster = Cluster().node("a", held=8, until=NOW + minutes(9)).node("b")
    cluster.holding({"b": range(6)}, NOW + minutes(9)).holding({"b": [6, 7]}, NOW + minutes(99))
    [first, second] = forecasts(cluster, (4, 1), (8, 1))
    assert first.placement is not None
    assert first.placement.nodes == ("b",)
    assert second.at == NOW + minutes(10)


@pytest.mark.parametrize(
    ("cluster", "queue", "reason"),
    [
        pytest.param(Cluster().node("a"), [(8, 1)], None, id="none when it starts now"),
        pytest.param(
            Cluster().node("a"), [(4, 1), (4, 1)], None, id="none when it starts now beside another"
        ),
        pytest.param(
            Cluster().node("a", held=8).node("b", held=1),
            [(8, 1)],
            {"code": "needs_free_on_one_node", "gpus": 8, "node": "a", "at": NOW + minutes(61)},
            id="GPUs on one node",
        ),
        pytest.param(
            Cluster().node("a").node("b", held=1, until=NOW + minutes(9)),
            [(16, 1)],
            {"code": "needs_empty_nodes", "nodes": 2, "node": "b", "at": NOW + minutes(10)},
            id="empty nodes",
        ),
        pytest.param(
            Cluster("cpu-x86").node("a", held=3),
            [(0, 1)],
            {"code": "needs_free_slot", "node": "a", "at": NOW + minutes(61)},
            id="a slot",
        ),
        pytest.param(
            Cluster().node("a", held=6),
            [(4, 1), (2, 1)],
            {"code": "behind_others", "at": NOW + minutes(61)},
            id="others before it",
        ),
        pytest.param(
            Cluster().node("a").node("b", ready=False),
            [(16, 1)],
            {"code": "does_not_fit", "gpus": 16, "gpu_type": "h100", "nodes_up": 1, "nodes": 2},
            id="too few nodes that are up",
        ),
        pytest.param(
            Cluster().node("a", foreign={3}),
            [(8, 1)],
            {"code": "held_outside", "gpu_type": "h100"},
            id="somebody outside the portal",
        ),
    ],
)
def test_the_reason_is(
    cluster: Cluster, queue: list[tuple[int, float]], reason: dict[str, object] | None
) -> None:
    last = forecasts(cluster, *queue)[-1]
    assert (last.reason.as_json() if last.reason else None) == reason


def test_positions_count_within_the_type() -> None:
    assert [f.position for f in forecasts(Cluster().node("a"), (8, 1), (16, 1), (8, 1))] == [1, 2, 3]


def test_nodes_and_holdings_of_other_types_do_not_matter() -> None:
    t4, h100 = Cluster("t4").node("x"), Cluster("h100").node("a", held=8)
    timeline = Timeline(
        h100.gpu_type, [*t4.nodes, *h100.nodes], h100.holdings, NOW, Allowances(minutes(0), CLEANUP)
    )
    assert timeline.ask(ask("h100", 1)).at == NOW + minutes(61)
    timeline = Timeline(
        t4.gpu_type, [*t4.nodes, *h100.nodes], h100.holdings, NOW, Allowances(minutes(0), CLEANUP)
    )
    assert timeline.ask(ask("t4", 1)).at == NOW


def test_asking_leaves_the_queue_as_it_is() -> None:
    cluster = Cluster().node("a")
    timeline = Timeline(cluster.gpu_type, cluster.nodes, [], NOW, Allowances(minutes(0), CLEANUP))
    timeline.add(ask("h100", 8, 1))
    asked = [timeline.ask(ask("h100", 8, 5)) for _ in range(2)]
    assert [(a.at, a.position) for a in asked] == [(NOW + minutes(61), 2)] * 2
    assert timeline.add(ask("h100", 8, 1)).at == NOW + minutes(61)


# Against a simulation that knows nothing of the code: a clock that steps by minutes


class Clockwork:
    """Nodes as lists of what each unit is busy until; a queue whose head starts as soon as it fits."""

    def __init__(self, kind: GpuType, nodes: list[Node], holdings: list[Holding], cleanup: int) -> None:
        self.per_node = 3 if kind.is_cpu else kind.gpus_per_node
        self.cleanup = cleanup
        endless = 10**9
        self.busy_until = {
            node.name: [endless if unit in node.foreign else 0 for unit in range(node.units)]
            for node in nodes
            if node.ready
        }
        for holding in holdings:
            for share in holding.placement.shares:
                for unit in share.units:
                    if share.node in self.busy_until:
                        end = round((holding.ends_at - NOW).total_seconds() / 60) + cleanup
                        slots = self.busy_until[share.node]
                        slots[unit] = max(slots[unit], end)

    def fits(self, units: int, minute: int) -> list[tuple[str, list[int]]]:
        free = {
            name: [unit for unit, until in enumerate(slots) if until <= minute]
            for name, slots in self.busy_until.items()
        }
        if units > self.per_node:
            empty = [(name, of) for name, of in sorted(free.items()) if len(of) == self.per_node]
            wanted = units // self.per_node
            return empty[:wanted] if len(empty) >= wanted else []
        enough = sorted((len(of), name) for name, of in free.items() if len(of) >= units)
        return [(enough[0][1], free[enough[0][1]][:units])] if enough else []

    def run(self, queue: list[tuple[int, int]]) -> list[int | None]:
        starts: list[int | None] = []
        minute = 0
        for count, duration in queue:
            units = max(1, count)
            if not self.fits(units, minute=10**8):
                starts.append(None)
                continue
            while not (place := self.fits(units, minute)):
                minute += 1
            for name, of in place:
                for unit in of:
                    self.busy_until[name][unit] = minute + duration + self.cleanup
            starts.append(minute)
        return starts


@st.composite
def situations(draw: st.DrawFn) -> tuple[Cluster, list[tuple[int, int]], int]:
    cluster = Cluster(draw(st.sampled_from(["t4", "h100", "cpu-x86"])))
    per_node = cluster.gpu_type.units_per_node
    for number in range(draw(st.integers(1, 4))):
        name = f"node-{number}"
        foreign = draw(st.just(frozenset()) | st.frozensets(st.integers(0, per_node - 1), max_size=2))
        cluster.node(name, ready=draw(st.integers(0, 5)) > 0, foreign=foreign)
        owners = draw(st.lists(st.integers(0, 3), min_size=per_node, max_size=per_node))
        for owner in {*owners} - {0}:
            units = [unit for unit in range(per_node) if owners[unit] == owner and unit not in foreign]
            if units:
                cluster.holding({name: units}, NOW + minutes(draw(st.integers(1, 40))))
    queue = draw(
        st.lists(
            st.tuples(st.sampled_from(cluster.gpu_type.counts), st.integers(5, 60)), min_size=1, max_size=7
        )
    )
    return cluster, queue, draw(st.integers(0, 3))


@given(situations())
@settings(deadline=None, max_examples=250)
def test_forecasts_are_what_a_clock_would_show(situation: tuple[Cluster, list[tuple[int, int]], int]) -> None:
    cluster, queue, cleanup = situation
    found = forecasts(cluster, *[(count, length / 60) for count, length in queue], cleanup=minutes(cleanup))

    simulated = Clockwork(cluster.gpu_type, cluster.nodes, cluster.holdings, cleanup).run(queue)
    assert [f.at for f in found] == [None if m is None else NOW + minutes(m) for m in simulated]

    starts = [f.at for f in found if f.at is not None]
    assert starts == sorted(starts), "who came first starts first"

    stays = [
        (share.node, set(share.units), f.at, f.at + minutes(length + cleanup))
        for f, (_, length) in zip(found, queue, strict=True)
        if f.at and f.placement
        for share in f.placement.shares
    ] + [
        (share.node, set(share.units), NOW, h.ends_at + minutes(cleanup))
        for h in cluster.holdings
        for share in h.placement.shares
    ]
    nodes = {node.name: node for node in cluster.nodes}
    for f in found:
        for share in f.placement.shares if f.placement else ():
            assert nodes[share.node].ready
            assert not set(share.units) & nodes[share.node].foreign
    for (node_a, units_a, from_a, to_a), (node_b, units_b, from_b, to_b) in combinations(stays, 2):
        if node_a == node_b and from_a < to_b and from_b < to_a:
            assert not units_a & units_b, "no unit is given to two at one time"


def test_the_catalogue_has_a_type_of_each_kind_for_the_simulation() -> None:
    kinds = [(kind.is_cpu, kind.multinode) for kind in map(CATALOGUE.find, ["t4", "h100", "cpu-x86"])]
    assert kinds == [(False, False), (False, True), (True, False)]


def test_time_to_prepare_is_planned_before_the_next_one_starts() -> None:
    cluster = Cluster("h100").node("a")
    allowances = Allowances(minutes(2), minutes(1))
    timeline = Timeline(cluster.gpu_type, cluster.nodes, [], NOW, allowances)
    assert timeline.add(ask("h100", 8, 1)).at == NOW
    assert timeline.add(ask("h100", 8, 1)).at == NOW + minutes(63)
