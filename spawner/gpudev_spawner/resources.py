"""How much of a node belongs to a share of its GPUs, and the hints that tell programs so."""

from __future__ import annotations

from gpudev_core.models import GpuType

_THREAD_VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMEXPR_MAX_THREADS")


def share_of(gpu_type: GpuType, gpu_count: int, cpus: int, memory_gb: int) -> tuple[int, int]:
    """CPUs and GB of memory for ``gpu_count`` GPUs (or a CPU slot); never more than the machine has."""
    per_node = gpu_type.units_per_node
    part = min(gpu_count or 1, per_node) / per_node
    own_cpus = max(1, int(min(gpu_type.cpus, cpus) * part))
    own_memory = max(1, int(min(gpu_type.memory_gb, memory_gb) * part))
    return own_cpus, own_memory


def hints(cpus: int, memory_gb: int) -> dict[str, str]:
    """Thread counts for the usual numeric libraries; limits as Jupyter's resource display reads them.

    They are hints: nothing stops a program from using more.
    """
    threads = dict.fromkeys(_THREAD_VARIABLES, str(cpus))
    return {**threads, "CPU_LIMIT": str(cpus), "MEM_LIMIT": str(memory_gb << 30)}
