"""The one machine of local mode: its nodes, the processes of its servers, and what they leave behind."""

from __future__ import annotations

import logging
import shutil
from collections.abc import Sequence, Set

from gpudev_core import sessions
from gpudev_core.machine import observe
from gpudev_core.models import Node
from gpudev_core.portal import Portal
from gpudev_core.sessions import Sessions

log = logging.getLogger("gpudev.controller")


class LocalBox:
    def __init__(self, portal: Portal) -> None:
        self._portal = portal
        self._sessions = Sessions(portal.settings.state_dir / "sessions")
        self._scratch = portal.settings.state_dir / "scratch"

    def nodes(self) -> Sequence[Node]:
        own = {record.marker for record in self._sessions.all()}
        return observe(self._portal.machine, lambda pid: sessions.owner_of(pid) in own)

    def processes(self) -> Set[str]:
        """Reservations of which a server runs here, whatever the hub knows."""
        return {r.reservation_id for r in self._sessions.all() if sessions.is_alive(r)}

    def end(self, reservation_id: str) -> None:
        record = self._sessions.get(reservation_id)
        if record is not None and sessions.end(record, self._portal.settings.servers.stop_grace_s):
            self._sessions.forget(reservation_id)

    def sweep(self, open_ids: Set[str]) -> None:
        """End servers and remove throw-away homes of reservations that are over."""
        for record in self._sessions.all():
            if record.reservation_id not in open_ids:
                log.info("ending what reservation %s left running", record.reservation_id)
                self.end(record.reservation_id)
        running = {record.reservation_id for record in self._sessions.all()}
        if self._scratch.is_dir():
            for folder in self._scratch.iterdir():
                if folder.name not in open_ids | running:
                    shutil.rmtree(folder, ignore_errors=True)
