"""``gpu-dev``: each command parses, asks the client once, and prints. ``--json`` prints JSON alone."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from importlib.metadata import version
from typing import IO, Any

import click

from gpudev_cli import config, tables, words
from gpudev_cli.client import Client, ClientError, NotLoggedIn, Refused, Reservation

AS_JSON = "gpudev_cli.as_json"


class Commands(click.Group):
    """Turns the client's errors into words (or JSON) on stderr and an exit code that means something."""

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except ClientError as error:
            said = json.dumps({"error": error.as_json()}) if ctx.meta.get(AS_JSON) else f"Error: {error}"
            click.echo(said, err=True)
            sys.exit(error.exit_code)


@click.group(cls=Commands)
@click.version_option(version("gpudev"), prog_name="gpu-dev")
def main() -> None:
    """Look at the GPUs of a portal from a terminal.

    Exit codes: 0 ok, 1 not possible, 2 wrong usage, 4 not allowed, 5 no answer.
    """


def _remember(ctx: click.Context, _: click.Parameter, value: bool) -> bool:
    ctx.meta[AS_JSON] = value  # shared with the group, which writes errors
    return value


_json = click.option(
    "--json", "as_json", is_flag=True, callback=_remember, help="Print JSON and nothing else."
)


@main.command()
@click.argument("url")
@click.option("--token-file", type=click.File(), help="File with the token; - for standard input.")
def login(url: str, token_file: IO[str] | None) -> None:
    """Remember a portal and a token for it.

    URL is the portal's address, such as http://localhost:8000. Make the token on its page Tokens.
    """
    api_url = _service(url)
    token = token_file.read().strip() if token_file else click.prompt("Token", hide_input=True)
    Client(api_url, token).reservations()
    config.save(api_url, token)
    click.echo(f"Logged in to {api_url}")


@main.command()
@_json
def avail(as_json: bool) -> None:
    """What is free now."""
    found = _client().availability()
    _print([asdict(a) for a in found], as_json, lambda: tables.availability(found, _now(), _width()))


@main.command("list")
@_json
def list_(as_json: bool) -> None:
    """My reservations: those that run and those that wait. With --json also those that ended."""
    found = _client().reservations()
    _print([asdict(r) for r in found], as_json, lambda: tables.reservations(found, _now(), _width()))


@main.command()
@click.argument("name")
@click.option("--hours", type=click.FloatRange(min=0, min_open=True), help="So many hours more.")
@click.option(
    "--until", metavar="HH:MM", help="Until then: the next HH:MM after its end, or a date and time."
)
@_json
def extend(name: str, hours: float | None, until: str | None, as_json: bool) -> None:
    """More time for a reservation that runs. NAME is its name or the beginning of its id."""
    if (hours is None) == (until is None):
        raise click.UsageError("Say either --hours or --until.")
    client = _client()
    found = _find(client.reservations(), name)
    wanted, asked = _wanted(found, hours, until)
    try:
        extended = client.extend(found.reservation_id, **wanted)
    except Refused as error:
        error.args = (words.not_extended(found, asked, error, _now()),)
        raise
    _print(asdict(extended), as_json, lambda: tables.extended(extended, _now()))


def _wanted(found: Reservation, hours: float | None, until: str | None) -> tuple[dict[str, float | str], str]:
    """What is asked for, as the portal reads it and in words."""
    if until is None:
        assert hours is not None
        return {"hours": hours}, f"by {hours:g} h"
    try:
        at = words.until(until, words.local(found.expires_at) if found.expires_at else _now())
    except ValueError:
        raise click.BadParameter(
            f"{until!r} is not a time, such as 18:00 or 2026-11-16T09:30.", param_hint="--until"
        ) from None
    return {"until": at.astimezone(UTC).isoformat()}, f"until {words.clock(at, _now())}"


def _find(found: Sequence[Reservation], name: str) -> Reservation:
    """One's own that is named so, or whose id begins so."""
    mine = [r for r in found if r.status in tables.OPEN]
    same = [r for r in mine if r.name == name] or [r for r in mine if r.reservation_id.startswith(name)]
    if len(same) == 1:
        return same[0]
    if same:
        ids = ", ".join(r.reservation_id[:8] for r in same)
        raise ClientError(f"there are {len(same)} reservations {name}. Give the id: {ids}.")
    names = ", ".join(r.name for r in mine)
    raise ClientError(
        f"there is no reservation {name}. " + (f"Yours: {names}." if mine else "You have none.")
    )


def _client() -> Client:
    token = config.token()
    if not token:
        raise NotLoggedIn("not logged in yet: gpu-dev login URL")
    return Client(config.url(), token)


def _service(url: str) -> str:
    base = url.rstrip("/")
    return base if "/services/" in base else f"{base}/services/gpu-dev"


def _print(data: Any, as_json: bool, text: Any) -> None:
    click.echo(json.dumps(data, indent=2) if as_json else text())


def _width() -> int:
    """Columns of the terminal, or of ``COLUMNS``; 80 in a pipe."""
    return shutil.get_terminal_size((80, 24)).columns


def _now() -> datetime:
    return datetime.now(UTC).astimezone()
