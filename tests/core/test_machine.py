"""The machine's own GPUs, as NVML tells them, and a simulated cluster where there are none."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from gpudev_core.errors import SettingsError
from gpudev_core.machine import discover, observe, type_name
from gpudev_core.settings import load

GIB = 1 << 30


class Nvml:
    """NVML with these GPUs: (product, GiB). ``busy`` gives process ids by GPU."""

    class NVMLError(Exception):
        pass

    def __init__(self, *gpus: tuple[str, int], driver: bool = True) -> None:
        self.gpus, self.driver, self.open = gpus, driver, 0
        self.busy: dict[int, list[int]] = {}
        self.lost: set[int] = set()

    def nvmlInit(self) -> None:
        if not self.driver:
            raise self.NVMLError("no driver")
        self.open += 1

    def nvmlShutdown(self) -> None:
        self.open -= 1

    def nvmlDeviceGetCount(self) -> int:
        return len(self.gpus)

    def nvmlDeviceGetHandleByIndex(self, index: int) -> int:
        return index

    def nvmlDeviceGetHandleByUUID(self, uuid: str) -> int:
        return int(uuid.removeprefix("GPU-"))

    def nvmlDeviceGetName(self, handle: int) -> bytes:
        return self.gpus[handle][0].encode()

    def nvmlDeviceGetUUID(self, handle: int) -> str:
        return f"GPU-{handle}"

    def nvmlDeviceGetMemoryInfo(self, handle: int) -> Any:
        return SimpleNamespace(total=self.gpus[handle][1] * GIB)

    def nvmlDeviceGetComputeRunningProcesses(self, handle: int) -> list[Any]:
        if handle in self.lost:
            raise self.NVMLError("GPU is lost")
        return [SimpleNamespace(pid=pid) for pid in self.busy.get(handle, [])]


def settings(source: str = "auto") -> Any:
    return load(None, {"GPUDEV_GPUS__SOURCE": source})


@pytest.mark.parametrize(
    ("product", "name"),
    [
        ("NVIDIA A100-SXM4-80GB", "a100"),
        ("Tesla T4", "t4"),
        ("NVIDIA H200", "h200"),
        ("NVIDIA A10G", "a10g"),
        ("NVIDIA GeForce RTX 4090", "geforce-rtx-4090"),
        ("NVIDIA L40S", "l40s"),
        ("4090", "gpu-4090"),
        ("", "gpu"),
    ],
)
def test_products_have_the_names_of_the_catalogue_or_their_own(product: str, name: str) -> None:
    assert type_name(product) == name


def test_the_machines_own_gpus_are_one_node_of_each_type() -> None:
    nvml = Nvml(("NVIDIA A100-SXM4-80GB", 80), ("NVIDIA A100-SXM4-80GB", 80), ("Tesla T4", 15))
    machine = discover(settings(), nvml)
    assert not machine.simulated and nvml.open == 0
    found = {node.gpu_type: node for node in machine.nodes}
    assert found["a100"].device_ids == ("GPU-0", "GPU-1") and found["a100"].units == 2
    assert found["t4"].device_ids == ("GPU-2",)
    types = {t.name: t for t in machine.types}
    assert types["a100"].counts == (1, 2) and types["a100"].gpu_memory_gb == 80
    assert not types["a100"].multinode, "one machine does not span nodes"
    assert sum(t.is_cpu for t in machine.types) == 1


def test_a_gpu_that_somebody_else_computes_on_is_not_handed_out() -> None:
    nvml = Nvml(("Tesla T4", 15), ("Tesla T4", 15), ("Tesla T4", 15))
    machine = discover(settings(), nvml)
    nvml.busy = {0: [11], 2: [22]}
    node = next(n for n in observe(machine, lambda pid: pid == 22, nvml) if n.device_ids)
    assert node.foreign == {0}


def test_gpus_that_stop_answering_are_down_and_not_free() -> None:
    nvml = Nvml(("Tesla T4", 15))
    machine = discover(settings(), nvml)
    nvml.driver = False
    found = observe(machine, lambda pid: True, nvml)
    assert [node.ready for node in found] == [False, True], "the CPU slots are still there"


def test_a_gpu_that_falls_off_the_bus_takes_its_node_out_and_no_other() -> None:
    nvml = Nvml(("Tesla T4", 15), ("NVIDIA H200", 141))
    machine = discover(settings(), nvml)
    nvml.lost = {0}
    found = {node.gpu_type: node.ready for node in observe(machine, lambda pid: True, nvml)}
    assert found["t4"] is False and found["h200"] is True and nvml.open == 0


def test_without_a_driver_the_cluster_is_simulated() -> None:
    machine = discover(settings(), Nvml(driver=False))
    assert machine.simulated
    counted = {t: sum(n.gpu_type == t for n in machine.nodes) for t in ("t4", "a100", "h100", "cpu-x86")}
    assert counted == {"t4": 2, "a100": 2, "h100": 2, "cpu-x86": 1}
    assert len({node.name for node in machine.nodes}) == 7


def test_a_driver_without_gpus_is_no_gpu() -> None:
    assert discover(settings(), Nvml()).simulated


def test_asking_for_nvml_where_there_is_none_is_an_error_that_says_what_to_do() -> None:
    with pytest.raises(SettingsError, match=r"gpus\.source.*nvidia-smi"):
        discover(settings("nvml"), Nvml(driver=False))


def test_simulated_is_simulated_even_beside_a_real_gpu() -> None:
    assert discover(settings("simulated"), Nvml(("Tesla T4", 15))).simulated
