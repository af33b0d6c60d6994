from __future__ import annotations

import pytest
from builders import CATALOGUE, NOW, Desk, Row, ask, minutes, row_counts

from gpudev_core import availability, maintenance, views
from gpudev_core.errors import PortalError, Refused
from gpudev_core.settings import Settings
from gpudev_core.store import Store
from gpudev_core.tables import GpuTypeRow


def close(store: Store, gpu_type: str = "h100", note: str = "", allowed: tuple[str, ...] = ()) -> None:
    with store.write() as session:
        maintenance.begin(session, gpu_type, note=note, allowed=allowed)


def reopen(store: Store, gpu_type: str = "h100") -> bool:
    with store.write() as session:
        return maintenance.end(session, gpu_type)


def row_of_type(store: Store, gpu_type: str = "h100") -> GpuTypeRow:
    with store.read() as session:
        return session.get_one(GpuTypeRow, gpu_type)


def test_a_closed_type_is_refused_with_the_note_and_what_is_open(desk: Desk) -> None:
    close(desk.store, note="new drivers,\n back at 18:00")
    close(desk.store, "cpu-x86")
    before = row_counts(desk.store)
    with pytest.raises(Refused) as caught:
        desk.file(ask("h100"))
    assert caught.value.message == "h100 is closed for maintenance: new drivers, back at 18:00. Open: t4."
    assert (caught.value.reason, caught.value.field) == ("maintenance", "gpu_type")
    assert caught.value.values == {"note": "new drivers, back at 18:00", "open": ["t4"]}
    assert row_counts(desk.store) == before
    desk.file(ask("t4"))


def test_without_a_note_and_without_another_type_it_says_so(desk: Desk) -> None:
    for gpu_type in ("h100", "cpu-x86", "t4"):
        close(desk.store, gpu_type)
    with pytest.raises(Refused, match=r"^h100 is closed for maintenance\. No other type is open\.$"):
        desk.file(ask("h100"))


@pytest.mark.parametrize(
    ("user", "groups", "may"),
    [
        pytest.param("ada", (), True, id="a person by name"),
        pytest.param("bob", ("ops",), True, id="a person by group"),
        pytest.param("bob", ("vision",), False, id="a person of another group"),
        pytest.param("ops", (), False, id="a person called like the group"),
        pytest.param("bob", ("ada",), False, id="a group called like the person"),
    ],
)
def test_who_may_use_a_closed_type(desk: Desk, user: str, groups: tuple[str, ...], may: bool) -> None:
    close(desk.store, allowed=("ada", "@ops"))
    assert maintenance.is_closed_to(row_of_type(desk.store), user, groups) is not may
    if may:
        desk.file(ask("h100"), user=user, groups=groups)
    else:
        with pytest.raises(Refused, match="closed for maintenance"):
            desk.file(ask("h100"), user=user, groups=groups)


def test_an_open_type_is_closed_to_nobody(desk: Desk) -> None:
    assert not maintenance.is_closed_to(row_of_type(desk.store), "ada", ())


def test_opening_it_again_leaves_nothing_of_it(desk: Desk) -> None:
    close(desk.store, note="drivers", allowed=("ada",))
    assert reopen(desk.store) is True
    row = row_of_type(desk.store)
    assert (row.maintenance, row.maintenance_note, row.maintenance_allowed) == (False, None, [])
    assert reopen(desk.store) is False
    desk.file(ask("h100"))


def test_closing_it_again_changes_note_and_names(desk: Desk) -> None:
    close(desk.store, note="drivers", allowed=("ada",))
    close(desk.store, note="disks", allowed=("bob", "@ops", "bob"))
    row = row_of_type(desk.store)
    assert (row.maintenance_note, row.maintenance_allowed) == ("disks", ["@ops", "bob"])


def test_new_figures_do_not_open_a_closed_type(desk: Desk) -> None:
    close(desk.store, note="drivers", allowed=("ada",))
    availability.save(desk.store, CATALOGUE, Desk.NODES[:3], [], now=NOW + minutes(9), by="test")
    row = row_of_type(desk.store)
    assert row.last_availability_update == NOW + minutes(9) and len(row.nodes) == 1
    assert (row.maintenance, row.maintenance_note, row.maintenance_allowed) == (True, "drivers", ["ada"])


def test_what_runs_and_what_waits_is_left_alone(desk: Desk) -> None:
    Row("runs").asks(ask("h100")).active().save(desk.store)
    Row("waits").asks(ask("h100")).save(desk.store)
    close(desk.store)
    with desk.store.read() as session:
        assert [row.gpu_type for row in maintenance.closed_types(session)] == ["h100"]
    assert row_counts(desk.store)["reservation_events"] == 0


@pytest.mark.parametrize(
    ("gpu_type", "note", "allowed", "said"),
    [
        pytest.param("v100", "", (), "There is no GPU type 'v100' here. Possible: a100, a10g, ", id="type"),
        pytest.param("h100", "x" * 501, (), "at most 500 characters", id="a long note"),
        pytest.param("h100", "a\x1b[2Jb", (), "One line", id="a note that is no text"),
        pytest.param("h100", "", ("@",), "'@' names nobody", id="no group"),
        pytest.param("h100", "", (" ",), "' ' names nobody", id="no name"),
    ],
)
def test_what_cannot_be_is_refused(
    desk: Desk, gpu_type: str, note: str, allowed: tuple[str, ...], said: str
) -> None:
    with pytest.raises(PortalError) as caught:
        close(desk.store, gpu_type, note, allowed)
    assert said in caught.value.message
    assert not row_of_type(desk.store).maintenance


def test_the_form_shows_what_is_closed_to_this_person_and_which_limits_hold(desk: Desk) -> None:
    close(desk.store, note="drivers", allowed=("@ops",))
    rules = [{"gpu_types": ["h100"], "gpus": 4}, {"groups": ["ops"], "reservations": 9}]
    settings = Settings.model_validate({"quotas": rules})

    def form(groups: tuple[str, ...]) -> dict[str, object]:
        with desk.store.read() as session:
            return views.form(session, settings, CATALOGUE, "ada", NOW, groups)

    shown, ops = form(()), form(("ops",))
    assert {t["gpu_type"]: t["maintenance"] for t in shown["types"]} == {
        "t4": None,
        "h100": {"note": "drivers"},
        "cpu-x86": None,
    }
    assert [t["maintenance"] for t in ops["types"]] == [None, None, None]
    assert shown["quota"]["types"] == {"h100": {"gpus": {"limit": 4, "used": 0}}}
    assert shown["quota"]["reservations"]["limit"] == 5 and ops["quota"]["reservations"]["limit"] == 9
