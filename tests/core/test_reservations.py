from __future__ import annotations

from typing import Any

import pytest
from builders import (
    CATALOGUE,
    NOW,
    ROOMY,
    Desk,
    Row,
    ask,
    at_once,
    days,
    disk_of,
    events_of,
    hours,
    minutes,
    row_counts,
    row_of,
    save_disk,
)

from gpudev_core import lifecycle, reservations
from gpudev_core.catalogue import Catalogue
from gpudev_core.errors import Conflict, NotFound, PortalError, Refused
from gpudev_core.models import GpuType, Placement, Request, Share, Status
from gpudev_core.quotas import Use
from gpudev_core.reservations import Filing
from gpudev_core.settings import Limits, Settings
from gpudev_core.store import Store
from gpudev_core.tables import GpuTypeRow, ReservationRow

# Filing


def test_a_request_is_kept_whole_and_waits(desk: Desk) -> None:
    request = ask("h100", 16, 2.5, disk="data", new_disk=True, name="My run", image="pytorch:2.9")
    row = row_of(desk.store, desk.file(request).reservation_id)
    assert Request(**row.request) == request
    assert (row.user_id, row.status, row.created_at) == ("ada", "pending", NOW)
    assert (row.gpu_type, row.gpu_count, row.duration_hours) == ("h100", 16, 2.5)
    assert (row.name, row.server_name, row.disk_name) == ("My run", "my-run", "data")
    assert (row.image, row.instance_type, row.filed_from) == ("pytorch:2.9", "p5.48xlarge", "test")
    assert (row.placement, row.expires_at, row.end_wanted) == (None, None, None)


def test_filing_leaves_a_line_that_says_who_and_from_where(desk: Desk) -> None:
    [event] = events_of(desk.store, desk.file().reservation_id)
    assert (event.event, event.actor, event.at) == ("filed", "ada", NOW)
    assert (event.from_status, event.to_status, event.detail) == (None, "pending", {"from": "test"})


def test_the_same_id_twice_is_one_reservation(desk: Desk) -> None:
    first = desk.file(reservation_id="mine-1")
    again = desk.file(ask("h100", 8, 3), reservation_id="mine-1", now=NOW + minutes(1))
    assert (again.reservation_id, again.gpu_type, again.created_at) == ("mine-1", first.gpu_type, NOW)
    assert row_counts(desk.store)["reservations"] == 1
    assert len(events_of(desk.store, "mine-1")) == 1


def test_the_same_id_again_after_the_end_is_still_the_same(desk: Desk) -> None:
    desk.file(reservation_id="mine-1")
    desk.end("mine-1")
    assert desk.file(reservation_id="mine-1").status == "cancelled"


def test_the_same_id_many_times_at_once_is_one_reservation(desk: Desk) -> None:
    rows = at_once([lambda: desk.file(reservation_id="mine-1")] * 8)
    assert [getattr(row, "reservation_id", row) for row in rows] == ["mine-1"] * 8
    assert row_counts(desk.store)["reservations"] == 1


def test_an_id_of_somebody_else_is_taken(desk: Desk) -> None:
    desk.file(reservation_id="shared", user="bob")
    with pytest.raises(Conflict, match="shared is taken"):
        desk.file(reservation_id="shared", user="ada")


def test_one_id_by_many_people_at_once_is_one_of_theirs(desk: Desk) -> None:
    people = [f"user-{number}" for number in range(8)]
    results = at_once([lambda user=user: desk.file(reservation_id="shared", user=user) for user in people])
    won = [r for r in results if isinstance(r, ReservationRow)]
    assert len(won) == 1
    assert [type(r) for r in results if r is not won[0]] == [Conflict] * 7


@pytest.mark.parametrize("bad", ["../../etc", "a/b", "a b", "a\n", "é", "x" * 65, "-a"], ids=repr)
def test_an_id_that_could_be_anything_but_an_id_is_refused(desk: Desk, bad: str) -> None:
    before = row_counts(desk.store)
    with pytest.raises(Refused) as caught:
        desk.file(reservation_id=bad)
    assert caught.value.field == "reservation_id"
    assert row_counts(desk.store) == before


# Names


