"""Each server as its own system user: needs root, and users of this machine."""

from __future__ import annotations

import os
import pwd
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from running import RunningPortal, running_portal

USERS = ("games", "backup")
"""Two users that every Debian has and nobody uses."""


@pytest.fixture(scope="module")
def shared_box(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningPortal]:
    if os.geteuid() != 0:
        pytest.skip("needs root: only root can start programs as other users")
    for name in USERS:
        try:
            account = pwd.getpwnam(name)
        except KeyError:
            pytest.skip(f"this machine has no user {name}")
        if not can_run_python(account.pw_uid):
            pytest.skip(f"user {name} may not read this Python installation")
    state = tmp_path_factory.mktemp("box")
    for folder in (state, *state.parents):
        if folder.owner() == "root" and str(folder).startswith("/tmp/"):
            folder.chmod(folder.stat().st_mode | 0o011)
    with running_portal(state, servers__run_as="system-users", servers__lowest_uid="5") as portal:
        yield portal


def can_run_python(uid: int) -> bool:
    try:
        return subprocess.run([sys.executable, "-c", "import jupyterlab"], user=uid, cwd="/").returncode == 0
    except PermissionError:
        return False


def test_a_server_runs_as_its_user_in_a_home_that_others_cannot_enter(shared_box: RunningPortal) -> None:
    games, backup = (shared_box.login(name) for name in USERS)
    reservation_id = games.reserve("cpu-x86", 0, disk="+", new_disk_name="main", name="own")
    lab = games.wait_for(reservation_id, "active")["lab_url"]
    code = "import os; print(os.environ['USER'], os.getuid(), os.getcwd()); open('mine', 'w').write('x')"
    user, uid, home = games.run(lab, code).split()
    assert (user, int(uid)) == ("games", pwd.getpwnam("games").pw_uid)
    assert Path(home).stat().st_mode & 0o077 == 0 and Path(home).owner() == "games"

    other = backup.reserve("cpu-x86", 0, disk="", name="other")
    lab = backup.wait_for(other, "active")["lab_url"]
    tries = f"""
import os
names = "portal.sqlite hub.sqlite password admin-password cookie-secret sessions logs/hub.log".split()
for path in ({home!r}, *(os.path.join({str(shared_box.state)!r}, name) for name in names)):
    try:
        os.listdir(path) if os.path.isdir(path) else open(path).read(1)
        print("READ", path)
    except PermissionError:
        print("denied")
"""
    assert backup.run(lab, tries).split() == ["denied"] * 8
    record = shared_box.sessions.get(reservation_id)
    assert record is not None and psutil.Process(record.pid).username() == "games"
    for person, found in ((games, reservation_id), (backup, other)):
        person.end(found)
        person.wait_for(found, "cancelled")


def test_an_account_of_the_system_gets_no_server(shared_box: RunningPortal) -> None:
    daemon = shared_box.login("daemon")
    failed = daemon.wait_for(daemon.reserve("cpu-x86", 0, disk="", name="none"), "failed")
    assert "account of the system" in failed["failure_reason"]


def test_somebody_without_a_system_user_is_told_so(shared_box: RunningPortal) -> None:
    ghost = shared_box.login("ghost-of-nobody")
    failed = ghost.wait_for(ghost.reserve("cpu-x86", 0, disk="", name="none"), "failed")
    assert "no system user ghost-of-nobody" in failed["failure_reason"]
