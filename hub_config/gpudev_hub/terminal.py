"""What the commands print: plain columns that read the same in a pipe and in a log.

In a terminal names are cut and sentences stand beneath, so that a line fits. In a pipe one line is one entry.
"""

from __future__ import annotations

import re
import shutil
import sys
import textwrap
from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta
from typing import Any

import click

_GAP = "  "
_LEAST = 10
_LONGEST = timedelta(days=3660)
_UNITS = {"m": "minutes", "h": "hours", "d": "days", "w": "weeks"}


class Period(click.ParamType):
    """How far back: ``90m``, ``12h``, ``7d``, ``2w``."""

    name = "period"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> timedelta:
        if isinstance(value, timedelta):
            return value
        found = re.fullmatch(r"(\d{1,7})([mhdw])", str(value))
        period = timedelta(**{_UNITS[found[2]]: int(found[1])}) if found else timedelta()
        if not timedelta() < period <= _LONGEST:
            self.fail(f"{value!r} is not a period. Possible: 90m, 12h, 7d, 2w, up to ten years.", param, ctx)
        return period


def width() -> int | None:
    """Of the terminal. None: this is a pipe or a file, where lines may be as long as they like."""
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else None


def beneath(rows: Sequence[Sequence[str]], fit: int | None, cut: int) -> list[str]:
    """Columns. In a terminal the last one stands beneath its line, and column ``cut`` is cut to fit."""
    if fit is None:
        return columns(rows)
    upper = [list(row[:-1]) for row in rows]
    widths = _widths(upper)
    room = max(_LEAST, fit - sum(w + len(_GAP) for w in widths) + len(_GAP) + widths[cut])
    for row in upper:
        row[cut] = _cut(row[cut], room)
    indent = " " * (widths[0] + len(_GAP))
    lines = []
    for line, (*_, last) in zip(columns(upper), rows, strict=True):
        lines += [line, *textwrap.wrap(last, fit, initial_indent=indent, subsequent_indent=indent)]
    return lines


def figures(rows: Sequence[Sequence[str]], fit: int | None) -> list[str]:
    """Columns of numbers, which stand under each other; the first column has the names."""
    if fit is not None:
        room = max(_LEAST, fit - sum(w + len(_GAP) for w in _widths(rows)[1:]))
        rows = [[_cut(name, room), *others] for name, *others in rows]
    return columns(rows, numbers=True)


def columns(rows: Sequence[Sequence[str]], *, numbers: bool = False) -> list[str]:
    widths = _widths(rows)
    lines = []
    for first, *others in rows:
        cells = [first.ljust(widths[0])]
        for text, wide in zip(others, widths[1:], strict=True):
            cells.append(text.rjust(wide) if numbers else text.ljust(wide))
        lines.append(_GAP.join(cells).rstrip())
    return lines


def bars(counts: Sequence[tuple[str, int]], longest: int = 40) -> list[str]:
    """One bar for each; the largest is ``longest`` wide, and what is not nothing is seen."""
    most = max((count for _, count in counts), default=0)
    wide = max(len(name) for name, _ in counts)
    digits = len(str(most))
    return [
        f"{name.rjust(wide)} {count:>{digits}} {'#' * -(-count * longest // most) if most else ''}".rstrip()
        for name, count in counts
    ]


def duration(seconds: float | None) -> str:
    """Short, for columns: one figure and its unit."""
    if seconds is None:
        return "-"
    minutes = max(0, round(seconds / 60))
    return f"{minutes} min" if minutes < 60 else f"{seconds / 3600:.1f} h"


def percent(part: float | None) -> str:
    """Never 100 % or 0 % of what is only nearly so."""
    if part is None:
        return "-"
    return f"{round(100 * part) if part in (0, 1) else min(99, max(1, round(100 * part)))} %"


def hours(number: float) -> str:
    return f"{number:.1f}" if number else "-"


def clock(at: datetime) -> str:
    return f"{at.astimezone():%d %b %H:%M}"


def zone() -> str:
    """The name of the time zone that ``clock`` writes in."""
    return f"{datetime.now().astimezone():%Z}"


def what(gpu_count: int, gpu_type: str) -> str:
    return f"{gpu_count or 1} x {gpu_type}"


def short_ids(ids: Iterable[str], least: int = 8) -> dict[str, str]:
    """Each id cut as short as it can be told from the others."""
    known = sorted(set(ids))
    found = {}
    for one in known:
        others = [other for other in known if other != one]
        size = least
        while size < len(one) and any(other.startswith(one[:size]) for other in others):
            size += 1
        found[one] = one[:size]
    return found


def _widths(rows: Sequence[Sequence[str]]) -> list[int]:
    return [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]


def _cut(text: str, room: int) -> str:
    return text if len(text) <= room else text[: room - 3] + "..."