@pytest.mark.parametrize(
    ("names", "servers"),
    [
        pytest.param(["train"], ["train"], id="the name"),
        pytest.param(["My Run", "my run"], ["my-run", "my-run-2"], id="two of one name"),
        pytest.param(["", "", ""], ["t4", "t4-2", "t4-3"], id="the type when there is no name"),
    ],
)
def test_a_server_is_called_after(desk: Desk, names: list[str], servers: list[str]) -> None:
    rows = [desk.file(ask(name=name)) for name in names]
    assert [row.server_name for row in rows] == servers
    assert [row.name for row in rows] == [name or server for name, server in zip(names, servers, strict=True)]


def test_another_persons_names_do_not_matter(desk: Desk) -> None:
    assert {desk.file(ask(name="run"), user=user).server_name for user in ("ada", "bob")} == {"run"}


def test_a_name_is_free_again_after_the_end(desk: Desk) -> None:
    desk.end(desk.file(ask(name="run")).reservation_id)
    assert desk.file(ask(name="run")).server_name == "run"


def test_a_server_named_after_a_long_type_has_a_possible_name(store: Store) -> None:
    kind = GpuType("quadro-rtx-8000--with-max-q-design", "box", 2, cpus=8, memory_gb=32)
    with store.write() as session:
        nodes = [{"name": "box", "units": 2, "ready": True}]
        session.add(
            GpuTypeRow(gpu_type=kind.name, instance_type="box", max_gpus=2, cpus=8, memory_gb=32, nodes=nodes)
        )
    filing = Filing("ada", ask(kind.name), filed_from="test")
    row = reservations.file(store, filing, Catalogue([kind]), Settings(), now=NOW)
    assert row.server_name == "quadro-rtx-8000-with-max-q-des"


@pytest.mark.parametrize("server", ["lab", ""], ids=["a named server", "the default server"])
def test_a_server_has_one_open_reservation(desk: Desk, server: str) -> None:
    first = desk.file(server_name=server)
    assert (first.server_name, first.name) == (server, server or "t4")
    with pytest.raises(Conflict, match="has a reservation already"):
        desk.file(server_name=server)
    desk.end(first.reservation_id)
    assert desk.file(server_name=server).server_name == server


def test_of_many_filings_for_one_server_at_once_one_is_taken(desk: Desk) -> None:
    results = at_once([lambda: desk.file(server_name="lab")] * 8)
    assert sorted(type(result).__name__ for result in results) == ["Conflict"] * 7 + ["ReservationRow"]


# Refusals leave nothing behind


@pytest.mark.parametrize(
    ("request_", "limits", "reason"),
    [
        pytest.param(ask("h100", 1, 99), ROOMY, "too_long", id="too long"),
        pytest.param(ask("h100", 8), Limits(gpus=4), "too_many_gpus", id="more GPUs than the quota"),
        pytest.param(ask("h100", 8, 9), Limits(gpu_hours=9), "too_many_gpu_hours", id="more GPU-hours"),
        pytest.param(ask(disk="no"), ROOMY, "unknown_disk", id="a disk that there is not"),
        pytest.param(ask(disk="old", new_disk=True), ROOMY, "disk_exists", id="a new disk of an old name"),
        pytest.param(ask(disk="gone"), ROOMY, "unknown_disk", id="a disk that was deleted"),
        pytest.param(ask(disk="gone", new_disk=True), ROOMY, "disk_deleted", id="the name of a deleted disk"),
        pytest.param(ask(disk="bobs"), ROOMY, "unknown_disk", id="another person's disk"),
        pytest.param(ask(disk="n", new_disk=True), Limits(disks=1), "too_many_disks", id="a disk too many"),
        pytest.param(ask("a100"), ROOMY, "type_not_offered", id="a type without nodes here"),
        pytest.param(ask("v100"), ROOMY, "unknown_gpu_type", id="a type that is none"),
        pytest.param(ask("h100", 24), ROOMY, "too_many_nodes", id="three nodes where there are two"),
        pytest.param(ask(name="x"), Limits(reservations=1), "too_many_reservations", id="one too many"),
    ],
)
def test_what_is_refused_leaves_nothing_behind(
    desk: Desk, request_: Request, limits: Limits, reason: str
) -> None:
    save_disk(desk.store, "old")
    save_disk(desk.store, "gone", is_deleted=True, delete_date=NOW + days(30))
    save_disk(desk.store, "bobs", user="bob")
    desk.file(ask("cpu-x86", 0))
    before = row_counts(desk.store)
    with pytest.raises(Refused) as caught:
        desk.file(request_, limits=limits)
    assert caught.value.reason == reason
    assert row_counts(desk.store) == before


