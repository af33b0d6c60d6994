"""Everything on one machine with one command: starts the hub, watches it, and ends what it started.

A hub that ends by itself is started again; servers go on meanwhile. Ctrl+C ends hub, services and servers.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import FrameType

import httpx

from gpudev_core import sessions
from gpudev_core.sessions import SessionRecord, Sessions
from gpudev_core.settings import Settings
from gpudev_hub import checks, login, ports

CONFIG = Path(__file__).parent / "jupyterhub_config.py"
STARTS_WITHIN_S = 60
_MOST_RESTARTS = 5
_RESTARTS_WITHIN_S = 600
_LOG_BYTES = 50 << 20


def run(settings: Settings, environ: dict[str, str], say: Callable[[str], None]) -> int:
    """Run the portal until it is told to end. The exit code is 0 when that was on purpose."""
    os.umask(0o077)
    checks.check_state_folder(settings.state_dir)
    with checks.only_one(settings) as lock:
        checks.check_port(settings)
        first = not (settings.state_dir / login.USER_PASSWORD_FILE).exists()
        checks.check_settings(settings)
        checks.check_login(settings)
        for warning in checks.warnings(settings):
            say(warning)
        return Supervisor(settings, environ, say, lock).run(lambda: say(welcome(settings, first)))


def welcome(settings: Settings, first: bool) -> str:
    lines = ["", f"The portal answers at {checks.public_url(settings)}"]
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
        self._say("Starting the portal ...")
        restarts: list[float] = []
        try:
            while True:
                self._hub = self._start_hub()
                answered = self._wait_until_it_answers()
                if answered and not restarts:
                    ready()
                elif not answered and self._hub.poll() is None and not self._ending:
                    self._say(f"Not well after {STARTS_WITHIN_S} s; still trying. See {self._log}")
                code = self._hub.wait()
                if self._ending:
                    return 0
                restarts = [
                    *(at for at in restarts if time.monotonic() - at < _RESTARTS_WITHIN_S),
                    time.monotonic(),
                ]
                if not answered or len(restarts) > _MOST_RESTARTS:
                    self._say(self._why_it_ended(code))
                    return 1
                self._say(
                    f"The hub ended unexpectedly ({_word(code)}). Starting it again; servers keep running."
                )
        finally:
            self._end_everything()

    def _start_hub(self) -> subprocess.Popen[bytes]:
        self._log.parent.mkdir(parents=True, exist_ok=True)
        put_aside(self._log, _LOG_BYTES)
        with open(self._log, "ab") as log:
            hub = subprocess.Popen(
                [sys.executable, "-m", "jupyterhub", "-f", str(CONFIG)],
                env=self._environ,
                stdout=log,
                stderr=log,
                stdin=subprocess.DEVNULL,
                start_new_session=True,  # the terminal's Ctrl+C is ours to pass on, in order
                pass_fds=[self._lock],
            )
        checks.note_holder(self._lock, hub.pid, self._settings)
        return hub

    def _wait_until_it_answers(self) -> bool:
        assert self._hub is not None
        base = f"http://{ports.reachable(self._settings.address.host)}:{self._settings.address.port}"
        base += self._settings.address.base_url
        deadline = time.monotonic() + STARTS_WITHIN_S
        with httpx.Client(timeout=2, trust_env=False) as client:
            while time.monotonic() < deadline and self._hub.poll() is None and not self._ending:
                if _is_well(client, base + "services/gpu-dev/health"):
                    return True
                time.sleep(0.1)
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
        with ThreadPoolExecutor(max_workers=16) as pool:
            for record, gone in zip(kept.all(), pool.map(_end_session, kept.all()), strict=True):
                if gone:
                    kept.forget(record.reservation_id)
        self._say("The portal has ended.")

    def _why_it_ended(self, code: int) -> str:
        tail = self._log.read_text(errors="replace").splitlines()[-15:]
        return "\n".join([f"The hub ended ({_word(code)}). Its last words, from {self._log}:", *tail])


def put_aside(log: Path, most_bytes: int) -> None:
    """A log that has grown large becomes ``NAME.1``, in place of the one before it."""
    if log.exists() and log.stat().st_size > most_bytes:
        log.replace(log.with_name(log.name + ".1"))


def _end_session(record: SessionRecord) -> bool:
    return sessions.end(record, grace_s=10)


def _is_well(client: httpx.Client, url: str) -> bool:
    """The web service answers through hub and proxy, and a controller is at work."""
    with contextlib.suppress(httpx.HTTPError, ValueError, KeyError):
        return client.get(url).json()["status"] == "healthy"
    return False


def _word(code: int) -> str:
    return f"signal {-code}" if code < 0 else f"exit code {code}"
