"""Hear of another process's commit within a moment, without asking for rows.

PostgreSQL tells by NOTIFY. SQLite keeps a number, ``PRAGMA data_version``, that changes when another
connection commits; reading it costs microseconds, so it is looked at often.
"""

from __future__ import annotations

import select
import time
from typing import Any

import psycopg2
from sqlalchemy.exc import SQLAlchemyError

from gpudev_core.store import CHANNEL, Store

LOOK_EVERY_S = 0.05


class Doorbell:
    """One listener, for one thread. ``ring`` may be called from any thread of this process."""

    _raw: Any
    _driver: Any

    def __init__(self, store: Store) -> None:
        self._store = store
        self._rung = False
        self._connect()

    def ring(self) -> None:
        self._rung = True

    def wait(self, timeout: float) -> bool:
        """True as soon as somebody else committed or rang; False after ``timeout`` seconds."""
        deadline = time.monotonic() + timeout
        while True:
            if self._rung or self._heard(max(0.0, min(LOOK_EVERY_S, deadline - time.monotonic()))):
                self._rung = False
                return True
            if time.monotonic() >= deadline:
                return False

    def close(self) -> None:
        self._raw.invalidate()

    def _connect(self) -> None:
        self._raw = self._store.engine.raw_connection()
        self._driver = self._raw.driver_connection
        if self._store.is_sqlite:
            self._seen = self._data_version()
            return
        self._driver.autocommit = True
        with self._driver.cursor() as cursor:
            cursor.execute(f"LISTEN {CHANNEL}")

    def _heard(self, seconds: float) -> bool:
        return self._sqlite_heard(seconds) if self._store.is_sqlite else self._postgres_heard(seconds)

    def _sqlite_heard(self, seconds: float) -> bool:
        time.sleep(seconds)
        version = self._data_version()
        heard = version != self._seen
        self._seen = version
        return heard

    def _postgres_heard(self, seconds: float) -> bool:
        try:
            select.select([self._driver], [], [], seconds)
            self._driver.poll()
        except psycopg2.Error:
            return self._reconnected()
        heard = bool(self._driver.notifies)
        self._driver.notifies.clear()
        return heard

    def _reconnected(self) -> bool:
        """The line was lost. Once it is back, whatever was missed counts as heard."""
        if self._raw.is_valid:
            self._raw.invalidate()
        try:
            self._connect()
        except (psycopg2.Error, SQLAlchemyError):
            time.sleep(LOOK_EVERY_S)
            return False
        return True

    def _data_version(self) -> int:
        return int(self._driver.execute("PRAGMA data_version").fetchone()[0])
