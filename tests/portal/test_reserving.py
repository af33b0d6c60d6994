"""From the form to JupyterLab and back, on a real hub."""

from __future__ import annotations

import os
import signal
from datetime import UTC, datetime, timedelta

import httpx
import pytest
from running import Person, RunningPortal, wait_until
from sqlalchemy import func, select, update

from gpudev_core.tables import DiskRow, ReservationRow


def test_a_request_that_fits_becomes_a_jupyterlab_that_answers(person: Person) -> None:
    reservation_id = person.reserve("t4", 2, hours=2, disk="+", new_disk_name="main", name="first try")
    active = person.wait_for(reservation_id, "active")
    assert active["lab_url"] == f"/user/{person.name}/first-try/lab"
    lab = person.web.get(active["lab_url"])
    assert lab.status_code == 200 and "JupyterLab" in lab.text
    started, ends = (datetime.fromisoformat(active[key]) for key in ("launched_at", "expires_at"))
    assert ends - started == timedelta(hours=2)
    assert [e["event"] for e in person.state(reservation_id)["events"]] == ["filed", "preparing", "active"]


def test_a_cell_runs_and_knows_its_share(person: Person) -> None:
    active = person.wait_for(person.reserve("t4", 1, name="cell", disk=""), "active")
    code = (
        "import os; print(6 * 7, os.environ['CUDA_VISIBLE_DEVICES'] or 'none', os.environ['OMP_NUM_THREADS'])"
    )
    answer, devices, threads = person.run(active["lab_url"], code).split()
    assert (answer, devices) == ("42", "none"), "a simulated GPU is none that a program could use"
    assert int(threads) == max(1, min(48, os.cpu_count() or 1) // 4)


def test_the_panel_and_the_command_work_inside_a_server(person: Person) -> None:
    active = person.wait_for(person.reserve("cpu-x86", 0, name="inside", disk=""), "active")
    code = "from gpudev_widgets import availability; print(availability().text)"
    assert "cpu-x86       2 of 3" in person.run(active["lab_url"], code)
    code = "import subprocess; print(subprocess.run(['gpu-dev', 'list'], capture_output=True, text=True))"
    assert "1 x cpu-x86" in person.run(active["lab_url"], code)


def test_ending_it_stops_the_server_and_gives_the_gpus_back(portal: RunningPortal, person: Person) -> None:
    reservation_id = person.reserve("a100", 4)
    person.wait_for(reservation_id, "active")
    assert free_now(person, "a100") == 12
    assert portal.sessions.get(reservation_id) is not None
    assert person.end(reservation_id).status_code == 200
    ended = person.wait_for(reservation_id, "cancelled")
    assert ended["end_actor"] == person.name and ended["lab_url"] == ""
    assert free_now(person, "a100") == 16
    wait_until(lambda: portal.sessions.get(reservation_id) is None, "the session is forgotten")


def test_stopping_the_server_through_the_hub_ends_the_reservation(person: Person) -> None:
    reservation_id = person.reserve(name="stopped")
    person.wait_for(reservation_id, "active")
    assert person.hub_api("DELETE", f"users/{person.name}/servers/stopped").status_code in (202, 204)
    assert person.wait_for(reservation_id, "cancelled")["end_reason"] == "server_stopped"


def test_a_server_that_is_killed_is_told_so_and_not_called_ended_by_its_owner(
    portal: RunningPortal, person: Person
) -> None:
    reservation_id = person.reserve(name="killed")
    person.wait_for(reservation_id, "active")
    record = portal.sessions.get(reservation_id)
    assert record is not None
    os.kill(record.pid, signal.SIGKILL)
    failed = person.wait_for(reservation_id, "failed")
    assert "killed" in failed["failure_reason"] and free_now(person, "t4") == 8


def test_a_server_that_cannot_start_is_tried_three_times_and_fails_with_the_cause(
    portal: RunningPortal, person: Person
) -> None:
    broken = portal.state / "disks" / person.name / "main" / ".jupyter" / "jupyter_server_config.py"
    broken.parent.mkdir(parents=True)
    broken.write_text("raise SystemExit(3)\n")
    reservation_id = person.reserve(name="broken", disk="+", new_disk_name="main")
    failed = person.wait_for(reservation_id, "failed")
    assert "exit code 3" in failed["failure_reason"] and failed["launched_at"] is None
    events = [event["event"] for event in person.state(reservation_id)["events"]]
    assert events.count("start_failed") == 3


def test_what_does_not_fit_waits_and_starts_by_itself(person: Person, neighbour: Person) -> None:
    first = person.reserve("h100", 16)
    person.wait_for(first, "active")
    second = neighbour.reserve("h100", 1)
    queued = neighbour.wait_for(second, "queued")
    assert queued["queue_position"] == 1
    assert queued["reason"]["code"] == "needs_free_on_one_node"
    # The clean-up time is planned in, so that what is said is not too early.
    ends = datetime.fromisoformat(person.reservation(first)["expires_at"])
    assert datetime.fromisoformat(queued["no_later_than"]) >= ends
    person.end(first)
    assert neighbour.wait_for(second, "active")["nodes"] == ["gpu-node-5"]


def test_leaving_the_queue_leaves_nothing_behind(person: Person, neighbour: Person) -> None:
    first = person.reserve("h100", 16)
    person.wait_for(first, "preparing" if person.reservation(first)["status"] != "active" else "active")
    second = neighbour.reserve("h100", 8)
    neighbour.wait_for(second, "queued")
    neighbour.end(second)
    assert neighbour.wait_for(second, "cancelled")["nodes"] == []


def test_time_that_is_up_ends_the_server(portal: RunningPortal, person: Person) -> None:
    reservation_id = person.reserve(hours=1)
    person.wait_for(reservation_id, "active")
    set_columns(portal, reservation_id, expires_at=datetime.now(UTC) - timedelta(seconds=1))
    assert person.wait_for(reservation_id, "expired")["end_reason"] == "time_up"
    events = [event["event"] for event in person.state(reservation_id)["events"]]
    assert events[-2:] == ["ending", "expired"]


def test_a_disk_keeps_its_files_and_no_disk_keeps_none(portal: RunningPortal, person: Person) -> None:
    kept = person.reserve("cpu-x86", 0, disk="+", new_disk_name="main", name="one")
    lost = person.reserve("cpu-x86", 0, disk="", name="two")
    for reservation_id in (kept, lost):
        url = person.wait_for(reservation_id, "active")["lab_url"].removesuffix("lab")
        put_file(person, url, "note.txt", "hello")
        person.end(reservation_id)
        person.wait_for(reservation_id, "cancelled")
    again = person.reserve("cpu-x86", 0, disk="main")
    url = person.wait_for(again, "active")["lab_url"].removesuffix("lab")
    person.web.get(url + "lab")  # logs in to this server
    assert person.web.get(url + "api/contents/note.txt").json()["content"] == "hello"
    scratch = portal.state / "scratch" / lost
    wait_until(lambda: not scratch.exists(), "the throw-away home is gone")


def test_a_refused_request_comes_back_with_its_input_and_files_nothing(
    portal: RunningPortal, person: Person
) -> None:
    before = rows(portal)
    answer = person.submit(
        gpu_type="t4", gpu_count="3", hours="5.5", disk="+", new_disk_name="mine", name="Grüße <b>"
    )
    assert answer.status_code == 400 and answer.url.path == "/hub/spawn"
    assert "3 GPUs are not possible for t4" in answer.text
    assert (
        'value="5.5"' in answer.text and "Grüße &lt;b&gt;" in answer.text and "Grüße <b>" not in answer.text
    )
    assert rows(portal) == before


def test_options_in_the_address_only_fill_in_the_form(portal: RunningPortal, person: Person) -> None:
    before = rows(portal)
    page = person.web.get("/hub/spawn?opt-gpu_type=a100&opt-hours=7.5&opt-name=from-a-link&gpu_type=h100")
    assert page.status_code == 200 and 'value="7.5"' in page.text and "from-a-link" in page.text
    assert rows(portal) == before


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({}, "gpu_type is missing"),
        ({"gpu_type": "t9", "hours": 1}, "t9"),
        ({"gpu_type": "t4", "gpu_count": -1, "hours": 1}, "-1"),
        ({"gpu_type": "t4", "gpu_count": 1, "hours": "NaN"}, "hours"),
        ({"gpu_type": "t4", "gpu_count": 1, "hours": 1000}, "24"),
        ({"gpu_type": "t4", "gpu_count": 1, "hours": 1, "disk": "../../etc"}, "Disk name"),
        ({"gpu_type": "t4", "gpu_count": 1, "hours": 1, "disk": "nobodys"}, "nobodys"),
        ({"gpu_type": "t4", "gpu_count": 1, "hours": 1, "image": "evil"}, "evil"),
        ({"gpu_type": "t4", "gpu_count": [1], "hours": 1}, "gpu_count"),
        ({"gpu_type": "t4", "gpu_count": 1, "hours": 1, "cmd": ["sh"]}, "cmd"),
        ({"gpu_type": "b200", "gpu_count": 1, "hours": 1}, "no b200 here"),
    ],
    ids=lambda value: str(value)[:60],
)
def test_rest_options_meet_the_same_rules_as_the_form(
    portal: RunningPortal, person: Person, options: dict[str, object], told: str
) -> None:
    before = rows(portal)
    answer = person.hub_api("POST", f"users/{person.name}/servers/bad", json=options)
    assert answer.status_code == 400, answer.text
    assert told in answer.json()["message"]
    assert rows(portal) == before


