"""Who may come in: a shared password on one machine, or an identity provider, by settings alone."""

from __future__ import annotations

import os
import secrets
from pathlib import Path
from typing import Any

from gpudev_core.errors import SettingsError
from gpudev_core.settings import Login, Settings

USER_PASSWORD_FILE = "password"
ADMIN_PASSWORD_FILE = "admin-password"


def read_or_make_password(path: Path) -> str:
    """The password in ``path``, made on the first start. Only its owner can read the file."""
    if not path.exists():
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "w") as file:
            file.write(secrets.token_urlsafe(24) + "\n")
    password = path.read_text().strip()
    if path.stat().st_mode & 0o077:
        raise SettingsError(f"{path}: others can read it. Do: chmod 600 {path}")
    if len(password) < 32:
        raise SettingsError(
            f"{path}: the password is shorter than 32 characters. Remove the file for a new one."
        )
    return password


def configure(c: Any, settings: Settings) -> None:
    """Set the authenticator and what it needs. The class itself is made by ``pages.with_pages``."""
    login = settings.login
    c.Authenticator.admin_users = set(login.admins)
    c.Authenticator.allowed_users = set(login.allowed_users)
    if login.kind == "password":
        _shared_password(c, settings)
    else:
        _provider(c, settings)


def authenticator_class(kind: str) -> type:
    """Imported only when used: each provider's class brings its own dependencies."""
    if kind == "password":
        from jupyterhub.authenticators.shared import SharedPasswordAuthenticator as found
    elif kind == "github":
        from oauthenticator.github import GitHubOAuthenticator as found
    elif kind == "google":
        from oauthenticator.google import GoogleOAuthenticator as found
    else:
        from gpudev_hub.oidc import OidcAuthenticator as found
    return found


def _shared_password(c: Any, settings: Settings) -> None:
    state = settings.state_dir
    c.SharedPasswordAuthenticator.user_password = read_or_make_password(state / USER_PASSWORD_FILE)
    c.SharedPasswordAuthenticator.admin_password = read_or_make_password(state / ADMIN_PASSWORD_FILE)
    c.Authenticator.allow_all = not settings.login.allowed_users


def _provider(c: Any, settings: Settings) -> None:
    login = settings.login
    c.OAuthenticator.client_id = login.client_id
    c.OAuthenticator.client_secret = _secret(login)
    if login.kind == "github":
        c.GitHubOAuthenticator.allowed_organizations = set(login.allowed_organizations)
        c.GitHubOAuthenticator.scope = ["read:org"] if login.allowed_organizations else []
    elif login.kind == "google":
        # The provider's class lets in who it is told to, among those of the domain.
        c.GoogleOAuthenticator.hosted_domain = list(login.allowed_domains)
        c.GoogleOAuthenticator.allow_all = bool(login.allowed_domains) and not login.allowed_users
    else:
        _oidc(c, settings)


def _oidc(c: Any, settings: Settings) -> None:
    from gpudev_hub.oidc import endpoints

    login = settings.login
    found = endpoints(str(login.issuer), settings.state_dir / "oidc.json")
    c.OAuthenticator.authorize_url = found["authorization_endpoint"]
    c.OAuthenticator.token_url = found["token_endpoint"]
    c.OAuthenticator.userdata_url = found["userinfo_endpoint"]
    c.OAuthenticator.login_service = "your organisation"
    c.OAuthenticator.username_claim = login.username_claim
    c.OAuthenticator.scope = list(login.scopes)
    c.OidcAuthenticator.allowed_domains = [domain.lower() for domain in login.allowed_domains]


def _secret(login: Login) -> str:
    path = login.client_secret_file
    assert path is not None  # checked with the settings
    try:
        return path.expanduser().read_text().strip()
    except OSError as error:
        raise SettingsError(f"login.client_secret_file: {path} cannot be read: {error.strerror}") from None
