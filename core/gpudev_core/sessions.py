"""The processes of local mode: one record for each running server, kept in the state folder.

A record is written before the process is started and names it by a marker in its environment, so that a
server whose hub was killed at the wrong moment is found again, and so is every program that it left behind.
A process id alone is never trusted: ids are used again.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import psutil

MARKER = "GPUDEV_SESSION"


@dataclass(frozen=True)
class SessionRecord:
    reservation_id: str
    user: str
    server_name: str
    marker: str
    pid: int = 0


class Sessions:
    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def begin(self, reservation_id: str, user: str, server_name: str) -> SessionRecord:
        """To be called before the process is started, with ``record.marker`` in its environment."""
        record = SessionRecord(reservation_id, user, server_name, secrets.token_hex(16))
        self._write(record)
        return record

    def started(self, record: SessionRecord, pid: int) -> None:
        self._write(replace(record, pid=pid))

    def get(self, reservation_id: str) -> SessionRecord | None:
        return _read(self._path(reservation_id))

    def all(self) -> list[SessionRecord]:
        found = (_read(path) for path in sorted(self._folder.glob("*.json")))
        return [record for record in found if record is not None]

    def forget(self, reservation_id: str) -> None:
        self._path(reservation_id).unlink(missing_ok=True)

    def _path(self, reservation_id: str) -> Path:
        return self._folder / f"{reservation_id}.json"

    def _write(self, record: SessionRecord) -> None:
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        path = self._path(record.reservation_id)
        temporary = path.with_suffix(".new")
        temporary.write_text(json.dumps(asdict(record)))
        os.replace(temporary, path)


def is_alive(record: SessionRecord) -> bool:
    return _by_pid(record) is not None or (not record.pid and any(_carriers(record.marker)))


def end(record: SessionRecord, grace_s: float) -> bool:
    """End the server and every program it started, however they were left running. True when all are gone."""
    server = _by_pid(record)
    family = {*_carriers(record.marker), *(_descendants(server) if server else ())}
    for process in family:
        with contextlib.suppress(psutil.NoSuchProcess, psutil.AccessDenied):
            process.terminate()
    _, stubborn = psutil.wait_procs(family, timeout=grace_s)
    late = {*stubborn, *_carriers(record.marker)}
    for process in late:
        with contextlib.suppress(psutil.NoSuchProcess, psutil.AccessDenied):
            process.kill()
    _, left = psutil.wait_procs(late, timeout=5)
    return not left


def carriers(record: SessionRecord) -> list[psutil.Process]:
    """Every process of the server that runs now, whoever its parent is by now."""
    return list(_carriers(record.marker))


def owner_of(pid: int) -> str | None:
    """The marker that a process carries, if it runs inside a portal's server."""
    try:
        return psutil.Process(pid).environ().get(MARKER)
    except psutil.Error:
        return None


def _by_pid(record: SessionRecord) -> psutil.Process | None:
    """The process, if it still is the one that was started. One that may not be looked at is an error."""
    if not record.pid:
        return None
    try:
        process = psutil.Process(record.pid)
        return process if process.environ().get(MARKER) == record.marker else None
    except psutil.NoSuchProcess:
        return None


def _carriers(marker: str) -> Iterator[psutil.Process]:
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, OSError):
            if process.environ().get(MARKER) == marker:
                yield process


def _descendants(process: psutil.Process) -> list[psutil.Process]:
    with contextlib.suppress(psutil.NoSuchProcess):
        return [process, *process.children(recursive=True)]
    return []


def _read(path: Path) -> SessionRecord | None:
    """None for a record that is not there; one that cannot be read is an error, never "no session"."""
    try:
        data: dict[str, Any] = json.loads(path.read_text())
    except FileNotFoundError:
        return None
    return SessionRecord(**data)
