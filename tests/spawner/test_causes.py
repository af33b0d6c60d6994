"""What the spawner writes about a start that failed and a server that ended by itself."""

from __future__ import annotations

import asyncio
import errno
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from gpudev_core.errors import PortalError
from gpudev_core.failures import cause
from gpudev_core.models import Status
from gpudev_core.settings import Settings
from gpudev_core.store import Store
from gpudev_core.tables import ReservationEventRow, ReservationRow
from gpudev_spawner import memory
from gpudev_spawner.leases import Leases
from gpudev_spawner.mixin import ReservationMixin

NOW = datetime(2026, 3, 2, 9, 0, tzinfo=UTC)


@pytest.fixture
def leases(store: Store) -> Leases:
    return Leases(SimpleNamespace(store=store, settings=Settings()))  # type: ignore[arg-type]


def lease(store: Store, **values: Any) -> None:
    with store.write() as session:
        session.add(
            ReservationRow(
                reservation_id="r1",
                user_id="ada",
                server_name="",
                name="r1",
                gpu_type="t4",
                gpu_count=1,
                duration_hours=1.0,
                request={"hours": 1.0},
                filed_from="test",
                created_at=NOW,
                **{"status": "preparing", "start_attempts": 1, **values},
            )
        )


def row(store: Store) -> ReservationRow:
    with store.read() as session:
        return session.get_one(ReservationRow, "r1")


@pytest.mark.parametrize(("attempt", "seconds"), [(1, 5), (2, 20)])
def test_a_start_that_may_pass_is_tried_again_later(
    store: Store, leases: Leases, attempt: int, seconds: int
) -> None:
    lease(store, start_attempts=attempt)
    asyncio.run(leases.start_failed("r1", cause("no_answer", seconds=30), NOW))
    found = row(store)
    assert (found.failure_code, found.start_attempts) == ("no_answer", attempt)
    assert found.failure_reason == "the server did not answer within 30 s"
    assert found.retry_at == NOW + timedelta(seconds=seconds)
    with store.read() as session:
        event = session.query(ReservationEventRow).one()
    assert event.detail["code"] == "no_answer" and event.detail["values"] == {"seconds": 30}


def test_a_start_that_can_only_fail_again_is_not_tried_again(store: Store, leases: Leases) -> None:
    lease(store)
    asyncio.run(leases.start_failed("r1", cause("path_too_long", path="/x"), NOW))
    found = row(store)
    assert (found.failure_code, found.start_attempts, found.retry_at) == ("path_too_long", 3, None)


def test_the_end_of_a_server_keeps_its_cause(store: Store, leases: Leases) -> None:
    lease(store, status="active", retry_at=NOW, failure_code="no_answer")
    asyncio.run(leases.stopped("r1", Status.FAILED, cause("out_of_memory"), NOW))
    found = row(store)
    assert (found.status, found.failure_code, found.retry_at) == ("failed", "out_of_memory", None)
    assert found.failure_reason == "memory ran out, and the system ended the server"


def test_a_person_who_stops_a_server_is_no_failure(store: Store, leases: Leases) -> None:
    lease(store, status="active", failure_code="no_answer")
    asyncio.run(leases.stopped("r1", Status.CANCELLED, "server_stopped", NOW))
    found = row(store)
    assert (found.status, found.failure_code, found.end_reason) == ("cancelled", None, "server_stopped")


def test_an_end_that_the_controller_wanted_keeps_the_controllers_cause(store: Store, leases: Leases) -> None:
    lease(store, end_wanted="failed", end_reason="the node was lost", failure_code="node_lost")
    asyncio.run(leases.stopped("r1", Status.FAILED, cause("killed"), NOW))
    assert (row(store).failure_code, row(store).failure_reason) == ("node_lost", "the node was lost")


# The spawner itself


class Server:
    """A server that ends as it is told; ``kills`` is what the kernel counts, one number for each look."""

    def __init__(self) -> None:
        self.exit_code: int | None = None

    async def poll(self) -> int | None:
        return self.exit_code


class Spawner(ReservationMixin, Server):  # type: ignore[misc]
    http_timeout, start_timeout = 30, 60
    count: int | None = 7

    def memory_kills(self) -> int | None:
        return self.count


@pytest.fixture
def spawner() -> Spawner:
    return Spawner()


