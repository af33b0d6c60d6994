"""What a person may ask for. One check for the form, REST ``user_options``, the API and the CLI.

``disk`` is the name of one of the person's disks, ``+name`` for a new one, or empty for none: a mistyped
name is refused, and never becomes an empty home.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

from gpudev_core.catalogue import Catalogue
from gpudev_core.errors import Refused
from gpudev_core.models import GpuType, Request

FIELDS = ("gpu_type", "gpu_count", "hours", "disk", "name", "image")
MIN_HOURS = 0.0833
"""Five minutes, rounded as hours are."""
LONGEST_EXTENSION = timedelta(days=366)
"""Beyond any limit of a portal; what is asked for is at least a time."""
NAME_MAX = 60
SLUG_MAX = 30
DISK_NAME = re.compile(r"[a-z][a-z0-9]*(-[a-z0-9]+)*")
NOT_TEXT = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff]")
"""Control characters, line ends, marks that turn the direction of writing, and halves of characters."""


def from_user_options(options: Mapping[str, Any], catalogue: Catalogue, images: Sequence[str]) -> Request:
    """Read and check a request of plain values. Raises ``Refused`` that names the field."""
    if not isinstance(options, Mapping):
        raise Refused(
            f"Options must be keys and values, not {_short(options)}.", reason="bad_value", field="options"
        )
    unknown = sorted(set(options) - set(FIELDS))
    if unknown:
        raise Refused(
            f"There is no option {_short(unknown[0])}. Possible: {', '.join(FIELDS)}.",
            reason="unknown_option",
            field=unknown[0],
        )
    gpu_type = catalogue.find(_needed(options, "gpu_type"))
    disk = _text(options, "disk")
    return Request(
        gpu_type=gpu_type.name,
        gpu_count=_count(options.get("gpu_count"), gpu_type),
        hours=_hours(options.get("hours")),
        disk=_disk_name(disk.removeprefix("+")) if disk else "",
        new_disk=disk.startswith("+"),
        name=_name(_text(options, "name")),
        image=_image(_text(options, "image"), images),
    )


def changed_options(options: Mapping[str, Any], old: Request) -> dict[str, Any]:
    """The options of ``old`` with those that are to be others. The name is part of the address, and stays."""
    if "name" in options:
        raise Refused(
            "The name cannot be changed, because it is part of the address.", reason="bad_value", field="name"
        )
    kept = {key: value for key, value in old.as_json().items() if key in FIELDS}
    return {**kept, "disk": f"+{old.disk}" if old.new_disk else old.disk, **options}


def later_end(options: Mapping[str, Any], end: datetime) -> datetime:
    """``until`` (a time with its zone) or ``hours`` (so many more) as the end that is wanted."""
    unknown = sorted(set(options) - {"until", "hours"})
    if unknown or len(options) != 1:
        raise Refused(
            f"There is no option {_short(unknown[0])}. Possible: until or hours."
            if unknown
            else "Say either until or hours.",
            reason="unknown_option" if unknown else "missing",
            field=unknown[0] if unknown else "until",
        )
    if "hours" in options:
        hours = _number(options["hours"], "hours", default=None)
        if not 0 < hours <= LONGEST_EXTENSION / timedelta(hours=1):
            raise Refused(
                f"{_plain(hours)} h more is not possible. Give a number of hours, such as 2.",
                reason="bad_value",
                field="hours",
            )
        return end + timedelta(hours=hours)
    return _time(options["until"], "until", end + LONGEST_EXTENSION)


def _time(value: Any, key: str, latest: datetime) -> datetime:
    try:
        at = datetime.fromisoformat(value) if isinstance(value, str) else None
        if at is None or at.tzinfo is None:
            raise ValueError
        at = at.astimezone(UTC)
    except (ValueError, OverflowError):
        raise Refused(
            f"{key} must be a time with its zone, such as 2026-11-15T16:04:00Z, not {_short(value)}.",
            reason="bad_value",
            field=key,
        ) from None
    if at > latest:
        raise Refused(f"{key} is more than a year away.", reason="bad_value", field=key)
    return at


def slug(name: str) -> str:
    """The name as JupyterHub's server names allow it: 1-30 of ``[a-z0-9-]``, a letter first, no ``--``."""
    parts = re.findall(r"[a-z0-9]+", name.lower())
    joined = re.sub(r"^[^a-z]+", "", "-".join(parts))
    return joined[:SLUG_MAX].rstrip("-")


