"""``gpu-dev-portal maintenance``: close a GPU type to new reservations, and open it again."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click

from gpudev_core import maintenance as rules
from gpudev_core.errors import PortalError
from gpudev_core.settings import load
from gpudev_core.store import Store
from gpudev_hub.options import config_option, existing, failure, state_option


def _places(command: Callable[..., Any]) -> Callable[..., Any]:
    return config_option(state_option(command))


@click.group()
def maintenance() -> None:
    """Close GPU types to new reservations for a while, with a note. What runs goes on."""


@maintenance.command()
@click.argument("gpu_type", metavar="TYPE")
@click.option("--note", default="", help="What people are told, as: new drivers, back at 18:00.")
@click.option(
    "--allow",
    multiple=True,
    metavar="NAME",
    help="Who may use it all the same: a user, or @group. May be given more than once.",
)
@_places
def begin(gpu_type: str, note: str, allow: tuple[str, ...], config: Path | None, state: Path | None) -> None:
    """Close TYPE. For a type that is closed already: change note and names."""
    with _store(config, state) as store, store.write() as session:
        row = rules.begin(session, gpu_type, note=note, allowed=allow)
        text = _line(row.gpu_type, row.maintenance_note, row.maintenance_allowed)
    click.echo(text)


@maintenance.command()
@click.argument("gpu_type", metavar="TYPE")
@_places
def end(gpu_type: str, config: Path | None, state: Path | None) -> None:
    """Open TYPE again."""
    with _store(config, state) as store, store.write() as session:
        was_closed = rules.end(session, gpu_type)
    click.echo(f"{gpu_type} is open again." if was_closed else f"{gpu_type} was not closed.")


@maintenance.command("list")
@click.option("--json", "as_json", is_flag=True, help="JSON and nothing else.")
@_places
def list_(as_json: bool, config: Path | None, state: Path | None) -> None:
    """Say which types are closed."""
    with _store(config, state) as store, store.read() as session:
        found = [
            {"gpu_type": row.gpu_type, "note": row.maintenance_note or "", "allowed": row.maintenance_allowed}
            for row in rules.closed_types(session)
        ]
    if as_json:
        click.echo(json.dumps(found))
        return
    lines = [_line(entry["gpu_type"], entry["note"], entry["allowed"]) for entry in found]
    click.echo("\n".join(lines) or "No type is closed.")


def _line(gpu_type: str, note: str | None, allowed: list[str]) -> str:
    for_whom = f" Still open to {', '.join(allowed)}." if allowed else ""
    return f"{gpu_type} is closed" + (f": {note.rstrip('.')}." if note else ".") + for_whom


@contextmanager
def _store(config: Path | None, state: Path | None) -> Iterator[Store]:
    """The portal's tables, running or not. An error is told in a sentence."""
    environ = dict(os.environ)
    if state is not None:
        environ["GPUDEV_STATE"] = str(state)
    try:
        store = Store(load(existing(config), environ).database)
        try:
            _check_there(store)
            store.migrate()
            yield store
        finally:
            store.close()
    except PortalError as error:
        raise failure(error) from None


def _check_there(store: Store) -> None:
    """Asking must not make an empty database where somebody mistyped the folder."""
    path = Path(store.url.database or "")
    if store.is_sqlite and not path.exists():
        raise PortalError(
            f"There is no portal in {path.parent} yet. Start it once, or name another folder with --state.",
            reason="no_portal",
        )
