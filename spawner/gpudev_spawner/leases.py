"""From "start this server" to the lease it may start under, and from "it has stopped" to the lease's end.

The queue never lives in the hub: a start that has to wait is filed, waits a short while, and is then told
that it is queued; the controller starts the server when its turn comes.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from datetime import datetime
from typing import Any

from gpudev_core import lifecycle, reservations
from gpudev_core.errors import PortalError, Refused
from gpudev_core.models import Status
from gpudev_core.portal import Portal
from gpudev_core.requests import from_user_options
from gpudev_core.tables import ReservationRow

LOOK_EVERY_S = 0.05


class Queued(PortalError):
    """Not a failure: the reservation keeps its place and starts by itself."""

    def __init__(self, row: ReservationRow) -> None:
        place = f", number {row.queue_position} in the queue" if row.queue_position else ""
        super().__init__(
            f"{row.name} is queued{place}. It starts by itself when its turn comes.",
            reason="queued",
            reservation_id=row.reservation_id,
        )


class Leases:
    """The leases of servers, for the hub's event loop: database calls run in threads."""

    def __init__(self, portal: Portal) -> None:
        self._portal = portal

    async def obtain(
        self, user: str, server_name: str, options: Mapping[str, Any], now: datetime
    ) -> ReservationRow:
        """The server's lease, filing a request where there is none. Raises ``Queued`` or ``Refused``."""
        row = await self.find(user, server_name)
        if row is None:
            row = await asyncio.to_thread(self._file, user, server_name, options, now)
        row = await self._admitted(row)
        if row.end_wanted:
            raise Refused(f"{row.name} is being ended.", reason="ending", field="")
        if row.expires_at is not None and row.expires_at <= now:
            raise Refused(f"The time of {row.name} is up.", reason="expired", field="")
        return row

    async def find(self, user: str, server_name: str) -> ReservationRow | None:
        def look() -> ReservationRow | None:
            with self._portal.store.read() as session:
                return reservations.open_on_server(session, user, server_name)

        return await asyncio.to_thread(look)

    async def step(self, reservation_id: str, text: str) -> None:
        """What the person is told while it is being prepared."""

        def write() -> None:
            with self._portal.store.write() as session:
                row = session.get(ReservationRow, reservation_id)
                if row is not None and row.status == Status.PREPARING:
                    row.current_detailed_status = text

        await asyncio.to_thread(write)

    async def start_failed(self, reservation_id: str, cause: str, now: datetime, final: bool = False) -> None:
        """Remember why; the controller tries again, unless it can only fail again (``final``)."""

        def write() -> None:
            with self._portal.store.write() as session:
                row = session.get(ReservationRow, reservation_id)
                if row is None or not Status(row.status).holds_gpus:
                    return
                row.failure_reason = cause
                if final:
                    row.start_attempts = lifecycle.MAX_STARTS
                detail = {"reason": cause, "attempt": row.start_attempts}
                lifecycle.record(session, reservation_id, "start_failed", now=now, actor="hub", detail=detail)

        await asyncio.to_thread(write)

    async def stopped(self, reservation_id: str, end: Status, reason: str, now: datetime) -> None:
        """The server is gone: write the end that was wanted, or else ``end``."""

        def write() -> None:
            with self._portal.store.write() as session:
                row = session.get(ReservationRow, reservation_id)
                if row is None or not Status(row.status).holds_gpus:
                    return
                if row.end_wanted is None:
                    lifecycle.want_end(
                        session,
                        reservation_id,
                        Status(row.status),
                        end,
                        now=now,
                        actor=row.user_id,
                        reason=reason,
                    )
                    session.refresh(row)
                lifecycle.finish(session, row, now=now)

        await asyncio.to_thread(write)

    def _file(self, user: str, server_name: str, options: Mapping[str, Any], now: datetime) -> ReservationRow:
        portal = self._portal
        request = from_user_options(options, portal.catalogue, portal.settings.images)
        filing = reservations.Filing(user, request, filed_from="rest", server_name=server_name)
        return reservations.file(portal.store, filing, portal.catalogue, portal.settings.limits, now=now)

    async def _admitted(self, row: ReservationRow) -> ReservationRow:
        """Wait a short while for GPUs."""
        deadline = time.monotonic() + self._portal.settings.servers.admission_wait_s
        while Status(row.status).is_waiting:
            if time.monotonic() >= deadline:
                raise Queued(row)
            await asyncio.sleep(LOOK_EVERY_S)
            row = await asyncio.to_thread(self._read, row.reservation_id)
        if Status(row.status).is_terminal:
            raise Refused(
                row.failure_reason or row.end_reason or f"{row.name} has ended.", reason=row.status, field=""
            )
        return row

    def _read(self, reservation_id: str) -> ReservationRow:
        with self._portal.store.read() as session:
            return session.get_one(ReservationRow, reservation_id)