def test_rest_options_start_a_server(person: Person) -> None:
    options = {"gpu_type": "t4", "gpu_count": 1, "hours": 1, "name": "By REST"}
    answer = person.hub_api("POST", f"users/{person.name}/servers/by-rest", json=options)
    assert answer.status_code in (201, 202), answer.text
    reservation = own(person)[0]
    assert reservation["name"] == "By REST" and reservation["server_name"] == "by-rest"
    person.wait_for(reservation["reservation_id"], "active")


def test_rest_start_that_must_wait_is_told_so_and_starts_later(person: Person, neighbour: Person) -> None:
    first = person.reserve("h100", 16)
    person.wait_for(first, "active")
    options = {"gpu_type": "h100", "gpu_count": 8, "hours": 1}
    answer = neighbour.hub_api("POST", f"users/{neighbour.name}/servers/waits", json=options)
    assert answer.status_code == 503 and "queued" in answer.json()["message"], answer.text
    again = neighbour.hub_api("POST", f"users/{neighbour.name}/servers/waits", json=options)
    assert again.status_code == 503, again.text
    assert len(own(neighbour)) == 1, "asked twice, filed once"
    person.end(first)
    neighbour.wait_for(own(neighbour)[0]["reservation_id"], "active")


def test_nobody_sees_or_ends_what_is_not_theirs(person: Person, neighbour: Person) -> None:
    reservation_id = person.reserve(name="private")
    person.wait_for(reservation_id, "active")
    page = f"/services/gpu-dev/reservations/{reservation_id}"
    unknown = "/services/gpu-dev/reservations/00000000-0000-4000-8000-000000000000"
    for path in ("", "/state", "/events"):
        foreign, none = neighbour.web.get(page + path), neighbour.web.get(unknown + path)
        assert foreign.status_code == none.status_code == 404
        assert foreign.json()["reason"] == none.json()["reason"]
    own_page = neighbour.reserve(name="mine")
    token = neighbour.web.get(f"/services/gpu-dev/reservations/{own_page}").text.split(
        'name="_xsrf" value="'
    )[1]
    ended = neighbour.web.post(page + "/end", data={"_xsrf": token.split('"')[0]})
    assert ended.status_code == 404
    assert neighbour.web.get(f"/hub/portal/form/{person.name}").status_code in (403, 404)
    assert neighbour.web.get(f"/hub/spawn/{person.name}").status_code in (403, 404)
    assert neighbour.web.get(f"/user/{person.name}/private/api/status").status_code in (403, 404)
    assert person.reservation(reservation_id)["status"] == "active"


