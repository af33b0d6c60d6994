"""The small command, against answers of every kind; ``tests/portal`` runs it against a real portal."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import httpx
import pytest

from gpudev_cli import config
from gpudev_cli.client import Client, NoAnswer, NotLoggedIn, Refused, Rejected

H100 = {
    "gpu_type": "h100", "total": 24, "available": 4, "in_use": 20, "queued": 8,
    "max_reservable": 4, "max_per_node": 8, "stale": False, "as_of": "2026-11-15T12:49:00Z", "newer": 1,
}  # fmt: skip


def client(answer: Callable[[httpx.Request], httpx.Response]) -> Client:
    return Client("http://portal/services/gpu-dev/", "secret", transport=httpx.MockTransport(answer))


def test_answers_are_typed_and_what_is_unknown_is_left_aside() -> None:
    def answer(request: httpx.Request) -> httpx.Response:
        assert request.headers["Authorization"] == "Bearer secret" and "secret" not in str(request.url)
        return httpx.Response(200, json={"availability": {"h100": H100}})

    assert client(answer).availability()[0].available == 4


@pytest.mark.parametrize(
    ("response", "error"),
    [
        (httpx.Response(401, json={"detail": "x"}), NotLoggedIn),
        (httpx.Response(403, json={"detail": "x"}), NotLoggedIn),
        (httpx.Response(404, json={"detail": "Job not found"}), Rejected),
        (httpx.Response(500, json={"detail": "x"}), NoAnswer),
        (httpx.Response(502, text="<html>"), NoAnswer),
        (httpx.Response(200, text="<html>"), NoAnswer),
        (httpx.Response(200, json=[]), NoAnswer),
    ],
)
def test_every_bad_answer_is_an_error_without_the_token(response: httpx.Response, error: type) -> None:
    with pytest.raises(error) as caught:
        client(lambda _: response).availability()
    assert "secret" not in str(caught.value)


def test_a_refusal_carries_its_rule_and_what_fits() -> None:
    told = {"detail": "No.", "reason": "promised", "field": "hours", "fits": "2026-11-15T17:00:00Z",
            "values": {"at": "2026-11-15T17:00:00Z"}}  # fmt: skip
    with pytest.raises(Refused) as caught:
        client(lambda _: httpx.Response(400, json=told)).extend("abc", hours=4)
    assert caught.value.as_json() == {
        "code": "refused",
        "message": "No.",
        "reason": {"code": "promised", "at": "2026-11-15T17:00:00Z"},
        "fits": {"until": "2026-11-15T17:00:00Z"},
    }


def test_an_address_that_does_not_answer() -> None:
    def answer(_: httpx.Request) -> httpx.Response:
        raise httpx.ConnectError("refused")

    with pytest.raises(NoAnswer, match="http://portal/services/gpu-dev cannot be reached"):
        client(answer).availability()


def test_the_token_is_kept_where_only_its_owner_can_read_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("XDG_CONFIG_HOME", raising=False)
    for name in ("GPU_DEV_API_URL", "GPU_DEV_TOKEN", "JUPYTERHUB_API_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    config.save("http://portal/services/gpu-dev", "secret")
    assert (config.url(), config.token()) == ("http://portal/services/gpu-dev", "secret")
    assert config.credentials_file().stat().st_mode & 0o077 == 0
    assert set(json.loads(config.credentials_file().read_text())) == {"api_key", "expires_at"}
    monkeypatch.setenv("GPU_DEV_API_URL", "http://other")
    assert config.url() == "http://other"


def test_a_token_goes_only_to_the_portal_that_it_is_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("XDG_CONFIG_HOME", raising=False)
    for name in ("GPU_DEV_API_URL", "GPU_DEV_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    config.save("http://other/services/gpu-dev", "for-the-other")
    monkeypatch.setenv("JUPYTERHUB_API_TOKEN", "of-this-server")
    assert (config.url(), config.token()) == ("http://other/services/gpu-dev", "for-the-other")
    monkeypatch.setenv("GPU_DEV_API_URL", "http://here/services/gpu-dev")
    assert (config.url(), config.token()) == ("http://here/services/gpu-dev", "of-this-server")
