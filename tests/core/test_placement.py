from __future__ import annotations

import pytest
from builders import NOW, Cluster, hours, minutes
from hypothesis import given, settings
from hypothesis import strategies as st
from slow_search import Booking, Slow

from gpudev_core.models import Placement, Share
from gpudev_core.placement import (
    Need,
    Places,
    Slot,
    capacity,
    choose_units,
    counted,
    fits_ever,
    free_units,
)
from gpudev_core.profile import EVER

HOUR = 3600


def places_of(cluster: Cluster) -> Places:
    """Time 0 is ``NOW``."""
    places = Places()
    nodes = {node.name: node for node in cluster.nodes}
    for node in cluster.nodes:
        places.set_node(node.name, capacity(node), node.zone)
    for holding in cluster.holdings:
        end = round((holding.ends_at - NOW).total_seconds())
        for share in holding.placement.shares:
            places.take((share.node,), 0, end, counted(share, nodes[share.node]))
    return places


def found(cluster: Cluster, count: int, length: int = HOUR, zone: str = "") -> tuple[int, list[str]] | None:
    slot = places_of(cluster).earliest(Need.of(cluster.gpu_type, count, length, zone), 0)
    return (slot.start, list(slot.nodes)) if slot else None


@pytest.mark.parametrize(
    ("cluster", "count", "expected"),
    [
        pytest.param(Cluster().node("b").node("a"), 1, (0, ["a"]), id="equal nodes: the first by name"),
        pytest.param(
            Cluster().node("a").node("b", held=6), 2, (0, ["b"]), id="two GPUs go where only two are left"
        ),
        pytest.param(
            Cluster().node("a", held=4).node("b", held=6),
            4,
            (0, ["a"]),
            id="the fullest node is passed over when it has too few",
        ),
        pytest.param(
            Cluster().node("a").node("b", held=4).node("c"), 4, (0, ["b"]), id="whole nodes stay whole"
        ),
        pytest.param(
            Cluster().node("a", held=5).node("b", held=5, until=NOW + minutes(30)),
            4,
            (1800, ["b"]),
            id="six free, but three on each: the first end counts",
        ),
        pytest.param(
            Cluster().node("b", held=8).node("a", held=8),
            1,
            (HOUR, ["a"]),
            id="equal nodes later on: the first by name",
        ),
        pytest.param(
            Cluster().node("a", held=8).node("b", held=6).holding({"b": [6, 7]}, NOW + hours(3)),
            2,
            (HOUR, ["b"]),
            id="best fit counts what is free at the start, not now",
        ),
        pytest.param(Cluster(), 1, None, id="no node at all"),
        pytest.param(Cluster().node("a", held=1).node("b"), 8, (0, ["b"]), id="eight are one empty node"),
        pytest.param(
            Cluster().node("a").node("b", held=1).node("c"),
            16,
            (0, ["a", "c"]),
            id="sixteen are two empty nodes",
        ),
        pytest.param(
            Cluster().node("a").node("b", held=1).node("c"),
            24,
            (HOUR, ["a", "b", "c"]),
            id="a gang is all or nothing: it waits for its last node",
        ),
        pytest.param(
            Cluster().node("a").node("b").node("c").node("d").node("e"),
            32,
            (0, ["a", "b", "c", "d"]),
            id="a gang of four",
        ),
        pytest.param(Cluster().node("a"), 16, None, id="a gang never has one node twice"),
        pytest.param(
            Cluster().node("a").node("b", foreign={5}), 16, None, id="one foreign GPU breaks a gang"
        ),
        pytest.param(
            Cluster().node("a", foreign={0, 1}).node("b"),
            6,
            (0, ["a"]),
            id="foreign GPUs make a node smaller",
        ),
        pytest.param(
            Cluster().node("a", foreign={0}, held=2),
            6,
            (0, ["a"]),
            id="a GPU held and used outside counts once",
        ),
        pytest.param(Cluster().node("a", ready=False), 1, None, id="a node that is not ready has nothing"),
        pytest.param(Cluster().node("a", cordoned=True), 1, None, id="nor has one that is cordoned"),
        pytest.param(
            Cluster().node("a", held=2, cordoned=True).node("b"),
            2,
            (0, ["b"]),
            id="what ends on a cordoned node frees nothing",
        ),
        pytest.param(
            Cluster().node("a", ready=False).node("b").node("c"),
            16,
            (0, ["b", "c"]),
            id="a gang leaves out the node that is not ready",
        ),
        pytest.param(Cluster("cpu-x86").node("a").node("b", held=2), 0, (0, ["b"]), id="CPU slots: best fit"),
        pytest.param(
            Cluster("cpu-x86").node("a", held=3, until=NOW + minutes(9)),
            0,
            (540, ["a"]),
            id="three people fill a CPU node",
        ),
        pytest.param(Cluster("t4").node("a").node("b"), 8, (0, ["a", "b"]), id="two nodes of four"),
    ],
)
def test_a_request_goes_to(cluster: Cluster, count: int, expected: tuple[int, list[str]] | None) -> None:
    assert found(cluster, count) == expected


