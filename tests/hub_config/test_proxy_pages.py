"""The proxy's error pages, without sockets."""

import json

import pytest

from gpudev_hub.proxy.pages import MESSAGES, REASONS, error_json, error_page, prefers_json


@pytest.mark.parametrize(
    ("accept", "json_wanted"),
    [
        ("", False),
        ("*/*", False),
        ("text/html,application/xhtml+xml,*/*;q=0.8", False),
        ("application/json", True),
        ("Application/JSON, text/plain, */*", True),
        ("application/json;q=0.5, text/html", False),
        ("text/html;q=0.5, application/json;q=0.9", True),
        ("application/json;q=0", False),
        ("application/json;q=often", False),
        ("text/html, application/json", False),
    ],
)
def test_who_prefers_json(accept: str, json_wanted: bool) -> None:
    assert prefers_json(accept) is json_wanted


@pytest.mark.parametrize("status", sorted(MESSAGES))
def test_every_status_has_a_page_and_a_json_answer(status: int) -> None:
    content_type, page = error_page(status, "/hub/home")
    assert content_type.startswith(b"text/html")
    assert MESSAGES[status].encode() in page
    assert REASONS[status].encode() in page
    assert b'href="/hub/home"' in page
    assert json.loads(error_json(status)[1]) == {"message": MESSAGES[status], "status": status}


def test_what_is_put_into_the_page_is_escaped() -> None:
    _, page = error_page(503, '/"><script>alert(1)</script>')
    assert b"<script>" not in page
