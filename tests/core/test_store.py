from __future__ import annotations

import sqlite3
import subprocess
import sys
import threading
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path

import pytest
from alembic import command
from alembic.autogenerate import compare_metadata
from alembic.config import Config
from alembic.migration import MigrationContext
from builders import NOW, Row, at_once, disk_of, events_of, minutes, row_counts, row_of, save_disk
from sqlalchemy import inspect, text
from sqlalchemy.exc import IntegrityError, StatementError

from gpudev_core import reservations
from gpudev_core.errors import PortalError
from gpudev_core.models import Status
from gpudev_core.store import MIGRATIONS, Store
from gpudev_core.tables import Base, DiskRow, ReservationEventRow

only_postgresql = pytest.mark.parametrize("database_kind", ["postgresql"], indirect=True)

MIGRATE = """
import sys
from gpudev_core.store import Store
store = Store(sys.argv[1])
print("ready", flush=True)
sys.stdin.readline()
store.migrate()
"""


@pytest.fixture
def empty_store(empty_database: str) -> Iterator[Store]:
    opened = Store(empty_database)
    yield opened
    opened.close()


# Transactions


def test_what_is_written_is_read_by_others(store: Store, database: str) -> None:
    Row("r1").save(store)
    other = Store(database)
    assert row_of(other, "r1").user_id == "ada"
    other.close()


def test_rows_stay_readable_after_their_transaction(store: Store) -> None:
    Row("r1").save(store)
    assert row_of(store, "r1").request["gpu_type"] == "t4"


def test_a_write_that_fails_leaves_nothing(store: Store) -> None:
    before = row_counts(store)
    with pytest.raises(ZeroDivisionError), store.write() as session:
        session.add(DiskRow(disk_id="d", user_id="ada", disk_name="d", created_at=NOW))
        session.flush()
        raise ZeroDivisionError
    assert row_counts(store) == before


def test_writers_at_once_each_see_what_the_one_before_wrote(store: Store) -> None:
    save_disk(store, "d")

    def count_up() -> None:
        for _ in range(5):
            with store.write() as session:
                store.lock(session, "disk d")
                disk = session.get_one(DiskRow, "ada/d")
                disk.snapshot_count += 1

    assert at_once([count_up] * 8) == [None] * 8
    assert disk_of(store, "d").snapshot_count == 40


def test_writers_of_several_stores_wait_for_each_other(store: Store, database: str) -> None:
    """As the hub, the web service and the controller do."""
    save_disk(store, "d")

    def count_up() -> None:
        own = Store(database)
        try:
            with own.write() as session:
                own.lock(session, "disk d")
                session.get_one(DiskRow, "ada/d").snapshot_count += 1
        finally:
            own.close()

    assert at_once([count_up] * 6) == [None] * 6
    assert disk_of(store, "d").snapshot_count == 6


def test_a_reader_neither_waits_for_a_writer_nor_sees_half_of_its_work(store: Store) -> None:
    with store.write() as session:
        session.add(DiskRow(disk_id="d", user_id="ada", disk_name="d", created_at=NOW))
        session.flush()
        assert row_counts(store)["disks"] == 0
    assert row_counts(store)["disks"] == 1


@only_postgresql
def test_a_lock_holds_its_name_alone_until_its_transaction_ends(store: Store) -> None:
    entered, order = threading.Event(), []

    def take(name: str) -> None:
        with store.write() as session:
            entered.set()
            store.lock(session, name)
            order.append(name)

    with store.write() as session:
        store.lock(session, "a")
        waiting = threading.Thread(target=take, args=("a",))
        waiting.start()
        assert entered.wait(30)
        take("b")
        order.append("end of the first")
    waiting.join(30)
    assert order == ["b", "end of the first", "a"]


# What the database itself refuses


def test_one_server_has_one_open_reservation(store: Store) -> None:
    Row("r1").with_(server_name="lab").save(store)
    with pytest.raises(IntegrityError):
        Row("r2").with_(server_name="lab").status(Status.QUEUED).save(store)
    Row("r3", user="bob").with_(server_name="lab").save(store)


@pytest.mark.parametrize("status", [Status.EXPIRED, Status.CANCELLED, Status.FAILED])
def test_a_server_whose_reservation_ended_may_have_another(store: Store, status: Status) -> None:
    Row("r1").with_(server_name="lab").status(status).save(store)
    Row("r2").with_(server_name="lab").status(status).save(store)
    Row("r3").with_(server_name="lab").save(store)
    with store.read() as session:
        found = reservations.open_on_server(session, "ada", "lab")
    assert found is not None and found.reservation_id == "r3"


def test_an_event_belongs_to_a_reservation(store: Store) -> None:
    with pytest.raises(IntegrityError), store.write() as session:
        session.add(ReservationEventRow(reservation_id="none", at=NOW, actor="x", event="x"))


