"""``python -m gpudev_services.controller``: a round whenever something changes, and at least every second."""

from __future__ import annotations

import logging
import os
import signal
import threading
from datetime import UTC, datetime

from gpudev_core.doorbell import Doorbell
from gpudev_core.portal import Portal, this_portal
from gpudev_services.controller.box import LocalBox
from gpudev_services.controller.leader import leadership
from gpudev_services.controller.round import Controller
from gpudev_services.hub import Hub
from gpudev_services.parent import when_parent_ends

ROUND_AT_LEAST_EVERY_S = 1.0
log = logging.getLogger("gpudev.controller")


def main() -> None:
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s %(levelname)s %(message)s")
    logging.getLogger("httpx").setLevel(logging.WARNING)
    ending = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: ending.set())
    when_parent_ends(ending.set)
    run(this_portal(), ending)


def run(portal: Portal, ending: threading.Event) -> None:
    bell = Doorbell(portal.store)
    hub = Hub(os.environ["JUPYTERHUB_API_URL"], os.environ["JUPYTERHUB_API_TOKEN"])
    controller = Controller(portal, hub, LocalBox(portal), lambda: datetime.now(UTC), bell.ring)
    leader = leadership(portal)
    try:
        while not ending.is_set():
            if leader.try_take():
                _round(controller)
            bell.wait(ROUND_AT_LEAST_EVERY_S)
    finally:
        controller.close()
        leader.give_up()
        hub.close()


def _round(controller: Controller) -> None:
    """A round that fails is told and tried again; the next one mends what it left."""
    try:
        controller.round()
    except Exception:
        log.exception("a round failed; the next one starts afresh")


if __name__ == "__main__":
    main()
