from __future__ import annotations

from collections.abc import Callable

import pytest
from builders import CATALOGUE, NOW, Cluster, days, hours, minutes

from gpudev_core import availability
from gpudev_core.catalogue import Catalogue
from gpudev_core.models import GpuType
from gpudev_core.store import Store
from gpudev_core.tables import GpuTypeRow

H100 = Cluster().node("a").node("b", held=2)


def figures(cluster: Cluster) -> dict[str, int]:
    found = availability.columns(cluster.gpu_type, cluster.nodes, cluster.holdings)
    return {
        "total": found["total_cluster_gpus"],
        "free": found["available_gpus"],
        "reservable": found["max_reservable"],
        "whole": found["full_nodes_available"],
        "running": found["running_instances"],
        "desired": found["desired_capacity"],
    }


@pytest.mark.parametrize(
    ("cluster", "expected"),
    [
        pytest.param(
            Cluster().node("a").node("b"),
            {"total": 16, "free": 16, "reservable": 16, "whole": 2, "running": 2, "desired": 2},
            id="two empty nodes can be had together",
        ),
        pytest.param(
            Cluster().node("a").node("b").node("c").node("d").node("e"),
            {"total": 40, "free": 40, "reservable": 32, "whole": 5, "running": 5, "desired": 5},
            id="of five empty nodes four can be had together",
        ),
        pytest.param(
            Cluster().node("a", held=3).node("b", held=6),
            {"total": 16, "free": 7, "reservable": 5, "whole": 0, "running": 2, "desired": 2},
            id="without an empty node the best single one counts",
        ),
        pytest.param(
            Cluster("t4").node("a").node("b"),
            {"total": 8, "free": 8, "reservable": 4, "whole": 2, "running": 2, "desired": 2},
            id="a type without multinode gives one node at most",
        ),
        pytest.param(
            Cluster().node("a").node("b", ready=False),
            {"total": 8, "free": 8, "reservable": 8, "whole": 1, "running": 1, "desired": 2},
            id="a node that is not ready is wanted, but has nothing",
        ),
        pytest.param(
            Cluster().node("a", foreign={0}).node("b", ready=False, held=8),
            {"total": 8, "free": 7, "reservable": 7, "whole": 0, "running": 1, "desired": 2},
            id="what is used from outside is not free",
        ),
        pytest.param(
            Cluster("cpu-x86").node("a", held=1).node("b", held=3),
            {"total": 6, "free": 2, "reservable": 1, "whole": 0, "running": 2, "desired": 2},
            id="a person can have one CPU slot",
        ),
        pytest.param(
            Cluster("cpu-x86").node("a", held=3),
            {"total": 3, "free": 0, "reservable": 0, "whole": 0, "running": 1, "desired": 1},
            id="or none when all are taken",
        ),
        pytest.param(
            Cluster(),
            {"total": 0, "free": 0, "reservable": 0, "whole": 0, "running": 0, "desired": 0},
            id="no node, no figures",
        ),
    ],
)
def test_the_figures_of_a_type(cluster: Cluster, expected: dict[str, int]) -> None:
    assert figures(cluster) == expected


@pytest.mark.parametrize(
    ("cluster", "per_node"), [(Cluster(), 8), (Cluster("t4"), 4), (Cluster("cpu-x86"), 0)]
)
def test_max_per_node_is_the_types(cluster: Cluster, per_node: int) -> None:
    assert availability.columns(cluster.gpu_type, [], [])["max_per_node"] == per_node


# Saving


class Watcher:
    """Saves what it sees, as the controller does."""

    def __init__(self, store: Store) -> None:
        self.store = store

    def sees(self, *clusters: Cluster, after: float = 0, catalogue: Catalogue = CATALOGUE) -> bool:
        nodes = [node for cluster in clusters for node in cluster.nodes]
        held = [holding for cluster in clusters for holding in cluster.holdings]
        now = NOW + minutes(after)
        return availability.save(self.store, catalogue, nodes, held, now=now, by="controller")

    def row(self, gpu_type: str) -> GpuTypeRow:
        with self.store.read() as session:
            return session.get_one(GpuTypeRow, gpu_type)


@pytest.fixture
def watcher(store: Store) -> Watcher:
    return Watcher(store)


