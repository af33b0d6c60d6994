"""Promises, extension, warnings and a changed request, through the web service of a real portal."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import httpx
import pytest
from running import Person, RunningPortal, wait_until
from sqlalchemy import update

from gpudev_core.tables import NoticeRow, ReservationRow

HERE = "/services/gpu-dev"
Waiting = tuple[str, str]


def post(person: Person, reservation_id: str, what: str, body: Any = None, token: str = "") -> httpx.Response:
    """As a program does it, with a token."""
    url = f"{person.portal.url}{HERE}/reservations/{reservation_id}/{what}"
    return httpx.post(url, headers={"Authorization": f"Bearer {token or person.token()}"}, json=body)


def in_browser(person: Person, reservation_id: str, what: str, **fields: str) -> httpx.Response:
    """As the page's own form does it."""
    page = person.web.get(f"{HERE}/reservations/{reservation_id}", headers={"Accept": "text/html"})
    token = page.text.split('name="_xsrf" value="')[1].split('"')[0]
    path = f"{HERE}/reservations/{reservation_id}/{what}"
    return person.web.post(path, data={"_xsrf": token, **fields}, headers={"Accept": "text/html"})


def promised(person: Person, reservation_id: str) -> dict[str, Any]:
    """A waiting one, as soon as it has a promise."""

    def arrived() -> dict[str, Any] | None:
        found = person.reservation(reservation_id)
        return found if found["status"] == "queued" and found["no_later_than"] else None

    return dict(wait_until(arrived, f"{reservation_id} has a promise"))


def asked(person: Person, reservation_id: str) -> dict[str, Any]:
    """What was asked for and promised. The forecast beside it comes a moment later, and may move."""
    found = person.reservation(reservation_id)
    kept = (
        "status",
        "request",
        "gpu_type",
        "gpu_count",
        "duration_hours",
        "disk",
        "created_at",
        "expires_at",
    )
    return {name: found[name] for name in (*kept, "queue_position", "no_later_than")}


def at(text: str) -> datetime:
    return datetime.fromisoformat(text)


@pytest.fixture
def active(person: Person) -> str:
    reservation_id = person.reserve("t4", 1, name="runs")
    person.wait_for(reservation_id, "active")
    return reservation_id


@pytest.fixture
def behind(person: Person, neighbour: Person) -> Waiting:
    """The person has one of two h100 nodes for an hour, the neighbour waits for both."""
    first = person.reserve("h100", 8, name="first")
    person.wait_for(first, "active")
    second = neighbour.reserve("h100", 16, hours=2, name="second")
    promised(neighbour, second)
    return first, second


# Extend


def test_more_time_moves_the_end_and_says_what_is_possible_then(person: Person, active: str) -> None:
    before = person.state(active)
    old = at(before["reservation"]["expires_at"])
    assert [choice["hours"] for choice in before["extension"]["choices"]] == [1, 2, 4, None]
    assert before["extension"]["bound"] == {"code": "total_hours", "limit": 48}
    for body, more in (({"hours": 1.5}, 1.5), ({"until": (old + timedelta(hours=3)).isoformat()}, 3)):
        answer = post(person, active, "extend", body)
        assert answer.status_code == 200, answer.text
        assert at(answer.json()["reservation"]["expires_at"]) - old == timedelta(hours=more)
    after = person.state(active)
    assert [event["event"] for event in after["events"][-2:]] == ["extended", "extended"]
    assert after["extension"]["until"] == before["extension"]["until"], "48 h in all are still 48 h in all"


def test_a_form_extends_and_comes_back_to_the_page(person: Person, active: str) -> None:
    choice = person.state(active)["extension"]["choices"][0]
    answer = in_browser(person, active, "extend", until=choice["until"])
    assert answer.status_code == 200 and answer.url.path == f"{HERE}/reservations/{active}"
    assert answer.history[0].status_code == 303
    assert person.reservation(active)["expires_at"] == choice["until"]


def test_an_extension_never_breaks_a_promise(person: Person, neighbour: Person, behind: Waiting) -> None:
    first, second = behind
    promise = neighbour.reservation(second)["no_later_than"]
    state = person.state(first)
    assert state["extension"]["choices"] == [] and state["extension"]["bound"]["code"] == "promised"
    end = state["reservation"]["expires_at"]
    answer = post(person, first, "extend", {"hours": 1})
    told = answer.json()
    assert answer.status_code == 400
    assert (told["reason"], told["field"], told["fits"]) == ("promised", "hours", None)
    assert told["values"]["at"] == end and "promised to someone" in told["detail"]
    page = in_browser(person, first, "extend", until="2026-12-24T12:00:00Z" if end < "2026-12-24" else end)
    assert page.status_code == 400 and "cannot be extended" in page.text and "data-refused" in page.text
    assert person.reservation(first)["expires_at"] == end
    assert neighbour.reservation(second)["no_later_than"] == promise


