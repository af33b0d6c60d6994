"""``gpu-dev-portal``: the command for whoever runs a portal. Other rooms add theirs by entry points."""

from __future__ import annotations

import os
import sys
from importlib.metadata import entry_points
from pathlib import Path

import click

from gpudev_core import __version__
from gpudev_core.errors import PortalError
from gpudev_core.settings import CONFIG_ENV, Settings, load
from gpudev_hub import checks
from gpudev_hub import up as portal_up
from gpudev_hub.failed_command import failed, requeue
from gpudev_hub.history_command import forecast_report, history
from gpudev_hub.maintenance_command import maintenance
from gpudev_hub.options import config_option, existing, failure, state_option

GROUP = "gpudev.portal"


class Portal(click.Group):
    """Commands of this room, and those that other rooms name under ``gpudev.portal``."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted({*super().list_commands(ctx), *(e.name for e in entry_points(group=GROUP))})

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        own = super().get_command(ctx, name)
        if own is not None:
            return own
        found = next((e for e in entry_points(group=GROUP) if e.name == name), None)
        return found.load() if found else None


@click.group(cls=Portal)
@click.version_option(__version__, prog_name="gpu-dev-portal")
def main() -> None:
    """Run and look after a GPU dev portal."""


@main.command()
@config_option
@click.option("--port", type=int, help="Port to listen on (default 8000, or as the settings say).")
@state_option
def up(config: Path | None, port: int | None, state: Path | None) -> None:
    """Start the whole portal on this machine and stay until Ctrl+C."""
    environ = dict(os.environ)
    if port is not None:
        environ["GPUDEV_ADDRESS__PORT"] = str(port)
    if state is not None:
        environ["GPUDEV_STATE"] = str(state)
    path = existing(config)
    if path:
        environ[CONFIG_ENV] = str(path.absolute())
    try:
        settings = load(path, environ)
        environ["GPUDEV_STATE"] = str(settings.state_dir)
        code = portal_up.run(settings, environ, lambda text: click.echo(text))
    except PortalError as error:
        raise failure(error) from None
    sys.exit(code)


@main.command()
@config_option
def check(config: Path | None) -> None:
    """Check the settings and say what they come to."""
    try:
        settings = load(existing(config), os.environ)
        checks.check_settings(settings)
    except PortalError as error:
        raise failure(error) from None
    click.echo(f"The settings are good: {_summary(settings)}")


main.add_command(maintenance)
main.add_command(failed)
main.add_command(requeue)
main.add_command(history)
main.add_command(forecast_report)


def _summary(settings: Settings) -> str:
    nodes = ", ".join(f"{entry.nodes} x {entry.gpu_type}" for entry in settings.gpus.simulated)
    return (
        f"{settings.mode} mode at {checks.public_url(settings)}, login by {settings.login.kind}, "
        f"GPUs: {settings.gpus.source} (simulated: {nodes}), state in {settings.state_dir}."
    )
