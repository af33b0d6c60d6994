"""Logging in with an OpenID provider, by settings alone: a real hub before a provider of our own."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import parse_qs, urlencode, urlsplit

import httpx
import pytest
from running import RunningPortal, running_portal


class Provider(ThreadingHTTPServer):
    """Lets everybody in as ``claims`` says, and asks nobody for a password."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Answer)
        self.claims: dict[str, object] = {}
        self.seen_secret = ""

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


class Answer(BaseHTTPRequestHandler):
    server: Provider

    def do_GET(self) -> None:
        asked = urlsplit(self.path)
        query = {key: values[0] for key, values in parse_qs(asked.query).items()}
        if asked.path == "/.well-known/openid-configuration":
            names = {"authorization": "authorize", "token": "token", "userinfo": "userinfo"}
            self.answer({f"{name}_endpoint": f"{self.server.url}/{path}" for name, path in names.items()})
        elif asked.path == "/authorize":
            self.send_response(302)
            back = urlencode({"code": "a-code", "state": query["state"]})
            self.send_header("Location", f"{query['redirect_uri']}?{back}")
            self.end_headers()
        else:
            self.answer(self.server.claims)

    def do_POST(self) -> None:
        body = parse_qs(self.rfile.read(int(self.headers["Content-Length"])).decode())
        self.server.seen_secret = body.get("client_secret", [""])[0]
        self.answer({"access_token": "an-access-token", "token_type": "Bearer", "scope": "openid"})

    def answer(self, body: object) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.end_headers()
        self.wfile.write(json.dumps(body).encode())

    def log_message(self, *args: object) -> None:
        pass


@pytest.fixture(scope="module")
def provider() -> Iterator[Provider]:
    server = Provider()
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield server
    server.shutdown()
    server.server_close()


@pytest.fixture(scope="module")
def provided(provider: Provider, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningPortal]:
    folder: Path = tmp_path_factory.mktemp("oidc")
    (folder / "client-secret").write_text("a-client-secret\n")
    with running_portal(
        folder / "state",
        login__kind="oidc",
        login__issuer=provider.url,
        login__client_id="portal",
        login__client_secret_file=str(folder / "client-secret"),
        login__allowed_domains="[example.org]",
    ) as portal:
        yield portal


def come_in(portal: RunningPortal) -> httpx.Response:
    with httpx.Client(base_url=portal.url, follow_redirects=True, timeout=60) as client:
        return client.get("/hub/oauth_login", params={"next": "/hub/spawn"})


def test_a_verified_address_of_the_domain_comes_in(provided: RunningPortal, provider: Provider) -> None:
    provider.claims = {"preferred_username": "ada", "email": "ada@example.org", "email_verified": True}
    page = come_in(provided)
    assert page.status_code == 200 and page.url.path == "/hub/spawn" and ">ada<" in page.text
    assert provider.seen_secret == "a-client-secret"
    assert "a-client-secret" not in provided.log.read_text()


@pytest.mark.parametrize(
    "claims",
    [
        {"preferred_username": "eve", "email": "eve@elsewhere.org", "email_verified": True},
        {"preferred_username": "eve", "email": "eve@example.org", "email_verified": False},
        {"preferred_username": "eve"},
    ],
    ids=["another domain", "an address that was not verified", "no address"],
)
def test_others_stay_outside(provided: RunningPortal, provider: Provider, claims: dict[str, object]) -> None:
    provider.claims = claims
    assert come_in(provided).status_code == 403


def test_there_is_no_password_to_guess(provided: RunningPortal) -> None:
    assert not (provided.state / "password").exists()
    page = httpx.get(provided.url + "/hub/login", follow_redirects=True)
    assert "password_input" not in page.text and "your organisation" in page.text