def test_what_would_fit_is_told(person: Person, active: str) -> None:
    told = post(person, active, "extend", {"hours": 100}).json()
    assert (told["reason"], told["values"]) == ("total_hours", {"limit": 48})
    assert told["fits"] == person.state(active)["extension"]["until"]
    assert post(person, active, "extend", {"until": told["fits"]}).status_code == 200
    assert person.state(active)["extension"]["choices"] == []


BAD_ENDS: list[tuple[Any, str]] = [
    ({}, "until"),
    ({"until": "2026-11-15T12:00"}, "until"),
    ({"until": "soon"}, "until"),
    ({"until": "9999-12-31T23:59:59Z"}, "until"),
    ({"hours": "many"}, "hours"),
    ({"hours": -1}, "hours"),
    ({"hours": 0.001}, "hours"),
    ({"hours": 1, "until": "2026-11-15T12:00:00Z"}, "until"),
    ({"days": 1}, "days"),
    ([1], ""),
]


def test_bad_values_are_told_with_their_field(person: Person, active: str) -> None:
    end, token = person.reservation(active)["expires_at"], person.token()
    for body, field in BAD_ENDS:
        answer = post(person, active, "extend", body, token)
        assert answer.status_code == 400 and answer.json()["field"] == field, (body, answer.text)
    headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}
    url = f"{person.portal.url}{HERE}/reservations/{active}/extend"
    for content in (b"{", b"\xff\xfe", b"[" * 100_000):
        assert httpx.post(url, headers=headers, content=content).status_code == 400, content[:9]
    assert person.reservation(active)["expires_at"] == end


def test_only_what_runs_is_extended_and_only_what_waits_is_changed(
    person: Person, neighbour: Person, behind: Waiting
) -> None:
    told = post(neighbour, behind[1], "extend", {"hours": 1})
    assert told.status_code == 400 and told.json()["reason"] == "not_active"
    assert neighbour.state(behind[1])["extension"] is None
    told = post(person, behind[0], "change", {"hours": 0.5})
    assert told.status_code == 400 and told.json()["reason"] == "not_waiting"


# Other people's


def test_another_users_id_looks_like_none_and_nothing_changes(
    person: Person, neighbour: Person, behind: Waiting
) -> None:
    first, second = behind
    for owner, mine, stranger, theirs in (
        (person, first, neighbour, second),
        (neighbour, second, person, first),
    ):
        before = asked(owner, mine), owner.state(mine)["events"]
        page = stranger.web.get(f"{HERE}/reservations/{theirs}")
        xsrf = page.text.split('name="_xsrf" value="')[1].split('"')[0]
        for what, body in (
            ("extend", {"hours": 1}),
            ("change", {"gpu_count": 8}),
            ("extend", {}),
            ("end", {}),
        ):
            foreign, unknown = post(stranger, mine, what, body), post(stranger, "0" * 8, what, body)
            assert (foreign.status_code, unknown.status_code) == (404, 404)
            assert foreign.json()["detail"].replace(mine, "0" * 8) == unknown.json()["detail"]
            path = f"{HERE}/reservations/{mine}/{what}"
            assert stranger.web.post(path, data={"_xsrf": xsrf, **body}).status_code == 404
            assert stranger.web.get(path).status_code == 404
        assert (asked(owner, mine), owner.state(mine)["events"]) == before


def test_a_wish_needs_the_pages_own_token(person: Person, active: str) -> None:
    before = person.state(active)
    for what in ("extend", "change"):
        path = f"{HERE}/reservations/{active}/{what}"
        assert person.web.post(path, data={"hours": "1"}).status_code == 403
        assert person.web.post(path, json={"hours": 1}).status_code == 403
        assert httpx.post(person.portal.url + path, json={"hours": 1}).status_code in (302, 403)
    assert person.state(active)["events"] == before["events"]


def test_an_admin_extends_everybodys(portal: RunningPortal, person: Person, active: str) -> None:
    admin = portal.login("admin")
    assert post(admin, active, "extend", {"hours": 1}).status_code == 200
    event = person.state(active)["events"][-1]
    assert (event["event"], event["actor"]) == ("extended", "admin")


# Change and sooner


def test_less_of_the_same_starts_sooner_and_keeps_the_place(neighbour: Person, behind: Waiting) -> None:
    second = behind[1]
    state = neighbour.state(second)
    fewer = next(one for one in state["sooner"] if one["gpu_type"] == "h100")
    assert (fewer["gpu_count"], fewer["hours"], fewer["keeps_place"]) == (8, 2, True)
    assert post(neighbour, second, "change", {"gpu_count": 8}).status_code == 200
    assert neighbour.wait_for(second, "active")["nodes"] == ["gpu-node-6"]
    changed = next(e for e in neighbour.state(second)["events"] if e["event"] == "changed")
    assert changed["detail"]["kept_place"] is True and changed["actor"] == neighbour.name


