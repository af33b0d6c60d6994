"""What the commands of ``gpu-dev-portal`` share: which settings they read, and how they end in an error."""

from __future__ import annotations

import os
from pathlib import Path

import click

from gpudev_core.errors import PortalError
from gpudev_core.settings import CONFIG_ENV

DEFAULT_CONFIG = Path("portal.yaml")

config_option = click.option(
    "--config",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Settings file. Default: portal.yaml in this folder, if there is one.",
)

state_option = click.option(
    "--state", type=click.Path(file_okay=False, path_type=Path), help="Folder for all that is kept."
)


def existing(config: Path | None) -> Path | None:
    """The settings file to read, if there is one."""
    if config is not None:
        return config
    if named := os.environ.get(CONFIG_ENV):
        return Path(named)
    return DEFAULT_CONFIG if DEFAULT_CONFIG.exists() else None


def failure(error: PortalError) -> click.ClickException:
    return click.ClickException(error.message)