def free_slug(wanted: str, taken: set[str]) -> str:
    """``wanted``, or ``wanted-2``, ``wanted-3``, ... : the first that is not taken."""
    if wanted not in taken:
        return wanted
    number = 2
    while True:
        tail = f"-{number}"
        candidate = wanted[: SLUG_MAX - len(tail)].rstrip("-") + tail
        if candidate not in taken:
            return candidate
        number += 1


def _needed(options: Mapping[str, Any], key: str) -> str:
    value = _text(options, key)
    if not value:
        raise Refused(f"{key} is missing.", reason="missing", field=key)
    return value


def _text(options: Mapping[str, Any], key: str) -> str:
    value = options.get(key)
    if value is None:
        return ""
    if not isinstance(value, str):
        raise Refused(f"{key} must be text, not {_short(value)}.", reason="bad_value", field=key)
    if NOT_TEXT.search(value):
        raise Refused(f"{key} must not hold control characters.", reason="bad_value", field=key)
    return value.strip()


def _count(value: Any, gpu_type: GpuType) -> int:
    count = _number(value, "gpu_count", default=0 if gpu_type.is_cpu else 1)
    if gpu_type.is_cpu and count == 1:
        return 0
    if count not in gpu_type.counts:
        possible = _words([str(n) for n in gpu_type.counts])
        why = "a CPU machine has no GPU" if gpu_type.is_cpu else _why_counts(gpu_type)
        fits = max((n for n in gpu_type.counts if n <= count), default=gpu_type.counts[0])
        raise Refused(
            f"{_plain(count)} GPUs are not possible for {gpu_type.name}. Possible: {possible} ({why}).",
            reason="bad_count",
            field="gpu_count",
            fits=fits,
        )
    return int(count)


def _why_counts(gpu_type: GpuType) -> str:
    node = f"a {gpu_type.name} node has {gpu_type.gpus_per_node}"
    return f"{node}, more means whole nodes" if gpu_type.multinode else node


def _hours(value: Any) -> float:
    hours = round(_number(value, "hours", default=None), 4)
    if hours < MIN_HOURS:
        raise Refused(
            f"{_plain(hours)} h is too short. The shortest is 5 minutes ({MIN_HOURS} h).",
            reason="too_short",
            field="hours",
            fits=0.5,
        )
    return hours


def _number(value: Any, key: str, default: int | None) -> float:
    if value is None or value == "":
        if default is None:
            raise Refused(f"{key} is missing: say how many, such as 4.", reason="missing", field=key)
        return default
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        raise Refused(f"{key} must be a number, not {_short(value)}.", reason="bad_value", field=key)
    try:
        number = float(value)
    except (ValueError, OverflowError):
        number = math.nan
    if not math.isfinite(number):
        raise Refused(f"{key} must be a number, not {_short(value)}.", reason="bad_value", field=key)
    return number


def _disk_name(name: str) -> str:
    if not DISK_NAME.fullmatch(name) or len(name) > SLUG_MAX:
        raise Refused(
            f"Disk name {_short(name)} is not possible. Small letters, digits and single hyphens, "
            f"a letter first, at most {SLUG_MAX} characters, such as experiments-2.",
            reason="bad_disk_name",
            field="disk",
        )
    return name


def _name(name: str) -> str:
    if len(name) > NAME_MAX:
        cut = name[:NAME_MAX].strip()
        raise Refused(
            f"The name has {len(name)} characters; at most {NAME_MAX} are possible.",
            reason="bad_name",
            field="name",
            fits=cut if slug(cut) else None,
        )
    if name and not slug(name):
        raise Refused(
            f"The name {_short(name)} needs at least one letter a-z, because it becomes part of the address.",
            reason="bad_name",
            field="name",
        )
    return name


def _image(image: str, images: Sequence[str]) -> str:
    if not image:
        return images[0]
    if image not in images:
        raise Refused(
            f"Image {_short(image)} is not offered here. Possible: {', '.join(images)}.",
            reason="unknown_image",
            field="image",
        )
    return image


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."


def _plain(number: float) -> str:
    return f"{number:g}"


def _words(items: Sequence[str]) -> str:
    return items[0] if len(items) == 1 else f"{', '.join(items[:-1])} or {items[-1]}"