def test_another_type_gives_the_promise_up_after_a_form_says_so(neighbour: Person, behind: Waiting) -> None:
    second = behind[1]
    other = next(one for one in neighbour.state(second)["sooner"] if one["gpu_type"] == "a100")
    assert other["keeps_place"] is False
    page = neighbour.web.get(f"{HERE}/reservations/{second}", headers={"Accept": "text/html"})
    assert "2 nodes of 8 × a100 start now" in " ".join(page.text.split())
    assert "Your place in the queue and the promise are given up." in page.text
    in_browser(neighbour, second, "change", gpu_type="a100", gpu_count="16", hours="2")
    assert len(neighbour.wait_for(second, "active")["nodes"]) == 2
    assert neighbour.reservation(second)["no_later_than"] is None


def test_a_change_meets_the_rules_of_a_new_request(neighbour: Person, behind: Waiting) -> None:
    second = behind[1]
    before = asked(neighbour, second)
    for body, field in (
        ({"gpu_count": 3}, "gpu_count"),
        ({"hours": 1000}, "hours"),
        ({"gpu_type": "b200"}, "gpu_type"),
        ({"disk": "nobodys"}, "disk"),
        ({"name": "other"}, "name"),
        ({"cmd": "sh"}, "cmd"),
    ):
        answer = post(neighbour, second, "change", body)
        assert answer.status_code == 400 and answer.json()["field"] == field, answer.text
    page = in_browser(neighbour, second, "change", hours="1000")
    assert page.status_code == 400 and "1000 h is more than" in page.text
    assert asked(neighbour, second) == before


# Messages


def test_a_warning_is_in_the_state_and_goes_when_the_end_moves(
    portal: RunningPortal, person: Person, active: str
) -> None:
    ends = datetime.now(UTC).replace(microsecond=0) + timedelta(minutes=4)
    with portal.store.write() as session:
        moved = update(ReservationRow).where(ReservationRow.reservation_id == active)
        session.execute(moved.values(expires_at=ends, latest_end=ends))
        warning = NoticeRow(reservation_id=active, user_id=person.name, kind="ends_in_5", detail={})
        warning.due_at = ends - timedelta(minutes=5)
        session.add(warning)
    told = person.state(active)["notices"]
    assert [(one["kind"], at(one["ends_at"])) for one in told] == [("ends_in_5", ends)]
    cards = person.web.get(f"{HERE}/state").json()["reservations"]
    assert [one["kind"] for one in cards[0]["notices"]] == ["ends_in_5"]
    assert "Programs stop then" in person.web.get(f"{HERE}/", headers={"Accept": "text/html"}).text
    assert post(person, active, "extend", {"hours": 1}).status_code == 200
    assert person.state(active)["notices"] == []


# What is free


def test_what_is_promised_is_not_free_for_you(person: Person, neighbour: Person, behind: Waiting) -> None:
    url = f"{person.portal.url}{HERE}/v1/gpu/availability"
    found = httpx.get(url, headers={"Authorization": f"Bearer {person.token()}"}).json()["availability"]
    h100 = found["h100"]
    assert (h100["available"], h100["free_for_you"], h100["promised"]) == (8, 0, 8)
    assert [node["cells"] for node in h100["nodes"]] == ["m" * 8, "p" * 8]
    sizes = {size["count"]: size for size in h100["sizes"]}
    assert set(sizes[1]) == {"count", "nodes", "starts_now", "about", "no_later_than", "reason"}
    promise = neighbour.reservation(behind[1])["no_later_than"]
    assert not sizes[8]["starts_now"] and sizes[8]["no_later_than"] > promise
    assert sizes[8]["reason"]["code"] == "promised_to_others"
    assert found["t4"]["free_for_you"] == found["t4"]["available"] and found["t4"]["sizes"][0]["starts_now"]


def test_waits_are_told_for_the_hours_that_are_asked_for(person: Person, behind: Waiting) -> None:
    """Until the second one starts in an hour, a node is idle: room for half an hour, not for four."""
    for hours, starts_now in (("0.5", True), ("4", False), ("", False), ("many", False)):
        state = person.web.get(f"/hub/portal/form/{person.name}", params={"hours": hours}).json()
        h100 = next(kind for kind in state["types"] if kind["gpu_type"] == "h100")
        size = next(size for size in h100["counts"] if size["count"] == 8)
        assert (state["hours"], size["starts_now"]) == (
            float(hours or 4) if hours != "many" else 4,
            starts_now,
        )
