"""Who may come in, by settings alone."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest
from traitlets.config import Config

from gpudev_core.errors import SettingsError
from gpudev_core.settings import load
from gpudev_hub import login
from gpudev_hub.oidc import OidcAuthenticator


def configured(tmp_path: Path, **more: str) -> Config:
    environ = {"GPUDEV_STATE": str(tmp_path), **{f"GPUDEV_LOGIN__{k.upper()}": v for k, v in more.items()}}
    c = Config()
    login.configure(c, load(None, environ))
    return c


@pytest.fixture
def secret(tmp_path: Path) -> str:
    path = tmp_path / "client-secret"
    path.write_text("very-secret\n")
    return str(path)


def test_passwords_are_made_once_and_only_their_owner_can_read_them(tmp_path: Path) -> None:
    first = configured(tmp_path).SharedPasswordAuthenticator
    again = configured(tmp_path).SharedPasswordAuthenticator
    assert first.user_password == again.user_password != first.admin_password
    assert len(first.user_password) >= 32
    for name in ("password", "admin-password"):
        assert (tmp_path / name).stat().st_mode & 0o077 == 0


def test_a_password_that_others_can_read_is_refused(tmp_path: Path) -> None:
    configured(tmp_path)
    (tmp_path / "password").chmod(0o644)
    with pytest.raises(SettingsError, match="chmod 600"):
        configured(tmp_path)


def test_a_password_that_was_made_short_is_refused_without_being_shown(tmp_path: Path) -> None:
    configured(tmp_path)
    (tmp_path / "password").write_text("hunter2")
    with pytest.raises(SettingsError, match="shorter") as caught:
        configured(tmp_path)
    assert "hunter2" not in str(caught.value)


def test_with_names_only_those_may_come_in(tmp_path: Path) -> None:
    assert configured(tmp_path).Authenticator.allow_all is True
    found = configured(tmp_path, allowed_users="[ada, bob]").Authenticator
    assert found.allow_all is False and found.allowed_users == {"ada", "bob"}


def test_github_by_organization(tmp_path: Path, secret: str) -> None:
    c = configured(
        tmp_path, kind="github", client_id="abc", client_secret_file=secret, allowed_organizations="[acme]"
    )
    assert c.OAuthenticator.client_secret == "very-secret"
    assert c.GitHubOAuthenticator.allowed_organizations == {"acme"}
    assert c.GitHubOAuthenticator.scope == ["read:org"]
    assert login.authenticator_class("github").__name__ == "GitHubOAuthenticator"


def test_google_by_domain(tmp_path: Path, secret: str) -> None:
    c = configured(
        tmp_path, kind="google", client_id="abc", client_secret_file=secret, allowed_domains="[example.org]"
    )
    assert c.GoogleOAuthenticator.hosted_domain == ["example.org"]
    assert c.GoogleOAuthenticator.allow_all is True


def test_a_secret_that_cannot_be_read_is_named_by_its_path(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=r"client_secret_file.*nowhere"):
        configured(
            tmp_path,
            kind="github",
            client_id="abc",
            client_secret_file=str(tmp_path / "nowhere"),
            allowed_users="[ada]",
        )


@pytest.fixture
def issuer() -> Iterator[str]:
    """An OpenID provider, as far as finding it goes."""

    class Answer(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            base = f"http://127.0.0.1:{self.server.server_port}"  # type: ignore[attr-defined]
            names = ("authorization_endpoint", "token_endpoint", "userinfo_endpoint")
            body = json.dumps({name: f"{base}/{name}" for name in names}).encode()
            self.send_response(200)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *args: object) -> None:
            pass

    server = HTTPServer(("127.0.0.1", 0), Answer)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


def test_oidc_is_found_by_its_issuer_and_remembered(tmp_path: Path, secret: str, issuer: str) -> None:
    given = {
        "kind": "oidc",
        "client_id": "abc",
        "client_secret_file": secret,
        "allowed_domains": "[Example.org]",
    }
    c = configured(tmp_path, issuer=issuer, **given)
    assert c.OAuthenticator.token_url == f"{issuer}/token_endpoint"
    assert c.OidcAuthenticator.allowed_domains == ["example.org"]
    silent = configured(tmp_path, issuer="http://127.0.0.1:9", **given)
    assert silent.OAuthenticator.token_url == f"{issuer}/token_endpoint"


def test_an_issuer_that_never_answered_is_an_error(tmp_path: Path, secret: str) -> None:
    given = {"kind": "oidc", "client_id": "abc", "client_secret_file": secret, "allowed_users": "[ada]"}
    with pytest.raises(SettingsError, match=r"login\.issuer.*127\.0\.0\.1:9"):
        configured(tmp_path, issuer="http://127.0.0.1:9", **given)


@pytest.mark.asyncio
@pytest.mark.parametrize(
    ("email", "verified", "allowed"),
    [
        ("ada@example.org", True, True),
        ("Ada@EXAMPLE.org", True, True),
        ("ada@example.org", False, False),
        ("ada@example.org.evil.com", True, False),
        ("example.org", True, False),
        (None, True, False),
        ("bob@elsewhere.org", True, False),
    ],
)
async def test_oidc_by_verified_domain(email: str | None, verified: bool, allowed: bool) -> None:
    authenticator = OidcAuthenticator(allowed_domains=["example.org"], client_id="x", client_secret="y")
    user = {"email": email, "email_verified": verified}
    model = {"name": "ada", "admin": False, "auth_state": {"oauth_user": user}}
    assert await authenticator.check_allowed("ada", model) is allowed
