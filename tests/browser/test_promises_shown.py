"""What a person sees of promises, extension, warnings and "sooner", and what pressing the buttons does."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from browsing import NARROW, WIDE, choose, log_in, main_button, picture
from playwright.sync_api import Browser, Page, expect
from running import Person, RunningPortal, wait_until
from sqlalchemy import update

from gpudev_core.tables import NoticeRow, ReservationRow

TIME = r"(tomorrow )?\d\d:\d\d"


def set_columns(portal: RunningPortal, reservation_id: str, **columns: object) -> None:
    """Time is moved by moving what the clock is compared with."""
    with portal.store.write() as session:
        chosen = update(ReservationRow).where(ReservationRow.reservation_id == reservation_id)
        session.execute(chosen.values(**columns))


def tell(portal: RunningPortal, person: Person, reservation_id: str, kind: str, **values: Any) -> None:
    given = {"detail": {}, "due_at": datetime.now(UTC) - timedelta(minutes=1), **values}
    with portal.store.write() as session:
        session.add(NoticeRow(reservation_id=reservation_id, user_id=person.name, kind=kind, **given))


def open_page(page: Page, portal: RunningPortal, reservation_id: str) -> None:
    page.goto(f"{portal.url}/services/gpu-dev/reservations/{reservation_id}")


def now() -> datetime:
    return datetime.now(UTC).replace(microsecond=0)


@pytest.fixture
def waits(person: Person, neighbour: Person) -> str:
    """The neighbour has one of two h100 nodes for an hour, the person waits for both."""
    first = neighbour.reserve("h100", 8)
    neighbour.wait_for(first, "active")
    reservation_id = person.reserve("h100", 16, hours=2, name="gang")
    wait_until(
        lambda: person.reservation(reservation_id)["expected_start"], "it has a promise and a forecast"
    )
    return reservation_id


@pytest.fixture
def runs(person: Person) -> str:
    reservation_id = person.reserve("t4", 1, name="runs")
    person.wait_for(reservation_id, "active")
    return reservation_id


def test_forecast_and_promise_stand_in_the_sentence_and_on_the_bar(
    page: Page, portal: RunningPortal, person: Person, waits: str, shots: Path | None
) -> None:
    promise = datetime.fromisoformat(person.reservation(waits)["no_later_than"])
    set_columns(portal, waits, expected_start=promise - timedelta(minutes=25))
    log_in(page, portal, person.name)
    card = page.locator("[data-cards] article").filter(has_text="gang")
    expect(card).to_contain_text(re.compile(rf"Starts about {TIME}, no later than {TIME}"))
    expect(page.get_by_label(re.compile("gpu-node-6: 8 promised"))).to_be_visible()
    expect(page.get_by_text("idle, promised to someone in the queue")).to_be_visible()
    open_page(page, portal, waits)
    expect(page.locator("[data-big]")).to_have_text(
        re.compile(rf"^Starts about {TIME}, no later than {TIME}$")
    )
    bar = page.locator("[data-span]")
    expect(bar).to_have_attribute(
        "aria-label", re.compile(rf"filed {TIME}, .*about {TIME}, no later than {TIME}")
    )
    expect(page.locator("[data-maybe]")).to_be_visible()
    expect(page.locator("[data-sub]")).to_contain_text("Needs 2 empty nodes; the second is empty at")
    picture(page, shots, "promise")


def test_a_broken_promise_is_told_with_what_holds_now(
    page: Page, portal: RunningPortal, person: Person, waits: str, shots: Path | None
) -> None:
    old = (now() + timedelta(minutes=5)).isoformat()
    detail = {"code": "node_down", "node": "gpu-node-5", "old": old, "new": None}
    tell(portal, person, waits, "promise_moved", detail=detail)
    log_in(page, portal, person.name)
    told = re.compile(
        rf"gpu-node-5 went down at {TIME}, so {TIME} cannot be kept\. Now: .*no later than {TIME}\."
    )
    expect(page.locator("[data-told]").first).to_have_text(told)
    open_page(page, portal, waits)
    expect(page.locator("[data-moved]")).to_have_text(told)
    assert page.locator("[data-moved][role=alert]").count() == 0
    picture(page, shots, "broken-promise")


def test_sooner_says_what_is_given_up_and_changes_the_request(
    page: Page, portal: RunningPortal, person: Person, waits: str, shots: Path | None
) -> None:
    log_in(page, portal, person.name)
    open_page(page, portal, waits)
    page.get_by_text("2 nodes of 8 × a100 start now").click()
    expect(
        page.get_by_text(re.compile(rf"Given up: your place .* and the promise \(no later than {TIME}\)"))
    ).to_be_visible()
    page.set_viewport_size(NARROW)
    assert page.evaluate("document.documentElement.scrollWidth") <= NARROW["width"]
    page.set_viewport_size(WIDE)
    page.get_by_role("button", name="Leave it as it is").locator("visible=true").click()
    assert person.reservation(waits)["gpu_type"] == "h100"
    page.get_by_text("8 × h100 starts now").click()
    expect(page.get_by_text(re.compile("You keep your place .* and the promise"))).to_be_visible()
    picture(page, shots, "sooner")
    page.get_by_role("button", name="Change it").locator("visible=true").click()
    # It starts at once, and the page that watched it wait opens JupyterLab.
    expect(page).to_have_url(re.compile(rf"/user/{person.name}/gang/lab"))


def test_more_time_at_the_press_of_a_button(
    page: Page, portal: RunningPortal, person: Person, runs: str, shots: Path | None
) -> None:
    old = datetime.fromisoformat(person.reservation(runs)["expires_at"])
    log_in(page, portal, person.name)
    open_page(page, portal, runs)
    page.get_by_text("Extend", exact=True).click()
    expect(page.get_by_text("Not longer: 48 h in all is the limit.")).to_be_visible()
    picture(page, shots, "extend")
    page.get_by_role("button", name=re.compile(rf"{TIME} \+1 h")).click()
    expect(page.locator("[data-timeline]")).to_contain_text("Extended")
    assert datetime.fromisoformat(person.reservation(runs)["expires_at"]) == old + timedelta(hours=1)
    # What was possible when the page was drawn may be possible no more: the server has the last word.
    page.get_by_text("Extend", exact=True).click()
    last = page.locator("[data-choices] button").last
    last.evaluate("(button, until) => { button.value = until; }", (now() + timedelta(days=30)).isoformat())
    last.click()
    refused = page.get_by_role("alert").filter(has_text="runs cannot be extended so far.")
    expect(refused).to_contain_text("48 h in all is the limit.")
    expect(page).to_have_url(re.compile(rf"/reservations/{runs}$"))
    picture(page, shots, "extend-refused")
    refused.get_by_role("button", name=re.compile("Extend until")).click()
    expect(page.locator("[data-timeline]").get_by_text("Extended")).to_have_count(2)
    page.get_by_text("Extend", exact=True).click()
    expect(page.get_by_text("Not possible: 48 h in all is the limit.")).to_be_visible()


def test_the_end_that_comes_near_is_told_and_only_the_last_warning_alerts(
    page: Page, portal: RunningPortal, person: Person, runs: str, shots: Path | None
) -> None:
    ends = now() + timedelta(minutes=14, seconds=30)
    set_columns(portal, runs, expires_at=ends, latest_end=ends)
    tell(portal, person, runs, "ends_in_15", due_at=ends - timedelta(minutes=15))
    log_in(page, portal, person.name)
    words = re.compile(
        rf"\d+ minutes left\. runs ends at {TIME}\. Programs stop then\. Files are gone then\."
    )
    expect(page.locator("[data-told]").first).to_have_text(words)
    open_page(page, portal, runs)
    note = page.locator("[data-warning]")
    expect(note).to_have_text(words)
    assert note.locator("[role=alert]").count() == 0
    picture(page, shots, "warning")
    ends = now() + timedelta(minutes=4)
    set_columns(portal, runs, expires_at=ends, latest_end=ends)
    tell(portal, person, runs, "ends_in_5", due_at=ends - timedelta(minutes=5))
    expect(note.get_by_role("alert")).to_contain_text("runs ends at")
    assert "minutes left" not in note.get_by_role("alert").inner_text(), (
        "a number that ticks is not announced"
    )
    page.get_by_text("Extend", exact=True).click()
    page.get_by_role("button", name=re.compile(r"\+2 h")).click()
    expect(page.locator("[data-timeline]")).to_contain_text("Extended")
    expect(note).to_be_hidden()


def test_more_time_without_scripts(
    browser: Browser, portal: RunningPortal, person: Person, runs: str
) -> None:
    old = person.reservation(runs)["expires_at"]
    plain = browser.new_context(java_script_enabled=False)
    page = plain.new_page()
    log_in(page, portal, person.name)
    open_page(page, portal, runs)
    page.get_by_text("Extend", exact=True).click()
    page.get_by_role("button", name=re.compile("longest")).click()
    expect(page).to_have_url(re.compile(rf"/reservations/{runs}$"))
    assert person.reservation(runs)["expires_at"] > old
    plain.close()


def test_the_form_tells_the_promise_and_what_starts_sooner(
    page: Page, portal: RunningPortal, person: Person, waits: str, shots: Path | None
) -> None:
    log_in(page, portal, person.name)
    page.goto(f"{portal.url}/hub/spawn")
    choose(page, "h100", 8, hours="4")
    expect(main_button(page)).to_contain_text(
        re.compile(rf"Join the queue: start (about {TIME}, )?no\slater\sthan\s{TIME}")
    )
    expect(page.get_by_label(re.compile("gpu-node-6: 8 promised"))).to_be_visible()
    picture(page, shots, "form-promised")
    # Idle until the promised start: long enough for half an hour, and the form asks for those hours.
    choose(page, "h100", 8, hours="0.5")
    expect(main_button(page)).to_contain_text("Start now on gpu-node-6")
    choose(page, "h100", 8, hours="4")
    expect(main_button(page)).to_contain_text("Join the queue")
    page.get_by_role("group", name="Sooner").get_by_role("button", name="8 × a100 starts now").click()
    expect(main_button(page)).to_contain_text("Start now on gpu-node-")
    expect(page.locator("input[name=gpu_type][value=a100]")).to_be_checked()
