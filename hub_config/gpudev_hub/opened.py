"""The portal's settings and rows for a command, whether the portal runs or not."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gpudev_core.errors import PortalError
from gpudev_core.settings import Settings, load
from gpudev_core.store import Store
from gpudev_hub.options import config_option, existing, failure, state_option


@dataclass(frozen=True)
class Opened:
    settings: Settings
    store: Store


def places(command: Callable[..., Any]) -> Callable[..., Any]:
    """The options that say which portal is meant: ``config`` and ``state``."""
    return config_option(state_option(command))


@contextmanager
def opened(config: Path | None, state: Path | None) -> Iterator[Opened]:
    """An error inside is told in a sentence."""
    environ = {**os.environ, **({"GPUDEV_STATE": str(state)} if state is not None else {})}
    try:
        settings = load(existing(config), environ)
        store = Store(settings.database)
        _check_there(store, settings)
        try:
            store.migrate()
            yield Opened(settings, store)
        finally:
            store.close()
    except PortalError as error:
        raise failure(error) from None


def _check_there(store: Store, settings: Settings) -> None:
    """Asking must not make an empty database where somebody mistyped the folder."""
    if store.is_sqlite and not Path(store.url.database or "").exists():
        raise PortalError(
            f"There is no portal in {settings.state_dir} yet. Start it once, or name another folder with "
            "--state.",
            reason="no_portal",
        )
