"""The hub's own pages of the portal: the form under ``/hub/spawn`` and the figures that keep it live.

The form files a reservation and goes to the reservation's page; it never starts a server itself, so that a
waiting person holds nothing in the hub. Options in the address only fill in the form.
"""

from __future__ import annotations

import asyncio
import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from jupyterhub.handlers.base import BaseHandler
from jupyterhub.handlers.static import CacheControlStaticFilesHandler
from jupyterhub.scopes import needs_scope
from jupyterhub.utils import url_path_join
from tornado import web
from tornado.iostream import StreamClosedError

import gpudev_core
import gpudev_spawner
from gpudev_core import requests, reservations
from gpudev_core.errors import PortalError
from gpudev_core.feed import Feed, message
from gpudev_core.portal import Portal
from gpudev_spawner import form
from gpudev_spawner.groups import groups_of

ASSET_FOLDERS = tuple(Path(p.__file__).parent / "assets" for p in (gpudev_core, gpudev_spawner))


class PortalHandler(BaseHandler):
    """What the portal's pages share. ``portal`` and ``feed`` are given with the routes."""

    def initialize(self, portal: Portal, feed: Feed, reservations_url: str) -> None:
        self.portal = portal
        self.feed = feed
        self.reservations_url = reservations_url

    async def form_state(self, user_name: str, hours: str) -> dict[str, Any]:
        """``hours``: for how long the waits are to be told."""
        user = self.find_user(user_name)
        groups = groups_of(user) if user is not None else ()
        asked = form.asked_hours(hours)
        return await asyncio.to_thread(form.state, self.portal, user_name, datetime.now(UTC), groups, asked)


class SpawnPage(PortalHandler):
    """``/hub/spawn``, ``/hub/spawn/USER`` and ``/hub/spawn/USER/SERVER``."""

    @web.authenticated
    async def get(self, user_name: str | None = None, server_name: str = "") -> None:
        await self._show(user_name=user_name or self.current_user.name, server_name=server_name)

    @web.authenticated
    async def post(self, user_name: str | None = None, server_name: str = "") -> None:
        await self._file(user_name=user_name or self.current_user.name, server_name=server_name)

    @needs_scope("servers")
    async def _show(self, user_name: str, server_name: str) -> None:
        user = self._user(user_name)
        spawner = user.spawners.get(server_name) if server_name else None
        if spawner is not None and spawner.active:
            self.redirect(user.server_url(server_name))
            return
        values = form.prefill(_text(self.request.query_arguments))
        if server_name:
            values.setdefault("name", server_name)
        await self._render(user, form.Input(values))

    @needs_scope("servers")
    async def _file(self, user_name: str, server_name: str) -> None:
        user = self._user(user_name)
        data = _text(self.request.body_arguments)
        try:
            options = form.user_options(data)
            row = await asyncio.to_thread(self._file_request, user.name, groups_of(user), options)
        except PortalError as error:
            self.set_status(400)
            await self._render(user, form.Input(form.typed(data), form.refusal(error)))
            return
        self.redirect(url_path_join(self.reservations_url, row.reservation_id))

    def _file_request(self, user_name: str, groups: tuple[str, ...], options: dict[str, Any]) -> Any:
        portal = self.portal
        request = requests.from_user_options(options, portal.catalogue, portal.settings.images)
        filing = reservations.Filing(user_name, request, filed_from="browser", groups=groups)
        now = datetime.now(UTC)
        return reservations.file(portal.store, filing, portal.catalogue, portal.settings, now=now)

    def _user(self, name: str) -> Any:
        user = self.current_user if name == self.current_user.name else self.find_user(name)
        if user is None:
            raise web.HTTPError(404, f"No such user: {name}")
        return user

    async def _render(self, user: Any, given: form.Input) -> None:
        figures = url_path_join(self.hub.base_url, "portal/form", user.escaped_name)
        urls = form.Urls(feed=figures + "/events", state=figures, asset=self._asset)
        state = await self.form_state(user.name, given.values.get("hours", ""))
        html = await self.render_template(
            "spawn.html",
            for_user=user,
            auth_state=None,
            spawner_options_form=form.render(state, given, urls, self.portal.simulated),
            error_message="",
            html_error_message="",
            url=self._action(),
            spawner=user.spawner,
        )
        self.finish(html)

    def _action(self) -> str:
        """Back to this page, without the options that filled it in."""
        return f"{self.request.path}?_xsrf={self.xsrf_token.decode('ascii')}"

    def _asset(self, name: str) -> str:
        return url_path_join(self.hub.base_url, "portal/assets", name)


def _text(arguments: dict[str, list[bytes]]) -> dict[str, list[str]]:
    return {key: [value.decode("utf-8", "replace") for value in values] for key, values in arguments.items()}


class FormFigures(PortalHandler):
    """The form's figures once, as JSON."""

    @web.authenticated
    async def get(self, user_name: str) -> None:
        await self._get(user_name=user_name)

    @needs_scope("servers")
    async def _get(self, user_name: str) -> None:
        self.set_header("Content-Type", "application/json")
        self.set_header("Cache-Control", "no-store")
        hours = self.get_query_argument("hours", "")
        self.finish(json.dumps(await self.form_state(user_name, hours)))


class FormEvents(PortalHandler):
    """The form's figures at every change, as an event stream."""

    @web.authenticated
    async def get(self, user_name: str) -> None:
        await self._get(user_name=user_name)

    @needs_scope("servers")
    async def _get(self, user_name: str) -> None:
        self.set_header("Content-Type", "text/event-stream")
        self.set_header("Cache-Control", "no-store")
        hours = self.get_query_argument("hours", "")
        try:
            async for _ in self.feed.each_change():
                self.write(message(await self.form_state(user_name, hours)))
                await self.flush()
        except StreamClosedError:
            return


class Assets(CacheControlStaticFilesHandler):
    """Stylesheet and scripts, from the folders of the packages that own them."""

    def initialize(self) -> None:
        super().initialize(path=str(ASSET_FOLDERS[0]))

    @classmethod
    def get_absolute_path(cls, root: str, path: str) -> str:
        for folder in ASSET_FOLDERS:
            if (folder / path).is_file():
                return str(folder / path)
        return str(ASSET_FOLDERS[0] / path)

    def validate_absolute_path(self, root: str, absolute_path: str) -> str | None:
        folder = next((f for f in ASSET_FOLDERS if Path(absolute_path).parent == f), ASSET_FOLDERS[0])
        return super().validate_absolute_path(str(folder), absolute_path)


def with_pages(authenticator: type, portal: Portal, reservations_url: str) -> type:
    """The authenticator with the portal's pages: its handlers stand before the hub's own.

    This is the hub's documented place for handlers of one's own that take the place of built-in ones.
    """
    feed = Feed(portal.store)
    given = {"portal": portal, "feed": feed, "reservations_url": reservations_url}

    class PortalAuthenticator(authenticator):  # type: ignore[misc, valid-type]
        def get_handlers(self, app: Any) -> list[Any]:
            return [
                (r"/spawn", SpawnPage, given),
                (r"/spawn/([^/]+)", SpawnPage, given),
                (r"/spawn/([^/]+)/([^/]+)", SpawnPage, given),
                (r"/portal/form/([^/]+)", FormFigures, given),
                (r"/portal/form/([^/]+)/events", FormEvents, given),
                (r"/portal/assets/([a-z.-]+)", Assets),
                *super().get_handlers(app),
            ]

    return PortalAuthenticator