def test_every_type_gets_its_row(watcher: Watcher) -> None:
    assert watcher.sees(H100)
    row = watcher.row("h100")
    assert (row.instance_type, row.max_gpus, row.cpus, row.memory_gb) == ("p5.48xlarge", 32, 192, 2048)
    assert (row.total_cluster_gpus, row.available_gpus, row.max_reservable) == (16, 14, 8)
    assert (row.last_availability_update, row.last_availability_updated_by) == (NOW, "controller")
    assert row.is_active
    assert not watcher.row("t4").is_active


@pytest.mark.parametrize(
    ("after", "is_written"),
    [
        pytest.param(0, False, id="at once"),
        pytest.param(4.9, False, id="before five minutes"),
        pytest.param(5, True, id="after five minutes"),
    ],
)
def test_the_same_again_is_written(watcher: Watcher, after: float, is_written: bool) -> None:
    watcher.sees(H100)
    assert watcher.sees(H100, after=after) is is_written
    written_at = NOW + minutes(after) if is_written else NOW
    assert watcher.row("h100").last_availability_update == written_at


@pytest.mark.parametrize(
    "change",
    [
        pytest.param(lambda: Cluster().node("a").node("b", held=3), id="another GPU is held"),
        pytest.param(lambda: Cluster().node("a").node("b", held=2, ready=False), id="a node went down"),
        pytest.param(lambda: Cluster().node("a").node("c", held=2), id="a node has another name"),
        pytest.param(
            lambda: Cluster().node("a", foreign={1}).node("b", held=1), id="a GPU is used from outside"
        ),
        pytest.param(lambda: Cluster(), id="all nodes are gone"),
    ],
)
def test_a_change_is_written_at_once(watcher: Watcher, change: Callable[[], Cluster]) -> None:
    watcher.sees(H100)
    assert watcher.sees(change(), after=0.1)
    assert watcher.row("h100").last_availability_update == NOW + minutes(0.1)


def test_a_change_of_one_type_leaves_the_others_rows_alone(watcher: Watcher) -> None:
    t4 = Cluster("t4").node("x")
    watcher.sees(H100, t4)
    watcher.sees(Cluster().node("a"), t4, after=1)
    assert watcher.row("h100").last_availability_update == NOW + minutes(1)
    assert watcher.row("t4").last_availability_update == NOW


def test_a_change_of_the_catalogue_is_written(watcher: Watcher) -> None:
    watcher.sees(H100)
    bigger = CATALOGUE.with_types([GpuType("h100", "p5.new", 8, cpus=256, memory_gb=4096)])
    assert watcher.sees(H100, after=1, catalogue=bigger)
    row = watcher.row("h100")
    assert (row.instance_type, row.max_gpus, row.cpus, row.memory_gb) == ("p5.new", 8, 256, 4096)


def test_a_type_that_left_the_catalogue_is_offered_no_more(watcher: Watcher) -> None:
    """As when a machine got other GPUs."""
    watcher.sees(H100)
    smaller = Catalogue(kind for kind in CATALOGUE.values() if kind.name != "h100")
    assert watcher.sees(Cluster("t4").node("x"), after=1, catalogue=smaller)
    with watcher.store.read() as session:
        assert [row.gpu_type for row in availability.offered(session)] == ["t4"]
    assert not watcher.sees(Cluster("t4").node("x"), after=1, catalogue=smaller), "and is written once"


def test_nodes_come_back_as_they_were_seen(watcher: Watcher) -> None:
    cluster = Cluster().node("a", foreign={1, 2}, zone="eu-1", device_ids=("GPU-1", "GPU-2"))
    cluster.node("b", ready=False, units=4)
    watcher.sees(cluster, Cluster("t4").node("x"))
    with watcher.store.read() as session:
        rows = {row.gpu_type: row for row in availability.offered(session)}
    assert set(rows) == {"h100", "t4"}
    assert availability.nodes_of([rows["h100"]]) == cluster.nodes


@pytest.mark.parametrize(
    ("age", "is_stale"),
    [
        pytest.param(minutes(0), False, id="fresh"),
        pytest.param(minutes(6), False, id="six minutes old"),
        pytest.param(minutes(6.1), True, id="older than six minutes"),
        pytest.param(days(9), True, id="days old"),
    ],
)
def test_old_figures_are_called_stale(age, is_stale: bool) -> None:
    row = GpuTypeRow(last_availability_update=NOW)
    assert availability.is_stale(row, NOW + age) is is_stale


def test_figures_that_nobody_wrote_are_stale() -> None:
    assert availability.is_stale(GpuTypeRow(last_availability_update=None), NOW + hours(0))
