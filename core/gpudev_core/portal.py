"""What every process of the portal holds: its settings, the types it offers and the way to its rows."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

from gpudev_core.catalogue import Catalogue
from gpudev_core.machine import Machine, discover
from gpudev_core.settings import Settings, load_from_environment
from gpudev_core.store import Store


@dataclass(frozen=True)
class Portal:
    settings: Settings
    catalogue: Catalogue
    machine: Machine
    store: Store

    @property
    def simulated(self) -> bool:
        return self.machine.simulated


def open_portal(settings: Settings) -> Portal:
    """Find the machine's GPUs, open the database and bring its tables to this version."""
    machine = discover(settings)
    settings.state_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
    store = Store(settings.database)
    store.migrate()
    return Portal(settings, settings.types().with_types(machine.types), machine, store)


@cache
def this_portal() -> Portal:
    """The one portal of this process, as its environment says. Opened at the first call."""
    return open_portal(load_from_environment())
