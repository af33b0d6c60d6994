"""What a terminal shows, at 80 and at 120 columns, as it was drawn."""

from __future__ import annotations

import time
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import pytest

from gpudev_cli import tables, words
from gpudev_cli.client import Availability, Cells, Refused, Reservation, Size

NOW = datetime(2026, 11, 15, 11, 50, 4, tzinfo=UTC)


@pytest.fixture(autouse=True)
def in_berlin(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    with monkeypatch.context() as patch:
        patch.setenv("TZ", "Europe/Berlin")
        time.tzset()
        yield
    time.tzset()


def now() -> datetime:
    return NOW.astimezone()


def size(count: int, about: str = "", by: str = "", nodes: int = 1) -> Size:
    """Without a time it starts now."""
    at = [f"2026-11-15T{text}:00Z" if text else "" for text in (about, by)]
    return Size(count, nodes, not by, *at)


def kind(name: str, free: int, total: int, cells: str, *sizes: Size, **more: Any) -> Availability:
    nodes = tuple(Cells(f"node-{i}", letters) for i, letters in enumerate(cells.split()))
    given: dict[str, Any] = {
        "available": free, "in_use": 0, "queued": 0, "max_reservable": 0, "max_per_node": len(nodes[0].cells),
        "stale": False, "as_of": "2026-11-15T11:49:00Z", "promised": cells.count("p"),
        "down": cells.count("d"), "maintenance": None,
    } | more  # fmt: skip
    return Availability(gpu_type=name, total=total, free_for_you=free, sizes=sizes, nodes=nodes, **given)


BUSY = [
    kind("t4", 6, 8, "ooff ffff", size(1), size(2), size(4)),
    kind("l4", 2, 4, "ooff", size(1), size(2), size(4, "12:45", "13:30")),
    kind("a100", 0, 16, "oooooooo oooooopp", size(1, "12:10", "12:40"), size(8, "14:00", "15:00")),
    kind("h100", 4, 24, "ffffoooo oooooooo mmoooooo dddddddd", size(4), size(8, "12:30", "13:10")),
    kind(
        "h200",
        16,
        24,
        "ffffffff ffffffff oooooooo",
        size(8),
        size(16, nodes=2),
        size(24, "13:25", "15:00", 3),
    ),
    kind("b200", 0, 16, "oooooooo pppppppp", size(1, "14:20", "16:20")),
    kind("cpu", 3, 6, "off omf", size(0), max_per_node=0),
]


def test_what_is_free_at_80_columns() -> None:
    assert tables.availability(BUSY, now(), 80).splitlines() == [
        "TYPE  FREE      STARTS NOW     NEXT SIZE UP",
        "t4     6 of 8   up to 4        -",
        "l4     2 of 4   up to 2        4 GPUs: about 55 min, no later than 14:30",
        "a100   0 of 16  full           1 GPU: about 20 min, no later than 13:40",
        "h100   4 of 24  up to 4        8 GPUs: about 40 min, no later than 14:10",
        "h200  16 of 24  up to 2 nodes  3 nodes: about 1 h 35 min, no later than 16:00",
        "b200   0 of 16  full           1 GPU: about 2 h 30 min, no later than 17:20",
        "cpu    3 of 6   yes            -",
        'As of 12:50:04 CET. "No later than" is a promise. 8 h100 are down.',
    ]


def test_what_is_free_at_120_columns_with_the_nodes() -> None:
    lines = tables.availability(BUSY, now(), 120).splitlines()
    assert lines[0] == ("TYPE  FREE      NODES                                STARTS NOW     NEXT SIZE UP")
    assert lines[4] == (
        "h100   4 of 24  ....#### ######## @@###### xxxxxxxx  up to 4        "
        "8 GPUs: about 40 min, no later than 14:10"
    )
    assert "######## ~~~~~~~~" in lines[6]
    assert lines[-1].startswith(". free  @ yours  # others'  ~ promised  x down       As of 12:50:04 CET.")
    assert max(map(len, lines)) <= 120


def test_a_line_that_would_be_too_long_says_it_shorter() -> None:
    long = [kind("a-type-with-a-long-name", 0, 16, "o" * 8, size(24, "13:25", "15:00", 3))]
    assert "3 nodes: about 1 h 35 min, by 16:00" in tables.availability(long, now(), 80)
    many = [kind("h100", 0, 1600, "oooooooo " * 200, size(1))]
    assert "NODES" not in tables.availability(many, now(), 120)


def test_forecast_and_promise_at_the_same_time_are_said_once() -> None:
    same = [kind("h100", 0, 8, "o" * 8, size(1, "13:10", "13:10"))]
    assert "1 GPU: no later than 14:10\n" in tables.availability(same, now(), 80)


def test_a_closed_type_says_so() -> None:
    closed = [kind("a100", 0, 8, "f" * 8, size(1), maintenance={"note": "new driver"})]
    assert tables.availability(closed, now(), 80).splitlines()[1] == (
        "a100  0 of 8  closed      maintenance: new driver"
    )


def test_stale_figures_are_called_so() -> None:
    old = [kind("t4", 6, 8, "ooff ffff", size(4), stale=True, as_of="2026-11-15T11:38:00Z")]
    assert tables.availability(old, now(), 80).splitlines()[2:] == [
        "Warning: these figures are from 12:38 CET, 12 minutes ago. The cluster does not",
        "answer. You can still reserve: a request keeps its place.",
    ]


def mine(name: str, status: str, **more: Any) -> Reservation:
    empty: dict[str, Any] = dict.fromkeys(("disk", "launched_at", "expires_at", "expected_start"), "")
    given = empty | {
        "nodes": (),
        "no_later_than": "",
        "queue_position": 0,
        "gpu_count": 8,
        "gpu_type": "h100",
    }
    return Reservation(reservation_id=f"{name}-0000-0000", name=name, status=status, **{**given, **more})


MINE = [
    mine(
        "vision-ft", "active", gpu_count=2, nodes=("gpu-node-5",), disk="datasets",
        launched_at="2026-11-15T10:04:00Z", expires_at="2026-11-15T14:04:00Z",
    ),
    mine(
        "tokenizer", "active", gpu_count=0, gpu_type="cpu", nodes=("cpu-node-2",),
        launched_at="2026-11-15T11:03:00Z", expires_at="2026-11-15T12:03:00Z",
    ),
    mine(
        "llama-eval", "queued", disk="main", expected_start="2026-11-15T12:30:00Z",
        no_later_than="2026-11-15T13:10:00Z",
    ),
    mine("gone", "expired"),
]  # fmt: skip


def test_my_reservations_at_80_columns() -> None:
    assert tables.reservations(MINE, now(), 80).splitlines() == [
        "NAME        STATUS  WHAT      WHERE       WHEN",
        "vision-ft   active  2 x h100  gpu-node-5  ends 15:04, 2 h 14 min left",
        "tokenizer   active  1 x cpu   cpu-node-2  ends 13:03, 13 min left",
        "llama-eval  queued  8 x h100  -           about 13:30, by 14:10",
        "tokenizer ends in 13 min. More time: gpu-dev extend tokenizer --hours 1",
    ]


def test_my_reservations_at_120_columns() -> None:
    lines = tables.reservations(MINE, now(), 120).splitlines()
    assert lines[0].split() == ["NAME", "STATUS", "WHAT", "WHERE", "DISK", "STARTED", "WHEN", "ID"]
    assert lines[1].split()[6:9] == ["datasets", "11:04", "ends"] and lines[1].endswith("vision-f")
    assert "main      -        about 13:30, no later than 14:10" in lines[3]


def test_a_promise_without_a_forecast_and_neither() -> None:
    by = mine("a", "queued", no_later_than="2026-11-16T01:10:00Z")
    assert tables.reservations([by], now(), 80).endswith("by tomorrow 02:10")
    assert tables.reservations([mine("a", "pending")], now(), 80).endswith("-")


# Extend


def test_what_is_refused_is_told_with_what_fits() -> None:
    error = Refused("x", "promised", "2026-11-15T17:00:37Z", {"at": "2026-11-15T17:00:37Z"})
    assert words.not_extended(MINE[0], "by 4 h", error, now()).splitlines() == [
        "vision-ft cannot be extended by 4 h.",
        "  From 18:00 CET its GPUs are promised to someone in the queue.",
        "  What fits: until 18:00 (2 h 57 min more)",
        "    gpu-dev extend vision-ft --until 18:00",
    ]


@pytest.mark.parametrize(
    ("reason", "values", "told"),
    [
        ("total_hours", {"limit": 48}, "48 h in all is the limit."),
        ("gpu_hours", {"limit": 300, "used": 288.5, "window_days": 7}, "288.5 are counted."),
        ("maintenance", {"gpu_type": "h100"}, "h100 is closed for maintenance."),
        ("not_active", {}, "what the portal said"),
    ],
)
def test_every_reason_has_words(reason: str, values: dict[str, Any], told: str) -> None:
    error = Refused("what the portal said", reason, None, values)
    lines = words.not_extended(MINE[0], "by 4 h", error, now()).splitlines()
    assert len(lines) == 2 and lines[1].endswith(told)


@pytest.mark.parametrize(
    ("text", "at"),
    [
        ("18:00", "2026-11-15T17:00:00+00:00"),
        ("15:04", "2026-11-16T14:04:00+00:00"),
        ("01:30", "2026-11-16T00:30:00+00:00"),
        ("2026-11-17T09:30", "2026-11-17T08:30:00+00:00"),
        ("2026-11-17T09:30:00Z", "2026-11-17T09:30:00+00:00"),
    ],
)
def test_a_time_of_day_is_the_next_one_after_the_end(text: str, at: str) -> None:
    end = datetime(2026, 11, 15, 14, 4, tzinfo=UTC)
    assert words.until(text, end).astimezone(UTC).isoformat() == at


@pytest.mark.parametrize("text", ["", "soon", "25:00", "18:00+01:00", "-1"])
def test_what_is_no_time_is_refused(text: str) -> None:
    with pytest.raises(ValueError):
        words.until(text, NOW)
