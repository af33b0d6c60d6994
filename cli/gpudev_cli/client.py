"""The one client of the portal's API: typed answers, and errors that say what to do.

ClientError                 anything that went wrong; ``exit_code`` is what the command ends with
├── NoAnswer                the portal cannot be reached, or gave no usable answer
├── NotLoggedIn             no token, or one that the portal does not take
└── Rejected                the portal understood and said no
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeVar

import httpx

TIMEOUT_S = 30.0
T = TypeVar("T")


class ClientError(Exception):
    exit_code = 1


class NoAnswer(ClientError):
    exit_code = 5


class NotLoggedIn(ClientError):
    exit_code = 4


class Rejected(ClientError):
    exit_code = 4


@dataclass(frozen=True)
class Availability:
    gpu_type: str
    total: int
    available: int
    in_use: int
    queued: int
    max_reservable: int
    max_per_node: int
    stale: bool
    as_of: str

    @property
    def starts_now(self) -> str:
        """The largest that would start now, in words."""
        if self.max_reservable == 0:
            return "full"
        if self.max_per_node == 0:
            return "yes"
        if self.max_reservable > self.max_per_node:
            return f"up to {self.max_reservable // self.max_per_node} nodes"
        return f"up to {self.max_reservable}"


@dataclass(frozen=True)
class Reservation:
    reservation_id: str
    name: str
    status: str
    gpu_type: str
    gpu_count: int
    nodes: tuple[str, ...]
    expires_at: str
    expected_start: str
    queue_position: int


class Client:
    """``url`` is the web service's address, such as ``https://gpu.example.org/services/gpu-dev``."""

    def __init__(self, url: str, token: str = "", transport: httpx.BaseTransport | None = None) -> None:
        self.url = url.rstrip("/")
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        self._http = httpx.Client(headers=headers, timeout=TIMEOUT_S, transport=transport)

    def availability(self) -> list[Availability]:
        found = self._get("/v1/gpu/availability")["availability"]
        return [_pick(Availability, entry) for entry in found.values()]

    def reservations(self) -> list[Reservation]:
        return [_pick(Reservation, entry) for entry in self._get("/v1/jobs")["jobs"]]

    def health(self) -> dict[str, Any]:
        return self._get("/health")

    def close(self) -> None:
        self._http.close()

    def _get(self, path: str) -> dict[str, Any]:
        try:
            answer = self._http.get(self.url + path)
        except httpx.TimeoutException:
            raise NoAnswer(f"no answer from {self.url} after {TIMEOUT_S:g} s.") from None
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            raise NoAnswer(f"{self.url} cannot be reached: {error}") from None
        return _read(answer)


def _read(answer: httpx.Response) -> dict[str, Any]:
    try:
        body = answer.json()
    except ValueError:
        body = None
    if answer.status_code in (401, 403):
        raise NotLoggedIn("the portal does not take this token. Log in again: gpu-dev login")
    if 400 <= answer.status_code < 500:
        detail = body.get("detail") if isinstance(body, dict) else None
        raise Rejected(str(detail or f"the portal answered {answer.status_code}."))
    if answer.status_code != 200 or not isinstance(body, dict):
        raise NoAnswer(f"{answer.url.host} gave no usable answer ({answer.status_code}).")
    return body


def _pick(kind: type[T], entry: dict[str, Any]) -> T:
    """The fields that this version knows; a newer portal may send more, an older one less."""
    return kind(**{name: _value(entry.get(name), text) for name, text in kind.__annotations__.items()})


def _value(value: Any, annotation: str) -> Any:
    if annotation.startswith("tuple"):
        return tuple(value or ())
    return {"str": "", "int": 0, "bool": False}[annotation] if value is None else value
