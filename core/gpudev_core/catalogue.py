"""Every GPU type of the portal, in one place. Form, API, CLI and spawner ask here and never restate it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from gpudev_core.errors import Refused
from gpudev_core.models import GpuType

BUILT_IN: tuple[GpuType, ...] = (
    GpuType("t4", "g4dn.12xlarge", 4, cpus=48, memory_gb=192, gpu_memory_gb=16),
    GpuType("t4-small", "g4dn.2xlarge", 1, cpus=8, memory_gb=32, gpu_memory_gb=16),
    GpuType("l4", "g6.12xlarge", 4, cpus=48, memory_gb=192, gpu_memory_gb=24),
    GpuType("a10g", "g5.12xlarge", 4, cpus=48, memory_gb=192, gpu_memory_gb=24),
    GpuType("a100", "p4d.24xlarge", 8, cpus=96, memory_gb=1152, gpu_memory_gb=40, multinode=True),
    GpuType("h100", "p5.48xlarge", 8, cpus=192, memory_gb=2048, gpu_memory_gb=80, multinode=True),
    GpuType("h200", "p5e.48xlarge", 8, cpus=192, memory_gb=2048, gpu_memory_gb=141, multinode=True),
    GpuType("b200", "p6-b200.48xlarge", 8, cpus=192, memory_gb=2048, gpu_memory_gb=180, multinode=True),
    GpuType("cpu-x86", "c7i.8xlarge", 0, cpus=32, memory_gb=64, description="x86 CPU, no GPU"),
    GpuType("cpu-arm", "c7g.8xlarge", 0, cpus=32, memory_gb=64, description="Arm CPU, no GPU"),
)


class Catalogue(Mapping[str, GpuType]):
    def __init__(self, types: Iterable[GpuType] = BUILT_IN) -> None:
        self._types = {gpu_type.name: gpu_type for gpu_type in types}

    def __getitem__(self, name: str) -> GpuType:
        return self._types[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._types)

    def __len__(self) -> int:
        return len(self._types)

    def with_types(self, types: Iterable[GpuType]) -> Catalogue:
        """A catalogue in which these types are added, or replace those of the same name."""
        return Catalogue({**self._types, **{t.name: t for t in types}}.values())

    def find(self, name: str) -> GpuType:
        if name not in self._types:
            known = ", ".join(self._types)
            raise Refused(
                f"There is no GPU type {name[:50]!r}. Possible: {known}.",
                reason="unknown_gpu_type",
                field="gpu_type",
                known=list(self._types),
            )
        return self._types[name]
