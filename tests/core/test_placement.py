from __future__ import annotations

import pytest
from builders import CATALOGUE, NOW, Cluster, hours
from hypothesis import given, settings
from hypothesis import strategies as st

from gpudev_core.models import Placement, Share
from gpudev_core.placement import Free, fits_ever, free_units, given_back, place, without


def placed(cluster: Cluster, count: int) -> list[tuple[str, list[int]]] | None:
    found = place(cluster.gpu_type, count, free_units(cluster.nodes, cluster.holdings))
    return [(share.node, list(share.units)) for share in found.shares] if found else None


@pytest.mark.parametrize(
    ("cluster", "count", "expected"),
    [
        pytest.param(
            Cluster().node("a").node("b", held=6),
            2,
            [("b", [6, 7])],
            id="two GPUs go where only two are left",
        ),
        pytest.param(
            Cluster().node("a", held=4).node("b", held=6),
            4,
            [("a", [4, 5, 6, 7])],
            id="the fullest node is passed over when it has too few",
        ),
        pytest.param(Cluster().node("b").node("a"), 1, [("a", [0])], id="equal nodes: the first by name"),
        pytest.param(
            Cluster().node("a", held=5).node("b", held=5), 4, None, id="six free, but three on each"
        ),
        pytest.param(Cluster().node("a", held=8), 1, None, id="everything is held"),
        pytest.param(Cluster(), 1, None, id="no node at all"),
        pytest.param(
            Cluster().node("a").node("b", held=1).node("c"),
            16,
            [("a", list(range(8))), ("c", list(range(8)))],
            id="sixteen GPUs are two whole nodes",
        ),
        pytest.param(
            Cluster().node("a").node("b", held=1).node("c"), 24, None, id="three whole nodes or none of them"
        ),
        pytest.param(
            Cluster().node("a").node("b", held=1), 8, [("a", list(range(8)))], id="eight on one node"
        ),
        pytest.param(Cluster().node("a", ready=False), 1, None, id="a node that is not ready has nothing"),
        pytest.param(
            Cluster().node("a", ready=False).node("b").node("c"),
            16,
            [("b", list(range(8))), ("c", list(range(8)))],
            id="a gang leaves out the node that is not ready",
        ),
        pytest.param(
            Cluster().node("a", foreign={0, 2}),
            2,
            [("a", [1, 3])],
            id="GPUs used from outside are left alone",
        ),
        pytest.param(
            Cluster().node("a", foreign={5}).node("b"), 16, None, id="one foreign GPU breaks a gang"
        ),
        pytest.param(Cluster("cpu-x86").node("a"), 0, [("a", [0])], id="a CPU request takes one slot"),
        pytest.param(
            Cluster("cpu-x86").node("a").node("b", held=2), 0, [("b", [2])], id="CPU slots are best fit, too"
        ),
        pytest.param(Cluster("cpu-x86").node("a", held=3), 0, None, id="three people fill a CPU node"),
        pytest.param(
            Cluster("t4").node("a").node("b"), 8, None, id="a type without multinode stays on one node"
        ),
    ],
)
def test_a_request_goes_to(
    cluster: Cluster, count: int, expected: list[tuple[str, list[int]]] | None
) -> None:
    assert placed(cluster, count) == expected


def test_holdings_of_nodes_that_are_gone_take_nothing() -> None:
    cluster = Cluster().node("a").holding({"gone": range(8)}, NOW + hours(1))
    assert free_units(cluster.nodes, cluster.holdings) == {"a": frozenset(range(8))}


@pytest.mark.parametrize(
    ("share", "expected"),
    [
        pytest.param(Share("a", (0, 1)), {0, 1, 7}, id="what was held is free again"),
        pytest.param(Share("a", (0, 5)), {0, 7}, id="a GPU that is used from outside by then is not"),
        pytest.param(Share("down", (0,)), {7}, id="a node that is not ready gives nothing back"),
        pytest.param(Share("a", (0, 8)), {0, 7}, id="a GPU that the node has no more is not"),
    ],
)
def test_what_an_end_gives_back(share: Share, expected: set[int]) -> None:
    nodes = {node.name: node for node in Cluster().node("a", foreign={5}).node("down", ready=False).nodes}
    free = {"a": frozenset({7})}
    assert given_back(free, Placement((share,)), nodes) == {"a": frozenset(expected)}
    assert free == {"a": frozenset({7})}


@pytest.mark.parametrize(
    ("cluster", "count", "expected"),
    [
        pytest.param(Cluster().node("a", held=8), 8, True, id="what is held now ends some day"),
        pytest.param(Cluster().node("a", foreign={0}), 8, True, id="so may what is used from outside"),
        pytest.param(Cluster().node("a"), 16, False, id="two nodes' worth never fits on one"),
        pytest.param(Cluster().node("a").node("b", ready=False), 16, False, id="nor with the other one down"),
    ],
)
def test_whether_it_would_ever_fit(cluster: Cluster, count: int, expected: bool) -> None:
    assert fits_ever(cluster.gpu_type, count, cluster.nodes) is expected


@st.composite
def asked_of_free(draw: st.DrawFn) -> tuple[str, int, Free]:
    name = draw(st.sampled_from(["t4", "h100", "cpu-x86"]))
    kind = CATALOGUE[name]
    units = st.frozensets(st.integers(0, kind.units_per_node - 1)) | st.just(
        frozenset(range(kind.units_per_node))
    )
    free = draw(st.dictionaries(st.sampled_from([f"node-{n}" for n in range(1, 8)]), units, max_size=7))
    return name, draw(st.sampled_from(kind.counts)), free


@given(asked_of_free())
@settings(deadline=None, max_examples=400)
def test_every_placement_is_free_exact_and_the_best_fit(asked: tuple[str, int, Free]) -> None:
    name, count, free = asked
    kind, wanted = CATALOGUE[name], max(1, count)
    nodes_wanted = -(-wanted // kind.units_per_node)
    whole = [node for node, units in free.items() if len(units) == kind.units_per_node]
    found = place(kind, count, free)

    if found is None:
        most_on_one = max(map(len, free.values()), default=0)
        assert len(whole) < nodes_wanted if nodes_wanted > 1 else most_on_one < wanted
        return
    assert len(set(found.nodes)) == len(found.nodes) == nodes_wanted
    assert sum(len(set(share.units)) for share in found.shares) == wanted
    assert all(set(share.units) <= free[share.node] for share in found.shares)
    if nodes_wanted > 1:
        assert set(found.nodes) <= set(whole)
    else:
        left_behind = len(free[found.nodes[0]]) - wanted
        assert left_behind == min(len(units) - wanted for units in free.values() if len(units) >= wanted)


@given(asked_of_free(), st.integers(1, 12))
@settings(deadline=None, max_examples=100)
def test_one_after_the_other_never_overlap_and_all_comes_back(
    asked: tuple[str, int, Free], times: int
) -> None:
    name, count, free = asked
    left, taken, placements = dict(free), set(), []
    for _ in range(times):
        found = place(CATALOGUE[name], count, left)
        if found is None:
            break
        units = {(share.node, unit) for share in found.shares for unit in share.units}
        assert not units & taken
        taken |= units
        placements.append(found)
        left = without(left, found)
    nodes = {node: Cluster(name).node(node).nodes[0] for node in free}
    for found in placements:
        left = given_back(left, found, nodes)
    assert left == free