def test_an_admin_sees_and_ends_everybodys(portal: RunningPortal, person: Person) -> None:
    reservation_id = person.reserve(name="watched")
    person.wait_for(reservation_id, "active")
    admin = portal.login("admin")
    assert admin.reservation(reservation_id)["user_id"] == person.name
    admin.end(reservation_id)
    assert person.wait_for(reservation_id, "cancelled")["end_actor"] == "admin"


def test_the_form_needs_the_pages_own_token(portal: RunningPortal, person: Person) -> None:
    before = rows(portal)
    fields = {"gpu_type": "t4", "gpu_count": "1", "hours": "1"}
    assert person.web.post("/hub/spawn", data=fields).status_code == 403
    assert rows(portal) == before


def test_ending_needs_the_pages_own_token(person: Person) -> None:
    reservation_id = person.reserve(name="forged")
    person.wait_for(reservation_id, "active")
    answer = person.web.post(f"/services/gpu-dev/reservations/{reservation_id}/end", data={})
    assert answer.status_code == 403
    assert person.reservation(reservation_id)["ending"] is None


def test_a_token_ends_what_its_owner_could_end(person: Person, neighbour: Person) -> None:
    reservation_id = person.reserve("t4", 1, name="by-token")
    path = f"{person.portal.url}/services/gpu-dev/reservations/{reservation_id}/end"
    for other in ({}, {"Authorization": "Bearer wrong"}, {"Authorization": f"Bearer {neighbour.token()}"}):
        assert httpx.post(path, headers=other).status_code in (302, 403, 404)
    assert person.reservation(reservation_id)["ending"] is None
    assert httpx.post(path, headers={"Authorization": f"Bearer {person.token()}"}).status_code == 200
    person.wait_for(reservation_id, "cancelled")