def test_before_a_controller_has_told_of_nodes_nothing_is_offered(store: Store) -> None:
    filing = Filing("ada", ask(), filed_from="test")
    with pytest.raises(Refused, match="Possible: none yet"):
        reservations.file(store, filing, CATALOGUE, Settings(), now=NOW)


def test_too_many_nodes_names_what_fits(desk: Desk) -> None:
    with pytest.raises(Refused, match="32 × h100 need 4 nodes; there are 2 here") as caught:
        desk.file(ask("h100", 32))
    assert desk.file(ask("h100", caught.value.fits)).gpu_count == 16


# Quotas


@pytest.mark.parametrize(
    ("limits", "accepted"),
    [
        pytest.param(Limits(reservations=5, gpus=1000), 5, id="reservations"),
        pytest.param(Limits(reservations=20, gpus=7), 3, id="GPUs"),
        pytest.param(Limits(reservations=20, gpus=1000, gpu_hours=9), 4, id="GPU-hours"),
    ],
)
def test_twenty_filings_at_once_never_pass_the_limit_of(desk: Desk, limits: Limits, accepted: int) -> None:
    jobs = [lambda: desk.file(ask("t4", 2, 1), limits=limits)] * 20
    results = at_once([*jobs, lambda: desk.file(user="bob", limits=limits)])
    mine, bobs = results[:-1], results[-1]
    assert sum(isinstance(result, ReservationRow) for result in mine) == accepted
    assert [r for r in mine if not isinstance(r, ReservationRow | Refused)] == []
    assert isinstance(bobs, ReservationRow)
    servers = [r.server_name for r in mine if isinstance(r, ReservationRow)]
    assert len(set(servers)) == accepted


def test_twenty_filings_at_once_never_pass_the_limit_of_disks(desk: Desk) -> None:
    limits = Limits(reservations=20, gpus=1000, disks=3)
    jobs = [
        lambda name=f"disk-{n}": desk.file(ask(disk=name, new_disk=True), limits=limits) for n in range(20)
    ]
    assert sum(isinstance(result, ReservationRow) for result in at_once(jobs)) == 3


def test_one_disk_wanted_by_many_filings_at_once_goes_to_one(desk: Desk) -> None:
    save_disk(desk.store, "data")
    results = at_once([lambda: desk.file(ask(disk="data"))] * 8)
    assert sum(isinstance(result, ReservationRow) for result in results) == 1
    assert {r.reason for r in results if isinstance(r, PortalError)} == {"disk_in_use"}


def use_of(store: Store, limits: Limits = ROOMY) -> Use:
    with store.read() as session:
        mine = reservations.open_of(session, "ada")
        return reservations.use_of(session, "ada", mine, limits, NOW)


@pytest.mark.parametrize(
    ("row", "gpu_hours"),
    [
        pytest.param(Row().asks(ask("t4", 2, 3)), 6, id="one that waits counts as it was asked for"),
        pytest.param(
            Row().asks(ask("t4", 2, 3)).active(NOW - hours(1)),
            6,
            id="one that runs counts with all its hours",
        ),
        pytest.param(
            Row().asks(ask("t4", 2, 8)).active(NOW - hours(9)).ended(NOW - hours(6)),
            6,
            id="one that ended early counts what was had",
        ),
        pytest.param(
            Row().asks(ask("t4", 2, 9)).active(NOW - days(7) - hours(3)).ended(NOW - days(7) + hours(2)),
            4,
            id="of one that reaches into the window only that part counts",
        ),
        pytest.param(
            Row().asks(ask("t4", 2, 9)).active(NOW - days(8)).ended(NOW - days(7)),
            0,
            id="one that ended before the window counts nothing",
        ),
        pytest.param(
            Row().asks(ask("t4", 2, 9)).preparing(NOW - hours(1)).ended(NOW, Status.FAILED),
            0,
            id="a start that failed counts nothing",
        ),
        pytest.param(Row().ended(NOW, Status.CANCELLED), 0, id="one cancelled in the queue counts nothing"),
        pytest.param(Row().asks(ask("cpu-x86", 0, 9)), 0, id="a CPU machine counts nothing"),
        pytest.param(Row(user="bob").asks(ask("t4", 4, 9)), 0, id="another person's counts nothing"),
    ],
)
def test_gpu_hours_of_the_last_seven_days(store: Store, row: Row, gpu_hours: float) -> None:
    row.save(store)
    assert use_of(store).gpu_hours == pytest.approx(gpu_hours)


