"""On a machine with an NVIDIA GPU: servers see exactly the GPUs of their reservation.

``make test-gpu`` runs these where there is one; elsewhere they are skipped and say why.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pynvml
import pytest
from running import Person, RunningPortal, running_portal, wait_until

HOLD = """
import ctypes, sys, time
cuda = ctypes.CDLL("libcuda.so.1")
context = ctypes.c_void_p()
assert cuda.cuInit(0) == 0
device = ctypes.c_int()
assert cuda.cuDeviceGet(ctypes.byref(device), 0) == 0
assert cuda.cuCtxCreate_v2(ctypes.byref(context), 0, device) == 0
print("held", flush=True)
"""
COUNT = """
import ctypes
cuda = ctypes.CDLL("libcuda.so.1")
number = ctypes.c_int(-1)
if cuda.cuInit(0) == 0:
    cuda.cuDeviceGetCount(ctypes.byref(number))
print(max(0, number.value))
"""
LIST = "import subprocess; print(subprocess.run(['nvidia-smi', '-L'], capture_output=True, text=True).stdout)"


def gpus() -> list[str]:
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        pytest.skip(f"no NVIDIA GPU on this machine: {error}")
    try:
        handles = [pynvml.nvmlDeviceGetHandleByIndex(i) for i in range(pynvml.nvmlDeviceGetCount())]
        return [pynvml.nvmlDeviceGetUUID(handle) for handle in handles]
    finally:
        pynvml.nvmlShutdown()


@pytest.fixture(scope="module")
def gpu_portal(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningPortal]:
    gpus()
    with running_portal(tmp_path_factory.mktemp("gpus"), gpus__source="nvml") as portal:
        yield portal


@pytest.fixture
def ada(gpu_portal: RunningPortal) -> Person:
    return gpu_portal.login("ada")


def gpu_type(person: Person) -> dict[str, object]:
    types = person.web.get("/services/gpu-dev/state").json()["types"]
    return next(t for t in types if not t["is_cpu"])


def test_a_server_sees_exactly_its_gpus(ada: Person) -> None:
    kind = gpu_type(ada)
    reservation_id = ada.reserve(str(kind["gpu_type"]), 1, name="one", disk="")
    lab = ada.wait_for(reservation_id, "active")["lab_url"]
    seen = ada.run(lab, LIST).strip().splitlines()
    assert len(seen) == 1 and any(uuid in seen[0] for uuid in gpus())
    assert ada.run(lab, COUNT).strip() == "1"
    # A program inside the reservation is no stranger.
    assert "held" in ada.run(lab, HOLD)
    ada.end(reservation_id)
    ada.wait_for(reservation_id, "cancelled")


def test_a_reservation_without_gpus_sees_none(ada: Person) -> None:
    types = ada.web.get("/services/gpu-dev/state").json()["types"]
    cpu = next(t["gpu_type"] for t in types if t["is_cpu"])
    reservation_id = ada.reserve(cpu, 0, name="none", disk="")
    lab = ada.wait_for(reservation_id, "active")["lab_url"]
    assert "no GPU" in ada.run(lab, LIST)
    assert ada.run(lab, COUNT).strip() == "0"
    ada.end(reservation_id)
    ada.wait_for(reservation_id, "cancelled")


def test_a_gpu_that_a_stranger_uses_is_not_handed_out(ada: Person, tmp_path: Path) -> None:
    free = gpu_type(ada)["free"]
    stranger = subprocess.Popen(
        [sys.executable, "-c", HOLD + "\ntime.sleep(600)"], stdout=subprocess.PIPE, text=True
    )
    try:
        assert stranger.stdout is not None and stranger.stdout.readline() == "held\n"
        wait_until(lambda: gpu_type(ada)["free"] == free - 1, "the stranger's GPU is taken")
    finally:
        stranger.kill()
        stranger.wait()
    wait_until(lambda: gpu_type(ada)["free"] == free, "it is free again")
