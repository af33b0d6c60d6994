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

GROUP = "gpudev.portal"
DEFAULT_CONFIG = Path("portal.yaml")


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


_config = click.option(
    "--config",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Settings file. Default: portal.yaml in this folder, if there is one.",
)


@main.command()
@_config
@click.option("--port", type=int, help="Port to listen on (default 8000, or as the settings say).")
@click.option(
    "--state", type=click.Path(file_okay=False, path_type=Path), help="Folder for all that is kept."
)
def up(config: Path | None, port: int | None, state: Path | None) -> None:
    """Start the whole portal on this machine and stay until Ctrl+C."""
    environ = dict(os.environ)
    if port is not None:
        environ["GPUDEV_ADDRESS__PORT"] = str(port)
    if state is not None:
        environ["GPUDEV_STATE"] = str(state)
    path = _existing(config)
    if path:
        environ[CONFIG_ENV] = str(path.absolute())
    try:
        settings = load(path, environ)
        environ["GPUDEV_STATE"] = str(settings.state_dir)
        code = portal_up.run(settings, environ, lambda text: click.echo(text))
    except PortalError as error:
        raise _failure(error) from None
    sys.exit(code)


@main.command()
@_config
def check(config: Path | None) -> None:
    """Check the settings and say what they come to."""
    try:
        settings = load(_existing(config), os.environ)
        checks.check_settings(settings)
    except PortalError as error:
        raise _failure(error) from None
    click.echo(f"The settings are good: {_summary(settings)}")


def _existing(config: Path | None) -> Path | None:
    if config is not None:
        return config
    if named := os.environ.get(CONFIG_ENV):
        return Path(named)
    return DEFAULT_CONFIG if DEFAULT_CONFIG.exists() else None


def _failure(error: PortalError) -> click.ClickException:
    return click.ClickException(error.message)


def _summary(settings: Settings) -> str:
    nodes = ", ".join(f"{entry.nodes} x {entry.gpu_type}" for entry in settings.gpus.simulated)
    return (
        f"{settings.mode} mode at {checks.public_url(settings)}, login by {settings.login.kind}, "
        f"GPUs: {settings.gpus.source} (simulated: {nodes}), state in {settings.state_dir}."
    )