def test_the_window_is_as_long_as_the_site_says(store: Store) -> None:
    Row().asks(ask("t4", 1, 9)).active(NOW - hours(30)).ended(NOW - hours(20)).save(store)
    assert use_of(store, Limits(window_days=1)).gpu_hours == pytest.approx(4)


def test_everything_open_counts_at_once_and_nothing_that_ended(store: Store) -> None:
    Row("q").asks(ask("t4", 2)).status(Status.QUEUED).save(store)
    Row("p").asks(ask("h100", 8)).preparing().save(store)
    Row("a").asks(ask("t4", 1)).active().save(store)
    Row("e").asks(ask("t4", 4)).active(NOW - hours(1)).ended(NOW).save(store)
    Row("b", user="bob").asks(ask("t4", 4)).save(store)
    use = use_of(store)
    assert (use.reservations, use.gpus, set(use.names)) == (3, 11, {"q", "p", "a"})


def test_disks_that_are_and_disks_that_will_be_count_together(desk: Desk) -> None:
    save_disk(desk.store, "old")
    save_disk(desk.store, "gone", is_deleted=True)
    row = desk.file(ask(disk="new", new_disk=True))
    assert use_of(desk.store).disks == 2
    with desk.store.write() as session:
        lifecycle.transition(
            session, row.reservation_id, Status.PENDING, Status.PREPARING, now=NOW, actor="controller"
        )
        reservations.attach_disk(session, session.get_one(ReservationRow, row.reservation_id), NOW)
    assert use_of(desk.store).disks == 2


# Reading


@pytest.mark.parametrize(
    ("user", "is_admin"), [("ada", False), ("root", True)], ids=["its owner", "an admin"]
)
def test_a_reservation_is_found_by(desk: Desk, user: str, is_admin: bool) -> None:
    desk.file(reservation_id="r1")
    with desk.store.read() as session:
        assert reservations.find(session, "r1", user=user, is_admin=is_admin).reservation_id == "r1"


def test_a_foreign_id_looks_like_an_unknown_one(desk: Desk) -> None:
    desk.file(reservation_id="real")
    said = []
    for reservation_id in ("real", "none"):
        with desk.store.read() as session, pytest.raises(NotFound) as caught:
            reservations.find(session, reservation_id, user="bob", is_admin=False)
        error = caught.value
        said.append((error.message.replace(reservation_id, "ID"), error.reason, error.values))
    assert said[0] == said[1]


@pytest.mark.parametrize("odd", ["", "a\x00b", "x" * 1000, "\ud800", "../r1"], ids=repr)
def test_what_cannot_be_an_id_is_not_found(desk: Desk, odd: str) -> None:
    with desk.store.read() as session, pytest.raises(NotFound):
        reservations.find(session, odd, user="ada", is_admin=True)


def test_the_queue_is_in_the_order_of_age_then_id(store: Store) -> None:
    Row("c").filed(NOW).save(store)
    Row("b").filed(NOW + minutes(1)).status(Status.QUEUED).save(store)
    Row("a").filed(NOW + minutes(1)).active().save(store)
    Row("gone").filed(NOW - hours(1)).ended(NOW).save(store)
    with store.read() as session:
        assert [row.reservation_id for row in reservations.open_rows(session)] == ["c", "a", "b"]


