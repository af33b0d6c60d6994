"""The lease of a server is looked at once more when the server is started."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from gpudev_core import availability
from gpudev_core.errors import Refused
from gpudev_core.portal import Portal, open_portal
from gpudev_core.settings import load
from gpudev_core.tables import ReservationRow
from gpudev_spawner.groups import groups_of
from gpudev_spawner.leases import Leases, Queued

NOW = datetime(2026, 3, 2, 9, 0, tzinfo=UTC)
T4 = {"gpu_type": "t4", "gpu_count": 1, "hours": 1}


@pytest.fixture
def portal(tmp_path: Path) -> Iterator[Portal]:
    rules = "[{users: [ada], gpus: 4}, {groups: [guests], reservations: 0}, {groups: [vision], gpus: 2}]"
    environ = {
        "GPUDEV_STATE": str(tmp_path),
        "GPUDEV_GPUS__SOURCE": "simulated",
        "GPUDEV_QUOTAS": rules,
        "GPUDEV_PRIORITIES": "{vision: 7}",
        "GPUDEV_SERVERS__ADMISSION_WAIT_S": "0",
    }
    found = open_portal(load(None, environ))
    availability.save(found.store, found.catalogue, found.machine.nodes, [], now=NOW, by="test")
    yield found
    found.store.close()


def save(portal: Portal, name: str, gpus: int, user: str = "ada", **values: Any) -> None:
    with portal.store.write() as session:
        row = ReservationRow(
            reservation_id=name,
            user_id=user,
            server_name=name,
            name=name,
            gpu_type="t4",
            gpu_count=gpus,
            duration_hours=1,
            request={},
            filed_from="test",
            status="preparing",
            created_at=NOW,
        )
        for key, value in values.items():
            setattr(row, key, value)
        session.add(row)


def obtain(portal: Portal, server: str, user: str = "ada", groups: tuple[str, ...] = ()) -> ReservationRow:
    return asyncio.run(Leases(portal).obtain(user, server, T4, NOW, groups))


def test_a_lease_within_the_limits_is_given(portal: Portal) -> None:
    save(portal, "first", 2)
    save(portal, "second", 2, preparing_at=NOW + timedelta(seconds=1))
    assert obtain(portal, "second").reservation_id == "second"


def test_a_lease_that_is_over_the_limit_now_is_refused_and_kept(portal: Portal) -> None:
    save(portal, "first", 3)
    save(portal, "second", 2, preparing_at=NOW + timedelta(seconds=1))
    with pytest.raises(Refused, match=r"2 GPUs are more than your limit leaves\. Limit 4 at once, 3 in use"):
        obtain(portal, "second")
    assert obtain(portal, "first").reservation_id == "first"


def test_the_groups_of_the_filing_decide(portal: Portal) -> None:
    save(portal, "first", 2, user="bob", groups=["vision"])
    save(portal, "second", 2, user="bob", groups=["vision"], preparing_at=NOW + timedelta(seconds=1))
    with pytest.raises(Refused, match="Limit 2 at once"):
        obtain(portal, "second", user="bob")


def test_what_has_run_once_goes_on_though_the_limit_was_lowered(portal: Portal) -> None:
    save(portal, "first", 4)
    late = NOW + timedelta(seconds=1)
    save(portal, "second", 4, status="active", preparing_at=late, launched_at=late)
    assert obtain(portal, "second").reservation_id == "second"


def test_a_start_through_rest_is_filed_with_the_persons_groups(portal: Portal) -> None:
    with pytest.raises(Refused, match=r"You have 0 of 0 reservations\. An admin can raise the limit\."):
        obtain(portal, "lab", user="eve", groups=("guests",))
    with pytest.raises(Queued) as queued:
        obtain(portal, "lab", user="bob", groups=("vision",))
    with portal.store.read() as session:
        row = session.get_one(ReservationRow, queued.value.values["reservation_id"])
    assert (row.groups, row.priority) == (["vision"], 7)


def test_groups_are_told_by_name() -> None:
    class Group:
        def __init__(self, name: str) -> None:
            self.name = name

    class User:
        groups = (Group("b"), Group("a"))

    assert groups_of(User()) == ("a", "b")
