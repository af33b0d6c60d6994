"""What a terminal shows: plain columns that read the same in a pipe and in a log."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Sequence
from datetime import datetime

from gpudev_cli import words
from gpudev_cli.client import Availability, Reservation

OPEN = ("pending", "queued", "preparing", "active")
WIDE = 120
"""Columns from which on there is room for more than the usual."""
SOON_S = 30 * 60
MARKS = str.maketrans("fmopd", ".@#~x")
LEGEND = ". free  @ yours  # others'  ~ promised  x down"
PROMISE = '"No later than" is a promise.'


def availability(found: Sequence[Availability], now: datetime, width: int = 80) -> str:
    for with_nodes, short in ((True, False), (False, False), (False, True)):
        if with_nodes and width < WIDE:
            continue
        rows = _availability_rows(found, now, with_nodes=with_nodes, short=short)
        lines = list(_columns(rows))
        if max(map(len, lines)) <= width or short:
            break
    return "\n".join([*lines, *_below(found, now, width, rows if with_nodes else None)])


def _availability_rows(
    found: Sequence[Availability], now: datetime, *, with_nodes: bool, short: bool
) -> list[tuple[str, ...]]:
    digits = max((len(str(a.free_for_you)) for a in found), default=1)

    def row(a: Availability) -> tuple[str, ...]:
        nodes = (" ".join(node.cells.translate(MARKS) for node in a.nodes),) if with_nodes else ()
        free = f"{a.free_for_you:>{digits}} of {a.total}"
        return a.gpu_type, free, *nodes, a.starts_now, a.next_size(now, short=short)

    head = ("TYPE", "FREE", *(("NODES",) if with_nodes else ()), "STARTS NOW", "NEXT SIZE UP")
    return [head, *map(row, found)]


def _below(
    found: Sequence[Availability], now: datetime, width: int, rows: Sequence[Sequence[str]] | None
) -> list[str]:
    """The last lines: how old the figures are, what is down, what the marks mean."""
    oldest = min((words.local(a.as_of) for a in found if a.as_of), default=now)
    if any(a.stale for a in found):
        minutes = int((now - oldest).total_seconds() // 60)
        said = (
            f"Warning: these figures are from {oldest:%H:%M %Z}, {minutes} minutes ago. The cluster does not "
            "answer. You can still reserve: a request keeps its place."
        )
        return [*([LEGEND] if rows else []), *textwrap.wrap(said, width)]
    said = " ".join(part for part in (f"As of {now:%H:%M:%S %Z}.", PROMISE, words.down(list(found))) if part)
    if rows is None:
        return textwrap.wrap(said, width)
    place = sum(max(len(row[i]) for row in rows) + 2 for i in range(3))
    one = f"{LEGEND.ljust(place - 2)}  {said}"
    return [one] if len(one) <= width else [LEGEND, *textwrap.wrap(said, width)]


def reservations(found: Sequence[Reservation], now: datetime, width: int = 80) -> str:
    shown = [r for r in found if r.status in OPEN]
    if not shown:
        return "You have no reservation."
    rows = [_head(width), *(_row(r, now, width) for r in shown)]
    soon = [
        f"{r.name} ends in {words.duration(_left(r, now))}. More time: gpu-dev extend {_handle(r)} --hours 1"
        for r in shown
        if r.status == "active" and 0 < _left(r, now) <= SOON_S
    ]
    return "\n".join([*_columns(rows), *soon])


def _head(width: int) -> tuple[str, ...]:
    if width < WIDE:
        return "NAME", "STATUS", "WHAT", "WHERE", "WHEN"
    return "NAME", "STATUS", "WHAT", "WHERE", "DISK", "STARTED", "WHEN", "ID"


def _row(r: Reservation, now: datetime, width: int) -> tuple[str, ...]:
    where = f"{len(r.nodes)} nodes" if len(r.nodes) > 1 else "".join(r.nodes) or "-"
    first, when = (r.name, r.status, _what(r), where), _when(r, now, short=width < WIDE)
    if width < WIDE:
        return *first, when
    started = words.clock(words.local(r.launched_at), now) if r.launched_at else "-"
    return *first, r.disk or "none", started, when, r.reservation_id[:8]


def extended(r: Reservation, now: datetime) -> str:
    ends = words.local(r.expires_at)
    today = "today " if ends.date() == now.date() else ""
    return f"{r.name} ends {today}{words.clock(ends, now)} {ends:%Z}, {words.duration(_left(r, now))} left."


def _handle(r: Reservation) -> str:
    """What names it on a command line without quotes."""
    return r.name if r.name.replace("-", "").isalnum() else r.reservation_id[:8]


def _left(r: Reservation, now: datetime) -> float:
    return (words.local(r.expires_at) - now).total_seconds() if r.expires_at else 0.0


def _what(r: Reservation) -> str:
    nodes = len(r.nodes)
    if nodes > 1:
        return f"{nodes} nodes of {r.gpu_count // nodes} x {r.gpu_type}"
    return f"{max(1, r.gpu_count)} x {r.gpu_type}"


def _when(r: Reservation, now: datetime, *, short: bool) -> str:
    if r.expires_at:
        ends = words.clock(words.local(r.expires_at), now)
        return f"ends {ends}, {words.duration(_left(r, now))} left"
    return words.starts(r.expected_start, r.no_later_than, now, short=short) or "-"


def _columns(rows: Sequence[Sequence[str]]) -> Iterable[str]:
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    for row in rows:
        yield "  ".join(text.ljust(width) for text, width in zip(row, widths, strict=True)).rstrip()
