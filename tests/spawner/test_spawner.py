"""The parts of the spawners that need no hub."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

import gpudev_spawner
from gpudev_core.catalogue import Catalogue
from gpudev_core.errors import Conflict, Refused
from gpudev_core.tables import ReservationRow
from gpudev_spawner import form
from gpudev_spawner.local import home_folder
from gpudev_spawner.resources import hints, share_of

TYPES = Catalogue()


@pytest.mark.parametrize(
    ("name", "count", "machine", "expected"),
    [
        ("h100", 8, (192, 2048), (192, 2048)),
        ("h100", 2, (192, 2048), (48, 512)),
        ("t4", 1, (48, 192), (12, 48)),
        ("a100", 16, (96, 1152), (96, 1152)),
        ("cpu-x86", 0, (32, 64), (10, 21)),
        ("h100", 1, (2, 24), (1, 3)),
        ("t4", 4, (2, 24), (2, 24)),
    ],
    ids=[
        "a whole node",
        "a quarter",
        "one of four",
        "two nodes: the share of one",
        "a CPU slot is a third",
        "never less than one CPU",
        "never more than the machine has",
    ],
)
def test_a_share_of_a_node(
    name: str, count: int, machine: tuple[int, int], expected: tuple[int, int]
) -> None:
    assert share_of(TYPES[name], count, *machine) == expected


def test_hints_are_for_programs_and_for_jupyters_display() -> None:
    found = hints(12, 48)
    assert found["OMP_NUM_THREADS"] == "12" and found["MEM_LIMIT"] == str(48 * 1024**3)


def test_the_form_sends_plain_options() -> None:
    data = {
        "gpu_type": ["h100"],
        "gpu_count": ["4"],
        "hours": ["2.5"],
        "disk": ["main"],
        "name": [""],
        "evil": ["x"],
    }
    assert form.user_options(data) == {"gpu_type": "h100", "gpu_count": "4", "hours": "2.5", "disk": "main"}


def test_a_new_disk_is_its_name_with_a_plus() -> None:
    data = {"gpu_type": ["t4"], "disk": ["+"], "new_disk_name": [" data "]}
    assert form.user_options(data)["disk"] == "+data"
    assert "disk" not in form.user_options({"gpu_type": ["t4"], "disk": [""], "new_disk_name": ["data"]})


def test_only_marked_options_of_an_address_fill_in_the_form() -> None:
    query = {"opt-gpu_type": ["h100"], "gpu_count": ["8"], "opt-evil": ["x"], "opt-name": ["<b>"]}
    assert form.prefill(query) == {"gpu_type": "h100", "name": "<b>"}


def test_a_refusal_stands_beside_its_field() -> None:
    found = form.refusal(Refused("too long", reason="too_long", field="hours", fits=24))
    assert found == {"hours": {"message": "too long", "fits": 24, "reason": "too_long"}}
    assert list(form.refusal(Conflict("gone"))) == [""]


@pytest.mark.parametrize("user", ["ada", "../../etc", "a/b", "Ada Lovelace", "ada@example.org", "."])
def test_homes_stay_in_the_state_folder_and_apart(tmp_path: Path, user: str) -> None:
    row = ReservationRow(reservation_id="r1", user_id=user, disk_name="main")
    found = home_folder(tmp_path, row).resolve()
    assert found.parent.parent == tmp_path / "disks"
    other = ReservationRow(reservation_id="r2", user_id=user + "x", disk_name="main")
    assert home_folder(tmp_path, other).resolve() != found


def test_without_a_disk_the_home_is_the_reservations_own(tmp_path: Path) -> None:
    row = ReservationRow(reservation_id="r1", user_id="ada", disk_name=None)
    assert home_folder(tmp_path, row) == tmp_path / "scratch" / "r1"


@pytest.fixture
def nvidia_smi(tmp_path: Path) -> Path:
    """A machine's nvidia-smi that says how it was called."""
    real = tmp_path / "real"
    real.mkdir()
    (real / "nvidia-smi").write_text('#!/bin/sh\necho "called: $*"\necho GPU-1\necho GPU-2\necho GPU-3\n')
    (real / "nvidia-smi").chmod(0o755)
    return real


def smi(real: Path, visible: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    own = Path(gpudev_spawner.__file__).parent / "bin"
    env = {"PATH": f"{own}:{real}:/usr/bin:/bin", "CUDA_VISIBLE_DEVICES": visible}
    return subprocess.run(["nvidia-smi", *arguments], env=env, capture_output=True, text=True)


def test_nvidia_smi_shows_the_reservations_own_gpus(nvidia_smi: Path) -> None:
    assert smi(nvidia_smi, "GPU-1,GPU-3").stdout.startswith("called: -i GPU-1,GPU-3\n")
    assert smi(nvidia_smi, "GPU-1", "-q").stdout.startswith("called: -i GPU-1 -q\n")
    assert smi(nvidia_smi, "GPU-1,GPU-3", "-L").stdout == "GPU-1\nGPU-3\n"
    none = smi(nvidia_smi, "")
    assert none.returncode != 0 and "no GPU" in none.stdout


@pytest.mark.parametrize("arguments", [("-i", "7"), ("topo", "-m"), ("-h",)])
def test_nvidia_smi_passes_on_what_names_its_own_gpus_or_none(
    nvidia_smi: Path, arguments: tuple[str, ...]
) -> None:
    assert smi(nvidia_smi, "GPU-1", *arguments).stdout.startswith(f"called: {' '.join(arguments)}\n")


def test_nvidia_smi_of_a_machine_without_one(tmp_path: Path) -> None:
    missing = smi(tmp_path, "GPU-1")
    assert missing.returncode == 127 and "not found" in missing.stderr
