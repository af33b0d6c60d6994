"""What a terminal shows: plain columns that read the same in a pipe and in a log."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime

from gpudev_cli.client import Availability, Reservation

OPEN = ("pending", "queued", "preparing", "active")


def availability(found: Sequence[Availability], now: datetime) -> str:
    rows = [("TYPE", "FREE", "STARTS NOW", "WAITING")]
    width = max((len(str(a.available)) for a in found), default=1)
    rows += [
        (a.gpu_type, f"{a.available:>{width}} of {a.total}", a.starts_now, str(a.queued or "-"))
        for a in found
    ]
    return "\n".join([*_columns(rows), _as_of(found, now)])


def reservations(found: Sequence[Reservation], now: datetime) -> str:
    shown = [r for r in found if r.status in OPEN]
    if not shown:
        return "You have no reservation."
    rows = [("NAME", "STATUS", "WHAT", "WHERE", "WHEN", "ID")]
    rows += [
        (r.name, r.status, _what(r), ", ".join(r.nodes) or "-", _when(r, now), r.reservation_id[:8])
        for r in shown
    ]
    return "\n".join(_columns(rows))


def _as_of(found: Sequence[Availability], now: datetime) -> str:
    oldest = min((_local(a.as_of) for a in found if a.as_of), default=now)
    if any(a.stale for a in found):
        minutes = int((now - oldest).total_seconds() // 60)
        return f"Warning: these figures are from {oldest:%H:%M %Z}, {minutes} minutes ago."
    return f"As of {now:%H:%M:%S %Z}."


def _what(r: Reservation) -> str:
    return f"{r.gpu_count} x {r.gpu_type}" if r.gpu_count else f"1 x {r.gpu_type}"


def _when(r: Reservation, now: datetime) -> str:
    if r.expires_at:
        ends = _local(r.expires_at)
        return f"ends {_clock(ends, now)}, {_duration((ends - now).total_seconds())} left"
    if r.expected_start:
        return f"about {_clock(_local(r.expected_start), now)}, number {r.queue_position} in the queue"
    return "-"


def _local(text: str) -> datetime:
    return datetime.fromisoformat(text.replace("Z", "+00:00")).astimezone()


def _clock(at: datetime, now: datetime) -> str:
    return f"{at:%H:%M}" if at.date() == now.date() else f"{at:%a %d %b %H:%M}"


def _duration(seconds: float) -> str:
    minutes = max(0, round(seconds / 60))
    return f"{minutes} min" if minutes < 60 else f"{minutes // 60} h {minutes % 60} min"


def _columns(rows: Sequence[Sequence[str]]) -> Iterable[str]:
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    for row in rows:
        yield "  ".join(text.ljust(width) for text, width in zip(row, widths, strict=True)).rstrip()
