"""A spawner that keeps to its lease: it starts nothing without one, and ends it when its server has ended.

The mixin holds the policy and stands before any spawner class, ``class X(ReservationMixin, SomeSpawner)``,
so that no spawner is imported here that the installation does not use.
"""

from __future__ import annotations

import asyncio
import errno
import html
import time
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from typing import Any

from jupyterhub.spawner import SpawnException
from jupyterhub.utils import maybe_future, url_path_join
from traitlets import Unicode, default
from traitlets.config import LoggingConfigurable

from gpudev_core import failures
from gpudev_core.errors import PortalError
from gpudev_core.failures import Cause, cause
from gpudev_core.models import Placement, Status
from gpudev_core.portal import Portal, this_portal
from gpudev_core.tables import ReservationRow
from gpudev_spawner import form
from gpudev_spawner.groups import groups_of
from gpudev_spawner.leases import Leases, Queued

_NEARLY = 0.95
"""The hub's last look may come a little before its limit."""
_CODES = {
    "ended_early": "exited",
    "node_gone": "node_lost",
    "no_system_user": "no_account",
    "system_account": "no_account",
}
"""What errors of the spawners mean."""
_ERRORS = {
    errno.ENAMETOOLONG: "path_too_long",
    errno.ENOSPC: "no_space",
    errno.EDQUOT: "no_space",
}


