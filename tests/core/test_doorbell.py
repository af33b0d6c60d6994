from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Iterator

import pytest
from builders import Row, row_counts
from sqlalchemy import text

from gpudev_core.doorbell import Doorbell
from gpudev_core.store import Store

LONG = 30.0
"""Never waited for: the doorbell answers as soon as it hears."""
SHORT = 0.3

TOUCH = """
import sys
from gpudev_core.store import Store
from sqlalchemy import text
store = Store(sys.argv[1])
with store.write() as session:
    session.execute(text("UPDATE reservations SET name = 'touched'"))
"""


@pytest.fixture
def bell(store: Store) -> Iterator[Doorbell]:
    Row("r1").save(store)
    listener = Doorbell(store)
    yield listener
    listener.close()


def touch(store: Store, name: str = "touched") -> None:
    with store.write() as session:
        session.execute(text("UPDATE reservations SET name = :name"), {"name": name})


def test_silence_is_not_heard(bell: Doorbell) -> None:
    assert not bell.wait(SHORT)


def test_a_commit_of_another_connection_is_heard(bell: Doorbell, store: Store) -> None:
    touch(store)
    assert bell.wait(LONG)


def test_a_commit_of_another_process_is_heard(bell: Doorbell, database: str) -> None:
    subprocess.run([sys.executable, "-c", TOUCH, database], check=True, timeout=60)
    assert bell.wait(LONG)


def test_a_commit_is_heard_while_waiting(bell: Doorbell, store: Store) -> None:
    writer = threading.Timer(0.1, touch, [store])
    writer.start()
    assert bell.wait(LONG)
    writer.join()


def test_a_commit_before_the_wait_is_not_lost(bell: Doorbell, store: Store) -> None:
    touch(store)
    assert bell.wait(0) or bell.wait(LONG)


def test_a_rollback_is_not_heard(bell: Doorbell, store: Store) -> None:
    with pytest.raises(ZeroDivisionError), store.write() as session:
        session.execute(text("UPDATE reservations SET name = 'x'"))
        raise ZeroDivisionError
    assert not bell.wait(SHORT)


def test_a_reader_is_not_heard(bell: Doorbell, store: Store) -> None:
    assert row_counts(store)["reservations"] == 1
    assert not bell.wait(SHORT)


def test_what_was_heard_is_not_heard_again(bell: Doorbell, store: Store) -> None:
    for number in range(3):
        touch(store, f"touch {number}")
    heard = [bell.wait(SHORT) for _ in range(4)]
    assert heard[0]
    assert not heard[-1]


def test_a_ring_of_another_thread_is_heard_once(bell: Doorbell) -> None:
    ringer = threading.Timer(0.1, bell.ring)
    ringer.start()
    assert bell.wait(LONG)
    ringer.join()
    assert not bell.wait(SHORT)


def test_every_listener_hears(bell: Doorbell, store: Store) -> None:
    other = Doorbell(store)
    touch(store)
    assert other.wait(LONG)
    assert bell.wait(LONG)
    other.close()


def test_a_closed_doorbell_keeps_no_connection(store: Store) -> None:
    listener = Doorbell(store)
    listener.close()
    assert store.engine.pool.checkedout() == 0


@pytest.mark.parametrize("database_kind", ["postgresql"], indirect=True)
def test_a_lost_line_is_taken_up_again_and_counts_as_heard(bell: Doorbell, store: Store) -> None:
    others = (
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
        "WHERE pid <> pg_backend_pid() AND datname = current_database()"
    )
    with store.engine.connect() as connection:
        connection.execute(text(others))
    assert bell.wait(LONG)
    assert not bell.wait(SHORT)
    touch(store)
    assert bell.wait(LONG)
