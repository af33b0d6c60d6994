"""``python -m gpudev_services.controller``: a round whenever something changes, and at least every second."""

from __future__ import annotations

import logging
import os
import signal
import sys
import threading
from datetime import UTC, datetime

from sqlalchemy.exc import SQLAlchemyError

from gpudev_core.doorbell import Doorbell
from gpudev_core.portal import Portal, this_portal
from gpudev_services.controller.box import LocalBox
from gpudev_services.controller.leader import Leader, LostLeadership, leader_of
from gpudev_services.controller.round import Controller
from gpudev_services.hub import Hub
from gpudev_services.notify.postman import Postman, channels
from gpudev_services.parent import when_parent_ends

ROUND_AT_LEAST_EVERY_S = 1.0
POSTMAN_GRACE_S = 2.0
SWITCH_EVERY_S = 0.0005
"""A round that comes back from the database waits no longer than this for the thread that forecasts."""
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
    sys.setswitchinterval(SWITCH_EVERY_S)
    bell = Doorbell(portal.store)
    hub = Hub(os.environ["JUPYTERHUB_API_URL"], os.environ["JUPYTERHUB_API_TOKEN"])
    leader, leading = leader_of(portal), threading.Event()
    controller = Controller(portal, hub, LocalBox(portal), lambda: datetime.now(UTC), bell.ring, leader.guard)
    postman = Postman(portal.store, channels(portal), lambda: datetime.now(UTC), leading.is_set)
    postman.start()
    try:
        while not ending.is_set():
            if _leads(leader):
                leading.set()
                _round(controller)
                postman.wake()
            else:
                leading.clear()
            bell.wait(_pause(controller.seconds_to_next()))
    finally:
        leading.clear()
        postman.close(POSTMAN_GRACE_S)
        controller.close()
        leader.give_up()
        hub.close()


def _leads(leader: Leader) -> bool:
    """A database that gives no answer is asked again; until then nobody leads from here."""
    try:
        return leader.leads()
    except SQLAlchemyError as error:
        log.warning("who leads is not known: %s; trying again", type(error).__name__)
        return False


def _pause(to_next: float) -> float:
    """Awake at the second at which something was promised; what is overdue needs no hurry."""
    return to_next if 0 < to_next < ROUND_AT_LEAST_EVERY_S else ROUND_AT_LEAST_EVERY_S


def _round(controller: Controller) -> None:
    """A round that fails is told and tried again; the next one mends what it left."""
    try:
        controller.round()
    except LostLeadership as error:
        log.warning("%s", error)
    except Exception:
        log.exception("a round failed; the next one starts afresh")


if __name__ == "__main__":
    main()
