"""The web service, put together."""

from __future__ import annotations

import os
import secrets
from pathlib import Path
from typing import Any

from jupyterhub.log import log_request
from jupyterhub.services.auth import HubOAuthCallbackHandler
from jupyterhub.utils import url_path_join
from tornado import web

import gpudev_core
from gpudev_core.feed import Feed
from gpudev_core.portal import Portal
from gpudev_services.web import api, health, home, reservations
from gpudev_services.web.base import Context, Handler

ASSETS = (Path(gpudev_core.__file__).parent / "assets", Path(__file__).parent / "assets")


class AssetHandler(web.StaticFileHandler):
    """Stylesheet and scripts, from the folders of the packages that own them. Nothing in them is secret."""

    @classmethod
    def get_absolute_path(cls, root: str, path: str) -> str:
        return next((str(f / path) for f in ASSETS if (f / path).is_file()), str(ASSETS[0] / path))

    def validate_absolute_path(self, root: str, absolute_path: str) -> str | None:
        return super().validate_absolute_path(str(Path(absolute_path).parent), absolute_path)


class NotFoundHandler(Handler):
    async def prepare(self) -> None:
        raise web.HTTPError(404)


def make_app(portal: Portal, prefix: str, hub_prefix: str) -> web.Application:
    context = Context(portal, Feed(portal.store), prefix, hub_prefix)
    nouns: list[Any] = [*home.default_handlers, *reservations.default_handlers]
    nouns += [*health.default_handlers, *api.default_handlers]
    handlers: list[Any] = [(url_path_join(prefix, path), kind, {"context": context}) for path, kind in nouns]
    handlers += [
        (url_path_join(prefix, "oauth_callback"), HubOAuthCallbackHandler),
        (url_path_join(prefix, r"assets/([a-z.-]+)"), AssetHandler, {"path": str(ASSETS[0])}),
        (r".*", NotFoundHandler, {"context": context}),
    ]
    return web.Application(
        handlers,
        cookie_secret=cookie_secret(portal.settings.state_dir / "web-cookie-secret"),
        xsrf_cookies=True,
        log_function=log_request,  # the hub's own, which hides tokens
    )


def cookie_secret(path: Path) -> bytes:
    """Kept, so that people stay logged in when the service starts again."""
    if not path.exists():
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "w") as file:
            file.write(secrets.token_hex(32))
    return path.read_text().strip().encode()
