"""What one person may count on: nothing that is promised or closed; and what a failure left of the files."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from builders import CATALOGUE, NOW, Desk, Row, ask, hours, row_of

from gpudev_core import maintenance, views
from gpudev_core.models import Status
from gpudev_core.settings import Settings
from gpudev_core.store import Store


@pytest.fixture
def desk(store: Store) -> Desk:
    """One of two h100 nodes is held for three hours; somebody waits for both."""
    found = Desk(store)
    Row("held", "stranger", ask("h100", 8, 3)).active(NOW, node_3=range(8)).save(store)
    Row("gang", "other", ask("h100", 16, 2)).status(Status.QUEUED).save(store)
    return found


def h100(store: Store, asked: float = 1.0, groups: Sequence[str] = ()) -> dict[str, Any]:
    with store.read() as session:
        shown = views.form(session, Settings(), CATALOGUE, "ada", NOW, groups, asked)
    assert shown["hours"] == asked
    return next(kind for kind in shown["types"] if kind["gpu_type"] == "h100")


@pytest.mark.parametrize(
    ("asked", "starts_now", "instead"), [(1, True, None), (2, True, None), (4, False, 2), (8, False, 2)]
)
def test_a_short_stay_starts_before_a_promise_and_a_long_one_is_told_so(
    desk: Desk, asked: float, starts_now: bool, instead: float | None
) -> None:
    size = next(size for size in h100(desk.store, asked)["counts"] if size["count"] == 8)
    assert (size["starts_now"], size["now_for_hours"]) == (starts_now, instead)


def test_without_a_queue_no_shorter_time_is_looked_for(store: Store) -> None:
    desk = Desk(store)
    Row("held", "stranger", ask("h100", 8, 3)).active(NOW, node_3=range(8)).save(store)
    sizes = {size["count"]: size for size in h100(desk.store, 4)["counts"]}
    assert sizes[16]["now_for_hours"] is None and not sizes[16]["starts_now"]


def test_of_a_closed_type_nothing_is_free_but_for_those_who_may(desk: Desk) -> None:
    assert h100(desk.store)["free"] == 8
    with desk.store.write() as session:
        maintenance.begin(session, "h100", note="new driver", allowed=["@staff"])
    closed = h100(desk.store)
    assert (closed["free"], closed["maintenance"]) == (0, {"note": "new driver"})
    assert (h100(desk.store, groups=("staff",))["free"]) == 8


@pytest.mark.parametrize(
    ("code", "disk", "launched", "note"),
    [
        ("node_lost", "main", True, "Disk main is safe."),
        ("node_lost", "", True, "Files without a disk are gone."),
        ("exited", "", False, ""),
        ("image_not_found", "main", False, "Disk main is safe. Choose another image."),
        (None, "main", False, "Disk main is safe."),
    ],
)
def test_a_failure_says_first_what_became_of_the_files(
    store: Store, code: str | None, disk: str, launched: bool, note: str
) -> None:
    row = Row("r1", request=ask(disk=disk)).ended(NOW, Status.FAILED)
    row.with_(failure_code=code, launched_at=NOW - hours(1) if launched else None).save(store)
    assert views.reservation(row_of(store, "r1"))["failure_note"] == note
