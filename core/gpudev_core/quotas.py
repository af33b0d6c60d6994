"""What a person may still have. A refusal names the limit, the present use and what would fit.

``limits_for`` finds the limits of one person. For each of them the most specific rule wins: one for the user,
then one for a group, then one for everybody; of these, one that names the GPU type; of equals, the most
generous. What is counted at once or in the window has two limits, and both are checked: one of all types
together, and one of the type, where a rule names it.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from gpudev_core.errors import Refused
from gpudev_core.models import GpuType, Reason, Request
from gpudev_core.settings import QuotaRule, Settings

_HARDLY = 1e-9
"""What sums of hours may be off by."""


@dataclass(frozen=True)
class Counted:
    """Limits on what is counted together. None: no such limit."""

    gpus: int | None = None
    reservations: int | None = None
    queued: int | None = None
    gpu_hours: float | None = None


@dataclass(frozen=True)
class Allowed:
    """The limits of one person for one GPU type."""

    overall: Counted
    of_type: Counted
    hours: float
    total_hours: float
    window_days: float
    disks: int
    disk_gb: int
    hours_of_type: bool = False
    """Whether ``hours`` comes from a rule for the GPU type, so that a refusal can say so."""


@dataclass(frozen=True)
class Use:
    """What counts against a person's limits now: queued and running together."""

    reservations: int = 0
    gpus: int = 0
    gpu_hours: float = 0.0
    disks: int = 0
    names: tuple[str, ...] = ()
    queued: int = 0
    disk_gb: int = 0
    next_end: tuple[str, datetime] | None = None
    """Which of them ends first, and when."""
    by_type: Mapping[str, Use] = field(default_factory=dict)

    def of(self, gpu_type: str) -> Use:
        return self.by_type.get(gpu_type, Use())


@dataclass(frozen=True)
class More:
    """How many hours may be added to a reservation, and what keeps it from more."""

    hours: float
    bound: Reason


def limits_for(
    settings: Settings, user: str, groups: Collection[str], gpu_type: str | None = None
) -> Allowed:
    """The limits of this person, for this GPU type; without one, those of all types together."""
    limits = settings.limits
    mine = [(level, rule) for rule in settings.quotas if (level := _level(rule, user, groups)) is not None]
    general = [(level, rule) for level, rule in mine if not rule.gpu_types]
    of_type = [(level, rule) for level, rule in mine if gpu_type in rule.gpu_types]
    both = [*general, *of_type]
    hours, hours_named = _pick("hours", both) or (limits.hours, False)
    total, total_named = _pick("total_hours", both) or (limits.total_hours, False)

    def overall(key: str) -> Any:
        found = _pick(key, general)
        return getattr(limits, key) if found is None else found[0]

    def typed(key: str) -> Any:
        found = _pick(key, of_type)
        return None if found is None else found[0]

    return Allowed(
        overall=Counted(overall("gpus"), overall("reservations"), overall("queued"), overall("gpu_hours")),
        of_type=Counted(typed("gpus"), typed("reservations"), typed("queued"), typed("gpu_hours")),
        hours=min(hours, total),
        total_hours=total,
        window_days=limits.window_days,
        disks=overall("disks"),
        disk_gb=overall("disk_gb"),
        hours_of_type=total_named if total < hours else hours_named,
    )


def priority_of(settings: Settings, groups: Iterable[str]) -> int:
    """The highest of the person's groups that have one; otherwise 0."""
    found = [settings.priorities[group] for group in groups if group in settings.priorities]
    return max(found, default=0)


def check(request: Request, gpu_type: GpuType, allowed: Allowed, use: Use) -> None:
    """Raise ``Refused`` for the first limit that the request would pass."""
    _check_hours(request, allowed)
    _check_reservations(gpu_type.name, allowed, use)
    _check_queued(gpu_type.name, allowed, use)
    _check_gpus(request.gpu_count, gpu_type.name, allowed, use, instead=gpu_type)
    _check_gpu_hours(request, gpu_type, allowed, use)
    if request.new_disk:
        check_new_disk(allowed, use)


def check_held(gpu_count: int, gpu_type: str, allowed: Allowed, held: Use) -> None:
    """Only what counts at once, for one that is about to start beside what is ``held`` already."""
    _check_reservations(gpu_type, allowed, held)
    _check_gpus(gpu_count, gpu_type, allowed, held)


def check_new_disk(allowed: Allowed, use: Use, size_gb: int = 0) -> None:
    """``size_gb`` 0: the size is not known yet."""
    if use.disks >= allowed.disks:
        raise Refused(
            f"You have {use.disks} of {allowed.disks} disks. Use one of them, or delete one first.",
            reason="too_many_disks",
            field="disk",
            limit=allowed.disks,
            used=use.disks,
        )
    room = max(0, allowed.disk_gb - use.disk_gb)
    if room <= 0 or size_gb > room:
        what = f"A disk of {size_gb} GB is" if size_gb else "A new disk is"
        raise Refused(
            f"{what} more than your limit leaves. Limit {allowed.disk_gb} GB for all disks, {use.disk_gb} GB "
            f"in use, {room} GB left. Use one of your disks, or delete one first.",
            reason="too_many_disk_gb",
            field="disk",
            limit=allowed.disk_gb,
            used=use.disk_gb,
        )


