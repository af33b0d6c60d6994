"""The adapter to the hub: three answers, every page, no guess."""

from __future__ import annotations

from collections.abc import Callable

import httpx
import pytest

from gpudev_services.hub import DontKnow, Hub, Started


def hub(answer: Callable[[httpx.Request], httpx.Response]) -> Hub:
    return Hub("http://hub/hub/api", "secret-token", transport=httpx.MockTransport(answer))


def user(name: str, **servers: dict[str, object]) -> dict[str, object]:
    return {"name": name, "servers": servers}


def test_servers_of_every_page_are_read() -> None:
    pages = {
        "0": ([user("ada", one={"ready": True, "pending": None, "url": "/user/ada/one/"})], {"offset": 200}),
        "200": (
            [user("bob", two={"ready": False, "pending": "spawn", "url": "/u"}, off={"ready": False})],
            None,
        ),
    }

    def answer(request: httpx.Request) -> httpx.Response:
        items, following = pages[request.url.params["offset"]]
        return httpx.Response(200, json={"items": items, "_pagination": {"next": following}})

    found = hub(answer).servers()
    assert set(found) == {("ada", "one"), ("bob", "two")}
    assert found["ada", "one"].ready and found["bob", "two"].pending == "spawn"


@pytest.mark.parametrize("broken", [500, 502, 503, 504, 403, 404])
def test_a_listing_that_fails_is_not_an_empty_one(broken: int) -> None:
    with pytest.raises(DontKnow):
        hub(lambda _: httpx.Response(broken, text="<html>")).servers()


@pytest.mark.parametrize(
    "error", [httpx.ConnectError("x"), httpx.ReadTimeout("x"), httpx.RemoteProtocolError("x")]
)
def test_no_answer_is_dont_know(error: httpx.HTTPError) -> None:
    def answer(_: httpx.Request) -> httpx.Response:
        raise error

    for call in (lambda h: h.servers(), lambda h: h.start("ada", "x", "r1"), lambda h: h.stop("ada", "x")):
        with pytest.raises(DontKnow) as caught:
            call(hub(answer))
        assert "secret-token" not in str(caught.value)


@pytest.mark.parametrize(
    ("status", "body", "expected"),
    [
        (201, None, Started.YES),
        (202, None, Started.YES),
        (400, {"message": "ada:x is already running"}, Started.YES),
        (400, {"message": "ada:x is pending spawn"}, Started.YES),
        (400, {"message": "no such image"}, Started.NO),
        (503, {"message": "x is queued"}, Started.NO),
        (429, {"message": "Too many users trying to log in right now."}, Started.LATER),
    ],
)
def test_answers_to_a_start(status: int, body: dict[str, str] | None, expected: Started) -> None:
    answer = hub(lambda _: httpx.Response(status, json=body, headers={"Retry-After": "7"})).start(
        "ada", "x", "r1"
    )
    assert answer.outcome is expected
    if expected is Started.LATER:
        assert answer.retry_after_s == 7


def test_names_are_quoted_and_the_token_is_in_no_address() -> None:
    seen: list[httpx.Request] = []

    def answer(request: httpx.Request) -> httpx.Response:
        seen.append(request)
        return httpx.Response(204 if request.method == "DELETE" else 201)

    talking = hub(answer)
    talking.start("a/../b@c", "x", "r1")
    talking.start("ada", "", "r1")
    talking.stop("ada", "x")
    assert [r.url.raw_path for r in seen] == [
        b"/hub/api/users/a%2F..%2Fb%40c/servers/x",
        b"/hub/api/users/ada/server",
        b"/hub/api/users/ada/servers/x",
    ]
    assert all("secret-token" not in str(r.url) for r in seen)
