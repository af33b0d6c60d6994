"""JupyterHub as the controller sees it. A question has three answers: yes, no, and "don't know".

"Don't know" (time-out, 5xx, no connection) is raised as ``DontKnow``, so that nobody can take it for a no.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any
from urllib.parse import quote

import httpx

PAGED = "application/jupyterhub-pagination+json"
START_TIMEOUT_S = 60.0


class DontKnow(Exception):
    """The hub gave no usable answer. Nothing may be concluded from it."""


class Started(StrEnum):
    YES = "yes"
    LATER = "later"
    """The hub is busy; it said when to ask again."""
    NO = "no"


@dataclass(frozen=True)
class Server:
    """A server that the hub has: ready, or on its way up or down."""

    ready: bool
    pending: str
    url: str


@dataclass(frozen=True)
class StartAnswer:
    outcome: Started
    message: str = ""
    retry_after_s: float = 0.0


Servers = Mapping[tuple[str, str], Server]


class Hub:
    def __init__(self, api_url: str, token: str, transport: httpx.BaseTransport | None = None) -> None:
        self._client = httpx.Client(
            base_url=api_url.rstrip("/") + "/",
            headers={"Authorization": f"token {token}", "Accept": PAGED},
            timeout=httpx.Timeout(10.0),
            transport=transport,
            trust_env=False,
        )

    def servers(self) -> Servers:
        """Every server that runs or is on its way, by user and server name."""
        found: dict[tuple[str, str], Server] = {}
        offset: int | None = 0
        while offset is not None:
            page = self._get("users", {"state": "active", "offset": offset, "limit": 200})
            for user in page["items"]:
                for name, server in (user.get("servers") or {}).items():
                    if server.get("ready") or server.get("pending"):
                        found[user["name"], name] = Server(
                            bool(server.get("ready")), server.get("pending") or "", server.get("url") or ""
                        )
            following = page["_pagination"].get("next")
            offset = following["offset"] if following else None
        return found

    def start(self, user: str, server_name: str, reservation_id: str) -> StartAnswer:
        """Start the server of this reservation, and of no other that may have its name by now."""
        body = {"reservation_id": reservation_id}
        answer = self._send("POST", _path(user, server_name), json=body, timeout=START_TIMEOUT_S)
        message = _message(answer)
        if answer.status_code in (201, 202):
            return StartAnswer(Started.YES)
        if answer.status_code == 400 and ("already running" in message or "is pending" in message):
            return StartAnswer(Started.YES)
        if answer.status_code == 429:
            return StartAnswer(Started.LATER, message, _seconds(answer.headers.get("Retry-After")))
        return StartAnswer(Started.NO, message)

    def stop(self, user: str, server_name: str) -> None:
        """Ask for the end of a server, and let the hub forget it. Whether it is gone is another question."""
        body = {"remove": True} if server_name else {}
        self._send("DELETE", _path(user, server_name), json=body, timeout=START_TIMEOUT_S)

    def close(self) -> None:
        self._client.close()

    def _get(self, path: str, params: Mapping[str, Any]) -> Any:
        answer = self._send("GET", path, params=dict(params))
        if answer.status_code != 200:
            raise DontKnow(f"the hub answered {answer.status_code} to GET {path}")
        return answer.json()

    def _send(self, method: str, path: str, **kwargs: Any) -> httpx.Response:
        try:
            answer = self._client.request(method, path, **kwargs)
        except httpx.HTTPError as error:
            raise DontKnow(f"no answer from the hub to {method} {path}: {type(error).__name__}") from error
        # The spawner's own refusals are 5xx too ("queued" is 503), but they carry the hub's JSON.
        if answer.status_code >= 500 and not _message(answer):
            raise DontKnow(f"the hub answered {answer.status_code} to {method} {path}")
        return answer


def _path(user: str, server_name: str) -> str:
    who = quote(user, safe="")
    return f"users/{who}/servers/{quote(server_name, safe='')}" if server_name else f"users/{who}/server"


def _message(answer: httpx.Response) -> str:
    try:
        body = answer.json()
    except ValueError:
        return ""
    return str(body.get("message") or "") if isinstance(body, dict) else ""


def _seconds(value: str | None) -> float:
    return float(value) if value and value.isdigit() else 1.0
