from __future__ import annotations

import json
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest
from builders import CATALOGUE, NOW, Cluster, Desk, Row, ask, events_of, hours, minutes, row_of, save_disk

from gpudev_core import availability, views
from gpudev_core.catalogue import Catalogue
from gpudev_core.models import Status
from gpudev_core.settings import Settings
from gpudev_core.store import Store

STRANGER = "Zaphod-Beeblebrox"


def form(store: Store, user: str = "ada", now: datetime = NOW, catalogue: Catalogue = CATALOGUE) -> Any:
    with store.read() as session:
        return views.form(session, Settings(), catalogue, user, now)


def type_of(shown: Any, gpu_type: str) -> Any:
    return next(entry for entry in shown["types"] if entry["gpu_type"] == gpu_type)


def see(store: Store, *clusters: Cluster) -> None:
    nodes = [node for cluster in clusters for node in cluster.nodes]
    availability.save(store, CATALOGUE, nodes, [], now=NOW, by="test")


# The form


def test_cells_show_free_mine_others_and_down(store: Store) -> None:
    see(store, Cluster().node("node-1", foreign={7}).node("node-2", ready=False))
    Row("r1", "ada", ask("h100", 2)).active(node_1=[0, 1]).save(store)
    Row("r2", STRANGER, ask("h100", 1)).preparing(node_1=[4]).save(store)
    Row("r3", STRANGER, ask("h100", 8)).active(node_2=range(8)).save(store)
    shown = type_of(form(store), "h100")
    assert shown["nodes"] == [
        {"name": "node-1", "cells": "mmffoffo"},
        {"name": "node-2", "cells": "dddddddd"},
    ]
    assert (shown["free"], shown["total"], shown["down"]) == (4, 8, 8)


def test_a_gpu_that_the_node_has_no_more_is_not_shown(store: Store) -> None:
    see(store, Cluster().node("node-1", units=4))
    Row("r1", "ada", ask("h100", 8)).active(node_1=range(8)).save(store)
    assert type_of(form(store), "h100")["nodes"][0]["cells"] == "mmmm"


def test_types_come_in_the_order_of_the_catalogue_and_only_where_there_are_nodes(desk: Desk) -> None:
    assert [entry["gpu_type"] for entry in form(desk.store)["types"]] == ["t4", "h100", "cpu-x86"]


def test_a_type_that_the_catalogue_lost_does_not_break_the_form(desk: Desk) -> None:
    smaller = Catalogue(kind for kind in CATALOGUE.values() if kind.name != "h100")
    assert [t["gpu_type"] for t in form(desk.store, catalogue=smaller)["types"]] == ["t4", "cpu-x86"]


def test_each_size_says_whether_it_starts_now_or_when(desk: Desk) -> None:
    Row("r1", STRANGER, ask("h100", 4, 2)).active(NOW, node_3=range(4)).save(desk.store)
    sizes = {size["count"]: size for size in type_of(form(desk.store), "h100")["counts"]}
    assert list(sizes) == [1, 2, 4, 8, 16, 24, 32]
    assert sizes[4] == {
        "count": 4,
        "nodes": 1,
        "possible": True,
        "starts_now": True,
        "about": "2026-03-02T09:00:00Z",
        "no_later_than": "2026-03-02T09:00:00Z",
        "now_for_hours": None,
        "on": ["node-3"],
        "reason": None,
    }
    assert sizes[8]["on"] == ["node-4"]
    assert sizes[16] == {
        "count": 16,
        "nodes": 2,
        "possible": True,
        "starts_now": False,
        "about": "2026-03-02T11:01:00Z",
        "no_later_than": "2026-03-02T11:01:00Z",
        "now_for_hours": None,
        "on": ["node-3", "node-4"],
        "reason": {"code": "needs_empty_nodes", "nodes": 2, "node": "node-3", "at": "2026-03-02T11:01:00Z"},
    }
    assert (sizes[24]["possible"], sizes[24]["about"], sizes[24]["on"]) == (False, None, [])
    assert sizes[24]["reason"]["code"] == "does_not_fit"


def test_sizes_wait_behind_the_queue_of_their_type(desk: Desk) -> None:
    Row("q", STRANGER, ask("h100", 16, 3)).status(Status.QUEUED).save(desk.store)
    shown = form(desk.store)
    h100, t4 = type_of(shown, "h100"), type_of(shown, "t4")
    assert (h100["queued"], t4["queued"]) == (1, 0)
    assert {size["about"] for size in h100["counts"] if size["possible"]} == {"2026-03-02T12:03:00Z"}
    assert all(size["starts_now"] for size in t4["counts"])


def test_a_size_beside_a_queue_that_starts_now_starts_now_without_a_reason(desk: Desk) -> None:
    Row("q", STRANGER, ask("h100", 8, 3)).save(desk.store)
    sizes = type_of(form(desk.store), "h100")["counts"]
    assert (sizes[0]["starts_now"], sizes[0]["reason"]) == (True, None)


def test_a_cpu_machine_has_slots_and_one_size(desk: Desk) -> None:
    shown = type_of(form(desk.store), "cpu-x86")
    assert (shown["is_cpu"], shown["per_node"], shown["nodes"][0]["cells"]) == (True, 3, "fff")
    assert [(size["count"], size["nodes"]) for size in shown["counts"]] == [(0, 1)]


