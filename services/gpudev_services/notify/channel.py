"""What a way to tell people is: it takes a message, or raises. It never says more than it may in an error."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any, Protocol

TIMEOUT_S = 10.0
"""For each step of a conversation with the other side."""


@dataclass(frozen=True)
class Message:
    """One notice, ready to be told. ``at`` is now."""

    notice_id: int
    reservation_id: str
    user: str
    name: str
    kind: str
    text: str
    due_at: datetime
    at: datetime
    detail: dict[str, Any] = field(default_factory=dict)

    @property
    def key(self) -> str:
        """The same for every copy, so that a second one can be recognised."""
        return f"gpudev-{self.notice_id}-{self.reservation_id}"


class Channel(Protocol):
    """``send`` returns when the other side has the message. All else is an exception, in bounded time."""

    @property
    def name(self) -> str: ...

    def send(self, message: Message) -> None: ...


class SendFailed(Exception):
    """Try again later. The text goes into logs, so it holds no secret."""

    def __init__(self, message: str, retry_after_s: float = 0.0) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class Undeliverable(Exception):
    """Trying again cannot help: this message has no way to this person here."""


def one_line(text: str) -> str:
    """Text without anything that moves a cursor, ends a line or turns the direction of writing."""
    return "".join(letter if letter.isprintable() else " " for letter in text)


def secret_in(path: Path, key: str) -> str:
    """Read at every use, so that a new secret needs no restart."""
    try:
        secret = path.expanduser().read_text(encoding="utf-8").strip()
    except OSError as error:
        raise SendFailed(f"{key}: {path} cannot be read: {error.strerror}") from None
    except ValueError:
        raise SendFailed(f"{key}: {path} does not hold text") from None
    if not secret:
        raise SendFailed(f"{key}: {path} is empty")
    return secret
