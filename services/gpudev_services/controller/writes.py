"""How a decision becomes rows: every function is one part of the round's transaction."""

from __future__ import annotations

import logging
import math
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import update
from sqlalchemy.orm import Session
from sqlalchemy.orm.attributes import set_committed_value

from gpudev_core import lifecycle, notices, reservations, views
from gpudev_core.errors import Conflict
from gpudev_core.failures import Cause
from gpudev_core.models import Reason, Status
from gpudev_core.tables import ReservationRow
from gpudev_services.controller.plan import Activate, Finish, Settle, Step, WantEnd
from gpudev_services.controller.queue import Admit, Blocked, GiveUp, Verdict, Wait

log = logging.getLogger("gpudev.controller")

ACTOR = "controller"


class Writer:
    def __init__(self, session: Session, channels: Sequence[str], now: datetime) -> None:
        self._session = session
        self._channels = channels
        self._now = now
        self._plans: list[dict[str, Any]] = []

    # What holds GPUs ----------------------------------------------------------------------------------

    def step(self, step: Step, row: ReservationRow) -> None:
        match step:
            case Activate():
                self._activate(step, row)
            case Settle():
                row.start_attempts, row.retry_at = 1, None
            case WantEnd():
                self._want_end(step, row)
            case Finish():
                if lifecycle.finish(self._session, row, now=self._now):
                    self._tell_end(row)
                else:
                    self._session.refresh(row)

    def schedule_warnings(self, rows: Iterable[ReservationRow]) -> None:
        for row in rows:
            if row.status == Status.ACTIVE and row.end_wanted is None:
                notices.schedule(self._session, row, self._channels, self._now)

    def _activate(self, step: Activate, row: ReservationRow) -> None:
        """The clock starts now; what preparation took too long is taken from its own end, not the next."""
        end = self._now + timedelta(hours=row.duration_hours)
        activated = lifecycle.transition(
            self._session,
            row.reservation_id,
            Status.PREPARING,
            Status.ACTIVE,
            now=self._now,
            actor=ACTOR,
            launched_at=self._now,
            expires_at=min(end, row.latest_end or end),
            jupyter_url=step.url + "lab",
            current_detailed_status=None,
            failure_reason=None,
            failure_code=None,
            start_attempts=1,
            retry_at=None,
        )
        if activated:
            self._session.refresh(row)
            notices.schedule(self._session, row, self._channels, self._now)
            if row.no_later_than is not None:
                notices.tell(self._session, row, "started", {}, self._channels, self._now)

    def _want_end(self, step: WantEnd, row: ReservationRow) -> None:
        if step.code is not None:
            row.failure_code = step.code
            self._session.flush()
        lifecycle.want_end(
            self._session,
            row.reservation_id,
            Status(row.status),
            step.end,
            now=self._now,
            actor=ACTOR,
            reason=step.reason,
        )
        self._session.refresh(row)

    # What waits ---------------------------------------------------------------------------------------

    def verdict(self, verdict: Verdict, row: ReservationRow, place: tuple[int, int]) -> None:
        match verdict:
            case GiveUp():
                self._give_up(verdict.cause, row)
            case Blocked():
                self._block(verdict.reason, row, place)
            case Admit():
                self._admit(verdict, row, place)
            case Wait():
                self._wait(verdict, row, place)

    def finish(self) -> None:
        """Write the plans that changed, all at once."""
        self._session.flush()
        if self._plans:
            self._session.execute(update(ReservationRow), self._plans)

    def _give_up(self, cause: Cause, row: ReservationRow) -> None:
        failed = lifecycle.transition(
            self._session,
            row.reservation_id,
            Status(row.status),
            Status.FAILED,
            now=self._now,
            actor=ACTOR,
            detail={"reason": cause.phrase, "code": cause.code},
            failure_reason=cause.phrase,
            failure_code=cause.code,
        )
        if failed:
            self._tell_end(row)

    def _admit(self, verdict: Admit, row: ReservationRow, place: tuple[int, int]) -> None:
        if verdict.planned.moved is not None:
            self._promise_moved(verdict.planned.moved, verdict.planned.no_later_than, row)
        try:
            reservations.attach_disk(self._session, row, self._now)
        except Conflict as error:
            log.warning("%s waits: %s", row.reservation_id, error)
            self._block(Reason("disk_busy", {"disk": row.disk_name}), row, place)
            return
        lifecycle.transition(
            self._session,
            row.reservation_id,
            Status(row.status),
            Status.PREPARING,
            now=self._now,
            actor=ACTOR,
            detail={"nodes": list(verdict.placement.nodes)},
            placement=verdict.placement.as_json(),
            preparing_at=self._now,
            latest_end=verdict.latest_end,
            planned_start=None,
            planned_nodes=None,
            queue_position=None,
            estimated_wait_minutes=None,
            expected_start=None,
            queue_reason=None,
        )
        self._session.refresh(row)

    def _wait(self, verdict: Wait, row: ReservationRow, place: tuple[int, int]) -> None:
        planned = verdict.planned
        expected = row.expected_start
        if expected is not None and (planned.start is None or expected > planned.start):
            expected = planned.start
        columns: dict[str, Any] = {
            "planned_start": planned.start,
            "planned_nodes": list(planned.nodes) or None,
            "no_later_than": planned.no_later_than,
            "expected_start": expected,
            "estimated_wait_minutes": minutes_until(expected or planned.no_later_than, self._now),
            "queue_position": place[0],
        }
        if verdict.reason is not None:
            columns["queue_reason"] = views.plain(verdict.reason.as_json())
        if planned.moved is not None:
            self._promise_moved(planned.moved, planned.no_later_than, row)
        self._put(row, columns)
        self._enqueue(row, {"position": place[0], "no_later_than": views.iso(planned.no_later_than)})

    def _block(self, reason: Reason, row: ReservationRow, place: tuple[int, int]) -> None:
        if row.no_later_than is not None:
            self._promise_moved(reason, None, row)
        self._put(
            row,
            {
                "planned_start": None,
                "planned_nodes": None,
                "no_later_than": None,
                "expected_start": None,
                "estimated_wait_minutes": None,
                "queue_position": place[0],
                "queue_reason": views.plain(reason.as_json()),
            },
        )
        self._enqueue(row, {"position": place[0]})

    def _enqueue(self, row: ReservationRow, detail: Mapping[str, Any]) -> None:
        if row.status == Status.PENDING:
            lifecycle.transition(
                self._session,
                row.reservation_id,
                Status.PENDING,
                Status.QUEUED,
                now=self._now,
                actor=ACTOR,
                detail=detail,
            )
            set_committed_value(row, "status", Status.QUEUED.value)

    def _put(self, row: ReservationRow, columns: Mapping[str, Any]) -> None:
        if any(getattr(row, name) != value for name, value in columns.items() if name != _WAIT):
            self._plans.append({"reservation_id": row.reservation_id, **columns})
            for name, value in columns.items():
                set_committed_value(row, name, value)

    def _promise_moved(self, why: Reason, new: datetime | None, row: ReservationRow) -> None:
        detail = views.plain({**why.as_json(), "old": row.no_later_than, "new": new})
        lifecycle.record(
            self._session, row.reservation_id, "promise_moved", now=self._now, actor=ACTOR, detail=detail
        )
        notices.tell(self._session, row, "promise_moved", detail, self._channels, self._now)

    def _tell_end(self, row: ReservationRow) -> None:
        self._session.refresh(row)
        notices.tell_end(self._session, row, self._channels, self._now)


_WAIT = "estimated_wait_minutes"
"""Changes with every minute that passes: not by itself a reason to write."""


def minutes_until(at: datetime | None, now: datetime) -> int | None:
    return max(0, math.ceil((at - now).total_seconds() / 60)) if at else None
