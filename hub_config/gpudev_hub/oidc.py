"""Any OpenID Connect provider, found by its issuer address."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import httpx
from oauthenticator.generic import GenericOAuthenticator
from traitlets import List, Unicode

from gpudev_core.errors import SettingsError

DISCOVERY = "/.well-known/openid-configuration"
_NEEDED = ("authorization_endpoint", "token_endpoint", "userinfo_endpoint")
_TIMEOUT_S = 10


class OidcAuthenticator(GenericOAuthenticator):
    allowed_domains = List(
        Unicode(),
        help="E-mail domains whose people may come in, such as ``example.org``. Counts only addresses that "
        "the provider has verified. Does not keep out people who are allowed by name.",
    ).tag(config=True)

    async def check_allowed(self, username: str, auth_model: dict[str, Any] | None) -> bool:
        if await super().check_allowed(username, auth_model):
            return True
        user = ((auth_model or {}).get("auth_state") or {}).get(self.user_auth_state_key) or {}
        return bool(user.get("email_verified")) and _domain(user.get("email")) in self.allowed_domains


def endpoints(issuer: str, remembered: Path) -> dict[str, str]:
    """Ask the issuer; when it does not answer, use what it said the last time."""
    url = issuer.rstrip("/") + DISCOVERY
    try:
        found = httpx.get(url, timeout=_TIMEOUT_S).raise_for_status().json()
        answer = {key: str(found[key]) for key in _NEEDED}
    except (httpx.HTTPError, ValueError, KeyError, TypeError) as error:
        if remembered.exists():
            return dict(json.loads(remembered.read_text()))
        raise SettingsError(f"login.issuer: {url} gives no OpenID configuration ({error}).") from None
    remembered.write_text(json.dumps(answer))
    return answer


def _domain(email: Any) -> str:
    name, _, domain = str(email or "").lower().rpartition("@")
    return domain if name else ""
