"""The one machine of local mode: its own GPUs through NVML, or a simulated cluster where it has none.

Each GPU type of the machine is one node, because a reservation never mixes types. A GPU on which a program
from outside the portal computes is ``foreign``: it is not handed out until that program ends.
"""

from __future__ import annotations

import os
import platform
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import psutil
import pynvml

from gpudev_core.errors import SettingsError
from gpudev_core.models import CPU_SLOTS_PER_NODE, GpuType, Node
from gpudev_core.settings import Settings

CPU_TYPE = "cpu-arm" if platform.machine() in ("arm64", "aarch64") else "cpu-x86"
_GIB = 1 << 30


@dataclass(frozen=True)
class Machine:
    simulated: bool
    nodes: tuple[Node, ...]
    types: tuple[GpuType, ...] = ()
    """Types as this machine has them; they take the place of the catalogue's."""


def discover(settings: Settings, nvml: Any = None) -> Machine:
    """What this machine offers. ``nvml`` is the pynvml module, given by tests."""
    source = settings.gpus.source
    if source != "simulated":
        found = _from_nvml(nvml)
        if found is not None:
            return found
        if source == "nvml":
            raise SettingsError(
                "gpus.source: 'nvml' was asked for, but no NVIDIA GPU answers on this machine. "
                "Check that nvidia-smi works, or set gpus.source to auto or simulated."
            )
    return Machine(simulated=True, nodes=_simulated(settings))


def observe(machine: Machine, is_ours: Callable[[int], bool], nvml: Any = None) -> tuple[Node, ...]:
    """The nodes as they are now. ``is_ours`` tells whether a process id belongs to a portal's server."""
    if machine.simulated:
        return machine.nodes
    with _nvml(nvml) as lib:
        if lib is None:
            return tuple(replace(node, ready=False) if node.device_ids else node for node in machine.nodes)
        return tuple(_as_it_is(lib, node, is_ours) for node in machine.nodes)


def type_name(product: str) -> str:
    """``NVIDIA A100-SXM4-80GB`` is ``a100``; what the catalogue does not know keeps its product name."""
    words: list[str] = re.findall(r"[a-z0-9]+", product.lower())
    for word in words:
        if word in ("t4", "l4", "a10g", "a100", "h100", "h200", "b200"):
            return word
    rest = [word for word in words if word not in ("nvidia", "tesla")]
    name = "-".join(rest) or "gpu"
    return (name if name[0].isalpha() else f"gpu-{name}")[:50].rstrip("-")


def _simulated(settings: Settings) -> tuple[Node, ...]:
    types = settings.types()
    nodes: list[Node] = []
    for entry in settings.gpus.simulated:
        gpu_type = types[entry.gpu_type]
        prefix = "cpu-node" if gpu_type.is_cpu else "gpu-node"
        for _ in range(entry.nodes):
            number = sum(node.name.startswith(prefix) for node in nodes) + 1
            nodes.append(Node(f"{prefix}-{number}", gpu_type.name, gpu_type.units_per_node))
    return tuple(nodes)


def _from_nvml(nvml: Any) -> Machine | None:
    with _nvml(nvml) as lib:
        if lib is None:
            return None
        found: dict[str, list[tuple[str, int]]] = {}
        for index in range(lib.nvmlDeviceGetCount()):
            handle = lib.nvmlDeviceGetHandleByIndex(index)
            memory_gb = round(lib.nvmlDeviceGetMemoryInfo(handle).total / _GIB)
            name = type_name(_text(lib.nvmlDeviceGetName(handle)))
            found.setdefault(name, []).append((_text(lib.nvmlDeviceGetUUID(handle)), memory_gb))
    if not found:
        return None
    return _machine_of(found)


def _machine_of(found: dict[str, list[tuple[str, int]]]) -> Machine:
    host = platform.node().split(".")[0] or "this-machine"
    cpus, memory_gb = os.cpu_count() or 1, max(1, psutil.virtual_memory().total // _GIB)
    total = sum(len(devices) for devices in found.values())
    nodes, types = [], []
    for name, devices in sorted(found.items()):
        node_name = host if len(found) == 1 else f"{host}-{name}"
        share = len(devices) / total
        ids = tuple(uuid for uuid, _ in devices)
        nodes.append(Node(node_name, name, len(devices), device_ids=ids))
        types.append(
            GpuType(
                name,
                host,
                len(devices),
                cpus=max(1, int(cpus * share)),
                memory_gb=max(1, int(memory_gb * share)),
                gpu_memory_gb=devices[0][1],
            )
        )
    types.append(GpuType(CPU_TYPE, host, 0, cpus=cpus, memory_gb=memory_gb, description="No GPU"))
    nodes.append(Node(f"{host}-cpu", CPU_TYPE, CPU_SLOTS_PER_NODE))
    return Machine(simulated=False, nodes=tuple(nodes), types=tuple(types))


def _as_it_is(lib: Any, node: Node, is_ours: Callable[[int], bool]) -> Node:
    """A GPU that no longer answers takes its node out; what runs there is left alone."""
    try:
        return replace(node, foreign=_foreign(lib, node, is_ours))
    except lib.NVMLError:
        return replace(node, ready=False)


def _foreign(lib: Any, node: Node, is_ours: Callable[[int], bool]) -> frozenset[int]:
    taken = set()
    for unit, uuid in enumerate(node.device_ids):
        handle = lib.nvmlDeviceGetHandleByUUID(uuid)
        pids = [process.pid for process in lib.nvmlDeviceGetComputeRunningProcesses(handle)]
        if any(not is_ours(pid) for pid in pids):
            taken.add(unit)
    return frozenset(taken)


@contextmanager
def _nvml(given: Any) -> Iterator[Any]:
    """NVML for a moment, or None where there is no driver."""
    lib = given or pynvml
    try:
        lib.nvmlInit()
    except lib.NVMLError:
        yield None
        return
    try:
        yield lib
    finally:
        lib.nvmlShutdown()


def _text(value: str | bytes) -> str:
    return value.decode() if isinstance(value, bytes) else value
