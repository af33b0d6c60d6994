"""One round: look at the world, plan, do. Rows are written in one transaction; calls go to threads."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from datetime import UTC, datetime, timedelta

from sqlalchemy.orm import Session

from gpudev_core import availability, extension, failures, lifecycle, notices, reservations
from gpudev_core.errors import Refused
from gpudev_core.models import Node, Reason, Status
from gpudev_core.portal import Portal
from gpudev_core.tables import GpuTypeRow, ReservationRow
from gpudev_services.controller.box import LocalBox
from gpudev_services.controller.forecaster import Forecaster
from gpudev_services.controller.leader import LostLeadership
from gpudev_services.controller.plan import WRITES, EndProcesses, Start, Step, Stop, World, plan
from gpudev_services.controller.queue import OVER_QUOTA, Admit, Blocked, Queue, Verdict, positions
from gpudev_services.controller.writes import ACTOR, Writer
from gpudev_services.hub import DontKnow, Hub, Servers, StartAnswer, Started

log = logging.getLogger("gpudev.controller")

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
        guard: Callable[[Session], None] = lambda session: None,
    ) -> None:
        """``guard`` raises in a transaction of one that leads no more; see ``leader``."""
        self._portal = portal
        self._hub = hub
        self._box = box
        self._clock = clock
        self._wake = wake
        self._calls: dict[str, Future[None]] = {}
        self._not_before: dict[str, datetime] = {}
        self._missing_since: dict[str, datetime] = {}
        self._ending_since: dict[str, datetime] = {}
        self._nodes: tuple[datetime, Sequence[Node]] | None = None
        self._servers: Servers | None = None
        self._asked_at = datetime.min.replace(tzinfo=UTC)
        self._guard = guard
        self._has_scheduled = False
        self._channels = notices.channels_of(portal.settings)
        self._queue = Queue(portal.catalogue, portal.settings)
        self._forecaster = Forecaster(portal, guard, clock)
        self._pool = ThreadPoolExecutor(_CALLS_AT_ONCE, thread_name_prefix="hub")

    def round(self) -> None:
        now = self._clock()
        self._look_at_hub(now)
        rows = self._read()  # after the hub: a row that ended meanwhile is then seen as ended
        world = self._world(now, rows)
        if self._has_work(rows, world):
            rows = self._write(world)
            self._forecaster.submit(self._queue, rows, now)
        elif self._forecaster.is_overtaken(rows, now):
            self._forecaster.submit(self._queue, rows, now)
        by_id = {row.reservation_id: row for row in rows}
        for step in self._plan(rows, world):
            self._call(step, by_id[step.reservation_id])
        self._box.sweep({row.reservation_id for row in rows})
        availability.save(
            self._portal.store,
            self._portal.catalogue,
            world.nodes,
            reservations.holdings(rows),
            now=now,
            by="gpu-dev-controller",
            guard=self._guard,
        )

    def seconds_to_next(self) -> float:
        """How long until something that is planned begins or ends: then a round is due."""
        return self._queue.next_change() - self._clock().timestamp()

    def _has_work(self, rows: Sequence[ReservationRow], world: World) -> bool:
        if any(isinstance(step, WRITES) for step in self._plan(rows, world)):
            return True
        with self._portal.store.read() as session:
            types = availability.rows(session)
        return self._queue.is_due(rows, types.values(), world.nodes, world.now)

    def close(self) -> None:
        self._pool.shutdown(wait=True, cancel_futures=True)
        self._forecaster.close()

    def wait_for_calls(self) -> None:
        """Until every call that is under way has its answer."""
        for call in list(self._calls.values()):
            call.result()
        self._forecaster.wait()

    # Look ---------------------------------------------------------------------------------------------

    def _read(self) -> Sequence[ReservationRow]:
        with self._portal.store.read() as session:
            return reservations.glance(session)

    def _look_at_hub(self, now: datetime) -> None:
        """Ask the hub what runs, rarely while nothing is on its way up or down."""
        with self._portal.store.read() as session:
            holding = reservations.holding_now(session)
        if not holding:
            self._servers = {}
            return
        moving = any(status == Status.PREPARING or end_wanted for status, end_wanted in holding)
        if self._servers is not None and not moving and now - self._asked_at < LOOK_AT_IDLE_HUB_EVERY:
            return
        try:
            self._servers = self._hub.servers()
        except DontKnow as error:
            log.warning("%s; nothing is ended or started", error)
            self._servers = None
        self._asked_at = now

    def _look_at_nodes(self, now: datetime) -> Sequence[Node]:
        if self._nodes is None or now - self._nodes[0] >= LOOK_AT_NODES_EVERY:
            self._nodes = (now, self._box.nodes())
        return self._nodes[1]

    def _world(self, now: datetime, rows: Sequence[ReservationRow]) -> World:
        self._calls = {key: call for key, call in self._calls.items() if not call.done()}
        ending = [row.reservation_id for row in rows if _holds(row) and row.end_wanted]
        self._ending_since = {key: self._ending_since.get(key, now) for key in ending}
        put_off = {key for key, at in self._not_before.items() if at > now}
        world = World(
            now=now,
            nodes=self._look_at_nodes(now),
            servers=self._servers,
            processes=self._box.processes(),
            busy=frozenset({*self._calls, *put_off}),
            missing_since=self._missing_since,
            ending_since=self._ending_since,
        )
        if self._servers is not None:
            gone = [row.reservation_id for row in rows if _holds(row) and world.server_of(row) is None]
            self._missing_since = {key: self._missing_since.get(key, now) for key in gone}
        return world

    def _plan(self, rows: Iterable[ReservationRow], world: World) -> list[Step]:
        return plan(rows, world, self._portal.settings)

    # Write --------------------------------------------------------------------------------------------

    def _write(self, world: World) -> Sequence[ReservationRow]:
        """Decide inside the transaction, so that what is written follows from what is there."""
        try:
            with self._portal.store.write() as session:
                self._guard(session)
                self._portal.store.lock(session, extension.PLAN_LOCK)
                rows = self._write_holding(session, world)
                types = availability.rows(session)
                rows = self._write_waiting(session, rows, types, world)
            self._queue.written(rows, types.values(), world.nodes)
            return rows
        except BaseException:
            self._queue.forget()
            raise

    def _write_holding(self, session: Session, world: World) -> Sequence[ReservationRow]:
        rows = {row.reservation_id: row for row in reservations.open_rows(session, locked=True)}
        writer = Writer(session, self._channels, world.now)
        if not self._has_scheduled:  # by an earlier version, or before a channel was set up
            writer.schedule_warnings(rows.values())
            self._has_scheduled = True
        for step in self._plan(rows.values(), world):
            writer.step(step, rows[step.reservation_id])
        return _still_open(rows.values())

    def _write_waiting(
        self,
        session: Session,
        rows: Sequence[ReservationRow],
        types: Mapping[str, GpuTypeRow],
        world: World,
    ) -> Sequence[ReservationRow]:
        places = positions(rows)
        verdicts = self._queue.decide(rows, types, world.nodes, self._over_quota(session, rows), world.now)
        writer = Writer(session, self._channels, world.now)
        for row in rows:
            if verdict := verdicts.get(row.reservation_id):
                writer.verdict(self._checked(session, verdict, row), row, places[row.reservation_id])
        writer.finish()
        return _still_open(rows)

    def _checked(self, session: Session, verdict: Verdict, row: ReservationRow) -> Verdict:
        """Limits may have been lowered while it waited: then it waits on, and says so."""
        if not isinstance(verdict, Admit):
            return verdict
        session.flush()
        over = self._is_over_quota(session, row)
        if over is None:
            return verdict
        self._queue.planner(row.gpu_type).ledger.drop(row.reservation_id)
        return Blocked(over)

    def _over_quota(self, session: Session, rows: Sequence[ReservationRow]) -> dict[str, Reason]:
        """Those that were over their limit when their turn came, if they still are."""
        again = [row for row in rows if (row.queue_reason or {}).get("code") == OVER_QUOTA]
        found = {row.reservation_id: self._is_over_quota(session, row) for row in again}
        return {key: reason for key, reason in found.items() if reason is not None}

    def _is_over_quota(self, session: Session, row: ReservationRow) -> Reason | None:
        try:
            reservations.check_running(session, row, self._portal.settings)
        except Refused as error:
            return Reason(OVER_QUOTA, {"message": error.message})
        return None

    # Calls --------------------------------------------------------------------------------------------

    def _call(self, step: Step, row: ReservationRow) -> None:
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
            except LostLeadership as error:
                log.warning("%s", error)
            except Exception:
                log.exception("call for reservation %s failed", reservation_id)
                self._not_before[reservation_id] = self._clock() + timedelta(seconds=10)

        future = self._pool.submit(guarded)
        self._calls[reservation_id] = future
        future.add_done_callback(lambda _: self._wake())

    def _start(self, row: ReservationRow, again: bool) -> None:
        if not self._count_start(row, again):
            return
        answer = self._hub.start(row.user_id, row.server_name, row.reservation_id)
        if answer.outcome is not Started.YES:
            log.warning("%s was not started: %s", row.reservation_id, answer.message)
            self._after_refusal(row, answer)

    def _count_start(self, row: ReservationRow, again: bool) -> bool:
        """False when it is not to be started any more."""
        with self._portal.store.write() as session:
            self._guard(session)
            current = session.get_one(ReservationRow, row.reservation_id, with_for_update=True)
            if not _holds(current) or current.end_wanted:
                return False
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
        return True

    def _after_refusal(self, row: ReservationRow, answer: StartAnswer) -> None:
        now = self._clock()
        with self._portal.store.write() as session:
            self._guard(session)
            current = session.get_one(ReservationRow, row.reservation_id, with_for_update=True)
            if answer.outcome is Started.LATER:
                current.start_attempts -= 1
                current.retry_at = now + timedelta(seconds=answer.retry_after_s)
                return
            cause = failures.cause("refused_by_hub", message=answer.message)
            if current.retry_at is None or current.retry_at <= now:  # the spawner's own word goes first
                current.failure_reason = current.failure_reason or cause.phrase
                current.failure_code = current.failure_code or cause.code
                current.retry_at = now + failures.retry_after(current.start_attempts)


def _still_open(rows: Iterable[ReservationRow]) -> Sequence[ReservationRow]:
    return [row for row in rows if not Status(row.status).is_terminal]


def _holds(row: ReservationRow) -> bool:
    return Status(row.status).holds_gpus