@pytest.mark.parametrize(
    ("count", "zone", "expected"),
    [
        (1, "", (0, ["a1"])),
        (1, "b", (0, ["b1"])),
        (16, "b", (HOUR, ["b1", "b2"])),
        (24, "b", None),
        (24, "", (0, ["a1", "a2", "b1"])),
        (1, "c", None),
    ],
)
def test_a_disk_holds_a_request_to_its_zone(
    count: int, zone: str, expected: tuple[int, list[str]] | None
) -> None:
    cluster = Cluster().node("a1", zone="a").node("a2", zone="a").node("b1", zone="b")
    cluster.node("b2", zone="b", held=8)
    assert found(cluster, count, zone=zone) == expected


def test_a_node_may_change_its_zone() -> None:
    places = Places()
    places.set_node("a", 8, "x")
    need = Need(1, 1, HOUR, "y")
    assert places.earliest(need, 0) is None
    places.set_node("a", 8, "y")
    assert places.earliest(need, 0) == Slot(0, ("a",))
    assert places.earliest(Need(1, 1, HOUR, "x"), 0) is None


def test_a_short_request_fits_before_what_is_planned_and_a_long_one_does_not() -> None:
    places = Places()
    places.set_node("a", 8)
    places.take(("a",), HOUR, 2 * HOUR, 8)
    assert places.earliest(Need(8, 1, HOUR), 0) == Slot(0, ("a",))
    assert places.earliest(Need(8, 1, HOUR + 1), 0) == Slot(2 * HOUR, ("a",))
    assert places.earliest(Need(8, 1, HOUR + 1), 0, before=2 * HOUR) is None


@pytest.mark.parametrize(
    ("kind", "count", "expected"),
    [
        ("h100", 1, Need(1, 1, 60)),
        ("h100", 8, Need(8, 1, 60)),
        ("h100", 16, Need(8, 2, 60)),
        ("h100", 32, Need(8, 4, 60)),
        ("t4", 4, Need(4, 1, 60)),
        ("cpu-x86", 0, Need(1, 1, 60)),
    ],
)
def test_what_a_count_of_gpus_needs(kind: str, count: int, expected: Need) -> None:
    assert Need.of(Cluster(kind).gpu_type, count, 60) == expected
    assert expected.size == max(1, count) * 60


# Exact units


def test_nobody_is_given_what_somebody_holds_nor_anything_on_nodes_that_take_nothing() -> None:
    cluster = Cluster().node("a", held=3, foreign={6, 7}).node("b", ready=False).node("c", cordoned=True)
    cluster.holding({"gone": range(8), "a": [3]}, NOW + hours(1))
    assert free_units(cluster.nodes, cluster.holdings) == {"a": frozenset({4, 5})}


@pytest.mark.parametrize(
    ("need", "nodes", "expected"),
    [
        pytest.param(Need(2, 1, 60), ["a"], [("a", (1, 3))], id="the first that are free"),
        pytest.param(Need(4, 1, 60), ["a"], None, id="too few are free yet"),
        pytest.param(
            Need(3, 2, 60), ["b", "a"], [("b", (0, 1, 2)), ("a", (1, 3, 4))], id="on the planned nodes only"
        ),
        pytest.param(Need(8, 2, 60), ["b", "a"], None, id="a gang is all or nothing"),
        pytest.param(Need(1, 1, 60), ["gone"], None, id="a node that is not there"),
    ],
)
def test_exact_units_on_the_planned_nodes(
    need: Need, nodes: list[str], expected: list[tuple[str, tuple[int, ...]]] | None
) -> None:
    free = {"a": frozenset({1, 3, 4}), "b": frozenset(range(8)), "c": frozenset(range(8))}
    chosen = choose_units(need, nodes, free)
    assert chosen == (Placement(tuple(Share(*share) for share in expected)) if expected else None)


@pytest.mark.parametrize(
    ("cluster", "count", "zone", "expected"),
    [
        pytest.param(Cluster().node("a", held=8), 8, "", True, id="what is held now ends some day"),
        pytest.param(Cluster().node("a", foreign={0}), 8, "", True, id="so may what is used from outside"),
        pytest.param(Cluster().node("a"), 16, "", False, id="two nodes' worth never fits on one"),
        pytest.param(Cluster().node("a").node("b", ready=False), 16, "", False, id="nor with one down"),
        pytest.param(Cluster().node("a").node("b", cordoned=True), 16, "", False, id="nor with one cordoned"),
        pytest.param(Cluster().node("a", zone="x").node("b"), 16, "x", False, id="nor with one in its zone"),
        pytest.param(Cluster().node("a", units=4), 8, "", False, id="nor on a node that is too small"),
        pytest.param(Cluster("cpu-x86").node("a", held=3), 0, "", True, id="a CPU slot"),
    ],
)
def test_whether_it_would_ever_fit(cluster: Cluster, count: int, zone: str, expected: bool) -> None:
    assert fits_ever(cluster.gpu_type, count, cluster.nodes, zone) is expected