def longest_extension(gpu_count: int, gpu_type: GpuType, hours: float, allowed: Allowed, use: Use) -> More:
    """The most that may be added to a reservation that has ``hours`` in all, which ``use`` counts already."""
    more = More(max(0.0, allowed.total_hours - hours), Reason("total_hours", {"limit": allowed.total_hours}))
    room = _least_room("gpu_hours", gpu_type.name, allowed, use)
    if gpu_count and room is not None and room.left / gpu_count < more.hours:
        values = {"limit": room.limit, "used": round(room.used, 2), "window_days": allowed.window_days}
        more = More(room.left / gpu_count, Reason("gpu_hours", values | _type_of(room)))
    return More(math.floor((more.hours + _HARDLY) * 1e4) / 1e4, more.bound)


def check_extension(
    gpu_count: int, gpu_type: GpuType, hours: float, more_hours: float, allowed: Allowed, use: Use
) -> More:
    """Raise ``Refused`` when ``more_hours`` cannot be added; otherwise what could be at most."""
    more = longest_extension(gpu_count, gpu_type, hours, allowed, use)
    if more_hours <= more.hours + _HARDLY:
        return more
    limit = more.bound.values["limit"]
    if more.bound.code == "total_hours":
        why = f"Not longer: {limit:g} h in all is the limit."
    else:
        left_over = max(0.0, limit - more.bound.values["used"])
        why = (
            f"Not longer: {_what(gpu_count, gpu_type)} for {more_hours:g} h more come to "
            f"{gpu_count * more_hours:g} GPU-hours. You have {left_over:g} of {limit:g} left, counted over "
            f"the last {allowed.window_days:g} days."
        )
    hint = f" {more.hours:g} h more would fit." if more.hours > 0 else ""
    values = dict(more.bound.values)
    raise Refused(why + hint, reason=more.bound.code, field="hours", fits=more.hours or None, **values)


def left(allowed: Allowed, use: Use) -> dict[str, Any]:
    """Limits and use of all types together, side by side, for the form and the API."""
    return {
        **_side_by_side(allowed.overall, use, allowed.window_days),
        "disks": {"limit": allowed.disks, "used": use.disks},
        "disk_gb": {"limit": allowed.disk_gb, "used": use.disk_gb},
        "hours": allowed.hours,
        "total_hours": allowed.total_hours,
    }


def left_of_type(gpu_type: str, allowed: Allowed, overall: Allowed, use: Use) -> dict[str, Any]:
    """What is limited otherwise for this type than for all together. Empty: nothing is."""
    shown = _side_by_side(allowed.of_type, use.of(gpu_type), allowed.window_days)
    if allowed.hours != overall.hours:
        shown["hours"] = allowed.hours
    if allowed.total_hours != overall.total_hours:
        shown["total_hours"] = allowed.total_hours
    return shown


# Which rule holds -------------------------------------------------------------------------------------


def _level(rule: QuotaRule, user: str, groups: Collection[str]) -> int | None:
    """How near to the person: 2 by name, 1 by a group, 0 for everybody, None not at all."""
    if user in rule.users:
        return 2
    if any(group in rule.groups for group in groups):
        return 1
    return None if rule.users or rule.groups else 0


def _pick(key: str, rules: Iterable[tuple[int, QuotaRule]]) -> tuple[Any, bool] | None:
    """The limit of the most specific rule that has one, and whether that rule names GPU types."""
    found = [
        (level, bool(rule.gpu_types), getattr(rule, key))
        for level, rule in rules
        if getattr(rule, key) is not None
    ]
    if not found:
        return None
    _, is_named, value = max(found)
    return value, is_named


# What is left -----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Room:
    """One limit and its use. ``gpu_type`` is empty for all types together."""

    gpu_type: str
    limit: float
    used: float
    use: Use

    @property
    def left(self) -> float:
        return max(0, self.limit - self.used)

    def says(self, sentence: str) -> str:
        """A limit of one type begins with its name."""
        return f"{self.gpu_type}: {sentence[0].lower()}{sentence[1:]}" if self.gpu_type else sentence


def _least_room(key: str, gpu_type: str, allowed: Allowed, use: Use) -> _Room | None:
    """Of the two limits the one that leaves less."""
    scopes = [("", allowed.overall, use), (gpu_type, allowed.of_type, use.of(gpu_type))]
    rooms = [
        _Room(name, limit, getattr(counted, key), counted)
        for name, limits, counted in scopes
        if (limit := getattr(limits, key)) is not None
    ]
    return min(rooms, key=lambda room: room.left, default=None)


