"""What every handler shares: who is asking, the portal, templates, and one shape for errors."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from http.client import responses
from typing import Any

from jinja2 import Environment, PackageLoader, select_autoescape
from jupyterhub.services.auth import HubOAuthenticated
from tornado import web
from tornado.iostream import StreamClosedError

from gpudev_core import views
from gpudev_core.errors import Conflict, NotFound, PortalError, Refused
from gpudev_core.feed import Feed, message
from gpudev_core.portal import Portal

ADMIN_SCOPE = "custom:gpu-dev:admin"
TEMPLATES = Environment(
    loader=PackageLoader("gpudev_services.web"),
    autoescape=select_autoescape(),
    trim_blocks=True,
    lstrip_blocks=True,
)


@dataclass(frozen=True)
class Context:
    """What the handlers are given. Prefixes end with a slash."""

    portal: Portal
    feed: Feed
    prefix: str
    hub_prefix: str
    clock: Callable[[], datetime] = lambda: datetime.now(UTC)


class Handler(HubOAuthenticated, web.RequestHandler):
    context: Context

    def initialize(self, context: Context) -> None:
        self.context = context

    def set_default_headers(self) -> None:
        self.set_header("X-Content-Type-Options", "nosniff")
        self.set_header("Referrer-Policy", "same-origin")
        self.set_header("Cache-Control", "no-store")
        self.set_header(
            "Content-Security-Policy",
            "default-src 'self'; style-src 'self' 'unsafe-inline'; img-src 'self' data:; "
            "frame-ancestors 'none'; form-action 'self'; base-uri 'none'",
        )

    def check_xsrf_cookie(self) -> None:
        """A page of somebody else's can make a browser send cookies, but not this header."""
        if "Authorization" not in self.request.headers:
            super().check_xsrf_cookie()

    @property
    def portal(self) -> Portal:
        return self.context.portal

    @property
    def user_name(self) -> str:
        return str(self.current_user["name"])

    @property
    def groups(self) -> tuple[str, ...]:
        """The person's groups in the hub, at most as old as the hub's answers are kept (5 minutes)."""
        return tuple(self.current_user.get("groups", ()))

    @property
    def is_admin(self) -> bool:
        return ADMIN_SCOPE in self.current_user.get("scopes", ())

    async def in_thread(self, function: Callable[..., Any], *args: Any) -> Any:
        """Database calls block; the loop goes on meanwhile."""
        return await asyncio.to_thread(function, *args)

    def write_error(self, status_code: int, **kwargs: Any) -> None:
        error = kwargs.get("exc_info", (None, None, None))[1]
        message = _words(status_code, error)
        if self._wants_page():
            self.finish(
                self.template("message.html", title=responses.get(status_code, "Error"), message=message)
            )
            return
        reason = error.reason if isinstance(error, PortalError) else responses.get(status_code, "error")
        self.answer({"detail": message, "reason": reason} | refusal(error))

    def answer(self, body: dict[str, Any]) -> None:
        self.set_header("Content-Type", "application/json")
        self.finish(json.dumps(body))

    def given(self) -> dict[str, Any]:
        """The body, be it JSON or a form, as keys and values."""
        if not self.request.headers.get("Content-Type", "").startswith("application/json"):
            names = [name for name in self.request.body_arguments if name != "_xsrf"]
            return {name: self.get_body_argument(name) for name in names}
        try:
            found = json.loads(self.request.body or b"{}")
        except (ValueError, RecursionError):
            found = None
        if not isinstance(found, dict):
            raise Refused("The body must be JSON with keys and values.", reason="bad_body", field="")
        return found

    def _handle_request_exception(self, e: BaseException) -> None:
        """Our own errors get their status; what they say may be shown."""
        if isinstance(e, PortalError):
            self.send_error(_status(e), exc_info=(type(e), e, e.__traceback__))
            return
        super()._handle_request_exception(e)

    def template(self, name: str, **values: Any) -> str:
        user = self.current_user
        return TEMPLATES.get_template(name).render(
            urls=self._urls(), user=user["name"] if user else None, asset=self._asset, **values
        )

    def _wants_page(self) -> bool:
        return "text/html" in self.request.headers.get("Accept", "")

    def _asset(self, name: str) -> str:
        return f"{self.context.prefix}assets/{name}"

    def _urls(self) -> dict[str, str]:
        hub = self.context.hub_prefix
        return {
            "home": self.context.prefix,
            "new": hub + "spawn",
            "token": hub + "token",
            "admin": hub + "admin" if self.current_user and self.is_admin else "",
            "logout": hub + "logout",
            "hub_home": hub + "home",
        }


class StreamHandler(Handler):
    """An event stream of states: one at once, one after every change, and a sign of life in between."""

    async def stream(self, state: Callable[[], Awaitable[dict[str, Any]]]) -> None:
        self.set_header("Content-Type", "text/event-stream")
        try:
            async for _ in self.context.feed.each_change():
                self.write(message(await state()))
                await self.flush()
        except StreamClosedError:
            return


def _status(error: PortalError) -> int:
    return 404 if isinstance(error, NotFound) else 409 if isinstance(error, Conflict) else 400


def refusal(error: BaseException | None) -> dict[str, Any]:
    """What a refusal says beside its sentence, so that who shows it can write times in local time."""
    if not isinstance(error, Refused):
        return {}
    return views.plain({"field": error.field, "fits": error.fits, "values": error.values})


def _words(status_code: int, error: BaseException | None) -> str:
    if isinstance(error, PortalError):
        return error.message
    if status_code == 404:
        return "There is nothing at this address, or it is not yours."
    if isinstance(error, web.HTTPError) and status_code < 500:
        return error.log_message or responses.get(status_code, "This was refused.")
    return "Something went wrong on our side. It is written in the log of the web service."