# Against a search that looks at every node and every instant at which something ends

NAMES = ["n0", "n1", "n2", "n3", "n4"]


needs = st.builds(
    lambda units, nodes, length, zone: Need(8 if nodes > 1 else units, nodes, length, zone),
    st.sampled_from([1, 2, 4, 8]),
    st.sampled_from([1, 1, 1, 2, 3]),
    st.sampled_from([3, 5, 10]),
    st.sampled_from(["", "", "x", "y"]),
)
number = st.integers(0, 99)
steps = st.lists(
    st.one_of(
        st.tuples(st.just("book"), needs, number),
        st.tuples(st.just("book"), needs, number),
        st.tuples(st.just("free"), number, number),
        st.tuples(st.just("lift"), number, st.sets(st.sampled_from(NAMES))),
        st.tuples(
            st.just("node"), st.sampled_from(NAMES), st.tuples(st.sampled_from([0, 4, 8]), st.booleans())
        ),
        st.tuples(st.just("try"), needs, number),
        st.tuples(st.just("time"), st.integers(1, 6), number),
    ),
    max_size=40,
)


class Both:
    """Does everything in the fast places and in the slow ones, and compares every answer."""

    def __init__(self) -> None:
        self.fast, self.slow, self.now = Places(), Slow(), 0

    def node(self, name: str, figures: tuple[int, bool]) -> None:
        units, in_x = figures
        self.fast.set_node(name, units, "x" if in_x else "y")
        self.slow.units[name], self.slow.zones[name] = units, "x" if in_x else "y"

    def asked(self, need: Need, before: int = EVER) -> Slot | None:
        slot = self.fast.earliest(need, self.now, before)
        expected = self.slow.earliest(need, self.now, before, self.slow.units)
        if slot is None or expected is None or need.nodes == 1:
            assert slot == expected
        else:  # which of the empty nodes does not matter
            assert slot.start == expected.start
            assert len(set(slot.nodes)) == len(slot.nodes) == need.nodes
            assert all(self.slow.fits(name, need, slot.start) for name in slot.nodes)
            assert all(need.zone in ("", self.slow.zones[name]) for name in slot.nodes)
        return slot

    def book(self, need: Need, number: int) -> None:
        self.asked(need, self.now + number % 20)
        slot = self.asked(need)
        if slot is not None:
            self.fast.take(slot.nodes, slot.start, slot.start + need.length, need.units)
            ends = slot.start + need.length
            self.slow.bookings += [Booking(n, slot.start, ends, need.units, need) for n in slot.nodes]

    def free(self, which: int, early: int) -> None:
        """All of a booking, or the end of it."""
        if self.slow.bookings:
            booking = self.slow.bookings.pop(which % len(self.slow.bookings))
            since = max(booking.start, self.now, booking.end - early - 1)
            self.fast.give((booking.node,), since, booking.end, booking.units)
            if booking.start < since:
                rest = Booking(
                    booking.node, booking.start, since, booking.units, Need(booking.units, 1, since)
                )
                self.slow.bookings.append(rest)

    def lift(self, which: int, names: set[str]) -> None:
        """An earlier place for one that is booked, on some of the nodes."""
        known = [b for b in self.slow.bookings if b.need.nodes == 1 and b.start > self.now]
        known = [b for b in known if b.end - b.start == b.need.length]
        if known:
            own = known[which % len(known)]
            looked = sorted(names & self.slow.units.keys())
            if self.slow.free(own.node, own.start) < 0:
                return
            found = self.fast.earlier_on(looked, own.need, self.now, own.start, own.node)
            self.slow.bookings.remove(own)
            expected = self.slow.earliest(own.need, self.now, own.start, looked)
            self.slow.bookings.append(own)
            assert found == expected

    def try_(self, need: Need, _: int) -> None:
        """What is taken and put back was never there."""
        slot = self.asked(need)
        if slot is not None:
            self.fast.take(slot.nodes, slot.start, slot.start + need.length, need.units)
            self.fast.put_back(slot.nodes, slot.start, slot.start + need.length, need.units)
            self.asked(need)

    def time(self, seconds: int, _: int) -> None:
        self.now += seconds
        self.fast.forget_before(self.now)
        self.slow.bookings = [b for b in self.slow.bookings if b.end > self.now]


@given(st.integers(1, 5), steps)
@settings(deadline=None, max_examples=150)
def test_the_search_finds_what_a_look_at_every_node_finds(nodes: int, steps: list[tuple[str, ...]]) -> None:
    both = Both()
    for index, name in enumerate(NAMES[:nodes]):
        both.node(name, (8, index % 2 == 0))
    for what, one, other in steps:
        getattr(both, "try_" if what == "try" else what)(one, other)
    for need in (Need(1, 1, 3), Need(8, 1, 10), Need(4, 1, 5, "y"), Need(8, 2, 5)):
        both.asked(need)
