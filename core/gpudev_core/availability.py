"""What is free, node by node. Figures are made of nodes and holdings, never counted up and down."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import select
from sqlalchemy.orm import Session

from gpudev_core.catalogue import Catalogue
from gpudev_core.models import MAX_NODES, GpuType, Holding, Node
from gpudev_core.placement import free_units
from gpudev_core.store import Store
from gpudev_core.tables import GpuTypeRow

WRITE_AT_LEAST_EVERY = timedelta(minutes=5)
STALE_AFTER = timedelta(minutes=6)


def columns(gpu_type: GpuType, nodes: Sequence[Node], holdings: Iterable[Holding]) -> dict[str, Any]:
    """The availability columns of one GPU type."""
    free = free_units(nodes, holdings)
    whole = [name for name, units in free.items() if len(units) == gpu_type.units_per_node]
    most_on_one = max((len(units) for units in free.values()), default=0)
    if gpu_type.is_cpu:
        reservable = min(1, most_on_one)
    elif gpu_type.multinode and whole:
        reservable = min(len(whole), MAX_NODES) * gpu_type.gpus_per_node
    else:
        reservable = most_on_one
    return {
        "total_cluster_gpus": sum(node.units for node in nodes if node.is_usable),
        "available_gpus": sum(len(units) for units in free.values()),
        "max_reservable": reservable,
        "full_nodes_available": len(whole),
        "running_instances": sum(node.is_usable for node in nodes),
        "desired_capacity": len(nodes),
        "max_per_node": gpu_type.gpus_per_node,
        "nodes": [node_json(node) for node in nodes],
        "is_active": bool(nodes),
    }


def save(
    store: Store,
    catalogue: Catalogue,
    nodes: Sequence[Node],
    holdings: Sequence[Holding],
    *,
    now: datetime,
    by: str,
    guard: Callable[[Session], None] = lambda session: None,
) -> bool:
    """Write the rows that changed or grew old. True when something was written."""
    wanted = {
        name: _description(gpu_type) | columns(gpu_type, [n for n in nodes if n.gpu_type == name], holdings)
        for name, gpu_type in catalogue.items()
    }
    with store.read() as session:
        known = rows(session)
        # A type that left the catalogue, as when a machine got other GPUs, is offered no more.
        wanted |= {
            name: {"is_active": False} for name in known if name not in wanted and known[name].is_active
        }
        stale = [name for name, values in wanted.items() if _differs(known.get(name), values, now)]
    if not stale:
        return False
    with store.write() as session:
        guard(session)
        known = rows(session)
        for name in stale:
            row = known.get(name) or GpuTypeRow(gpu_type=name)
            session.add(row)
            for key, value in wanted[name].items():
                setattr(row, key, value)
            row.last_availability_update, row.last_availability_updated_by = now, by
    return True


def nodes_of(rows: Iterable[GpuTypeRow]) -> list[Node]:
    """The nodes as they were last seen."""
    return [
        Node(
            name=item["name"],
            gpu_type=row.gpu_type,
            units=item["units"],
            ready=item["ready"],
            cordoned=item.get("cordoned", False),
            zone=item.get("zone", ""),
            foreign=frozenset(item.get("foreign", ())),
            device_ids=tuple(item.get("device_ids", ())),
        )
        for row in rows
        for item in row.nodes
    ]


def offered(session: Session) -> Sequence[GpuTypeRow]:
    return session.scalars(select(GpuTypeRow).where(GpuTypeRow.is_active)).all()


def is_stale(row: GpuTypeRow, now: datetime) -> bool:
    return row.last_availability_update is None or now - row.last_availability_update > STALE_AFTER


def node_json(node: Node) -> dict[str, Any]:
    return {
        "name": node.name,
        "units": node.units,
        "ready": node.ready,
        "cordoned": node.cordoned,
        "zone": node.zone,
        "foreign": sorted(node.foreign),
        "device_ids": list(node.device_ids),
    }


def rows(session: Session) -> dict[str, GpuTypeRow]:
    return {row.gpu_type: row for row in session.scalars(select(GpuTypeRow))}


def _differs(row: GpuTypeRow | None, wanted: Mapping[str, Any], now: datetime) -> bool:
    if row is None or row.last_availability_update is None:
        return True
    if now - row.last_availability_update >= WRITE_AT_LEAST_EVERY:
        return True
    return any(getattr(row, key) != value for key, value in wanted.items())


def _description(gpu_type: GpuType) -> dict[str, Any]:
    """The columns that come from the catalogue."""
    return {
        "instance_type": gpu_type.instance_type,
        "max_gpus": max(gpu_type.counts),
        "cpus": gpu_type.cpus,
        "memory_gb": gpu_type.memory_gb,
    }
