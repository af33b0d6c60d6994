"""``python -m gpudev_services.web``: serves until it is told to end, or its hub ends."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
from urllib.parse import urlsplit

from jupyterhub.utils import url_path_join
from tornado.httpserver import HTTPServer

from gpudev_core.portal import this_portal
from gpudev_services.parent import when_parent_ends
from gpudev_services.web.app import make_app


async def serve() -> None:
    loop, ending = asyncio.get_running_loop(), asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, ending.set)
    when_parent_ends(lambda: loop.call_soon_threadsafe(ending.set))
    portal = this_portal()
    address = urlsplit(os.environ["JUPYTERHUB_SERVICE_URL"])
    hub_prefix = url_path_join(os.environ.get("JUPYTERHUB_BASE_URL", "/"), "hub/")
    app = make_app(portal, os.environ["JUPYTERHUB_SERVICE_PREFIX"], hub_prefix)
    server = HTTPServer(app, xheaders=True)
    server.listen(address.port or 80, address.hostname or "127.0.0.1")
    await ending.wait()
    server.stop()
    await asyncio.wait([asyncio.ensure_future(server.close_all_connections())], timeout=2)


def main() -> None:
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s %(levelname)s %(message)s")
    asyncio.run(serve())


if __name__ == "__main__":
    main()
