"""What a person may still have. A refusal names the limit, the present use and what would fit."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from gpudev_core.errors import Refused
from gpudev_core.models import GpuType, Request
from gpudev_core.settings import Limits


@dataclass(frozen=True)
class Use:
    """What counts against a person's limits now: queued and running together."""

    reservations: int = 0
    gpus: int = 0
    gpu_hours: float = 0.0
    disks: int = 0
    names: tuple[str, ...] = ()


def check(request: Request, gpu_type: GpuType, limits: Limits, use: Use) -> None:
    """Raise ``Refused`` for the first limit that the request would pass."""
    _check_hours(request, limits)
    _check_reservations(limits, use)
    _check_gpus(request, gpu_type, limits, use)
    _check_gpu_hours(request, gpu_type, limits, use)
    _check_disks(request, limits, use)


def left(limits: Limits, use: Use) -> dict[str, Any]:
    """Limits and use side by side, for the form and the API."""
    return {
        "gpus": {"limit": limits.gpus, "used": use.gpus},
        "gpu_hours": {
            "limit": limits.gpu_hours,
            "used": round(use.gpu_hours, 2),
            "window_days": limits.window_days,
        },
        "reservations": {"limit": limits.reservations, "used": use.reservations},
        "disks": {"limit": limits.disks, "used": use.disks},
        "hours": limits.hours,
    }


def _check_hours(request: Request, limits: Limits) -> None:
    if request.hours > limits.hours:
        raise Refused(
            f"{request.hours:g} h is more than one reservation may have: at most {limits.hours:g} h.",
            reason="too_long",
            field="hours",
            fits=limits.hours,
        )


def _check_reservations(limits: Limits, use: Use) -> None:
    if use.reservations >= limits.reservations:
        raise Refused(
            f"You have {use.reservations} of {limits.reservations} reservations"
            f"{_by(use.names)}. End one first.",
            reason="too_many_reservations",
            field="reservations",
        )


def _check_gpus(request: Request, gpu_type: GpuType, limits: Limits, use: Use) -> None:
    room = max(0, limits.gpus - use.gpus)
    if request.gpu_count <= room:
        return
    fits = max((n for n in gpu_type.counts if n <= room), default=None)
    hint = f" {fits} would fit." if fits else " End one first."
    raise Refused(
        f"{request.gpu_count} GPUs are more than your limit leaves. Limit {limits.gpus} at once, "
        f"{use.gpus} in use{_by(use.names)}, {room} left.{hint}",
        reason="too_many_gpus",
        field="gpu_count",
        fits=fits,
    )


def _check_gpu_hours(request: Request, gpu_type: GpuType, limits: Limits, use: Use) -> None:
    room = max(0.0, limits.gpu_hours - use.gpu_hours)
    if request.gpu_hours <= room + 1e-9:
        return
    fits = math.floor(room / request.gpu_count * 2) / 2
    hint = f" {fits:g} h would fit." if fits > 0 else ""
    raise Refused(
        f"{_what(request, gpu_type)} for {request.hours:g} h come to {request.gpu_hours:g} "
        f"GPU-hours. You have {room:g} of {limits.gpu_hours:g} left, counted over the last "
        f"{limits.window_days:g} days.{hint}",
        reason="too_many_gpu_hours",
        field="hours",
        fits=fits if fits > 0 else None,
    )


def _check_disks(request: Request, limits: Limits, use: Use) -> None:
    if request.new_disk and use.disks >= limits.disks:
        raise Refused(
            f"You have {use.disks} of {limits.disks} disks. Use one of them, or delete one first.",
            reason="too_many_disks",
            field="disk",
        )


def _what(request: Request, gpu_type: GpuType) -> str:
    nodes, rest = divmod(request.gpu_count, gpu_type.gpus_per_node)
    if nodes > 1 and not rest:
        return f"{nodes} nodes of {gpu_type.gpus_per_node} × {gpu_type.name}"
    return f"{request.gpu_count} × {gpu_type.name}"


def _by(names: Sequence[str]) -> str:
    return f" by {', '.join(names)}" if names else ""
