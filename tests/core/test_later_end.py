"""The end that is wanted, read from plain values: a time with its zone, or so many hours more."""

from __future__ import annotations

from typing import Any

import pytest
from builders import NOW, ask, hours

from gpudev_core.errors import Refused
from gpudev_core.requests import changed_options, later_end


@pytest.mark.parametrize(
    ("options", "more"),
    [
        ({"hours": 2}, 2),
        ({"hours": "0.5"}, 0.5),
        ({"until": "2026-03-02T10:00:00Z"}, 1),
        ({"until": "2026-03-02T12:30:00+02:00"}, 1.5),
    ],
    ids=str,
)
def test_hours_more_or_a_time_with_its_zone(options: dict[str, Any], more: float) -> None:
    assert later_end(options, NOW) == NOW + hours(more)


@pytest.mark.parametrize(
    ("options", "field"),
    [
        ({}, "until"),
        ({"until": "2026-03-02T10:00:00Z", "hours": 1}, "until"),
        ({"until": "2026-03-02T10:00:00"}, "until"),
        ({"until": "tomorrow"}, "until"),
        ({"until": ""}, "until"),
        ({"until": None}, "until"),
        ({"until": 1772442000}, "until"),
        ({"until": "0001-01-01T00:00:00+23:59"}, "until"),
        ({"until": "9999-12-31T23:59:59Z"}, "until"),
        ({"hours": 0}, "hours"),
        ({"hours": -1}, "hours"),
        ({"hours": "NaN"}, "hours"),
        ({"hours": 1e300}, "hours"),
        ({"hours": True}, "hours"),
        ({"hours": [1]}, "hours"),
        ({"minutes": 5}, "minutes"),
    ],
    ids=str,
)
def test_what_cannot_be_read_names_its_field(options: dict[str, Any], field: str) -> None:
    with pytest.raises(Refused) as caught:
        later_end(options, NOW)
    assert caught.value.field == field


def test_a_change_keeps_what_it_does_not_name() -> None:
    old = ask("h100", 8, 4, disk="main", new_disk=True, name="mine")
    kept = {"gpu_type": "h100", "gpu_count": 4, "hours": 4, "disk": "+main", "name": "mine", "image": "local"}
    assert changed_options({"gpu_count": 4}, old) == kept
    with pytest.raises(Refused, match="part of the address"):
        changed_options({"name": "other"}, old)
