"""``gpu-dev-portal failed`` and ``requeue``: what failed, and putting it into the queue again."""

from __future__ import annotations

import getpass
import json
import sys
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import click

from gpudev_core import requeue as requeues
from gpudev_core import views
from gpudev_core.errors import PortalError
from gpudev_core.machine import discover
from gpudev_core.requests import NOT_TEXT
from gpudev_core.tables import ReservationRow
from gpudev_hub import terminal
from gpudev_hub.opened import opened, places

_WHO = 2
"""The column that is cut where a line is too long."""


@click.command()
@click.option("--since", type=terminal.Period(), default="7d", help="How far back: 12h, 7d (default), 2w.")
@click.option("--limit", type=click.IntRange(1, 10_000), default=50, help="At most this many (default 50).")
@click.option("--json", "as_json", is_flag=True, help="JSON and nothing else.")
@places
def failed(since: timedelta, limit: int, as_json: bool, config: Path | None, state: Path | None) -> None:
    """List what failed, newest first, with the cause."""
    with opened(config, state) as portal, portal.store.read() as session:
        rows = requeues.failed(session, datetime.now(UTC) - since, limit)
        again = requeues.requeued_as(session, [row.reservation_id for row in rows])
    if as_json:
        click.echo(json.dumps([_entry(row, again) for row in rows]))
    elif not rows:
        click.echo("Nothing has failed in that time.")
    else:
        click.echo("\n".join(_table(rows, again, terminal.width())))


@click.command()
@click.argument("ids", nargs=-1, required=True, metavar="ID...")
@places
def requeue(ids: tuple[str, ...], config: Path | None, state: Path | None) -> None:
    """Put failed reservations into the queue again, whole, as new ones of the same person.

    The first characters of an id are enough where no other failed one begins like it.
    """
    refused = False
    with opened(config, state) as portal:
        settings = portal.settings
        catalogue = settings.types().with_types(discover(settings).types)
        for one in dict.fromkeys(ids):
            now = datetime.now(UTC)
            try:
                new = requeues.requeue(portal.store, one, _who(), catalogue, settings, now=now)
            except PortalError as error:
                refused = True
                click.echo(f"{one}: {error.message}", err=True)
            else:
                click.echo(f"{new.requeued_from} is in the queue again as {new.reservation_id}.")
    sys.exit(1 if refused else 0)


def _entry(row: ReservationRow, again: Mapping[str, str]) -> dict[str, Any]:
    return views.plain(
        {
            "reservation_id": row.reservation_id,
            "failed_at": row.reservation_ended,
            "user_id": row.user_id,
            "name": row.name,
            "gpu_type": row.gpu_type,
            "gpu_count": row.gpu_count,
            "failure_code": row.failure_code,
            "failure_reason": row.failure_reason,
            "start_attempts": row.start_attempts,
            "launched_at": row.launched_at,
            "requeued_from": row.requeued_from,
            "requeued_as": again.get(row.reservation_id),
        }
    )


def _table(rows: Sequence[ReservationRow], again: Mapping[str, str], fit: int | None) -> list[str]:
    short = terminal.short_ids([*(row.reservation_id for row in rows), *again.values()])
    lines = [("ID", f"WHEN ({terminal.zone()})", "WHO", "WHAT", "TRIES", "CAUSE", "")]
    for row in rows:
        new = again.get(row.reservation_id)
        cause = NOT_TEXT.sub(" ", row.failure_reason or row.end_reason or "the cause is not known")
        lines.append(
            (
                short[row.reservation_id],
                terminal.clock(row.reservation_ended) if row.reservation_ended else "-",
                row.user_id,
                terminal.what(row.gpu_count, row.gpu_type),
                str(row.start_attempts or "-"),
                row.failure_code or "unknown",
                cause + (f" (requeued as {short[new]})" if new else ""),
            )
        )
    return [*terminal.beneath(lines, fit, cut=_WHO), "", "Into the queue again: gpu-dev-portal requeue ID"]


def _who() -> str:
    """Whoever runs this command, as the system knows them."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return "admin"
