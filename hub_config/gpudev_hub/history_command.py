"""``gpu-dev-portal history`` and ``forecast-report``: what people had, and how forecasts came true."""

from __future__ import annotations

import json
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from pathlib import Path

import click

from gpudev_core import forecast_report as reports
from gpudev_core import views
from gpudev_core.figures import as_json as plain
from gpudev_core.forecast_report import EDGES, Figures, Report
from gpudev_core.history import By, History, Line
from gpudev_core.history import history as history_of
from gpudev_hub import terminal
from gpudev_hub.opened import opened, places
from gpudev_hub.terminal import duration, hours, percent

_OPEN = ("pending", "queued", "preparing", "active")


@click.command()
@click.option("--by", type=click.Choice([by.value for by in By]), default="user", help="Default: user.")
@click.option("--since", type=terminal.Period(), default="7d", help="How far back: 12h, 7d (default), 2w.")
@click.option("--json", "as_json", is_flag=True, help="JSON and nothing else.")
@places
def history(by: str, since: timedelta, as_json: bool, config: Path | None, state: Path | None) -> None:
    """Say what people had: GPU-hours, early ends, waits, outcomes."""
    now = datetime.now(UTC)
    with opened(config, state) as portal, portal.store.read() as session:
        found = history_of(session, By(by), now - since, now, now)
    if as_json:
        click.echo(json.dumps(views.plain(plain(found))))
    elif not found.lines:
        click.echo("Nobody had a reservation in that time.")
    else:
        click.echo("\n".join(_history(found, terminal.width())))


@click.command("forecast-report")
@click.option("--since", type=terminal.Period(), default="30d", help="How far back: 7d, 30d (default).")
@click.option("--type", "gpu_type", metavar="TYPE", help="Only this GPU type.")
@click.option("--json", "as_json", is_flag=True, help="JSON and nothing else.")
@places
def forecast_report(
    since: timedelta, gpu_type: str | None, as_json: bool, config: Path | None, state: Path | None
) -> None:
    """Say how forecasts and promises of start times came true."""
    now = datetime.now(UTC)
    with opened(config, state) as portal, portal.store.read() as session:
        found = reports.report(reports.told(session, now - since, now, gpu_type))
    if as_json:
        click.echo(json.dumps(views.plain({**plain(found), "edges_minutes": EDGES})))
    elif found.is_empty:
        click.echo(f"Nothing has waited yet{f' for {gpu_type}' if gpu_type else ''} in that time.")
    else:
        click.echo("\n".join(_report(found, terminal.width())))


# What people had


def _history(found: History, fit: int | None) -> list[str]:
    lines = [(_name(line, found.by), line) for line in found.lines] + [("all", found.total)]
    title = found.by.value.upper()
    use = [(title, "FILED", "GPU-HOURS", "ASKED", "HAD", "ENDED EARLY", "GIVEN BACK", "EXTENDED")]
    wait = [(title, "MEAN", "MEDIAN", "95 %", "LONGEST", "EXPIRED", "CANCELLED", "FAILED", "OPEN")]
    use += [(name, *_use(line)) for name, line in lines]
    wait += [(name, *_waits(line)) for name, line in lines]
    return [
        f"From {terminal.clock(found.since)} to {terminal.clock(found.until)} {terminal.zone()}. "
        "Hours are of reservations.",
        "",
        *terminal.figures(use, fit),
        "",
        "Wait from filing to working, and what became of them",
        "",
        *terminal.figures(wait, fit),
    ]


def _name(line: Line, by: By) -> str:
    return line.name or ("no group" if by is By.GROUP else "-")


def _use(line: Line) -> tuple[str, ...]:
    early = f"{line.early_ends} ({percent(line.early_share)})" if line.ended else "-"
    return (
        str(line.reservations),
        hours(line.gpu_hours),
        hours(line.hours_asked),
        hours(line.hours_had),
        early,
        hours(line.hours_given_back),
        hours(line.extension_hours),
    )


def _waits(line: Line) -> tuple[str, ...]:
    wait, outcomes = line.wait_s, line.outcomes
    counts = [outcomes.get(status, 0) for status in ("expired", "cancelled", "failed")]
    counts.append(sum(outcomes.get(status, 0) for status in _OPEN))
    return (
        *(duration(value) for value in (wait.mean, wait.median, wait.p95, wait.longest)),
        *(str(count or "-") for count in counts),
    )


# How forecasts came true


def _report(found: Report, fit: int | None) -> list[str]:
    lines = [(f.name, f) for f in found.types] + [("all", found.total)]
    promises = [("TYPE", "WAITED", "STARTED", "PROMISES", "KEPT", "MOVED", "BROKEN", "OPEN")]
    promises += [(name, *_promises(of)) for name, of in lines]
    starts = [("TYPE", "10 MIN", "20 %", "SOON", "RANGE", "NOW", "MEAN WAIT", "95 %")]
    starts += [(name, *_starts(of)) for name, of in lines]
    return [
        "Promises (no later than)",
        "",
        *terminal.figures(promises, fit),
        "",
        _verdict(found.total.promises.broken),
        "",
        "Start times (about), of those that waited and started",
        "",
        *terminal.figures(starts, fit),
        "",
        "10 MIN  started within 10 minutes of the first forecast",
        "20 %    within 10 minutes, or a fifth of the wait where that is more",
        "SOON    within 10 minutes, once it said 15 minutes or less",
        "RANGE   within the range in which four of five should start",
        'NOW     how often the answer "now" would have been right to 10 minutes',
        "",
        "Started, beside the first forecast",
        "",
        *terminal.bars(list(zip(_names_of_bars(), found.total.histogram, strict=True))),
    ]


def _promises(of: Figures) -> tuple[str, ...]:
    given = of.promises
    counts = (of.waited, of.started, given.given, given.kept, given.moved, given.broken, given.undecided)
    return tuple(str(count) for count in counts)


def _starts(of: Figures) -> tuple[str, ...]:
    shares = (of.within_10_min, of.within_20_percent, of.when_soon, of.in_interval, of.now_is_right)
    return (*(percent(share.part) for share in shares), duration(of.wait_s.mean), duration(of.wait_s.p95))


def _verdict(broken: int) -> str:
    if not broken:
        return "No promise was broken without a word. (MOVED: the person was told why.)"
    text = f"{broken} broken without a word. This must be 0: it is a mistake of the portal."
    return click.style(text, fg="red", bold=True)


def _names_of_bars() -> Iterable[str]:
    early = [-edge for edge in EDGES if edge < 0]
    late = [edge for edge in EDGES if edge > 0]
    yield f"over {early[0]} min earlier"
    yield from (f"{low} to {high} min earlier" for high, low in pairwise(early))
    yield f"within {late[0]} min"
    yield from (f"{low} to {high} min later" for low, high in pairwise(late))
    yield f"over {late[-1]} min later"