def test_a_person_has_one_disk_of_a_name(store: Store) -> None:
    save_disk(store, "d")
    save_disk(store, "d", user="bob")
    with pytest.raises(IntegrityError), store.write() as session:
        session.add(DiskRow(disk_id="another", user_id="ada", disk_name="d", created_at=NOW))


# Times


@pytest.mark.parametrize(
    "moment",
    [
        pytest.param(NOW, id="in UTC"),
        pytest.param(NOW.astimezone(timezone(timedelta(hours=5, minutes=45))), id="in another zone"),
        pytest.param(NOW.replace(microsecond=123456), id="with microseconds"),
        pytest.param(datetime(2026, 10, 25, 0, 30, tzinfo=UTC), id="in the hour that summer time repeats"),
    ],
)
def test_a_time_comes_back_aware_and_equal(store: Store, moment: datetime) -> None:
    Row("r1").filed(moment).save(store)
    back = row_of(store, "r1").created_at
    assert back == moment
    assert back.utcoffset() == timedelta(0)


def test_times_are_compared_by_instant_not_by_text(store: Store) -> None:
    east = timezone(timedelta(hours=9))
    Row("late").filed(NOW + minutes(1)).save(store)
    Row("early").filed(NOW.astimezone(east)).save(store)
    with store.read() as session:
        query = text("SELECT reservation_id FROM reservations ORDER BY created_at")
        assert session.scalars(query).all() == ["early", "late"]


def test_a_time_without_a_zone_is_an_error(store: Store) -> None:
    with pytest.raises(StatementError, match="has no time zone"):
        Row("r1").filed(datetime(2026, 3, 2, 9, 0)).save(store)
    assert row_counts(store)["reservations"] == 0


# Migrations


def test_migrations_make_the_tables_of_the_models(empty_store: Store) -> None:
    empty_store.migrate()
    with empty_store.engine.connect() as connection:
        context = MigrationContext.configure(
            connection, opts={"version_table": "gpudev_alembic_version", "compare_type": True}
        )
        assert compare_metadata(context, Base.metadata) == []


def test_migrating_twice_changes_nothing(store: Store) -> None:
    Row("r1").save(store)
    store.migrate()
    store.migrate()
    assert row_of(store, "r1").reservation_id == "r1"


def test_four_processes_may_migrate_at_once(empty_store: Store, empty_database: str) -> None:
    command_line = [sys.executable, "-c", MIGRATE, empty_database]
    processes = [
        subprocess.Popen(
            command_line, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )
        for _ in range(4)
    ]
    for process in processes:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
    for process in processes:
        assert process.stdin is not None
        process.stdin.write("go\n")
        process.stdin.flush()
    complaints = [process.communicate(timeout=60)[1] for process in processes]
    assert [process.returncode for process in processes] == [0] * 4, complaints
    Row("r1").save(empty_store)


def test_a_new_sqlite_file_that_another_process_is_writing_is_waited_for(tmp_path: Path) -> None:
    path = tmp_path / "new.sqlite"
    other = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
    other.execute("CREATE TABLE another (a)")
    other.execute("BEGIN IMMEDIATE")
    release = threading.Timer(0.3, other.execute, ["COMMIT"])
    release.start()
    store = Store(f"sqlite:///{path}")
    store.migrate()
    Row("r1").save(store)
    release.join()
    other.close()
    store.close()


def test_all_the_way_down_and_up_again(store: Store) -> None:
    config = Config()
    config.set_main_option("script_location", str(MIGRATIONS))
    with store.engine.begin() as connection:
        config.attributes["connection"] = connection
        command.downgrade(config, "base")
    assert set(inspect(store.engine).get_table_names()) == {"gpudev_alembic_version"}
    store.migrate()
    assert set(Base.metadata.tables) < set(inspect(store.engine).get_table_names())
    Row("r1").save(store)


def test_a_database_that_cannot_be_used_is_named_without_its_password(tmp_path: Path) -> None:
    store = Store(f"postgresql://me:hunter2@/portal?host={tmp_path}")
    with pytest.raises(PortalError) as caught:
        store.migrate()
    assert caught.value.reason == "database"
    assert str(tmp_path) in caught.value.message
    assert "me:***@" in caught.value.message
    assert "hunter2" not in caught.value.message
    assert "\n" not in caught.value.message


def test_a_sqlite_file_in_a_folder_that_is_missing_is_named(tmp_path: Path) -> None:
    path = tmp_path / "missing" / "portal.sqlite"
    with pytest.raises(PortalError, match=str(path)):
        Store(f"sqlite:///{path}").migrate()


def test_defaults_of_the_models_are_written(store: Store) -> None:
    """What the tables require and nobody gives has a default in the models."""
    Row("r1").save(store)
    row = row_of(store, "r1")
    assert (row.start_attempts, row.jupyter_enabled, row.secondary_users) == (0, True, [])
    assert events_of(store, "r1") == []
