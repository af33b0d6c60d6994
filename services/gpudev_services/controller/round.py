"""One round: look at the world, plan, do. Rows are written in one transaction; calls go to threads."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from datetime import datetime, timedelta

from sqlalchemy.orm import Session

from gpudev_core import availability, lifecycle, reservations, views
from gpudev_core.errors import Conflict
from gpudev_core.forecast import Allowances
from gpudev_core.models import Node, Status
from gpudev_core.portal import Portal
from gpudev_core.tables import ReservationRow
from gpudev_services.controller.box import LocalBox
from gpudev_services.controller.plan import (
    WRITES,
    Activate,
    Admit,
    EndProcesses,
    Enqueue,
    Finish,
    Settle,
    Start,
    Step,
    Stop,
    WantEnd,
    World,
    plan,
)
from gpudev_services.hub import DontKnow, Hub, Servers, Started

log = logging.getLogger("gpudev.controller")

ACTOR = "controller"
LOOK_AT_NODES_EVERY = timedelta(seconds=10)
LOOK_AT_IDLE_HUB_EVERY = timedelta(seconds=5)
_CALLS_AT_ONCE = 16


class Controller:
    def __init__(
        self,
        portal: Portal,
        hub: Hub,
        box: LocalBox,
        clock: Callable[[], datetime],
        wake: Callable[[], None] = lambda: None,
    ) -> None:
        self._portal = portal
        self._hub = hub
        self._box = box
        self._clock = clock
        self._wake = wake
        self._calls: dict[str, Future[None]] = {}
        self._not_before: dict[str, datetime] = {}
        self._missing_since: dict[str, datetime] = {}
        self._nodes: tuple[datetime, Sequence[Node]] | None = None
        self._servers: tuple[datetime, Servers] | None = None
        self._pool = ThreadPoolExecutor(_CALLS_AT_ONCE, thread_name_prefix="hub")

    def round(self) -> None:
        now = self._clock()
        servers = self._look_at_hub(now)  # before the rows: a row that ended meanwhile is then seen as ended
        rows = self._read()
        world = self._world(now, servers, rows)
        steps = self._plan(rows, world)
        if any(isinstance(step, WRITES) for step in steps):
            rows, steps = self._write(world)
        for step in steps:
            self._call(step, rows)
        self._box.sweep({row.reservation_id for row in rows})
        held = reservations.holdings(rows, Allowances.of(self._portal.settings).preparation)
        availability.save(
            self._portal.store, self._portal.catalogue, world.nodes, held, now=now, by="gpu-dev-controller"
        )

    def close(self) -> None:
        self._pool.shutdown(wait=True, cancel_futures=True)

    def wait_for_calls(self) -> None:
        """Until every call that is under way has its answer."""
        for call in list(self._calls.values()):
            call.result()

    # Look ---------------------------------------------------------------------------------------------

    def _read(self) -> Sequence[ReservationRow]:
        with self._portal.store.read() as session:
            return reservations.open_rows(session)

    def _look_at_hub(self, now: datetime) -> Servers | None:
        """What the hub says now. Asked rarely while nothing is on its way up or down."""
        rows = self._read()
        moving = any(r.status == Status.PREPARING or r.end_wanted for r in rows if _holds(r))
        fresh = self._servers is not None and now - self._servers[0] < LOOK_AT_IDLE_HUB_EVERY
        if not any(_holds(row) for row in rows):
            self._servers = None
            return {}
        if fresh and not moving and self._servers is not None:
            return self._servers[1]
        try:
            self._servers = (now, self._hub.servers())
        except DontKnow as error:
            log.warning("%s; nothing is ended or started", error)
            self._servers = None
            return None
        return self._servers[1]

    def _look_at_nodes(self, now: datetime) -> Sequence[Node]:
        if self._nodes is None or now - self._nodes[0] >= LOOK_AT_NODES_EVERY:
            self._nodes = (now, self._box.nodes())
        return self._nodes[1]

    def _world(self, now: datetime, servers: Servers | None, rows: Sequence[ReservationRow]) -> World:
        self._calls = {key: call for key, call in self._calls.items() if not call.done()}
        put_off = {key for key, at in self._not_before.items() if at > now}
        world = World(
            now=now,
            nodes=self._look_at_nodes(now),
            servers=servers,
            processes=self._box.processes(),
            busy=frozenset({*self._calls, *put_off}),
            missing_since=self._missing_since,
        )
        if servers is not None:
            gone = [row.reservation_id for row in rows if _holds(row) and world.server_of(row) is None]
            self._missing_since = {key: self._missing_since.get(key, now) for key in gone}
        return world

    def _plan(self, rows: Sequence[ReservationRow], world: World) -> list[Step]:
        return plan(rows, world, self._portal.catalogue, self._portal.settings)

    # Write --------------------------------------------------------------------------------------------

    def _write(self, world: World) -> tuple[Sequence[ReservationRow], list[Step]]:
        """Plan again inside the transaction, so that what is written follows from what is there."""
        with self._portal.store.write() as session:
            rows = reservations.open_rows(session)
            for step in self._plan(rows, world):
                row = next(row for row in rows if row.reservation_id == step.reservation_id)
                self._write_step(session, step, row, world.now)
        rows = self._read()
        return rows, [step for step in self._plan(rows, world) if not isinstance(step, WRITES)]

    def _write_step(self, session: Session, step: Step, row: ReservationRow, now: datetime) -> None:
        match step:
            case Admit():
                self._admit(session, step, row, now)
            case Enqueue():
                self._enqueue(session, step, row, now)
            case Activate():
                self._activate(session, step, row, now)
            case Settle():
                row.start_attempts = 1
            case WantEnd():
                self._want_end(session, step, row, now)
            case Finish():
                lifecycle.finish(session, row, now=now)

    def _admit(self, session: Session, step: Admit, row: ReservationRow, now: datetime) -> None:
        assert step.forecast.placement is not None
        try:
            reservations.attach_disk(session, row, now)
        except Conflict as error:
            log.warning("%s waits: %s", row.reservation_id, error)
            return
        lifecycle.transition(
            session,
            row.reservation_id,
            Status(row.status),
            Status.PREPARING,
            now=now,
            actor=ACTOR,
            detail={"nodes": list(step.forecast.placement.nodes)},
            placement=step.forecast.placement.as_json(),
            preparing_at=now,
            queue_position=None,
            estimated_wait_minutes=None,
            expected_start=None,
            queue_reason=None,
        )

    def _enqueue(self, session: Session, step: Enqueue, row: ReservationRow, now: datetime) -> None:
        what = step.forecast
        row.queue_position = what.position
        row.expected_start = what.at
        row.estimated_wait_minutes = math.ceil((what.at - now).total_seconds() / 60) if what.at else None
        row.queue_reason = views.plain(what.reason.as_json()) if what.reason else None
        session.flush()
        if row.status == Status.PENDING:
            detail = {"position": what.position}
            lifecycle.transition(
                session,
                row.reservation_id,
                Status.PENDING,
                Status.QUEUED,
                now=now,
                actor=ACTOR,
                detail=detail,
            )

    def _activate(self, session: Session, step: Activate, row: ReservationRow, now: datetime) -> None:
        lifecycle.transition(
            session,
            row.reservation_id,
            Status.PREPARING,
            Status.ACTIVE,
            now=now,
            actor=ACTOR,
            launched_at=now,
            expires_at=now + timedelta(hours=row.duration_hours),
            jupyter_url=step.url + "lab",
            current_detailed_status=None,
            failure_reason=None,
            start_attempts=1,
        )

    def _want_end(self, session: Session, step: WantEnd, row: ReservationRow, now: datetime) -> None:
        if _holds(row):
            lifecycle.want_end(
                session,
                row.reservation_id,
                Status(row.status),
                step.end,
                now=now,
                actor=ACTOR,
                reason=step.reason,
            )
            return
        lifecycle.transition(
            session,
            row.reservation_id,
            Status(row.status),
            step.end,
            now=now,
            actor=ACTOR,
            detail={"reason": step.reason},
            failure_reason=step.reason,
        )

    # Calls --------------------------------------------------------------------------------------------

    def _call(self, step: Step, rows: Sequence[ReservationRow]) -> None:
        row = next(row for row in rows if row.reservation_id == step.reservation_id)
        match step:
            case Start():
                self._submit(row.reservation_id, lambda: self._start(row, step.again))
            case Stop():
                self._submit(row.reservation_id, lambda: self._hub.stop(row.user_id, row.server_name))
            case EndProcesses():
                self._submit(row.reservation_id, lambda: self._box.end(row.reservation_id))

    def _submit(self, reservation_id: str, call: Callable[[], None]) -> None:
        def guarded() -> None:
            try:
                call()
            except DontKnow as error:
                log.warning("%s; trying again", error)
                self._not_before[reservation_id] = self._clock() + timedelta(seconds=2)
            except Exception:
                log.exception("call for reservation %s failed", reservation_id)
                self._not_before[reservation_id] = self._clock() + timedelta(seconds=10)

        future = self._pool.submit(guarded)
        self._calls[reservation_id] = future
        future.add_done_callback(lambda _: self._wake())

    def _start(self, row: ReservationRow, again: bool) -> None:
        self._count_start(row, again)
        answer = self._hub.start(row.user_id, row.server_name)
        if answer.outcome is Started.YES:
            return
        wait = answer.retry_after_s if answer.outcome is Started.LATER else 2.0 ** (row.start_attempts + 1)
        self._not_before[row.reservation_id] = self._clock() + timedelta(seconds=wait)
        log.warning("%s was not started: %s", row.reservation_id, answer.message)
        self._after_refusal(row, answer.outcome, answer.message)

    def _count_start(self, row: ReservationRow, again: bool) -> None:
        with self._portal.store.write() as session:
            current = session.get_one(ReservationRow, row.reservation_id)
            current.start_attempts += 1
            if again:
                lifecycle.record(
                    session,
                    row.reservation_id,
                    "restarted",
                    now=self._clock(),
                    actor=ACTOR,
                    detail={"reason": "portal_restarted"},
                )

    def _after_refusal(self, row: ReservationRow, outcome: Started, message: str) -> None:
        with self._portal.store.write() as session:
            current = session.get_one(ReservationRow, row.reservation_id)
            if outcome is Started.LATER:
                current.start_attempts -= 1
            elif current.failure_reason is None:
                current.failure_reason = message or "the hub refused to start the server"


def _holds(row: ReservationRow) -> bool:
    return Status(row.status).holds_gpus
