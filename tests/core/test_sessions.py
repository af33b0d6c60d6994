"""Records of running servers, with real processes."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from gpudev_core import sessions
from gpudev_core.sessions import MARKER, SessionRecord, Sessions


@pytest.fixture
def kept(tmp_path: Path) -> Sessions:
    return Sessions(tmp_path / "sessions")


@pytest.fixture
def begun(kept: Sessions) -> Iterator[tuple[SessionRecord, subprocess.Popen[bytes]]]:
    record = kept.begin("r1", "ada", "x")
    process = sleeper(record)
    yield record, process
    process.kill()
    process.wait()


def sleeper(record: SessionRecord, code: str = "import time; time.sleep(600)") -> subprocess.Popen[bytes]:
    environ = {**os.environ, MARKER: record.marker}
    return subprocess.Popen(
        [sys.executable, "-c", code], env=environ, start_new_session=True, stdout=subprocess.PIPE
    )


def test_a_record_says_which_process_it_is(kept: Sessions, begun) -> None:
    record, process = begun
    kept.started(record, process.pid)
    found = kept.get("r1")
    assert found is not None and found.pid == process.pid and sessions.is_alive(found)
    assert kept.all() == [found]
    kept.forget("r1")
    assert kept.get("r1") is None and kept.all() == []


def test_a_server_whose_hub_died_before_it_knew_the_process_id_is_found(kept: Sessions, begun) -> None:
    found = kept.get("r1")
    assert found is not None and found.pid == 0 and sessions.is_alive(found)
    assert sessions.end(found, grace_s=10)
    assert not sessions.is_alive(found)


def test_a_process_id_that_was_used_again_is_not_ours(kept: Sessions, begun) -> None:
    record, _ = begun
    stranger = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    try:
        old = replace(record, pid=stranger.pid, marker="another")
        assert not sessions.is_alive(old)
        assert sessions.end(old, grace_s=1)
        assert stranger.poll() is None, "a stranger's process is left alone"
    finally:
        stranger.kill()
        stranger.wait()


def test_ending_takes_along_what_was_put_into_the_background(kept: Sessions) -> None:
    record = kept.begin("r2", "ada", "x")
    code = (
        "import subprocess, time\n"
        "p = subprocess.Popen(['sleep', '600'], start_new_session=True)\n"
        "print(p.pid, flush=True); time.sleep(600)"
    )
    server = sleeper(record, code)
    assert server.stdout is not None
    background = int(server.stdout.readline())
    kept.started(record, server.pid)
    found = kept.get("r2")
    assert found is not None and sessions.end(found, grace_s=10)
    server.wait(10)
    assert sessions.owner_of(background) is None


def test_one_that_does_not_listen_is_killed(kept: Sessions) -> None:
    record = kept.begin("r3", "ada", "x")
    code = "import signal, time; signal.signal(15, signal.SIG_IGN); print(1, flush=True); time.sleep(600)"
    server = sleeper(record, code)
    assert server.stdout is not None and server.stdout.readline()
    kept.started(record, server.pid)
    found = kept.get("r3")
    assert found is not None
    assert sessions.end(found, grace_s=0.2)
    assert not sessions.is_alive(found)


def test_a_record_that_cannot_be_read_is_an_error_and_not_an_absence(kept: Sessions, tmp_path: Path) -> None:
    kept.begin("r4", "ada", "x")
    (tmp_path / "sessions" / "r4.json").write_text("{")
    with pytest.raises(ValueError):
        kept.get("r4")