class ReservationMixin(LoggingConfigurable):
    reservations_url = Unicode(
        "/services/gpu-dev/reservations/",
        help="Address under which the web service shows a reservation; its id is added. "
        "Only links are made of it, nothing is fetched.",
    ).tag(config=True)

    lease: ReservationRow | None = None
    _watched = False
    """True once this hub process has seen the server running: only then does its absence mean an end."""
    _starting = False
    _told_to_stop = False
    _exit_code: int | None = None
    _memory_kills: int | None = None
    _ran_out_of_memory = False
    _responding_since: float | None = None
    _cancelled_after: float | None = None

    @property
    def portal(self) -> Portal:
        return this_portal()

    @property
    def leases(self) -> Leases:
        return Leases(self.portal)

    @property
    def placement(self) -> Placement:
        return Placement.from_json((self.lease and self.lease.placement) or ())

    # What the form sends and what REST sends meet the same check, in ``Leases.obtain``.
    @default("options_form")
    def _portal_form(self) -> Any:
        return form.plain_form

    @default("options_from_form")
    def _portal_options(self) -> Any:
        return form.user_options

    def options_from_query(self, query_data: dict[str, list[str]]) -> dict[str, Any]:
        """A link must not start a server: options in a URL only fill in the form."""
        raise SpawnException(
            "Options in a link only fill in the form. Press the button to start.", reason="link"
        )

    async def start(self) -> Any:
        self._responding_since = self._cancelled_after = self._exit_code = None
        self._starting, self._told_to_stop, self._ran_out_of_memory = True, False, False
        began = time.monotonic()
        try:
            self.lease = await self.leases.obtain(
                self.user.name, self.name, self.user_options, _now(), groups_of(self.user)
            )
        except Queued as queued:
            raise self._spawn_exception(queued, 503) from None
        except PortalError as error:
            raise self._spawn_exception(error, 409 if error.reason == "conflict" else 400) from None
        try:
            address = await self._start_server()
        except asyncio.CancelledError:
            self._cancelled_after = time.monotonic() - began
            raise
        except Exception as error:
            await self.leases.start_failed(self.lease.reservation_id, self._cause(error), _now())
            raise
        self._starting, self._watched = False, True
        self._responding_since = time.monotonic()
        return address

    async def _start_server(self) -> Any:
        """Start it under ``self.lease``."""
        await self.leases.step(self.lease.reservation_id, "starting_server")
        return await maybe_future(super().start())

    async def progress(self) -> AsyncIterator[dict[str, Any]]:
        row = await self.leases.find(self.user.name, self.name)
        if row is not None and Status(row.status).is_waiting:
            yield {"progress": 10, "message": f"{row.name} waits for GPUs"}
        elif row is not None:
            nodes = ", ".join(share["node"] for share in row.placement or ())
            yield {"progress": 40, "message": f"Getting ready on {nodes}"}

    async def poll(self) -> int | None:
        kills = self.memory_kills()  # before the look: what dies in between is counted as after it
        status = await maybe_future(super().poll())
        if status is None:
            self._memory_kills = kills
            self._watched = self._watched or not self._starting
        elif self._exit_code is None:
            self._exit_code = status
            self._ran_out_of_memory = _rose(self._memory_kills, self.memory_kills())
        return status

    def memory_kills(self) -> int | None:
        """How many processes around it the system ended so far for lack of memory. None: not known."""
        return None

    def word_of_end(self) -> Cause | None:
        """What the place where it ran says about a server that ended by itself. None: it says nothing."""
        return None

    async def stop(self, now: bool = False) -> None:
        """Not called for a server that ended by itself: that is how the two are told apart."""
        self._told_to_stop = True
        await maybe_future(super().stop(now))

    def run_post_stop_hook(self) -> Any:
        return self._after_stop()

    async def _after_stop(self) -> None:
        """Runs after every stop, also when ``stop()`` was skipped because the server was gone already."""
        row = await self.leases.find(self.user.name, self.name)
        if row is not None and Status(row.status).holds_gpus:
            await self.clean_up(row)
            await self._end_lease(row)
        self.lease, self._watched, self._starting = None, False, False
        await maybe_future(super().run_post_stop_hook())

    async def clean_up(self, row: ReservationRow) -> None:
        """End what the server may have left running. Called before its GPUs are given back."""

    async def _end_lease(self, row: ReservationRow) -> None:
        slow = self._timed_out()
        if row.status == Status.PREPARING and row.end_wanted is None and slow:
            await self.leases.start_failed(row.reservation_id, slow, _now())
        elif row.end_wanted or self._watched or self._cancelled_after is not None:
            await self.leases.stopped(row.reservation_id, *self._how_it_ended(), _now())
        # Else it was found gone when the hub came up, or never started: the controller starts it again.

    def _how_it_ended(self) -> tuple[Status, str | Cause]:
        """Stopped through the hub, shut down from inside, or ended for a cause that nobody wished."""
        if self._told_to_stop or self._cancelled_after is not None:
            return Status.CANCELLED, "server_stopped"
        if told := self.word_of_end():
            return Status.FAILED, told
        if not self._exit_code:
            return Status.CANCELLED, "server_shut_down"
        return Status.FAILED, self._cause_of_exit(self._exit_code)

    def _cause_of_exit(self, exit_code: int, starting: bool = False) -> Cause:
        return failures.of_exit(exit_code, ran_out_of_memory=self._ran_out_of_memory, starting=starting)

    def _timed_out(self) -> Cause | None:
        """The hub stops a slow server just as a person does; only the clock tells them apart."""
        since, after = self._responding_since, self._cancelled_after
        if since is not None and time.monotonic() - since >= _NEARLY * self.http_timeout:
            return cause("no_answer", seconds=self.http_timeout)
        if after is not None and after >= _NEARLY * self.start_timeout:
            return cause("start_timeout", seconds=self.start_timeout)
        return None

    def _cause(self, error: Exception) -> Cause:
        if isinstance(error, PortalError) and error.reason == "ended_early" and self._exit_code is not None:
            return self._cause_of_exit(self._exit_code, starting=True)
        return _cause(error)

    def _spawn_exception(self, error: PortalError, status_code: int) -> SpawnException:
        text = html.escape(error.message)
        if reservation_id := error.values.get("reservation_id"):
            url = html.escape(url_path_join(self.reservations_url, reservation_id))
            text += f' <a href="{url}">See the reservation</a>'
        return SpawnException(error.message, reason=error.reason, message_html=text, status_code=status_code)


def _cause(error: Exception) -> Cause:
    """What may be shown to the person: our own words and the system's short ones, never a traceback."""
    if isinstance(error, PortalError):
        code = error.reason if error.reason in failures.KINDS else _CODES.get(error.reason, "unknown")
        values = {"message": error.message, **error.values}
        is_final = values.pop("final", False)
        return Cause(code, failures.may_pass(code) and not is_final, values)
    if isinstance(error, OSError) and error.errno in _ERRORS:
        return cause(_ERRORS[error.errno], path=str(error.filename or ""))
    if isinstance(error, OSError) and error.strerror:
        message = f"{error.strerror}: {error.filename}" if error.filename else error.strerror
        return cause("unknown", message=message)
    return cause("unknown", message=f"the server could not be started ({type(error).__name__})")


def _rose(before: int | None, after: int | None) -> bool:
    return before is not None and after is not None and after > before


def _now() -> datetime:
    return datetime.now(UTC)
