"""What people are to be told about a reservation: when, on which channels, and in which words.

A notice is written with the change that it tells of, in the same transaction, and one delivery for each
channel. Whether it is ever delivered changes nothing about the reservation: it ends when it ends.

A warning is bound to the end that it warns of (``due_at`` plus its lead), so a moved end makes it pointless
by itself; ``reschedule`` also takes it back. Who delivers asks ``due``, then says ``delivered``,
``try_later`` or ``dropped``, each of which changes only what still waits.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple

from sqlalchemy import select, update
from sqlalchemy.orm import Session

from gpudev_core.models import Status
from gpudev_core.settings import Settings
from gpudev_core.tables import DeliveryRow, NoticeRow, ReservationRow

LEADS: Mapping[str, timedelta] = {f"ends_in_{n}": timedelta(minutes=n) for n in (30, 15, 5)}
"""The warnings and how long before the end they are due, longest first."""
TOLD = ("promise_moved", "started", "ended", "failed", "requeued")
"""Messages that are due when they are written."""

FEED, WEBHOOK, EMAIL, TERMINAL = "feed", "webhook", "email", "terminal"
WAITING, DELIVERED, DROPPED = "waiting", "delivered", "dropped"

FIRST_WAIT = timedelta(seconds=5)
LONGEST_WAIT = timedelta(minutes=5)
MESSAGE_KEEPS = timedelta(hours=24)
"""A message that could not be delivered in this time is not news any more."""

CAUSES: Mapping[str, str] = {
    "node_down": "{node} went down at {at}",
    "node_cordoned": "{node} was taken out of use at {at}",
    "used_from_outside": "Programs outside the portal use {node}",
    "still_ending": "What ran on {node} before has not ended yet",
    "portal_was_late": "The portal was late",
    "maintenance": "{gpu_type} was closed for maintenance at {at}",
    "over_quota": "It is over your limits now",
    "disk_busy": "Its disk is still attached elsewhere",
}
"""Why a promise could not be kept. Whatever else it was: there is less room than there was."""


class Errand(NamedTuple):
    """One notice to be delivered on one channel, and the reservation that it is about."""

    notice: NoticeRow
    row: ReservationRow


# Rules --------------------------------------------------------------------------------------------------


def channels_of(settings: Settings) -> tuple[str, ...]:
    """The channels that are set up. Terminals are in reach where servers are processes of this machine."""
    notify = settings.notify
    possible = {
        FEED: True,
        TERMINAL: notify.terminal and settings.mode == "local",
        WEBHOOK: notify.webhook_url_file is not None,
        EMAIL: bool(notify.email.host),
    }
    return tuple(name for name, is_set_up in possible.items() if is_set_up)


def warnings_ahead(expires_at: datetime, now: datetime) -> list[tuple[str, datetime]]:
    """The warnings that still lie ahead: a short reservation is never told of more time than it had."""
    return [(kind, expires_at - lead) for kind, lead in LEADS.items() if expires_at - lead > now]


def warned_end(notice: NoticeRow) -> datetime | None:
    """The end that a warning warns of."""
    return notice.due_at + LEADS[notice.kind] if notice.kind in LEADS else None


def backoff(attempts: int) -> timedelta:
    """How long to wait after so many failed attempts: 5 s, 10 s, 20 s ... 5 min."""
    doublings = min(max(0, attempts - 1), 16)
    return min(LONGEST_WAIT, FIRST_WAIT * float(2**doublings))


def pointless(notice: NoticeRow, row: ReservationRow, now: datetime) -> str:
    """Why nobody needs to be told any more. Empty: it is still news."""
    if notice.withdrawn_at is not None:
        return "it was withdrawn"
    if notice.kind in LEADS:
        return _pointless_warning(notice, row, now)
    if now - notice.due_at > MESSAGE_KEEPS:
        return "it is too old"
    if notice.kind == "promise_moved" and not Status(row.status).is_waiting:
        return "the reservation does not wait any more"
    if notice.kind in ("started", "requeued") and Status(row.status).is_terminal:
        return "the reservation ended"
    return ""


def _pointless_warning(notice: NoticeRow, row: ReservationRow, now: datetime) -> str:
    end = notice.due_at + LEADS[notice.kind]
    if row.status != Status.ACTIVE or row.end_wanted:
        return "the reservation ended"
    if end != row.expires_at:
        return "the end was moved"
    if end <= now:
        return "the end has passed"
    later = [lead for lead in LEADS.values() if lead < LEADS[notice.kind]]
    return "a later warning has taken its place" if later and end - max(later) <= now else ""


# Write --------------------------------------------------------------------------------------------------


def schedule(session: Session, row: ReservationRow, channels: Sequence[str], now: datetime) -> None:
    """Write the warnings of an active reservation. What is there already stays as it is."""
    _read_again(session, row)
    if row.status != Status.ACTIVE or row.end_wanted or row.expires_at is None:
        return
    for kind, due_at in warnings_ahead(row.expires_at, now):
        _put(session, row, kind, due_at, {}, channels)


def reschedule(session: Session, row: ReservationRow, channels: Sequence[str], now: datetime) -> None:
    """The end was moved: take back every warning of another end, and write those of the new one."""
    _read_again(session, row)
    warnings = _warnings(session, row.reservation_id)
    old = [notice for notice in warnings if warned_end(notice) != row.expires_at]
    _take_back(session, old, now, "the end was moved")
    schedule(session, row, channels, now)


def withdraw(session: Session, reservation_id: str, now: datetime) -> None:
    """It ended: nothing is left to be warned of."""
    _take_back(session, _warnings(session, reservation_id), now, "the reservation ended")


def tell(
    session: Session,
    row: ReservationRow,
    kind: str,
    detail: Mapping[str, Any],
    channels: Sequence[str],
    now: datetime,
) -> None:
    """A message that is due now. A terminal gets none: before and after it runs, a server has no terminal."""
    if kind not in TOLD:
        raise ValueError(f"there is no message {kind!r}; possible: {', '.join(TOLD)}")
    _put(session, row, kind, now, detail, [name for name in channels if name != TERMINAL])


def _read_again(session: Session, row: ReservationRow) -> None:
    """One writer at a time; and a transition writes past what the session holds."""
    session.flush()  # a refresh forgets what was set and not written yet
    session.refresh(row, with_for_update=True)


def tell_end(session: Session, row: ReservationRow, channels: Sequence[str], now: datetime) -> None:
    """It is over: nothing is left to be warned of, and the person is told. Who ended it knows already."""
    withdraw(session, row.reservation_id, now)
    if row.status == Status.FAILED:
        detail = {"code": row.failure_code, "reason": row.failure_reason}
        tell(session, row, "failed", detail, channels, now)
    elif row.end_actor != row.user_id:
        tell(session, row, "ended", {}, channels, now)


def _put(
    session: Session,
    row: ReservationRow,
    kind: str,
    due_at: datetime,
    detail: Mapping[str, Any],
    channels: Iterable[str],
) -> None:
    query = select(NoticeRow).filter_by(reservation_id=row.reservation_id, kind=kind, due_at=due_at)
    notice = session.scalars(query).one_or_none()
    if notice is None:
        notice = NoticeRow(
            reservation_id=row.reservation_id,
            user_id=row.user_id,
            kind=kind,
            due_at=due_at,
            detail={key: _kept(value) for key, value in detail.items()},
        )
        session.add(notice)
        session.flush()
    is_back, notice.withdrawn_at = notice.withdrawn_at is not None, None
    known = {d.channel: d for d in session.scalars(select(DeliveryRow).filter_by(notice_id=notice.notice_id))}
    for channel in channels:
        if channel not in known:
            session.add(_delivery(notice, channel))
        elif is_back and known[channel].status == DROPPED:
            known[channel].status, known[channel].error = WAITING, None
            known[channel].attempts, known[channel].next_try_at = 0, due_at


def _kept(value: Any) -> Any:
    return f"{value.astimezone(UTC):%Y-%m-%dT%H:%M:%SZ}" if isinstance(value, datetime) else value


def _delivery(notice: NoticeRow, channel: str) -> DeliveryRow:
    return DeliveryRow(
        notice_id=notice.notice_id, channel=channel, status=WAITING, attempts=0, next_try_at=notice.due_at
    )


def _warnings(session: Session, reservation_id: str) -> Sequence[NoticeRow]:
    query = select(NoticeRow).where(
        NoticeRow.reservation_id == reservation_id,
        NoticeRow.kind.in_(list(LEADS)),
        NoticeRow.withdrawn_at.is_(None),
    )
    return session.scalars(query).all()


def _take_back(session: Session, notices: Sequence[NoticeRow], now: datetime, why: str) -> None:
    if not notices:
        return
    for notice in notices:
        notice.withdrawn_at = now
    ids = [notice.notice_id for notice in notices]
    session.execute(
        update(DeliveryRow)
        .where(DeliveryRow.notice_id.in_(ids), DeliveryRow.status == WAITING)
        .values(status=DROPPED, error=why)
    )


# Deliver ------------------------------------------------------------------------------------------------


def due(session: Session, channel: str, now: datetime, limit: int) -> list[Errand]:
    """What waits on a channel and may be tried now: first what may be tried for the longest."""
    query = (
        select(NoticeRow, ReservationRow)
        .join(DeliveryRow, DeliveryRow.notice_id == NoticeRow.notice_id)
        .join(ReservationRow, ReservationRow.reservation_id == NoticeRow.reservation_id)
        .where(DeliveryRow.channel == channel, DeliveryRow.status == WAITING, DeliveryRow.next_try_at <= now)
        .order_by(DeliveryRow.next_try_at, NoticeRow.notice_id)
        .limit(limit)
    )
    return [Errand(notice, row) for notice, row in session.execute(query)]


def delivered(session: Session, notice_id: int, channel: str, now: datetime) -> None:
    attempts = DeliveryRow.attempts + 1
    _settle(session, notice_id, channel, status=DELIVERED, delivered_at=now, attempts=attempts, error=None)


def dropped(session: Session, notice_id: int, channel: str, why: str) -> None:
    _settle(session, notice_id, channel, status=DROPPED, error=why)


def try_later(
    session: Session,
    notice_id: int,
    channel: str,
    now: datetime,
    error: str,
    at_least: timedelta = timedelta(0),
) -> None:
    """It failed: try again after a while that grows. ``at_least`` is what the other side asked for."""
    delivery = session.get(DeliveryRow, (notice_id, channel), with_for_update=True)
    if delivery is None or delivery.status != WAITING:
        return
    delivery.attempts += 1
    delivery.error = error
    delivery.next_try_at = now + max(backoff(delivery.attempts), min(at_least, LONGEST_WAIT))


def _settle(session: Session, notice_id: int, channel: str, **columns: Any) -> None:
    session.execute(
        update(DeliveryRow)
        .where(
            DeliveryRow.notice_id == notice_id,
            DeliveryRow.channel == channel,
            DeliveryRow.status == WAITING,
        )
        .values(**columns)
    )


# Read ---------------------------------------------------------------------------------------------------


def of(session: Session, reservation_id: str, now: datetime) -> Sequence[NoticeRow]:
    """What a person has been told about a reservation and what still holds, oldest first.

    Always the whole (short) list: warnings are written ahead, so a larger number need not be a later message.
    Readers remember the numbers that they have shown.
    """
    query = select(NoticeRow).where(
        NoticeRow.reservation_id == reservation_id,
        NoticeRow.due_at <= now,
        NoticeRow.withdrawn_at.is_(None),
    )
    return session.scalars(query.order_by(NoticeRow.due_at, NoticeRow.notice_id)).all()


# Words --------------------------------------------------------------------------------------------------


def words(notice: NoticeRow, row: ReservationRow, now: datetime) -> str:
    """The message in English, with times in UTC: nobody knows where a mail is read."""
    match notice.kind:
        case "promise_moved":
            return _promise_moved(notice, now)
        case "started":
            end = f" It ends at {_clock(row.expires_at, now)}." if row.expires_at else ""
            return f"{row.name} has started.{end}"
        case "ended":
            return _ended(notice, row, now)
        case "failed":
            what = "could not start" if row.launched_at is None else "failed"
            return _sentence(f"{row.name} {what}: {notice.detail.get('reason') or row.failure_reason}")
        case "requeued":
            return f"{row.name} is in the queue again."
    return _warning(notice, row, now)


def _warning(notice: NoticeRow, row: ReservationRow, now: datetime) -> str:
    end = notice.due_at + LEADS[notice.kind]
    minutes = math.floor(min(LEADS[notice.kind], end - now).total_seconds() / 60 + 0.5)
    left = f"{minutes} minutes" if minutes > 1 else "1 minute" if minutes == 1 else "Less than a minute"
    files = f"; files on disk {row.disk_name} stay." if row.disk_name else ". Files are gone then."
    return f"{left} left. {row.name} ends at {_clock(end, now)}. Programs stop then{files}"


def _promise_moved(notice: NoticeRow, now: datetime) -> str:
    detail = notice.detail
    cause = CAUSES.get(str(detail.get("cause") or detail.get("code")), "There is less room since {at}")
    why = cause.format(
        node=detail.get("node") or "A node",
        gpu_type=detail.get("gpu_type") or "Its GPU type",
        at=_clock(notice.due_at, now),
    )
    old, new = _time(detail.get("old")), _time(detail.get("new"))
    broken = f"{_clock(old, now)} cannot be kept" if old else "the promised time cannot be kept"
    follows = f"Now no later than {_clock(new, now)}." if new else "A new time is not known yet."
    return f"{why}, so {broken}. {follows}"


def _ended(notice: NoticeRow, row: ReservationRow, now: datetime) -> str:
    at = _clock(row.reservation_ended or notice.due_at, now)
    nobody_else = (None, row.user_id, "controller", "hub")
    files = f" Files on disk {row.disk_name} are kept." if row.disk_name else ""
    if row.status == Status.CANCELLED and row.end_actor not in nobody_else:
        why = f": {row.end_reason}" if row.end_reason and row.end_reason != "asked_for" else ""
        return _sentence(f"{row.name} was ended by {row.end_actor} at {at}{why}") + files
    return f"{row.name} ended at {at}.{files}"


def _sentence(text: str) -> str:
    return text.rstrip(". ") + "."


def _time(value: Any) -> datetime | None:
    """A time of a notice's detail, which is kept as text."""
    return datetime.fromisoformat(value) if isinstance(value, str) and value else None


def _clock(at: datetime, now: datetime) -> str:
    at, today = at.astimezone(UTC), now.astimezone(UTC).date()
    day = "" if at.date() == today else f"{at:%a} {at.day} {at:%b} "
    return f"{day}{at:%H:%M} UTC"
