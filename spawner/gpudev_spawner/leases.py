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

from gpudev_core import failures, lifecycle, notices, reservations, views
from gpudev_core.errors import PortalError, Refused
from gpudev_core.failures import Cause
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
        self,
        user: str,
        server_name: str,
        options: Mapping[str, Any],
        now: datetime,
        groups: tuple[str, ...] = (),
    ) -> ReservationRow:
        """The server's lease, filing a request where there is none. Raises ``Queued`` or ``Refused``."""
        row = await self.find(user, server_name)
        if asked := options.get("reservation_id"):  # the controller starts a lease, and never files a request
            if row is None or row.reservation_id != asked:
                raise Refused(f"Reservation {str(asked)[:64]} is over.", reason="no_lease", field="")
        elif row is None:
            row = await asyncio.to_thread(self._file, user, server_name, options, now, groups)
        row = await self._admitted(row)
        if row.end_wanted:
            raise Refused(f"{row.name} is being ended.", reason="ending", field="")
        if row.expires_at is not None and row.expires_at <= now:
            raise Refused(f"The time of {row.name} is up.", reason="expired", field="")
        if row.launched_at is None:  # what has run once goes on, though limits were lowered since
            await asyncio.to_thread(self._check_limits, row)
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

    async def start_failed(self, reservation_id: str, cause: Cause, now: datetime) -> None:
        """Remember why; the controller tries again at ``retry_at``, unless it can only fail again."""

        def write() -> None:
            with self._portal.store.write() as session:
                row = session.get(ReservationRow, reservation_id)
                if row is None or not Status(row.status).holds_gpus:
                    return
                row.failure_reason, row.failure_code = cause.phrase, cause.code
                row.retry_at = failures.next_try(cause, row.start_attempts, lifecycle.MAX_STARTS, now)
                if not cause.may_pass:
                    row.start_attempts = lifecycle.MAX_STARTS
                detail = {"reason": cause.phrase, "attempt": row.start_attempts}
                detail |= {"code": cause.code, "values": views.plain(cause.values)}
                lifecycle.record(session, reservation_id, "start_failed", now=now, actor="hub", detail=detail)

        await asyncio.to_thread(write)

    async def stopped(self, reservation_id: str, end: Status, reason: str | Cause, now: datetime) -> None:
        """The server is gone: write the end that was wanted, or else ``end``. A failure has a ``Cause``."""

        def write() -> None:
            with self._portal.store.write() as session:
                row = session.get(ReservationRow, reservation_id)
                if row is None or not Status(row.status).holds_gpus:
                    return
                row.retry_at = None
                if row.end_wanted is None:
                    row.failure_code = reason.code if isinstance(reason, Cause) else None
                    lifecycle.want_end(
                        session,
                        reservation_id,
                        Status(row.status),
                        end,
                        now=now,
                        actor=row.user_id,
                        reason=reason.phrase if isinstance(reason, Cause) else reason,
                    )
                    session.refresh(row)
                if lifecycle.finish(session, row, now=now):
                    session.refresh(row)
                    notices.tell_end(session, row, notices.channels_of(self._portal.settings), now)

        await asyncio.to_thread(write)

    def _check_limits(self, row: ReservationRow) -> None:
        with self._portal.store.read() as session:
            reservations.check_running(session, row, self._portal.settings)

    def _file(
        self,
        user: str,
        server_name: str,
        options: Mapping[str, Any],
        now: datetime,
        groups: tuple[str, ...],
    ) -> ReservationRow:
        portal = self._portal
        request = from_user_options(options, portal.catalogue, portal.settings.images)
        filing = reservations.Filing(user, request, filed_from="rest", server_name=server_name, groups=groups)
        return reservations.file(portal.store, filing, portal.catalogue, portal.settings, now=now)

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