def test_the_lease_of_a_server_is_the_open_one(store: Store) -> None:
    Row("old").with_(server_name="lab").ended(NOW).save(store)
    Row("now").with_(server_name="lab").save(store)
    Row("bobs", user="bob").with_(server_name="hers").save(store)
    with store.read() as session:
        found = reservations.open_on_server(session, "ada", "lab")
        assert found is not None
        assert found.reservation_id == "now"
        assert reservations.open_on_server(session, "ada", "hers") is None


def test_recent_ones_come_latest_first_and_as_many_as_asked(store: Store) -> None:
    for number in range(4):
        Row(f"r{number}").filed(NOW + minutes(number)).ended(NOW).save(store)
    Row("bobs", user="bob").save(store)
    with store.read() as session:
        assert [r.reservation_id for r in reservations.recent_of(session, "ada", 3)] == ["r3", "r2", "r1"]


def test_disks_come_last_used_first_and_never_used_last(store: Store) -> None:
    save_disk(store, "b")
    save_disk(store, "a")
    save_disk(store, "older", last_used=NOW - days(1))
    save_disk(store, "newer", last_used=NOW)
    save_disk(store, "gone", is_deleted=True)
    save_disk(store, "bobs", user="bob")
    with store.read() as session:
        names = [disk.disk_name for disk in reservations.disks_of(session, "ada")]
    assert names == ["newer", "older", "a", "b"]


def test_who_holds_what_and_until_when(store: Store) -> None:
    Row("a").asks(ask("t4", 2, 3)).active(NOW - hours(1), node_1=[0, 1]).save(store)
    preparing = Row("p").asks(ask("h100", 16, 3)).preparing(NOW - minutes(1), n_3=range(8), n_4=range(8))
    preparing.with_(latest_end=NOW + hours(4)).save(store)
    Row("w").asks(ask("t4", 1, 3)).save(store)
    Row("e").asks(ask("t4", 1, 3)).active(NOW - hours(3), node_1=[3]).ended(NOW).save(store)
    with store.read() as session:
        rows = reservations.open_rows(session)
    held = {h.reservation_id: h for h in reservations.holdings(rows)}
    assert set(held) == {"a", "p"}
    assert held["a"].placement == Placement((Share("node-1", (0, 1)),))
    assert (held["a"].began, held["a"].ends_at) == (NOW - hours(1), NOW + hours(2))
    assert held["p"].placement.nodes == ("n-3", "n-4")
    assert (held["p"].began, held["p"].ends_at) == (NOW - minutes(1), NOW + hours(4)), "as it was planned"


def test_the_queue_has_every_request_whole(desk: Desk) -> None:
    request = ask("h100", 8, 2, disk="d", new_disk=True, name="run", image="pytorch:2.9")
    desk.file(request)
    Row("running").active().save(desk.store)
    with desk.store.read() as session:
        [waiting] = reservations.waiting(reservations.open_rows(session))
    assert (waiting.user, waiting.request) == ("ada", request)


# Ending


@pytest.mark.parametrize("status", [Status.PENDING, Status.QUEUED])
def test_one_that_waits_is_taken_out_of_the_queue(desk: Desk, status: Status) -> None:
    Row("r1").status(status).save(desk.store)
    assert desk.end("r1", now=NOW + minutes(1))
    row, last = row_of(desk.store, "r1"), events_of(desk.store, "r1")[-1]
    assert (row.status, row.reservation_ended) == ("cancelled", NOW + minutes(1))
    assert (row.end_reason, row.end_actor) == ("done", "ada")
    assert (last.event, last.actor, last.detail) == ("cancelled", "ada", {"reason": "done"})


@pytest.mark.parametrize("status", [Status.PREPARING, Status.ACTIVE])
def test_one_that_runs_is_asked_to_end_once(desk: Desk, status: Status) -> None:
    Row("r1").status(status).save(desk.store)
    assert desk.end("r1")
    assert not desk.end("r1")
    row = row_of(desk.store, "r1")
    assert (row.status, row.end_wanted, row.reservation_ended) == (status, "cancelled", None)


