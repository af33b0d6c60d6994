"""``gpu-dev-portal up``: one command, and clear words when it cannot."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from running import RunningPortal, free_port, wait_until

from gpudev_core import sessions

UP = [str(Path(sys.executable).with_name("gpu-dev-portal")), "up"]


@contextlib.contextmanager
def started(portal: RunningPortal) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        UP, env=portal.environ, cwd=portal.state, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    try:
        yield process
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGINT)
        process.wait(60)


def refused(env: dict[str, str], *arguments: str, cwd: Path) -> str:
    """What it says when it does not start."""
    answer = subprocess.run([*UP, *arguments], env=env, cwd=cwd, capture_output=True, text=True, timeout=60)
    assert answer.returncode != 0, answer.stdout
    assert "Traceback" not in answer.stderr
    assert len(answer.stderr.strip().splitlines()) == 1, answer.stderr
    return answer.stderr


@pytest.fixture
def portal(tmp_path: Path) -> RunningPortal:
    (tmp_path / "state").mkdir()
    return RunningPortal(tmp_path / "state")


def test_it_prints_the_address_and_the_password_once_and_ctrl_c_ends_everything(
    portal: RunningPortal,
) -> None:
    bystander = subprocess.Popen(["sleep", "600"])
    try:
        with started(portal) as process:
            said = read_until(process, "Ctrl+C")
            password = (portal.state / "password").read_text().strip()
            assert f"http://localhost:{portal.port}/" in said and password in said
            assert (portal.state / "password").stat().st_mode & 0o077 == 0
            ada = portal.login("ada")
            reservation_id = ada.reserve(name="ends")
            ada.wait_for(reservation_id, "active")
            record = portal.sessions.get(reservation_id)
            assert record is not None
            family = psutil.Process(process.pid).children(recursive=True)
            process.send_signal(signal.SIGINT)
            assert process.wait(60) == 0
        assert not [p for p in family if p.is_running() and p.status() != psutil.STATUS_ZOMBIE]
        assert not sessions.is_alive(record)
        assert bystander.poll() is None
        with started(portal) as process:
            assert password not in read_until(process, "Ctrl+C"), "shown once only"
    finally:
        bystander.kill()
        bystander.wait()


def test_a_second_one_is_told_of_the_first_and_a_killed_hub_is_started_again(portal: RunningPortal) -> None:
    with started(portal) as process:
        read_until(process, "Ctrl+C")
        said = refused({**portal.environ, "GPUDEV_ADDRESS__PORT": str(free_port())}, cwd=portal.state)
        assert "runs already" in said and str(portal.state) in said and f":{portal.port}/" in said
        hub = next(p for p in psutil.Process(process.pid).children() if "jupyterhub" in p.cmdline())
        hub.kill()
        assert "Starting it again" in read_until(process, "Starting it again")
        portal.hub = process  # its end would be noticed
        wait_until(portal.is_well, "the portal is back")


def test_a_taken_port(portal: RunningPortal) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", portal.port))
        taken.listen()
        said = refused(portal.environ, cwd=portal.state)
    assert f"Port {portal.port}" in said and "PORT=" in said


def test_a_folder_that_cannot_be_written_to(portal: RunningPortal, tmp_path: Path) -> None:
    if os.geteuid() == 0:
        # Root may write everywhere but where writing is not possible at all.
        said = refused(portal.environ, "--state", "/proc/no-such-folder", cwd=tmp_path)
    else:
        (tmp_path / "locked").mkdir(mode=0o500)
        said = refused(portal.environ, "--state", str(tmp_path / "locked" / "state"), cwd=tmp_path)
    assert "state folder" in said and "STATE=" in said


def test_a_file_where_the_folder_should_be(portal: RunningPortal, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    assert "file" in refused(portal.environ, "--state", str(tmp_path / "file" / "state"), cwd=tmp_path)


@pytest.mark.skipif(
    not Path("/dev/full").exists() or os.geteuid() != 0, reason="needs root to mount a small disk"
)
def test_a_full_disk(portal: RunningPortal, tmp_path: Path) -> None:
    small = tmp_path / "small"
    small.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(small)], capture_output=True
    )
    if mounted.returncode:
        pytest.skip("this machine does not allow mounting a small disk")
    try:
        assert "nearly full" in refused(portal.environ, "--state", str(small), cwd=tmp_path)
        (small / "filler").write_bytes(b"\0" * (1 << 20))
        assert "full" in refused(portal.environ, "--state", str(small), cwd=tmp_path)
    finally:
        subprocess.run(["umount", str(small)], check=True)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("adress: {port: 1}", ["unknown key 'adress'", "address"]),
        ("address: {port: many}", ["address.port", "'many'"]),
        ("address: {port: 99999}", ["address.port", "99999"]),
        ("{", ["not YAML"]),
    ],
)
def test_bad_settings(portal: RunningPortal, tmp_path: Path, text: str, told: list[str]) -> None:
    (tmp_path / "portal.yaml").write_text(text)
    environ = {k: v for k, v in portal.environ.items() if k != "GPUDEV_ADDRESS__PORT"}
    said = refused(environ, cwd=tmp_path)
    assert "portal.yaml" in said
    for part in told:
        assert part in said


def read_until(process: subprocess.Popen[str], words: str) -> str:
    assert process.stdout is not None
    said = ""
    for line in process.stdout:
        said += line
        if words in line:
            return said
    raise AssertionError(f"ended without {words!r}: {said}")
