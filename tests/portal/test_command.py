"""``gpu-dev`` as people run it: a process, a home folder, a real portal."""

from __future__ import annotations

import json
import subprocess
import sys
from datetime import datetime, timedelta
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


def test_more_time_from_a_terminal(person: Person, neighbour: Person, tmp_path: Path) -> None:
    reservation_id = person.reserve("t4", 1, name="runs")
    old = datetime.fromisoformat(person.wait_for(reservation_id, "active")["expires_at"])
    run(tmp_path, "login", person.portal.url, "--token-file", "-", stdin=person.token())
    longer = run(tmp_path, "extend", "runs", "--hours", "1.5")
    assert longer.returncode == 0 and longer.stdout.startswith("runs ends "), longer
    assert end_of(person, reservation_id) - old == timedelta(hours=1.5)
    refused = run(tmp_path, "extend", reservation_id[:8], "--hours", "100")
    assert (refused.returncode, refused.stdout) == (1, "")
    lines = refused.stderr.splitlines()
    assert lines[:2] == ["Error: runs cannot be extended by 100 h.", "  48 h in all is the limit."]
    assert end_of(person, reservation_id) - old == timedelta(hours=1.5)
    told = run(tmp_path, "extend", "runs", "--hours", "100", "--json")
    error = json.loads(told.stderr)["error"]
    assert (error["code"], error["reason"]["code"], told.stdout) == ("refused", "total_hours", "")
    assert run(tmp_path, *lines[3].split()[1:], "--json").returncode == 0, "what was told to fit fits"
    assert error["fits"]["until"][:16] == person.reservation(reservation_id)["expires_at"][:16]
    others = neighbour.reserve("t4", 1, name="theirs")
    for name in ("theirs", others):
        unknown = run(tmp_path, "extend", name, "--hours", "1")
        assert unknown.returncode == 1 and "there is no reservation" in unknown.stderr
    for wrong in ((), ("--hours", "1", "--until", "12:00"), ("--hours", "-1"), ("--until", "soon")):
        assert run(tmp_path, "extend", "runs", *wrong).returncode == 2


def end_of(person: Person, reservation_id: str) -> datetime:
    return datetime.fromisoformat(person.reservation(reservation_id)["expires_at"])


def test_a_portal_that_does_not_answer(tmp_path: Path) -> None:
    answer = run(tmp_path, "login", "http://127.0.0.1:9", "--token-file", "-", stdin="x")
    assert (
        answer.returncode == 5 and "cannot be reached" in answer.stderr and "Traceback" not in answer.stderr
    )
