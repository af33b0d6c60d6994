"""What a person does: log in, read the form, start, run a cell, stop; be refused; wait for a turn."""

from __future__ import annotations

import re
from pathlib import Path

from browsing import NARROW, choose, log_in, main_button, picture
from playwright.sync_api import Page, expect
from running import Person, RunningPortal


def test_from_login_to_a_cell_that_runs_and_back(
    page: Page, portal: RunningPortal, person: Person, shots: Path | None
) -> None:
    log_in(page, portal, person.name)
    expect(page.get_by_text("You have no reservation")).to_be_visible()
    picture(page, shots, "home-empty")
    page.goto(f"{portal.url}/hub/spawn")
    expect(page.get_by_text("Simulated GPUs")).to_be_visible()
    choose(page, "t4", 2)
    page.get_by_label(re.compile("^Name")).last.fill("From the browser")
    expect(main_button(page)).to_contain_text("Start now on gpu-node-")
    picture(page, shots, "form")
    main_button(page).click()
    # The page opens JupyterLab by itself as soon as it answers.
    expect(page).to_have_url(re.compile(rf"/user/{person.name}/from-the-browser/lab"))
    page.locator(".jp-LauncherCard[data-category=Notebook]").first.click()
    cell = page.locator(".jp-Notebook .jp-CodeCell .cm-content").first
    expect(page.get_by_text("Python 3 (ipykernel) | Idle")).to_be_visible()
    cell.click()
    page.keyboard.type("import os; print('sum', 40 + 2, os.environ['OMP_NUM_THREADS'])")
    expect(cell).to_contain_text("OMP_NUM_THREADS")
    page.keyboard.press("Shift+Enter")
    expect(page.locator(".jp-OutputArea-output").first).to_contain_text("sum 42 1")
    page.goto(f"{portal.url}/services/gpu-dev/")
    page.get_by_role("link", name="From the browser").first.click()
    expect(page.get_by_text(re.compile("left, ends"))).to_be_visible()
    picture(page, shots, "active")
    page.get_by_text("End", exact=True).first.click()
    page.get_by_role("button", name="End now").click()
    expect(page.get_by_text(re.compile("You ended it at"))).to_be_visible()
    picture(page, shots, "cancelled")


def test_what_is_refused_is_told_beside_the_field(
    page: Page, portal: RunningPortal, person: Person, shots: Path | None
) -> None:
    log_in(page, portal, person.name)
    page.goto(f"{portal.url}/hub/spawn")
    choose(page, "h100", 16, hours="24")
    expect(main_button(page)).to_have_attribute("aria-disabled", "true")
    expect(page.get_by_role("alert").filter(has_text="384 GPU-hours")).to_be_visible()
    picture(page, shots, "refused")
    main_button(page).click(force=True)  # it is said to be disabled, and still tells why
    expect(page).to_have_url(re.compile("/hub/spawn"))
    page.get_by_role("button", name=re.compile("Use .* h")).click()
    expect(main_button(page)).to_contain_text("Start now")
    # What only the server knows comes back from it, with the input kept.
    page.locator('input[name=disk][value="+"]').check(force=True)
    page.locator("input[name=new_disk_name]").fill("main")
    page.locator("input[name=new_disk_name]").evaluate(
        "box => { box.removeAttribute('pattern'); box.value = 'No Good'; }"
    )
    main_button(page).click()
    expect(page.get_by_role("alert").filter(has_text="No Good")).to_be_visible()
    expect(page.locator("input[name=new_disk_name]")).to_have_value("No Good")
    picture(page, shots, "refused-by-server")


def test_a_queued_request_starts_by_itself(
    page: Page, portal: RunningPortal, person: Person, neighbour: Person, shots: Path | None
) -> None:
    first = neighbour.reserve("h100", 16)
    neighbour.wait_for(first, "active")
    log_in(page, portal, person.name)
    page.goto(f"{portal.url}/hub/spawn")
    choose(page, "h100", 8)
    expect(main_button(page)).to_contain_text("Join the queue: start no later than")
    picture(page, shots, "form-queue")
    main_button(page).click()
    expect(page.get_by_text(re.compile("^Starts .*no later than"))).to_be_visible()
    picture(page, shots, "queued")
    neighbour.end(first)
    expect(page).to_have_url(re.compile(rf"/user/{person.name}/h100/lab"))


def test_the_form_follows_what_others_do(
    page: Page, portal: RunningPortal, person: Person, neighbour: Person
) -> None:
    log_in(page, portal, person.name)
    page.goto(f"{portal.url}/hub/spawn")
    choose(page, "h100", 8)
    expect(main_button(page)).to_contain_text("Start now")
    taken = neighbour.reserve("h100", 16)
    expect(main_button(page)).to_contain_text("Join the queue")
    expect(page.locator('input[name=gpu_count][value="8"]')).to_be_checked()
    neighbour.end(taken)
    expect(main_button(page)).to_contain_text("Start now")


def test_no_page_scrolls_sideways_on_a_phone(page: Page, portal: RunningPortal, person: Person) -> None:
    reservation_id = person.reserve("t4", 1, name="narrow")
    person.wait_for(reservation_id, "active")
    log_in(page, portal, person.name)
    page.set_viewport_size(NARROW)
    for path in (
        "/services/gpu-dev/",
        "/hub/spawn",
        f"/services/gpu-dev/reservations/{reservation_id}",
        "/hub/token",
    ):
        page.goto(portal.url + path)
        page.wait_for_load_state("networkidle" if path == "/hub/token" else "load")
        width = page.evaluate("document.documentElement.scrollWidth")
        assert width <= NARROW["width"], f"{path} is {width} px wide"


def test_the_form_works_without_scripts(context, browser, portal: RunningPortal, person: Person) -> None:
    plain = browser.new_context(java_script_enabled=False)
    page = plain.new_page()
    page.goto(f"{portal.url}/hub/login")
    page.get_by_label("Username").fill(person.name)
    page.locator("#password_input").fill((portal.state / "password").read_text().strip())
    page.get_by_role("button", name="Sign in").click()
    page.goto(f"{portal.url}/hub/spawn")
    page.locator('input[name=gpu_type][value="t4"]').check(force=True)
    page.locator('input[name=gpu_count][value="1"]').check(force=True)
    page.locator("[data-go]").click()
    expect(page).to_have_url(re.compile("/services/gpu-dev/reservations/"))
    plain.close()
