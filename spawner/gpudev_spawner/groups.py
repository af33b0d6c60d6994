"""The groups of a hub's user: they decide limits, priority and who may use what is under maintenance."""

from __future__ import annotations

from typing import Any


def groups_of(user: Any) -> tuple[str, ...]:
    """Only for the hub's own thread: it reads the hub's database."""
    return tuple(sorted(group.name for group in user.groups))