def test_the_rest_of_the_form_is_the_persons_own(desk: Desk) -> None:
    save_disk(desk.store, "data", size_gb=100, last_used=NOW - hours(1), snapshot_count=2)
    save_disk(desk.store, "theirs", user=STRANGER)
    Row("r1", "ada", ask("t4", 2, 3, disk="data")).active(node_1=[0, 1]).with_(name="train").save(desk.store)
    Row("r2", STRANGER, ask("t4", 1)).save(desk.store)
    shown = form(desk.store)
    assert (shown["user"], shown["now"], shown["as_of"], shown["stale"]) == (
        "ada",
        "2026-03-02T09:00:00Z",
        "2026-03-02T09:00:00Z",
        False,
    )
    assert shown["quota"]["gpus"] == {"limit": 32, "used": 2}
    assert shown["quota"]["gpu_hours"]["used"] == 6
    assert shown["taken_names"] == ["r1"]
    assert shown["images"] == ["local"]
    assert shown["disks"] == [
        {
            "name": "data",
            "size_gb": 100,
            "last_used": "2026-03-02T08:00:00Z",
            "snapshots": 2,
            "in_use_by": {"reservation_id": "r1", "name": "train", "until": "2026-03-02T12:00:00Z"},
        }
    ]


def test_the_form_is_json_and_names_nobody_else(desk: Desk) -> None:
    """Neither the person nor what they called their things."""
    save_disk(desk.store, "d1", user=STRANGER)
    for number, row in enumerate(
        [
            Row("q", STRANGER, ask("h100", 16, 3, name=STRANGER)).status(Status.QUEUED),
            Row("p", STRANGER, ask("h100", 8, 3)).preparing(node_3=range(8)),
            Row("a", STRANGER, ask("t4", 4, 3, disk="d1")).active(node_1=range(4)),
            Row("e", STRANGER, ask("t4", 4, 3)).active(node_2=[0]).with_(end_wanted="expired"),
        ]
    ):
        row.with_(name=f"{STRANGER}-{number}", server_name=f"{STRANGER}-{number}").save(desk.store)
    dumped = json.dumps(form(desk.store), allow_nan=False)
    assert STRANGER not in dumped
    assert "o" * 8 in dumped
    assert STRANGER in json.dumps(form(desk.store, user=STRANGER)), "the search would find it"


@pytest.mark.parametrize(("age", "stale"), [(minutes(1), False), (minutes(7), True)], ids=["fresh", "old"])
def test_old_figures_are_shown_as_stale(desk: Desk, age: timedelta, stale: bool) -> None:
    shown = form(desk.store, now=NOW + age)
    assert (shown["stale"], shown["as_of"]) == (stale, "2026-03-02T09:00:00Z")


def test_before_a_controller_has_looked_the_form_is_empty_but_whole(store: Store) -> None:
    shown = form(store)
    assert (shown["types"], shown["as_of"], shown["stale"]) == ([], None, False)
    assert shown["quota"]["reservations"] == {"limit": 5, "used": 0}


# One reservation, one event


def test_a_reservation_is_json_with_all_its_times(store: Store) -> None:
    Row("r1", "ada", ask("h100", 16, 2, disk="d")).active(NOW, n_1=range(8), n_2=range(8)).save(store)
    shown = json.loads(
        json.dumps(views.reservation(row_of(store, "r1"), queue_length=4, lab_url="/user/ada/r1"))
    )
    assert (shown["status"], shown["nodes"], shown["disk"]) == ("active", ["n-1", "n-2"], "d")
    assert (shown["launched_at"], shown["expires_at"]) == ("2026-03-02T09:00:00Z", "2026-03-02T11:00:00Z")
    assert (shown["lab_url"], shown["queue_length"]) == ("/user/ada/r1", 4)
    assert shown["request"] == ask("h100", 16, 2, disk="d").as_json()


@pytest.mark.parametrize(
    ("row", "is_open"),
    [
        pytest.param(Row().active(), True, id="of one that runs is given"),
        pytest.param(Row().active().with_(end_wanted="cancelled"), False, id="of one that ends is not"),
        pytest.param(Row().preparing(), False, id="of one that is not up yet is not"),
        pytest.param(Row().active().ended(NOW), False, id="of one that ended is not"),
    ],
)
def test_the_address_of_the_lab(store: Store, row: Row, is_open: bool) -> None:
    shown = views.reservation(row_of(store, row.save(store)), lab_url="/lab")
    assert bool(shown["lab_url"]) is is_open


def test_an_event_says_who_when_what_and_why(desk: Desk) -> None:
    reservation_id = desk.file().reservation_id
    [event] = events_of(desk.store, reservation_id)
    assert views.event(event) == {
        "at": "2026-03-02T09:00:00Z",
        "actor": "ada",
        "event": "filed",
        "from": None,
        "to": "pending",
        "detail": {"from": "test"},
    }


@pytest.mark.parametrize(
    ("moment", "expected"),
    [
        pytest.param(NOW, "2026-03-02T09:00:00Z", id="in UTC"),
        pytest.param(
            NOW.astimezone(timezone(timedelta(hours=-8))), "2026-03-02T09:00:00Z", id="in another zone"
        ),
        pytest.param(NOW.replace(microsecond=999999), "2026-03-02T09:00:00Z", id="to the second"),
        pytest.param(None, None, id="none"),
    ],
)
def test_a_time_is_written(moment: datetime | None, expected: str | None) -> None:
    assert views.iso(moment) == expected


def test_times_become_text_however_deep_they_lie() -> None:
    assert views.plain({"a": [{"b": (NOW, 1)}], "c": None}) == {
        "a": [{"b": ["2026-03-02T09:00:00Z", 1]}],
        "c": None,
    }
