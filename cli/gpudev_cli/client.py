"""The one client of the portal's API: typed answers, and errors that say what to do.

ClientError                 anything that went wrong; ``exit_code`` is what the command ends with
├── NoAnswer                the portal cannot be reached, or gave no usable answer
├── NotLoggedIn             no token, or one that the portal does not take
├── Rejected                the portal understood and said no
└── Refused                 it is against a rule; names the rule and what would fit. Nothing changed
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any, TypeVar

import httpx

from gpudev_cli import words

TIMEOUT_S = 30.0
T = TypeVar("T")


class ClientError(Exception):
    exit_code = 1
    code = "error"

    def as_json(self) -> dict[str, Any]:
        return {"code": self.code, "message": str(self).partition("\n")[0]}


class NoAnswer(ClientError):
    exit_code = 5
    code = "no_answer"


class NotLoggedIn(ClientError):
    exit_code = 4
    code = "not_logged_in"


class Rejected(ClientError):
    exit_code = 4
    code = "rejected"


class Refused(ClientError):
    """``reason`` is the rule, ``values`` its figures; ``fits`` what would be accepted, if anything is."""

    code = "refused"

    def __init__(self, message: str, reason: str, fits: Any, values: dict[str, Any]) -> None:
        super().__init__(message)
        self.reason = reason
        self.fits = fits
        self.values = values

    def as_json(self) -> dict[str, Any]:
        fits = {"until": self.fits} if self.fits else None
        return {**super().as_json(), "reason": {"code": self.reason, **self.values}, "fits": fits}


@dataclass(frozen=True)
class Size:
    """How many may be asked for, and when they would start. Times are empty where none is known."""

    count: int
    nodes: int
    starts_now: bool
    about: str
    no_later_than: str


@dataclass(frozen=True)
class Cells:
    """A node and one letter for each of its units: f free, m mine, o others', p promised, d down."""

    name: str
    cells: str


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
    free_for_you: int
    promised: int
    down: int
    maintenance: dict[str, str] | None
    sizes: tuple[Size, ...]
    nodes: tuple[Cells, ...]

    @property
    def starts_now(self) -> str:
        """The largest that would start now, in words."""
        if self.maintenance is not None:
            return "closed"
        now = [size for size in self.sizes if size.starts_now]
        if not now:
            return "full"
        if self.max_per_node == 0:
            return "yes"
        most = now[-1]
        return f"up to {most.nodes} nodes" if most.nodes > 1 else f"up to {most.count}"

    def next_size(self, now: datetime, *, short: bool = False) -> str:
        """The smallest that does not start now, and when it would, in words."""
        return words.next_size(self, now, short=short)


@dataclass(frozen=True)
class Reservation:
    reservation_id: str
    name: str
    status: str
    gpu_type: str
    gpu_count: int
    nodes: tuple[str, ...]
    disk: str
    launched_at: str
    expires_at: str
    expected_start: str
    no_later_than: str
    queue_position: int


class Client:
    """``url`` is the web service's address, such as ``https://gpu.example.org/services/gpu-dev``."""

    def __init__(self, url: str, token: str = "", transport: httpx.BaseTransport | None = None) -> None:
        self.url = url.rstrip("/")
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        self._http = httpx.Client(headers=headers, timeout=TIMEOUT_S, transport=transport)

    def availability(self) -> list[Availability]:
        found = self._ask("GET", "/v1/gpu/availability")["availability"]
        return [_pick(Availability, entry) for entry in found.values()]

    def reservations(self) -> list[Reservation]:
        return [_pick(Reservation, entry) for entry in self._ask("GET", "/v1/jobs")["jobs"]]

    def extend(self, reservation_id: str, **wanted: float | str) -> Reservation:
        """``hours`` more, or ``until`` a time in ISO 8601 with its zone. Raises ``Refused``."""
        answer = self._ask("POST", f"/reservations/{reservation_id}/extend", json=wanted)
        return _pick(Reservation, answer["reservation"])

    def health(self) -> dict[str, Any]:
        return self._ask("GET", "/health")

    def close(self) -> None:
        self._http.close()

    def _ask(self, method: str, path: str, **body: Any) -> dict[str, Any]:
        try:
            answer = self._http.request(method, self.url + path, **body)
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
    if answer.status_code == 400 and isinstance(body, dict) and "field" in body:
        raise Refused(
            str(body["detail"]), str(body.get("reason")), body.get("fits"), body.get("values") or {}
        )
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
    if annotation in _LISTS:
        return tuple(_pick(_LISTS[annotation], entry) for entry in value or ())
    if annotation.startswith("tuple"):
        return tuple(value or ())
    return _MISSING.get(annotation) if value is None else value


_LISTS: dict[str, type[Any]] = {"tuple[Size, ...]": Size, "tuple[Cells, ...]": Cells}
_MISSING = {"str": "", "int": 0, "bool": False}
