"""Where the portal keeps its rows: SQLite on one machine, PostgreSQL elsewhere; migrations make the tables.

``read()`` and ``write()`` are the only ways in, and each is one transaction. A writer on SQLite takes the
write lock when it begins, so that what it read is still true when it writes; ``lock`` does the same for one
name on PostgreSQL.
"""

from __future__ import annotations

import sqlite3
import time
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from alembic import command
from alembic.config import Config
from sqlalchemy import URL, Connection, Engine, create_engine, event, text
from sqlalchemy.engine import make_url
from sqlalchemy.exc import OperationalError
from sqlalchemy.orm import Session

from gpudev_core.errors import PortalError

MIGRATIONS = Path(__file__).parent / "migrations"
CHANNEL = "gpudev_change"
_SQLITE_WAIT_S = 30
_MIGRATION_LOCK = zlib.crc32(b"gpudev-migrations")


class Store:
    def __init__(self, url: str) -> None:
        self.url = make_url(url)
        if self.url.drivername == "postgresql":
            self.url = self.url.set(drivername="postgresql+psycopg2")  # the driver that ``doorbell`` speaks
        self.is_sqlite = self.url.get_backend_name() == "sqlite"
        self.engine = (
            _sqlite_engine(self.url) if self.is_sqlite else create_engine(self.url, pool_pre_ping=True)
        )

    @contextmanager
    def read(self) -> Iterator[Session]:
        with Session(self.engine, expire_on_commit=False) as session, session.begin():
            yield session

    @contextmanager
    def write(self) -> Iterator[Session]:
        """A transaction that others hear of when it is committed."""
        engine = self.engine.execution_options(gpudev_write=True)
        with Session(engine, expire_on_commit=False) as session, session.begin():
            yield session
            if not self.is_sqlite:
                session.execute(text("SELECT pg_notify(:channel, '')"), {"channel": CHANNEL})

    def lock(self, session: Session, name: str) -> None:
        """Hold ``name`` until the transaction ends. SQLite's writers are one at a time as it is."""
        if not self.is_sqlite:
            session.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": zlib.crc32(name.encode())})

    def migrate(self) -> None:
        """Bring the tables to this version. Several processes may call it at once."""
        config = Config()
        config.set_main_option("script_location", str(MIGRATIONS).replace("%", "%%"))
        try:
            with self.engine.execution_options(gpudev_write=True).begin() as connection:
                if not self.is_sqlite:
                    connection.execute(text("SELECT pg_advisory_xact_lock(:k)"), {"k": _MIGRATION_LOCK})
                config.attributes["connection"] = connection
                command.upgrade(config, "head")
        except OperationalError as error:
            raise PortalError(
                f"The database {self.safe_url} cannot be used: {_first_line(error)}", reason="database"
            ) from error

    @property
    def safe_url(self) -> str:
        return self.url.render_as_string(hide_password=True)

    def close(self) -> None:
        self.engine.dispose()


def _sqlite_engine(url: URL) -> Engine:
    engine = create_engine(url, connect_args={"timeout": _SQLITE_WAIT_S})

    @event.listens_for(engine, "connect")
    def _on_connect(connection: Any, _record: object) -> None:
        connection.isolation_level = None  # transactions begin where we say, not where the driver thinks
        _use_wal(connection)
        connection.execute("PRAGMA synchronous=NORMAL")
        connection.execute("PRAGMA foreign_keys=ON")

    @event.listens_for(engine, "begin")
    def _on_begin(connection: Connection) -> None:
        writes = connection.get_execution_options().get("gpudev_write")
        connection.exec_driver_sql("BEGIN IMMEDIATE" if writes else "BEGIN")

    return engine


def _use_wal(connection: Any) -> None:
    """SQLite waits for others everywhere but where several open a new file at once and change its mode."""
    deadline = time.monotonic() + _SQLITE_WAIT_S
    while True:
        try:
            connection.execute("PRAGMA journal_mode=WAL")
            return
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode & 0xFF != sqlite3.SQLITE_BUSY or time.monotonic() > deadline:
                raise
            time.sleep(0.01)


def _first_line(error: OperationalError) -> str:
    return str(error.orig).strip().splitlines()[0]
