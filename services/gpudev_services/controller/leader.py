"""One controller at a time, and no write of one that has been replaced without knowing it.

A lock says who leads: a lock file beside SQLite, an advisory lock in PostgreSQL, both let go by the system
when their process dies. A process may be frozen, lose the lock and wake up in the middle of a round, so
every leadership has a number, its *term*: a transaction looks at the number first, and holds it, so that
nobody can take over before it ends.
"""

from __future__ import annotations

import fcntl
import os
import socket
import zlib
from pathlib import Path
from typing import Protocol

from sqlalchemy import Connection, select, text
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.orm import Session

from gpudev_core.portal import Portal
from gpudev_core.store import Store
from gpudev_core.tables import LeaderRow

NAME = "controller"
_KEY = zlib.crc32(b"gpudev-controller")


class LostLeadership(Exception):
    """Another controller leads now. What was to be written is not."""


class Lock(Protocol):
    def try_take(self) -> bool:
        """True while this process has it. Asked again at every round."""

    def give_up(self) -> None: ...


class Leader:
    def __init__(self, store: Store, lock: Lock) -> None:
        self._store = store
        self._lock = lock
        self._term: int | None = None

    def leads(self) -> bool:
        """Take the lead where nobody has it. True while it is ours."""
        if not self._lock.try_take():
            self._term = None
        elif self._term is None:
            self._term = self._next_term()
        return self._term is not None

    def guard(self, session: Session) -> None:
        """To be called first in every transaction that only the leader may write."""
        query = select(LeaderRow.term).where(LeaderRow.name == NAME).with_for_update(read=True)
        current = session.scalars(query).one_or_none()
        if self._term is None or current != self._term:
            self._term = None
            raise LostLeadership("another controller leads; nothing was written")

    def give_up(self) -> None:
        self._term = None
        self._lock.give_up()

    def _next_term(self) -> int:
        with self._store.write() as session:
            self._store.lock(session, f"leader:{NAME}")
            row = session.get(LeaderRow, NAME, with_for_update=True)
            if row is None:
                row = LeaderRow(name=NAME, term=0, owner="")
                session.add(row)
            row.term += 1
            row.owner = f"{socket.gethostname()}:{os.getpid()}"
            return row.term


def leader_of(portal: Portal) -> Leader:
    lock: Lock
    if portal.store.is_sqlite:
        lock = FileLock(portal.settings.state_dir / "controller.lock")
    else:
        lock = AdvisoryLock(portal)
    return Leader(portal.store, lock)


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
        self._connection: Connection | None = None
        self._held = False

    def try_take(self) -> bool:
        try:
            if self._connection is None:
                self._connection = self._engine.connect().execution_options(isolation_level="AUTOCOMMIT")
            if self._held:
                self._connection.execute(text("SELECT 1"))
            else:
                answer = self._connection.execute(text("SELECT pg_try_advisory_lock(:key)"), {"key": _KEY})
                self._held = bool(answer.scalar())
        except SQLAlchemyError:
            self._held = False
            self._drop()
        return self._held

    def give_up(self) -> None:
        self._held = False
        self._drop()

    def _drop(self) -> None:
        """Close it for good: one that failed is of no more use, and one in the pool would keep the lock."""
        if self._connection is not None:
            self._connection.invalidate()
            self._connection.close()
            self._connection = None
