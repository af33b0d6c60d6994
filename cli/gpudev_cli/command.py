"""``gpu-dev``: each command parses, asks the client once, and prints. ``--json`` prints JSON alone."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from datetime import UTC, datetime
from importlib.metadata import version
from typing import IO, Any

import click

from gpudev_cli import config, tables
from gpudev_cli.client import Client, ClientError, NotLoggedIn


class Commands(click.Group):
    """Turns the client's errors into one line on stderr and an exit code that means something."""

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except ClientError as error:
            click.echo(f"Error: {error}", err=True)
            sys.exit(error.exit_code)


@click.group(cls=Commands)
@click.version_option(version("gpudev"), prog_name="gpu-dev")
def main() -> None:
    """Look at the GPUs of a portal from a terminal.

    Exit codes: 0 ok, 2 wrong usage, 4 refused, 5 no answer.
    """


_json = click.option("--json", "as_json", is_flag=True, help="Print JSON and nothing else.")


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
    _print([asdict(a) for a in found], as_json, lambda: tables.availability(found, _now()))


@main.command("list")
@_json
def list_(as_json: bool) -> None:
    """My reservations: those that run and those that wait. With --json also those that ended."""
    found = _client().reservations()
    _print([asdict(r) for r in found], as_json, lambda: tables.reservations(found, _now()))


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


def _now() -> datetime:
    return datetime.now(UTC).astimezone()
