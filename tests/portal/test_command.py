"""``gpu-dev`` as people run it: a process, a home folder, a real portal."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from running import Person, RunningPortal

GPU_DEV = str(Path(sys.executable).with_name("gpu-dev"))


def run(home: Path, *arguments: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
    env = {"HOME": str(home), "PATH": "/usr/bin:/bin", "TZ": "Europe/Berlin"}
    return subprocess.run(
        [GPU_DEV, *arguments], env=env, input=stdin, capture_output=True, text=True, timeout=60
    )


def test_log_in_look_and_list(portal: RunningPortal, person: Person, tmp_path: Path) -> None:
    before = run(tmp_path, "avail")
    assert before.returncode == 4 and "gpu-dev login" in before.stderr
    wrong = run(tmp_path, "login", portal.url, "--token-file", "-", stdin="not-a-token")
    assert wrong.returncode == 4 and not (tmp_path / ".gpu-dev").exists()
    assert run(tmp_path, "login", portal.url, "--token-file", "-", stdin=person.token()).returncode == 0
    seen = run(tmp_path, "avail")
    assert seen.returncode == 0 and "t4" in seen.stdout and "of 8" in seen.stdout
    assert {t["gpu_type"] for t in json.loads(run(tmp_path, "avail", "--json").stdout)} >= {"t4", "h100"}
    assert run(tmp_path, "list").stdout == "You have no reservation.\n"
    person.wait_for(person.reserve("t4", 1, name="listed"), "active")
    listed = run(tmp_path, "list")
    assert "listed" in listed.stdout and "1 x t4" in listed.stdout and "left" in listed.stdout
    assert json.loads(run(tmp_path, "list", "--json").stdout)[0]["status"] == "active"


def test_a_portal_that_does_not_answer(tmp_path: Path) -> None:
    answer = run(tmp_path, "login", "http://127.0.0.1:9", "--token-file", "-", stdin="x")
    assert (
        answer.returncode == 5 and "cannot be reached" in answer.stderr and "Traceback" not in answer.stderr
    )
