"""What every test with a browser does."""

from __future__ import annotations

import re
from pathlib import Path

from playwright.sync_api import Locator, Page, ViewportSize, expect
from running import RunningPortal

WIDE: ViewportSize = {"width": 1280, "height": 900}
NARROW: ViewportSize = {"width": 320, "height": 700}


def log_in(page: Page, portal: RunningPortal, name: str) -> None:
    page.goto(f"{portal.url}/hub/login")
    page.get_by_label("Username").fill(name)
    page.locator("#password_input").fill((portal.state / "password").read_text().strip())
    page.get_by_role("button", name="Sign in").click()
    expect(page).to_have_url(re.compile("/services/gpu-dev/"))


def choose(page: Page, gpu_type: str, count: int | None = None, hours: str = "1") -> None:
    page.locator(f'input[name=gpu_type][value="{gpu_type}"]').check(force=True)
    if count:
        page.locator(f'input[name=gpu_count][value="{count}"]').check(force=True)
    page.locator("input[name=hours]").first.fill(hours)


def main_button(page: Page) -> Locator:
    return page.locator("[data-go]")


def picture(page: Page, shots: Path | None, name: str) -> None:
    if shots:
        shots.mkdir(parents=True, exist_ok=True)
        for size, label in ((WIDE, "wide"), (NARROW, "narrow")):
            page.set_viewport_size(size)
            page.screenshot(path=shots / f"{name}-{label}.png", full_page=True)
        page.set_viewport_size(WIDE)