@pytest.mark.parametrize("status", [Status.EXPIRED, Status.CANCELLED, Status.FAILED])
def test_one_that_ended_stays_as_it_ended(desk: Desk, status: Status) -> None:
    Row("r1").ended(NOW, status).save(desk.store)
    assert not desk.end("r1", now=NOW + minutes(1))
    row = row_of(desk.store, "r1")
    assert (row.status, row.reservation_ended, row.end_reason) == (status, NOW, None)
    assert events_of(desk.store, "r1") == []


# Disks


def test_a_disk_in_use_is_refused_and_its_holder_named(desk: Desk) -> None:
    save_disk(desk.store, "data")
    first = desk.file(ask(disk="data", name="train"))
    with pytest.raises(Refused, match="in use by train") as caught:
        desk.file(ask(disk="data"))
    assert caught.value.values == {"holder": first.reservation_id}
    desk.end(first.reservation_id)
    assert desk.file(ask(disk="data")).disk_name == "data"


def test_two_people_may_have_a_disk_of_one_name(desk: Desk) -> None:
    for user in ("ada", "bob"):
        row = desk.file(ask(disk="data", new_disk=True), user=user)
        desk.attach(row.reservation_id)
    assert row_counts(desk.store)["disks"] == 2


def test_a_mistyped_disk_says_which_there_are(desk: Desk) -> None:
    save_disk(desk.store, "data")
    with pytest.raises(Refused, match=r"You have no disk dta. Yours: data. A new one is written as \+dta."):
        desk.file(ask(disk="dta"))


def test_a_new_disk_gets_its_row_when_it_is_attached(desk: Desk) -> None:
    row = desk.file(ask(disk="data", new_disk=True))
    assert row_counts(desk.store)["disks"] == 0
    desk.attach(row.reservation_id)
    with desk.store.read() as session:
        [disk] = reservations.disks_of(session, "ada")
    assert (disk.disk_name, disk.in_use, disk.reservation_id) == ("data", True, row.reservation_id)
    assert (disk.created_at, disk.attached_at) == (NOW, NOW)


def test_a_disk_is_attached_to_one_reservation_at_a_time(desk: Desk) -> None:
    save_disk(desk.store, "data", in_use=True, reservation_id="another")
    row = Row("r1", request=ask(disk="data")).save(desk.store)
    with pytest.raises(Conflict, match="still attached to reservation another"):
        desk.attach(row)
    assert disk_of(desk.store, "data").reservation_id == "another"


def test_attaching_twice_is_attaching_once(desk: Desk) -> None:
    save_disk(desk.store, "data")
    row = Row("r1", request=ask(disk="data")).save(desk.store)
    desk.attach(row)
    desk.attach(row)
    assert disk_of(desk.store, "data").reservation_id == "r1"


def test_of_two_attachments_at_once_one_is_made(desk: Desk) -> None:
    save_disk(desk.store, "data")
    rows = [Row(f"r{n}", request=ask(disk="data")).save(desk.store) for n in range(6)]
    results = at_once([lambda row=row: desk.attach(row) for row in rows])
    assert sorted(type(result).__name__ for result in results) == ["Conflict"] * 5 + ["NoneType"]
    assert disk_of(desk.store, "data").reservation_id == rows[results.index(None)]


def test_a_deleted_disk_is_never_attached(desk: Desk) -> None:
    """It would go away, with what was written on it, on the day of its deletion."""
    save_disk(desk.store, "data", is_deleted=True)
    row = Row("r1", request=ask(disk="data")).save(desk.store)
    with pytest.raises(Conflict, match="data was deleted"):
        desk.attach(row)
    assert not disk_of(desk.store, "data").in_use


def test_without_a_disk_nothing_is_attached(desk: Desk) -> None:
    desk.attach(desk.file().reservation_id)
    assert row_counts(desk.store)["disks"] == 0


def test_a_disk_comes_free_with_the_end(desk: Desk) -> None:
    row: Any = desk.file(ask(disk="data", new_disk=True))
    desk.attach(row.reservation_id)
    desk.end(row.reservation_id)
    with desk.store.read() as session:
        [disk] = reservations.disks_of(session, "ada")
    assert (disk.in_use, disk.reservation_id) == (False, None)
    assert desk.file(ask(disk="data")).disk_name == "data"
