"""Servers as processes of one machine: real JupyterLab servers, GPUs by ``CUDA_VISIBLE_DEVICES``.

Homes are folders of the state folder: one for each disk, or one that is thrown away for a reservation without
a disk. By default every server runs as the hub's own user; with ``run_as: system-users`` each runs as the
system user of the same name, which needs a hub that runs as root.
"""

from __future__ import annotations

import asyncio
import os
import pwd
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
from jupyterhub.slugs import safe_slug
from jupyterhub.spawner import SimpleLocalProcessSpawner, set_user_setuid
from traitlets import Unicode, default

from gpudev_core import availability, sessions
from gpudev_core.errors import PortalError
from gpudev_core.sessions import MARKER, SessionRecord, Sessions
from gpudev_core.tables import ReservationRow
from gpudev_spawner import memory
from gpudev_spawner.mixin import ReservationMixin
from gpudev_spawner.resources import hints, share_of

_BIN = Path(__file__).parent / "bin"
_STOP_LEFTOVERS_S = 2.0
_LOOK_EVERY_S = 0.05
_USUAL_MASK = 0o022


class GpuLocalSpawner(ReservationMixin, SimpleLocalProcessSpawner):
    _session: SessionRecord | None = None
    _memory: tuple[int, Path | None] | None = None
    """The process, and where the kernel counts what it ended around it."""

    api_url = Unicode(
        help="Address of the web service as servers of this machine reach it, for ``gpu-dev`` and the "
        "notebook panel. Example: ``http://127.0.0.1:8000/services/gpu-dev``.",
    ).tag(config=True)

    @default("cmd")
    def _this_python(self) -> list[str]:
        return [sys.executable, "-m", "jupyterhub.singleuser"]

    @property
    def sessions(self) -> Sessions:
        return Sessions(self.portal.settings.state_dir / "sessions")

    @property
    def own_system_user(self) -> bool:
        return self.portal.settings.servers.run_as == "system-users"

    async def _start_server(self) -> Any:
        self.home_dir = str(home_folder(self.portal.settings.state_dir, self.lease))
        await asyncio.to_thread(self._end_session_of, self.lease)
        await asyncio.to_thread(self._prepare_folders)
        self._session = self.sessions.begin(self.lease.reservation_id, self.user.name, self.name)
        self.port = 0
        with open(self._log_file(), "ab", buffering=0) as log:
            self.popen_kwargs = {"stdout": log, "stderr": log}
            address = await super()._start_server()
        await asyncio.to_thread(self.sessions.started, self._session, self.pid)
        await self._until_it_listens(*address)
        return address

    def get_args(self) -> list[str]:
        """Jupyter refuses to run as root unless it is told that this is meant."""
        meant = os.geteuid() == 0 and not self.own_system_user
        return [*super().get_args(), *(["--allow-root"] if meant else [])]

    async def _until_it_listens(self, host: str, port: int) -> None:
        """A server that ends at once is told at once, and one that is up is not waited for any longer."""
        while True:
            try:
                _, writer = await asyncio.open_connection(host, port)
            except OSError:
                if (code := await self.poll()) is not None:
                    raise PortalError(
                        f"the server ended while it was starting (exit code {code})", reason="ended_early"
                    ) from None
                await asyncio.sleep(_LOOK_EVERY_S)
            else:
                writer.close()
                return

    async def poll(self) -> int | None:
        """Not running when the process id is another program's by now."""
        status = await super().poll()
        if status is None and self.proc is None and not await asyncio.to_thread(self._is_still_ours):
            self.clear_state()
            return 0
        return status

    def memory_kills(self) -> int | None:
        if self.pid and (self._memory is None or self._memory[0] != self.pid):
            self._memory = (self.pid, memory.counter_of(self.pid))
        return memory.kills(self._memory[1]) if self._memory else None

    async def clean_up(self, row: ReservationRow) -> None:
        await asyncio.to_thread(self._end_session_of, row)

    def get_env(self) -> dict[str, str]:
        env = super().get_env()
        gpu_type = self.portal.catalogue[self.lease.gpu_type]
        memory_gb = psutil.virtual_memory().total >> 30
        share = share_of(gpu_type, self.lease.gpu_count, os.cpu_count() or 1, memory_gb)
        env.update(hints(*share))
        env.update(self._gpu_env())
        env["PATH"] = self._path(env.get("PATH", os.defpath))
        env["GPU_DEV_RESERVATION_ID"] = self.lease.reservation_id
        env["GPU_DEV_API_URL"] = self.api_url
        env[MARKER] = self._session.marker
        return env

    def user_env(self, env: dict[str, str]) -> dict[str, str]:
        env = super().user_env(env)
        if self.own_system_user:
            account = self._account()
            env["USER"], env["SHELL"] = account.pw_name, account.pw_shell or "/bin/sh"
        return env

    def make_preexec_fn(self, name: str) -> Callable[[], None]:
        become = set_user_setuid(name, chdir=False) if self.own_system_user else None
        home = self.home_dir

        def preexec() -> None:
            os.umask(_USUAL_MASK)
            if become is not None:
                become()
            os.chdir(home)

        return preexec

    def _gpu_env(self) -> dict[str, str]:
        """The GPUs by their ids. Simulated ones do not exist, so programs are told that there are none."""
        ids = self._device_ids()
        visible = {"CUDA_VISIBLE_DEVICES": ",".join(ids), "NVIDIA_VISIBLE_DEVICES": ",".join(ids) or "none"}
        return visible if self.portal.simulated else {**visible, "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}

    def _path(self, usual: str) -> str:
        """In terminals ``python`` and ``gpu-dev`` are those of the notebook, ``nvidia-smi`` is ours."""
        own = [str(Path(sys.executable).parent)]
        return os.pathsep.join([*([] if self.portal.simulated else [str(_BIN)]), *own, usual])

    def _device_ids(self) -> list[str]:
        with self.portal.store.read() as session:
            nodes = {node.name: node for node in availability.nodes_of(availability.offered(session))}
        found = []
        for share in self.placement.shares:
            node = nodes.get(share.node)
            if node is None:
                raise PortalError(f"Node {share.node} is gone.", reason="node_gone", node=share.node)
            found += [node.device_ids[unit] for unit in share.units if node.device_ids]
        return found

    def _prepare_folders(self) -> None:
        folders = [Path(self.home_dir), self._log_file().parent]
        for folder in folders:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        if self.own_system_user:
            account = self._account()
            # Others may pass through on their way to their own folder, but not look around.
            for folder in (self.portal.settings.state_dir, *Path(self.home_dir).parents):
                if folder.is_relative_to(self.portal.settings.state_dir):
                    folder.chmod(0o711)
            os.chown(self.home_dir, account.pw_uid, account.pw_gid)

    def _account(self) -> pwd.struct_passwd:
        try:
            account = pwd.getpwnam(self.user.name)
        except KeyError:
            raise PortalError(
                f"This machine has no system user {self.user.name}. Ask an administrator to create it "
                "(useradd -m), then start again.",
                reason="no_system_user",
                final=True,
            ) from None
        if account.pw_uid < self.portal.settings.servers.lowest_uid:
            raise PortalError(
                f"{account.pw_name} is an account of the system itself (user id {account.pw_uid}) and gets "
                "no server. Log in as a person.",
                reason="system_account",
                final=True,
            )
        return account

    def _log_file(self) -> Path:
        return self.portal.settings.state_dir / "logs" / "servers" / f"{self.lease.reservation_id}.log"

    def _is_still_ours(self) -> bool:
        found = [r for r in self.sessions.all() if (r.user, r.server_name) == (self.user.name, self.name)]
        return any(record.pid == self.pid and sessions.is_alive(record) for record in found)

    def _end_session_of(self, row: ReservationRow) -> None:
        """End what an earlier start of this reservation left running."""
        record = self.sessions.get(row.reservation_id)
        if record is not None and sessions.end(record, _STOP_LEFTOVERS_S):
            self.sessions.forget(row.reservation_id)


def home_folder(state: Path, row: ReservationRow) -> Path:
    """The folder of the disk, or one of this reservation alone, which is removed when it ends."""
    if row.disk_name:
        return state / "disks" / safe_slug(row.user_id) / row.disk_name
    return state / "scratch" / row.reservation_id