def _side_by_side(limits: Counted, use: Use, window_days: float) -> dict[str, Any]:
    shown: dict[str, Any] = {
        key: {"limit": getattr(limits, key), "used": round(getattr(use, key), 2)}
        for key in ("gpus", "gpu_hours", "reservations", "queued")
        if getattr(limits, key) is not None
    }
    if "gpu_hours" in shown:
        shown["gpu_hours"]["window_days"] = window_days
    return shown


# The checks -------------------------------------------------------------------------------------------


def _check_hours(request: Request, allowed: Allowed) -> None:
    if request.hours <= allowed.hours:
        return
    if allowed.hours_of_type:
        message = f"{request.gpu_type}: at most {allowed.hours:g} h per reservation."
    else:
        message = f"{request.hours:g} h is more than one reservation may have: at most {allowed.hours:g} h."
    raise Refused(message, reason="too_long", field="hours", fits=allowed.hours, limit=allowed.hours)


def _check_reservations(gpu_type: str, allowed: Allowed, use: Use) -> None:
    room = _least_room("reservations", gpu_type, allowed, use)
    if room is None or room.left >= 1:
        return
    said = f"You have {room.used:g} of {room.limit:g} reservations."
    values: dict[str, Any] = {"limit": room.limit, "used": room.used} | _type_of(room)
    if not room.used:
        said += " Choose another type." if room.gpu_type else " An admin can raise the limit."
    elif room.use.next_end is None:
        said += f" End one first{_of(room.use.names)}."
    else:
        name, at = room.use.next_end
        said += f" End one, or wait: {name} ends first."
        values |= {"next": name, "at": at}
    raise Refused(room.says(said), reason="too_many_reservations", field="reservations", **values)


def _check_queued(gpu_type: str, allowed: Allowed, use: Use) -> None:
    room = _least_room("queued", gpu_type, allowed, use)
    if room is None or room.left >= 1:
        return
    raise Refused(
        room.says(
            f"You have {room.used:g} of {room.limit:g} reservations in the queue. "
            "End one of them, or wait until one has started."
        ),
        reason="too_many_queued",
        field="reservations",
        limit=room.limit,
        used=room.used,
        **_type_of(room),
    )


def _check_gpus(
    gpu_count: int, gpu_type: str, allowed: Allowed, use: Use, instead: GpuType | None = None
) -> None:
    """``instead``: the type whose other counts may be offered, while the count can still be changed."""
    room = _least_room("gpus", gpu_type, allowed, use)
    if room is None or gpu_count <= room.left:
        return
    counts = instead.counts if instead else ()
    fits = max((n for n in counts if 0 < n <= room.left), default=None)
    if instead and fits:
        hint = f" {_gpus(fits, instead)} would fit."
    elif room.used:
        hint = " End one first."
    else:
        hint = " Choose another type." if room.gpu_type else ""
    raise Refused(
        room.says(
            f"{gpu_count} {'GPU is' if gpu_count == 1 else 'GPUs are'} more than your limit leaves. Limit "
            f"{room.limit:g} at once, {room.used:g} in use{_by(room.use.names)}, {room.left:g} left.{hint}"
        ),
        reason="too_many_gpus",
        field="gpu_count",
        fits=fits,
        limit=room.limit,
        used=room.used,
        **_type_of(room),
    )


def _check_gpu_hours(request: Request, gpu_type: GpuType, allowed: Allowed, use: Use) -> None:
    room = _least_room("gpu_hours", gpu_type.name, allowed, use)
    if room is None or request.gpu_hours <= room.left + _HARDLY:
        return
    fits = math.floor(room.left / request.gpu_count * 2) / 2
    hint = f" {fits:g} h would fit." if fits > 0 else ""
    raise Refused(
        room.says(
            f"{_what(request.gpu_count, gpu_type)} for {request.hours:g} h come to {request.gpu_hours:g} "
            f"GPU-hours. You have {room.left:g} of {room.limit:g} left, counted over the last "
            f"{allowed.window_days:g} days.{hint}"
        ),
        reason="too_many_gpu_hours",
        field="hours",
        fits=fits if fits > 0 else None,
        limit=room.limit,
        used=room.used,
        **_type_of(room),
    )


# Words ------------------------------------------------------------------------------------------------


def _type_of(room: _Room) -> dict[str, str]:
    return {"gpu_type": room.gpu_type} if room.gpu_type else {}


def _what(gpu_count: int, gpu_type: GpuType) -> str:
    nodes, rest = divmod(gpu_count, gpu_type.gpus_per_node)
    if nodes > 1 and not rest:
        return f"{nodes} nodes of {gpu_type.gpus_per_node} × {gpu_type.name}"
    return f"{gpu_count} × {gpu_type.name}"


def _gpus(count: int, gpu_type: GpuType) -> str:
    nodes = count // gpu_type.gpus_per_node
    return f"{nodes} nodes ({count} GPUs)" if nodes > 1 else str(count)


def _by(names: Sequence[str]) -> str:
    return f" by {', '.join(names)}" if names else ""


def _of(names: Sequence[str]) -> str:
    return f" ({', '.join(names)})" if names else ""
