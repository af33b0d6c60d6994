"""One controller at a time: a lock file beside SQLite, an advisory lock in PostgreSQL."""

from __future__ import annotations

import fcntl
import os
import zlib
from pathlib import Path
from typing import Protocol

from sqlalchemy import text
from sqlalchemy.exc import SQLAlchemyError

from gpudev_core.portal import Portal

_KEY = zlib.crc32(b"gpudev-controller")


class Leadership(Protocol):
    def try_take(self) -> bool:
        """True while this process is the leader. Asked again at every round."""

    def give_up(self) -> None: ...


def leadership(portal: Portal) -> Leadership:
    if portal.store.is_sqlite:
        return FileLock(portal.settings.state_dir / "controller.lock")
    return AdvisoryLock(portal)


class FileLock:
    def __init__(self, path: Path) -> None:
        self._descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)

    def try_take(self) -> bool:
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            return False
        return True

    def give_up(self) -> None:
        os.close(self._descriptor)


class AdvisoryLock:
    """Held by one connection, for as long as that connection lives: when it is lost, so is the lock."""

    def __init__(self, portal: Portal) -> None:
        self._engine = portal.store.engine
        self._connection = self._engine.connect().execution_options(isolation_level="AUTOCOMMIT")
        self._held = False

    def try_take(self) -> bool:
        try:
            if self._held:
                self._connection.execute(text("SELECT 1"))
            else:
                answer = self._connection.execute(text("SELECT pg_try_advisory_lock(:key)"), {"key": _KEY})
                self._held = bool(answer.scalar())
        except SQLAlchemyError:
            self._held = False
            self._connection.invalidate()
        return self._held

    def give_up(self) -> None:
        self._connection.close()
