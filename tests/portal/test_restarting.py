"""What survives when the hub is killed, and what ends when the portal is told to end."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import psutil
import pytest
from running import RunningPortal, running_portal, wait_until
from sqlalchemy import update

from gpudev_core import sessions
from gpudev_core.tables import ReservationRow


@pytest.fixture
def own_portal(tmp_path: Path) -> Iterator[RunningPortal]:
    with running_portal(tmp_path / "state") as portal:
        yield portal


def test_a_killed_hub_loses_nothing_and_doubles_nothing(own_portal: RunningPortal) -> None:
    ada, bob = own_portal.login("ada"), own_portal.login("bob")
    running = ada.reserve("h100", 16, name="running", disk="+", new_disk_name="main")
    ada.wait_for(running, "active")
    waiting = bob.reserve("h100", 8, name="waiting")
    bob.wait_for(waiting, "queued")
    before = own_portal.sessions.get(running)
    assert before is not None

    own_portal.kill()
    assert sessions.is_alive(before), "the server outlives its hub"
    own_portal.start()

    ada, bob = own_portal.login("ada"), own_portal.login("bob")
    kept = ada.reservation(running)
    assert kept["status"] == "active"
    assert own_portal.sessions.get(running) == before, "the very same process"
    assert ada.web.get(kept["lab_url"]).status_code == 200
    assert bob.reservation(waiting)["status"] == "queued"
    assert [e["event"] for e in ada.state(running)["events"]] == ["filed", "preparing", "active"]

    ada.end(running)
    ada.wait_for(running, "cancelled")
    bob.wait_for(waiting, "active")
    assert len(servers_of(own_portal)) == 1


def test_a_hub_killed_in_the_middle_of_a_start_starts_it_once(own_portal: RunningPortal) -> None:
    ada = own_portal.login("ada")
    reservation_id = ada.reserve("t4", 1, name="half")
    wait_until(lambda: own_portal.sessions.get(reservation_id), "the server's process is begun")
    own_portal.kill()
    own_portal.start()
    ada = own_portal.login("ada")
    active = ada.wait_for(reservation_id, "active")
    assert ada.web.get(active["lab_url"]).status_code == 200
    assert len(servers_of(own_portal)) == 1


def test_a_reservation_goes_on_when_its_server_died_with_the_machine(own_portal: RunningPortal) -> None:
    ada = own_portal.login("ada")
    reservation_id = ada.reserve("t4", 1, hours=2, name="goes-on")
    ends = ada.wait_for(reservation_id, "active")["expires_at"]
    own_portal.kill()
    record = own_portal.sessions.get(reservation_id)
    assert record is not None and sessions.end(record, grace_s=10)
    own_portal.start()
    ada = own_portal.login("ada")
    wait_until(lambda: own_portal.sessions.get(reservation_id) not in (None, record), "it is started again")
    wait_until(lambda: ada.web.get(f"/user/ada/{'goes-on'}/lab").url.path.endswith("/lab"), "it answers")
    found = ada.state(reservation_id)
    assert found["reservation"]["status"] == "active" and found["reservation"]["expires_at"] == ends
    assert "restarted" in [event["event"] for event in found["events"]]


def test_time_that_ran_out_while_the_portal_was_down_ends_it(own_portal: RunningPortal) -> None:
    ada = own_portal.login("ada")
    reservation_id = ada.reserve("t4", 1, name="over")
    ada.wait_for(reservation_id, "active")
    own_portal.kill()
    with own_portal.store.write() as session:
        session.execute(update(ReservationRow).values(expires_at=datetime.now(UTC) - timedelta(hours=1)))
    own_portal.start()
    assert own_portal.login("ada").wait_for(reservation_id, "expired")["end_reason"] == "time_up"
    wait_until(lambda: not servers_of(own_portal), "its server has ended")


def test_programs_left_running_end_with_the_reservation(own_portal: RunningPortal, tmp_path: Path) -> None:
    """A program that was put into the background and into a session of its own still holds its GPUs."""
    ada = own_portal.login("ada")
    reservation_id = ada.reserve("t4", 1, name="leaves", disk="")
    url = ada.wait_for(reservation_id, "active")["lab_url"].removesuffix("lab")
    record = own_portal.sessions.get(reservation_id)
    assert record is not None
    environment = {**psutil.Process(record.pid).environ()}
    left = subprocess.Popen(["sleep", "600"], env=environment, start_new_session=True)
    try:
        ada.web.get(url + "lab")
        ada.end(reservation_id)
        ada.wait_for(reservation_id, "cancelled")
        assert left.wait(timeout=30) != 0
    finally:
        left.kill()


def servers_of(portal: RunningPortal) -> list[psutil.Process]:
    """Every single-user server of this state folder, whoever knows of it."""
    found = []
    for process in psutil.process_iter():
        try:
            if "jupyterhub.singleuser" in process.cmdline() and str(portal.state) in process.cwd():
                found.append(process)
        except psutil.Error:
            continue
    return found
