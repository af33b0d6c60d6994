"""LocalProxy: JupyterHub's public proxy, run inside the hub's own event loop.

Promises: no Node.js, no second process and no port besides the public one; start() either listens or raises
an error that says why; stop() ends within a few seconds whatever is open, and start() works again after it.
"""

import asyncio
import errno
import logging
import ssl
import time
from typing import Any
from urllib.parse import unquote, urlsplit

from aiohttp import web
from jupyterhub.metrics import PROXY_POLL_DURATION_SECONDS
from jupyterhub.proxy import Proxy
from jupyterhub.utils import make_ssl_context, url_path_join
from traitlets import Float

from .errors import ErrorAnswers
from .forward import Forwarder
from .routes import UNIX_SCHEMES, RouteTable, Target, parse_target
from .upstream import MAX_HEAD_FIELD, MAX_HEADERS, UpstreamPool

BACKLOG = 1024
LINGER_SECONDS = 5.0
# Parse errors quote the bytes they fail on, cookies included, so aiohttp's own server log goes nowhere.
_SILENT = logging.Logger("gpudev_hub.proxy.wire", level=logging.CRITICAL + 1)


def listen_address(public_url: str) -> tuple[str | None, int]:
    """Host (None: all interfaces) and port to listen on."""
    parts = urlsplit(public_url)
    host = parts.hostname
    port = parts.port if parts.port is not None else (443 if parts.scheme == "https" else 80)
    return (None if host in (None, "", "*") else host), port


def listen_error(error: OSError, host: str | None, port: int) -> OSError:
    """The same error in words that say what to do about it."""
    place = f"Port {port} on {host or 'all interfaces'}"
    if error.errno == errno.EADDRINUSE:
        why = "is taken by another program. Stop it, or choose another port with JupyterHub.bind_url."
    elif error.errno == errno.EACCES:
        why = "may not be opened by this user. Choose a port above 1023 with JupyterHub.bind_url."
    else:
        why = f"cannot be listened on: {error.strerror or error}"
    return OSError(error.errno, f"{place} {why}")


class LocalProxy(Proxy):
    """A proxy for one machine. Set it with

    c.JupyterHub.proxy_class = "gpudev_hub.proxy.LocalProxy"
    """

    connect_timeout = Float(
        5.0,
        min=0.01,
        config=True,
        help="""
        Seconds to wait for a user server, service or the hub to accept a connection, before the
        client gets status 503. Default 5. Example: c.LocalProxy.connect_timeout = 2

        It does not limit how long an answer may take: kernels and event streams may be silent for hours.
        """,
    )

    idle_timeout = Float(
        75.0,
        min=0.1,
        config=True,
        help="""
        Seconds a client's connection may stay open with no request on it. Default 75.
        Example: c.LocalProxy.idle_timeout = 30

        It does not close websockets or requests that are under way.
        """,
    )

    stop_timeout = Float(
        1.0,
        min=0.0,
        config=True,
        help="""
        Seconds that requests under way get to end when the proxy stops; after at most twice this time
        they are broken off. Default 1. Example: c.LocalProxy.stop_timeout = 5

        Websockets do not get this time: they are closed at once.
        """,
    )

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self._table = RouteTable(self.host_routing)
        self._pool: UpstreamPool | None = None
        self._server: web.Server | None = None
        self._runner: web.ServerRunner | None = None
        self._forwarder: Forwarder | None = None

    @property
    def addresses(self) -> list[Any]:
        """Where the proxy listens now: the socket addresses, with the real port if port 0 was asked for."""
        return self._runner.addresses if self._runner is not None else []

    async def start(self) -> None:
        if self._runner is not None:
            return
        pool = UpstreamPool(self.connect_timeout, self._upstream_ssl)
        errors = ErrorAnswers(pool, self._hub_target, self._home_url)
        forwarder = Forwarder(self._table, pool, errors, self.log)
        server = web.Server(
            forwarder.handle,  # type: ignore[arg-type]
            handler_cancellation=True,
            access_log=None,
            logger=_SILENT,
            auto_decompress=False,
            keepalive_timeout=self.idle_timeout,
            lingering_time=LINGER_SECONDS,
            max_line_size=MAX_HEAD_FIELD,
            max_field_size=MAX_HEAD_FIELD,
            max_headers=MAX_HEADERS,
        )
        runner = web.ServerRunner(server, shutdown_timeout=self.stop_timeout)
        await runner.setup()
        await self._listen(runner)
        self._pool, self._server, self._runner, self._forwarder = pool, server, runner, forwarder
        self.log.info("Proxy listening on %s", self.public_url)

    async def _listen(self, runner: web.ServerRunner) -> None:
        tls = self._listen_ssl()
        parts = urlsplit(self.public_url)
        if parts.scheme in UNIX_SCHEMES:
            await web.UnixSite(runner, unquote(parts.netloc), ssl_context=tls, backlog=BACKLOG).start()
            return
        host, port = listen_address(self.public_url)
        try:
            await web.TCPSite(runner, host, port, ssl_context=tls, backlog=BACKLOG).start()
        except OSError as error:
            raise listen_error(error, host, port) from error

    async def stop(self) -> None:
        if self._runner is None:
            return
        pool, server, runner, forwarder = self._pool, self._server, self._runner, self._forwarder
        assert pool is not None and server is not None and forwarder is not None
        self._pool = self._server = self._runner = self._forwarder = None
        open_transports = [connection.transport for connection in server.connections]
        for tunnel in list(forwarder.tunnels):
            tunnel.abort()
        await runner.cleanup()
        # A client that does not read keeps its connection half-closed for ever unless it is aborted.
        for transport in open_transports:
            if transport is not None:
                transport.abort()
        for tunnel in list(forwarder.tunnels):
            tunnel.abort()
        pool.close()
        await asyncio.sleep(0)  # the turn of the loop in which aborted connections close

    async def add_route(self, routespec: str, target: str, data: dict[str, Any] | None) -> None:
        self._table.add(self.validate_routespec(routespec), target, data or {})

    async def delete_route(self, routespec: str) -> None:
        removed = self._table.remove(self.validate_routespec(routespec))
        if removed is None:
            self.log.warning("Route %s already deleted", routespec)
        elif self._pool is not None:
            self._pool.forget(removed.target)

    async def get_all_routes(self) -> dict[str, dict[str, Any]]:
        began = time.perf_counter()
        routes = {route.routespec: route.describe() for route in self._table}
        PROXY_POLL_DURATION_SECONDS.observe(time.perf_counter() - began)
        return routes

    def _hub_target(self) -> Target | None:
        return parse_target(self.hub.url) if self.hub is not None else None

    def _home_url(self) -> str:
        return url_path_join(self.hub.base_url, "home") if self.hub is not None else "/hub/home"

    def _listen_ssl(self) -> ssl.SSLContext | None:
        if not self.ssl_cert:
            return None
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        context.load_cert_chain(self.ssl_cert, self.ssl_key or None)
        return context

    def _upstream_ssl(self) -> ssl.SSLContext:
        """For https targets: with internal_ssl the hub's own certificates, else those the system trusts."""
        if getattr(self.app, "internal_ssl", False):
            files = self.app.internal_proxy_certs["proxy-client"]
            trusted = self.app.internal_trust_bundles["proxy-client-ca"]
            internal: ssl.SSLContext = make_ssl_context(files["keyfile"], files["certfile"], cafile=trusted)
            return internal
        return ssl.create_default_context()
