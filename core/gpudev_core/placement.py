"""Where a request goes: exact nodes and exact units, or nowhere.

Up to one node's GPUs go on one node, the one that is left with the fewest free (best fit), so that whole
nodes stay whole. More than one node means whole free nodes, all or nothing. CPU machines have user slots.
The same function serves admission, forecast and "what would start now".
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from gpudev_core.models import GpuType, Holding, Node, Placement, Share

Free = Mapping[str, frozenset[int]]
"""Free units of every usable node of one GPU type."""


def free_units(nodes: Iterable[Node], holdings: Iterable[Holding]) -> dict[str, frozenset[int]]:
    """What nobody holds, on nodes that are ready."""
    taken: dict[str, set[int]] = {}
    for holding in holdings:
        for share in holding.placement.shares:
            taken.setdefault(share.node, set()).update(share.units)
    return {
        node.name: frozenset(range(node.units)) - node.foreign - taken.get(node.name, set())
        for node in nodes
        if node.ready
    }


def place(gpu_type: GpuType, count: int, free: Free) -> Placement | None:
    """The place for ``count`` GPUs (0: one CPU slot) among what is free, or None."""
    units = 1 if gpu_type.is_cpu else count
    if units <= gpu_type.units_per_node:
        return _on_one_node(units, free)
    return _on_whole_nodes(gpu_type, units, free)


def _on_one_node(units: int, free: Free) -> Placement | None:
    fitting = [(len(have), name) for name, have in free.items() if len(have) >= units]
    if not fitting:
        return None
    _, name = min(fitting)
    return Placement((Share(name, tuple(sorted(free[name])[:units])),))


def _on_whole_nodes(gpu_type: GpuType, units: int, free: Free) -> Placement | None:
    per_node = gpu_type.gpus_per_node
    whole = sorted(name for name, have in free.items() if len(have) == per_node)
    wanted = units // per_node
    if not gpu_type.multinode or units % per_node or len(whole) < wanted:
        return None
    return Placement(tuple(Share(name, tuple(range(per_node))) for name in whole[:wanted]))


def without(free: Free, placement: Placement) -> dict[str, frozenset[int]]:
    """What is left when ``placement`` is taken."""
    left = dict(free)
    for share in placement.shares:
        left[share.node] = left[share.node] - frozenset(share.units)
    return left


def given_back(free: Free, placement: Placement, nodes: Mapping[str, Node]) -> dict[str, frozenset[int]]:
    """What is free when ``placement`` ends. A node that is not ready gives nothing back."""
    more = dict(free)
    for share in placement.shares:
        if share.node in more:
            node = nodes[share.node]
            back = frozenset(share.units) & frozenset(range(node.units)) - node.foreign
            more[share.node] = more[share.node] | back
    return more


def fits_ever(gpu_type: GpuType, count: int, nodes: Iterable[Node]) -> bool:
    """Would it fit if nobody held anything, inside or outside the portal?"""
    whole = {node.name: frozenset(range(node.units)) for node in nodes if node.ready}
    return place(gpu_type, count, whole) is not None