@pytest.mark.parametrize(
    ("exit_code", "before", "after", "status", "code"),
    [
        pytest.param(-9, 7, 8, Status.FAILED, "out_of_memory", id="the kernel counted one more"),
        pytest.param(-9, 7, 7, Status.FAILED, "killed", id="the kernel knows nothing of it"),
        pytest.param(-9, None, None, Status.FAILED, "killed", id="this machine does not tell"),
        pytest.param(-9, None, 8, Status.FAILED, "killed", id="nothing to compare with"),
        pytest.param(3, 7, 8, Status.FAILED, "exited", id="another one ran out of memory"),
        pytest.param(0, 7, 7, Status.CANCELLED, "", id="shut down from inside"),
    ],
)
def test_how_a_server_ended(
    spawner: Spawner, exit_code: int, before: int | None, after: int | None, status: Status, code: str
) -> None:
    spawner.count = before
    asyncio.run(spawner.poll())
    spawner.exit_code, spawner.count = exit_code, after
    asyncio.run(spawner.poll())
    found, why = spawner._how_it_ended()
    assert found is status and getattr(why, "code", "") == code


def test_a_kill_counts_only_if_it_came_after_the_server_was_last_seen(spawner: Spawner) -> None:
    asyncio.run(spawner.poll())
    spawner.count = 8  # somebody else's, long ago
    asyncio.run(spawner.poll())
    spawner.exit_code = -9
    asyncio.run(spawner.poll())
    assert spawner._how_it_ended()[1].code == "killed"


def test_a_server_that_was_too_slow(spawner: Spawner) -> None:
    assert spawner._timed_out() is None
    spawner._cancelled_after = 59.0
    assert spawner._timed_out() == cause("start_timeout", seconds=60)
    spawner._responding_since = time.monotonic() - 29.5
    assert spawner._timed_out() == cause("no_answer", seconds=30)


@pytest.mark.parametrize(
    ("error", "code", "may_pass", "phrase"),
    [
        (PortalError("x", reason="ended_early"), "exited", True, "while starting (exit code 3)"),
        (PortalError("x", reason="node_gone", node="n4"), "node_lost", True, "the node n4 was lost"),
        (
            PortalError("No user ada.", reason="no_system_user", final=True),
            "no_account",
            False,
            "No user ada",
        ),
        (PortalError("odd.", reason="new_one", final=True), "unknown", False, "odd"),
        (PortalError("x", reason="image_not_found", image="a:1"), "image_not_found", False, "image a:1 was"),
        (OSError(errno.ENAMETOOLONG, "File name too long", "/x"), "path_too_long", False, "path /x is too"),
        (OSError(errno.ENOSPC, "No space left", "/x"), "no_space", True, "no space is left on /x"),
        (OSError(errno.EACCES, "Permission denied", "/x"), "unknown", True, "Permission denied: /x"),
        (RuntimeError("secret"), "unknown", True, "could not be started (RuntimeError)"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_why_a_start_failed(
    spawner: Spawner, error: Exception, code: str, may_pass: bool, phrase: str
) -> None:
    spawner._exit_code = 3
    found = spawner._cause(error)
    assert (found.code, found.may_pass) == (code, may_pass) and phrase in found.phrase
    assert "secret" not in found.phrase and "final" not in found.values


@pytest.mark.parametrize(
    ("lines", "file"),
    [
        ("0::/user.slice/a\n", "user.slice/a/memory.events"),
        ("9:cpu:/x\n4:memory:/b\n0::/\n", "memory/b/memory.oom_control"),
    ],
    ids=["control groups of today", "of the old kind"],
)
def test_where_the_kernel_counts(tmp_path: Path, lines: str, file: str) -> None:
    (tmp_path / "proc" / "12").mkdir(parents=True)
    (tmp_path / "proc" / "12" / "cgroup").write_text(lines)
    counter = tmp_path / "groups" / file
    counter.parent.mkdir(parents=True)
    counter.write_text("oom 9\noom_kill 4\noom_group_kill 0\n")
    found = memory.counter_of(12, tmp_path / "proc", tmp_path / "groups")
    assert found == counter and memory.kills(found) == 4


def test_a_machine_that_does_not_tell(tmp_path: Path) -> None:
    (tmp_path / "12").mkdir()
    (tmp_path / "12" / "cgroup").write_text("0::/a\n")
    assert memory.counter_of(12, tmp_path, tmp_path / "groups") is None
    assert memory.counter_of(13, tmp_path, tmp_path / "groups") is None
    assert memory.kills(None) is None
