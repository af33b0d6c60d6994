"""A real browser before a real portal. Without a browser the tests are skipped, and say so."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, BrowserContext, Error, Page, Playwright, expect, sync_playwright

NAMES = ("chromium", "chromium-browser", "google-chrome-stable", "google-chrome")
FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--no-first-run",
]


# Far more than anything here takes: a limit for what never comes, not an expectation.
LIMIT_MS = 60_000
expect.set_options(timeout=LIMIT_MS)


# Not for the session: while Playwright is open, its event loop is in the way of every asynchronous test.
@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    found = next((path for name in NAMES if (path := shutil.which(name))), None)
    with sync_playwright() as playwright:
        opened = _launch(playwright, found)
        yield opened
        opened.close()


def _launch(playwright: Playwright, path: str | None) -> Browser:
    try:
        return playwright.chromium.launch(executable_path=path, args=FLAGS)
    except Error as error:
        pytest.skip(f"no browser: install Chromium ({error.message.splitlines()[0]})")


@pytest.fixture
def context(browser: Browser) -> Iterator[BrowserContext]:
    opened = browser.new_context(locale="en-GB", timezone_id="Europe/Berlin")
    opened.set_default_timeout(LIMIT_MS)
    yield opened
    opened.close()


@pytest.fixture
def page(context: BrowserContext) -> Iterator[Page]:
    """A page whose script errors fail the test."""
    opened = context.new_page()
    errors: list[str] = []
    opened.on("pageerror", lambda error: errors.append(str(error)))
    yield opened
    assert not errors, errors


@pytest.fixture(scope="session")
def shots(request: pytest.FixtureRequest) -> Path | None:
    """``--shots FOLDER``: pictures of what the tests saw, for people to look at."""
    folder = request.config.getoption("--shots")
    return Path(folder) if folder else None
