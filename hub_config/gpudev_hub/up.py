"""Everything on one machine with one command: starts the hub, watches it, and ends what it started.

A hub that ends by itself is started again; servers go on meanwhile. Ctrl+C ends hub, services and servers.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType

import httpx

from gpudev_core import sessions
from gpudev_core.errors import SettingsError
from gpudev_core.sessions import Sessions
from gpudev_core.settings import Settings
from gpudev_hub import login, ports

CONFIG = Path(__file__).parent / "jupyterhub_config.py"
STARTS_WITHIN_S = 60
_NEEDED_MB = 100
_MOST_RESTARTS = 5


def run(settings: Settings, environ: dict[str, str], say: Callable[[str], None]) -> int:
    """Run the portal until it is told to end. The exit code is 0 when that was on purpose."""
    os.umask(0o077)
    check_state_folder(settings.state_dir)
    with only_one(settings) as lock:
        check_port(settings)
        first = not (settings.state_dir / login.USER_PASSWORD_FILE).exists()
        return Supervisor(settings, environ, say, lock).run(lambda: say(welcome(settings, first)))


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
        os.truncate(descriptor, 0)
        os.pwrite(descriptor, f"process {os.getpid()}, {public_url(settings)}\n".encode(), 0)
        yield descriptor
    finally:
        os.close(descriptor)


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
    return f"http://{host}:{address.port}{address.base_url}"


def welcome(settings: Settings, first: bool) -> str:
    lines = ["", f"The portal answers at {public_url(settings)}"]
    if settings.login.kind == "password":
        path = settings.state_dir / login.USER_PASSWORD_FILE
        if first:
            lines.append(f"Log in with any user name and this password: {path.read_text().strip()}")
            lines.append(f"It is not shown again; it is kept in {path}")
        else:
            lines.append(f"Log in with any user name; the password is in {path}")
        admins = ", ".join(settings.login.admins)
        if admins:
            lines.append(f"Admins ({admins}): password in {path.with_name(login.ADMIN_PASSWORD_FILE)}")
    lines += [f"Logs: {settings.state_dir / 'logs'}", "Ctrl+C ends the portal and everything it started.", ""]
    return "\n".join(lines)


class Supervisor:
    def __init__(
        self, settings: Settings, environ: dict[str, str], say: Callable[[str], None], lock: int
    ) -> None:
        self._settings = settings
        self._environ = environ
        self._say = say
        self._lock = lock
        self._log = settings.state_dir / "logs" / "hub.log"
        self._ending = False
        self._hub: subprocess.Popen[bytes] | None = None

    def run(self, ready: Callable[[], None]) -> int:
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, self._on_signal)
        restarts = 0
        self._say("Starting the portal ...")
        try:
            while True:
                self._hub = self._start_hub()
                answered = self._wait_until_it_answers()
                if answered and restarts == 0:
                    ready()
                code = self._hub.wait()
                if self._ending:
                    return 0
                restarts += 1
                if not answered or restarts > _MOST_RESTARTS:
                    self._say(self._why_it_ended(code))
                    return 1
                self._say(
                    f"The hub ended unexpectedly ({_word(code)}). Starting it again; servers keep running."
                )
        finally:
            self._end_everything()

    def _start_hub(self) -> subprocess.Popen[bytes]:
        self._log.parent.mkdir(parents=True, exist_ok=True)
        with open(self._log, "ab") as log:
            return subprocess.Popen(
                [sys.executable, "-m", "jupyterhub", "-f", str(CONFIG)],
                cwd=self._settings.state_dir,
                env=self._environ,
                stdout=log,
                stderr=log,
                stdin=subprocess.DEVNULL,
                start_new_session=True,  # the terminal's Ctrl+C is ours to pass on, in order
                pass_fds=[self._lock],
            )

    def _wait_until_it_answers(self) -> bool:
        assert self._hub is not None
        base = f"http://{_reachable(self._settings.address.host)}:{self._settings.address.port}"
        base += self._settings.address.base_url
        deadline = time.monotonic() + STARTS_WITHIN_S
        with httpx.Client(timeout=2, trust_env=False) as client:
            while time.monotonic() < deadline and self._hub.poll() is None and not self._ending:
                if _is_well(client, base + "services/gpu-dev/health"):
                    return True
                time.sleep(0.05)
        return False

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        self._ending = True
        if self._hub is not None and self._hub.poll() is None:
            self._hub.terminate()

    def _end_everything(self) -> None:
        """Hub and services first, then the servers, so that nobody starts one again meanwhile."""
        self._ending = True
        if self._hub is not None and self._hub.poll() is None:
            self._hub.terminate()
            try:
                self._hub.wait(20)
            except subprocess.TimeoutExpired:
                self._hub.kill()
                self._hub.wait()
        kept = Sessions(self._settings.state_dir / "sessions")
        running = [record for record in kept.all() if sessions.is_alive(record)]
        if running:
            self._say(f"Ending {len(running)} running server{'s' if len(running) > 1 else ''} ...")
        for record in kept.all():
            if sessions.end(record, grace_s=10):
                kept.forget(record.reservation_id)
        self._say("The portal has ended.")

    def _why_it_ended(self, code: int) -> str:
        tail = self._log.read_text(errors="replace").splitlines()[-15:]
        return "\n".join([f"The hub ended ({_word(code)}). Its last words, from {self._log}:", *tail])


def _is_well(client: httpx.Client, url: str) -> bool:
    """The web service answers through hub and proxy, and a controller is at work."""
    with contextlib.suppress(httpx.HTTPError, ValueError, KeyError):
        return client.get(url).json()["status"] == "healthy"
    return False


def _reachable(host: str) -> str:
    return "127.0.0.1" if host in ("0.0.0.0", "") else "[::1]" if host == "::" else host


def _word(code: int) -> str:
    return f"signal {-code}" if code < 0 else f"exit code {code}"
