"""Times and waits in words, for terminals and notebooks alike: local time, 24 h, the zone named once."""

from __future__ import annotations

from datetime import date, datetime, time, timedelta
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # the client asks for words, too
    from gpudev_cli.client import Availability, Refused, Reservation, Size


def local(text: str) -> datetime:
    return datetime.fromisoformat(text.replace("Z", "+00:00")).astimezone()


def clock(at: datetime, now: datetime) -> str:
    """``14:10`` today, ``tomorrow 02:10``, ``Tue 17 Nov 02:10``."""
    days = (at.date() - now.date()).days
    if days in (0, 1):
        return f"{'tomorrow ' if days else ''}{at:%H:%M}"
    return f"{at:%a} {at.day} {at:%b %H:%M}"


def duration(seconds: float) -> str:
    minutes = max(0, round(seconds / 60))
    hours, rest = divmod(minutes, 60)
    if not hours:
        return f"{minutes} min"
    return f"{hours} h {rest} min" if rest else f"{hours} h"


def starts(about: str, no_later_than: str, now: datetime, *, short: bool = False) -> str:
    """``about 13:30, no later than 14:10``: the forecast, then the promise; the same time is said once."""
    promise = clock(local(no_later_than), now) if no_later_than else ""
    guess = clock(local(about), now) if about else ""
    by = f"{'by' if short else 'no later than'} {promise}" if promise else ""
    return ", ".join(part for part in (f"about {guess}" if guess and guess != promise else "", by) if part)


def next_size(found: Availability, now: datetime, *, short: bool = False) -> str:
    """The smallest that does not start now, and when it would: ``8 GPUs: about 40 min, no later than …``."""
    if found.maintenance is not None:
        note = found.maintenance.get("note")
        return f"maintenance: {note}" if note else "maintenance"
    size = next((s for s in found.sizes if not s.starts_now and s.no_later_than), None)
    if size is None:
        return "-"
    promise = clock(local(size.no_later_than), now)
    wait = duration((local(size.about or size.no_later_than) - now).total_seconds())
    is_same = not size.about or clock(local(size.about), now) == promise
    about = "" if is_same else f"about {wait}, "
    return f"{size_name(found, size)}: {about}{'by' if short else 'no later than'} {promise}"


def size_name(found: Availability, size: Size) -> str:
    if found.max_per_node == 0:
        return "1 slot"
    if size.nodes > 1:
        return f"{size.nodes} nodes"
    return f"{size.count} GPU{'s' if size.count > 1 else ''}"


def down(found: list[Availability]) -> str:
    """``8 h100 are down.``"""
    parts = [f"{a.down} {a.gpu_type}" for a in found if a.down]
    if not parts:
        return ""
    is_one = sum(a.down for a in found) == 1
    return f"{' and '.join(parts)} {'is' if is_one else 'are'} down."


def until(text: str, end: datetime) -> datetime:
    """``18:00`` is the next one after ``end``; a whole date and time is itself. Raises ``ValueError``."""
    try:
        wanted = time.fromisoformat(text)
    except ValueError:
        return datetime.fromisoformat(text).astimezone()
    if wanted.tzinfo is not None or len(text) > len("18:00:00"):
        raise ValueError(text)
    days: list[date] = [end.astimezone().date() + timedelta(days=n) for n in (0, 1)]
    return next(
        (at for day in days if (at := datetime.combine(day, wanted).astimezone()) > end),
        datetime.combine(days[1], wanted).astimezone(),
    )


def not_extended(found: Reservation, asked: str, error: Refused, now: datetime) -> str:
    """What was refused, why, and what fits, with the command that does it."""
    lines = [f"{found.name} cannot be extended {asked}.", f"  {_bound(error, now)}"]
    if error.fits and found.expires_at:
        fits, end = local(error.fits), local(found.expires_at)
        more = duration((fits - end).total_seconds())
        at = f"{fits:%H:%M}" if fits - end < timedelta(days=1) else f"{fits:%Y-%m-%dT%H:%M}"
        name = found.name if found.name.replace("-", "").isalnum() else found.reservation_id[:8]
        lines += [f"  What fits: until {clock(fits, now)} ({more} more)"]
        lines += [f"    gpu-dev extend {name} --until {at}"]
    return "\n".join(lines)


def _bound(error: Refused, now: datetime) -> str:
    values = error.values
    match error.reason:
        case "promised":
            at = local(values["at"])
            return f"From {clock(at, now)} {at:%Z} its GPUs are promised to someone in the queue."
        case "total_hours":
            return f"{values['limit']:g} h in all is the limit."
        case "gpu_hours":
            days, used = f"{values['window_days']:g}", f"{values['used']:g}"
            counted = f"counted over the last {days} days, and {used} are counted."
            return f"Your limit is {values['limit']:g} GPU-hours, {counted}"
        case "maintenance":
            return f"{values['gpu_type']} is closed for maintenance."
    return str(error)
