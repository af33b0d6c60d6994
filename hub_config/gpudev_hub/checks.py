"""What is looked at before the portal is started, so that trouble is told in a sentence."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import sys
from collections.abc import Iterator
from pathlib import Path

from traitlets.config import Config

from gpudev_core.errors import SettingsError
from gpudev_core.machine import discover
from gpudev_core.settings import Settings
from gpudev_hub import login, ports

_NEEDED_MB = 100
_OTHERS_MAY_ENTER = 0o001


def check_settings(settings: Settings) -> None:
    """What the settings ask for can be had here."""
    if settings.mode != "local":
        raise SettingsError(
            f"mode: {settings.mode!r} is not possible with this command, which runs local mode."
        )
    discover(settings)
    if settings.servers.run_as == "system-users":
        _check_system_users(settings)


def _check_system_users(settings: Settings) -> None:
    if os.geteuid() != 0:
        raise SettingsError(
            "servers.run_as: 'system-users' needs a portal that runs as root: only root can start programs "
            "as other users."
        )
    for what, path in (("state folder", settings.state_dir), ("Python installation", Path(sys.executable))):
        for start in {path, path.resolve()}:
            closed = next((f for f in start.parents if not f.stat().st_mode & _OTHERS_MAY_ENTER), None)
            if closed is not None:
                raise SettingsError(
                    f"servers.run_as: 'system-users' needs a {what} that other users can reach, but {closed} "
                    f"is closed to them. Use another place than {start}."
                )


def check_login(settings: Settings) -> None:
    """The login can be set up. Makes the password files where there are none yet."""
    login.configure(Config(), settings)


def warnings(settings: Settings) -> list[str]:
    """What is allowed, and that whoever runs the portal should know."""
    found = []
    if settings.servers.run_as == "hub-user" and os.geteuid() == 0:
        found.append(
            "Warning: the portal runs as root, and so does every server: whoever logs in is root on this "
            "machine. Start it as another user, or set servers.run_as to system-users."
        )
    if settings.servers.run_as == "system-users" and settings.login.kind == "password":
        found.append(
            "Warning: with the shared password anybody can log in as anybody, so system users keep nobody "
            "apart. Set login.kind to a provider."
        )
    if settings.address.host not in ("127.0.0.1", "::1", "localhost") and not settings.address.url:
        found.append(
            f"Warning: the portal listens on {settings.address.host} without TLS: passwords can be read on "
            "the way. Put a TLS proxy in front and set address.url."
        )
    return found


def check_state_folder(state: Path) -> None:
    """It can be made, written to, and has some room."""
    probe = state / ".probe"
    try:
        state.mkdir(mode=0o700, parents=True, exist_ok=True)
        probe.write_bytes(b"\0" * 65536)
        probe.unlink()
    except OSError as error:
        raise SettingsError(_folder_trouble(state, error)) from None
    room = os.statvfs(state)
    free_mb = room.f_bavail * room.f_frsize >> 20
    if free_mb < _NEEDED_MB:
        raise SettingsError(
            f"The disk of {state} is nearly full: {free_mb} MB free, {_NEEDED_MB} MB needed. "
            "Make room, or choose another folder: make up STATE=..."
        )


def _folder_trouble(state: Path, error: OSError) -> str:
    if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
        what = "cannot be written to"
    elif error.errno in (errno.ENOSPC, errno.EDQUOT):
        what = "is on a disk that is full"
    else:
        what = f"cannot be used: {error.strerror}"
    return f"The state folder {state} {what}. Choose another one: make up STATE=..."


@contextlib.contextmanager
def only_one(settings: Settings) -> Iterator[int]:
    """One portal for one state folder. The hub inherits the lock, so it lasts as long as either runs."""
    path = settings.state_dir / "lock"
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            held_by = os.read(descriptor, 200).decode().strip() or "another process"
            raise SettingsError(
                f"A portal runs already from {settings.state_dir}: {held_by}. "
                "End it there with Ctrl+C, or choose another folder and port: make up STATE=... PORT=..."
            ) from None
        note_holder(descriptor, os.getpid(), settings)
        yield descriptor
    finally:
        os.close(descriptor)


def note_holder(lock: int, pid: int, settings: Settings) -> None:
    """Say in the lock who holds it, for the next one who comes."""
    os.truncate(lock, 0)
    os.pwrite(lock, f"process {pid}, {public_url(settings)}\n".encode(), 0)


def check_port(settings: Settings) -> None:
    host, port = settings.address.host, settings.address.port
    if ports.is_taken(host, port):
        raise SettingsError(
            f"Port {port} on {host} is taken by another program, or may not be used. "
            f"Choose another one: make up PORT={port + 1 if port < 65535 else 8001}"
        )


def public_url(settings: Settings) -> str:
    address = settings.address
    if address.url:
        return str(address.url)
    host = "localhost" if address.host in ("127.0.0.1", "0.0.0.0", "::", "") else address.host
    return f"http://{ports.in_url(host)}:{address.port}{address.base_url}"
