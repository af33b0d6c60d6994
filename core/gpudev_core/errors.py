"""What may go wrong, in words that may reach a person.

PortalError                     what happened, which value, what to do next
├── SettingsError               portal.yaml or its environment cannot be used
├── Refused                     the request is against a rule; names the field and what would fit
├── NotFound                    no such thing, or not yours: both look the same
└── Conflict                    the row changed meanwhile; read again

Only the text of a PortalError is ever shown to people. ``reason`` is a short stable code for
programs and metrics; ``values`` carry the figures, so that pages can write times in local time.
"""

from __future__ import annotations

from typing import Any


class PortalError(Exception):
    def __init__(self, message: str, *, reason: str, **values: Any) -> None:
        super().__init__(message)
        self.message = message
        self.reason = reason
        self.values = values


class SettingsError(PortalError):
    def __init__(self, message: str) -> None:
        super().__init__(message, reason="settings")


class Refused(PortalError):
    """``field`` is the form's field; ``fits`` the value that would be accepted, if there is one."""

    def __init__(self, message: str, *, reason: str, field: str, fits: Any = None, **values: Any) -> None:
        super().__init__(message, reason=reason, **values)
        self.field = field
        self.fits = fits


class NotFound(PortalError):
    def __init__(self, message: str) -> None:
        super().__init__(message, reason="not_found")


class Conflict(PortalError):
    def __init__(self, message: str) -> None:
        super().__init__(message, reason="conflict")