def test_the_api_needs_a_token_and_never_redirects(portal: RunningPortal, person: Person) -> None:
    bare = person.web.__class__(base_url=portal.url)
    for path in ("/services/gpu-dev/v1/gpu/availability", "/services/gpu-dev/v1/jobs"):
        assert bare.get(path).status_code == 401
        good = bare.get(path, headers={"Authorization": f"Bearer {person.token()}"})
        assert good.status_code == 200, good.text
    assert bare.get("/services/gpu-dev/health").json()["status"] == "healthy"


def free_now(person: Person, gpu_type: str) -> int:
    types = person.web.get("/services/gpu-dev/state").json()["types"]
    return int(next(t["free"] for t in types if t["gpu_type"] == gpu_type))


def own(person: Person) -> list[dict[str, object]]:
    return list(person.web.get("/services/gpu-dev/state").json()["reservations"])


def put_file(person: Person, server_url: str, name: str, text: str) -> None:
    person.web.get(server_url + "lab")
    xsrf = next(c.value for c in person.web.cookies.jar if c.name == "_xsrf" and c.path == server_url)
    body = {"type": "file", "format": "text", "content": text}
    answer = person.web.put(f"{server_url}api/contents/{name}", params={"_xsrf": xsrf}, json=body)
    assert answer.status_code == 201, answer.text


def set_columns(portal: RunningPortal, reservation_id: str, **columns: object) -> None:
    """Time is moved by moving what the clock is compared with."""
    with portal.store.write() as session:
        session.execute(
            update(ReservationRow).where(ReservationRow.reservation_id == reservation_id).values(**columns)
        )


def rows(portal: RunningPortal) -> tuple[int, int]:
    with portal.store.read() as session:
        return tuple(
            session.scalar(select(func.count()).select_from(t)) or 0 for t in (ReservationRow, DiskRow)
        )
