from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from builders import NOW, Row, ask, at_once, hours, minutes, row_counts
from hypothesis import given
from hypothesis import strategies as st
from sqlalchemy import select

from gpudev_core import lifecycle, notices, views
from gpudev_core.errors import SettingsError
from gpudev_core.models import Status
from gpudev_core.notices import LEADS, backoff, channels_of, pointless, warnings_ahead, words
from gpudev_core.settings import Settings, load
from gpudev_core.store import Store
from gpudev_core.tables import DeliveryRow, NoticeRow, ReservationRow

CHANNELS = ("feed", "webhook")
END = NOW + hours(1)


def schedule(store: Store, now: datetime = NOW, channels: tuple[str, ...] = CHANNELS) -> None:
    with store.write() as session:
        notices.schedule(session, session.get_one(ReservationRow, "r1"), channels, now)


def move_end(store: Store, end: datetime, now: datetime) -> None:
    with store.write() as session:
        row = session.get_one(ReservationRow, "r1")
        row.expires_at = end
        notices.reschedule(session, row, CHANNELS, now)


def tell(store: Store, kind: str, now: datetime = NOW, **detail: Any) -> None:
    with store.write() as session:
        row = session.get_one(ReservationRow, "r1")
        notices.tell(session, row, kind, detail, (*CHANNELS, "terminal"), now)


def due(store: Store, channel: str, now: datetime, limit: int = 99) -> list[str]:
    with store.read() as session:
        return [errand.notice.kind for errand in notices.due(session, channel, now, limit)]


def told(store: Store, now: datetime) -> list[str]:
    with store.read() as session:
        return [notice.kind for notice in notices.of(session, "r1", now)]


def written(store: Store) -> list[tuple[str, datetime]]:
    """What is not withdrawn, in the order in which it is due."""
    with store.read() as session:
        query = select(NoticeRow).where(NoticeRow.withdrawn_at.is_(None)).order_by(NoticeRow.due_at)
        return [(notice.kind, notice.due_at) for notice in session.scalars(query)]


def deliveries(store: Store, channel: str = "webhook") -> list[DeliveryRow]:
    with store.read() as session:
        query = select(DeliveryRow).filter_by(channel=channel).order_by(DeliveryRow.notice_id)
        return list(session.scalars(query))


def first(store: Store) -> int:
    with store.read() as session:
        return session.scalars(select(NoticeRow.notice_id).order_by(NoticeRow.due_at)).first() or 0


@pytest.fixture
def active(store: Store) -> Store:
    """One active reservation, of one hour from NOW."""
    Row("r1").active().save(store)
    return store


# Which warnings


@pytest.mark.parametrize(
    ("length", "kinds"),
    [
        pytest.param(60, ["ends_in_30", "ends_in_15", "ends_in_5"], id="an hour is warned three times"),
        pytest.param(30, ["ends_in_15", "ends_in_5"], id="half an hour is not told of its whole length"),
        pytest.param(10, ["ends_in_5"], id="ten minutes are warned once"),
        pytest.param(5, [], id="five minutes are not warned"),
    ],
)
def test_only_warnings_that_lie_ahead(length: float, kinds: list[str]) -> None:
    assert [kind for kind, _ in warnings_ahead(NOW + minutes(length), NOW)] == kinds


@given(st.timedeltas(timedelta(0), timedelta(days=400)))
def test_a_warning_is_due_when_that_much_is_left_and_never_before_now(left: timedelta) -> None:
    end = NOW + left
    found = warnings_ahead(end, NOW)
    assert all(due_at > NOW and end - due_at == LEADS[kind] for kind, due_at in found)
    assert {kind for kind, _ in found} == {kind for kind, lead in LEADS.items() if lead < left}
    assert [due_at for _, due_at in found] == sorted(due_at for _, due_at in found)


# Writing them


def test_an_active_reservation_is_warned_on_every_channel(active: Store) -> None:
    schedule(active)
    assert written(active) == [(kind, END - lead) for kind, lead in LEADS.items()]
    for channel in CHANNELS:
        assert [(d.status, d.attempts) for d in deliveries(active, channel)] == [("waiting", 0)] * 3


def test_scheduling_twice_writes_nothing_more(active: Store) -> None:
    schedule(active)
    before = row_counts(active)
    schedule(active, NOW + minutes(1))
    assert row_counts(active) == before


def test_scheduling_at_once_writes_once(active: Store) -> None:
    assert at_once([lambda: schedule(active)] * 4) == [None] * 4
    assert len(written(active)) == 3


def test_it_sees_what_the_transition_before_it_wrote(store: Store) -> None:
    Row("r1").preparing().save(store)
    with store.write() as session:
        row = session.get_one(ReservationRow, "r1")
        lifecycle.transition(
            session, "r1", Status.PREPARING, Status.ACTIVE, now=NOW, actor="t", expires_at=END
        )
        notices.schedule(session, row, CHANNELS, NOW)
    assert len(written(store)) == 3


@pytest.mark.parametrize(
    "row",
    [
        pytest.param(Row("r1"), id="waits"),
        pytest.param(Row("r1").preparing(), id="prepares"),
        pytest.param(Row("r1").active().ended(NOW), id="has ended"),
        pytest.param(Row("r1").active().with_(end_wanted="cancelled"), id="is ending"),
    ],
)
def test_what_does_not_run_is_not_warned(store: Store, row: Row) -> None:
    row.save(store)
    schedule(store)
    assert written(store) == []


def test_a_longer_reservation_is_warned_of_its_new_end_only(active: Store) -> None:
    schedule(active)
    move_end(active, END + hours(1), NOW + minutes(5))
    assert written(active) == [(kind, END + hours(1) - lead) for kind, lead in LEADS.items()]
    assert [d.status for d in deliveries(active)] == ["dropped"] * 3 + ["waiting"] * 3
    assert due(active, "webhook", END) == []


def test_what_was_delivered_before_the_end_moved_stays_delivered_but_is_not_shown_any_more(
    active: Store,
) -> None:
    schedule(active)
    at = NOW + minutes(31)
    with active.write() as session:
        notices.delivered(session, first(active), "webhook", at)
    assert told(active, at) == ["ends_in_30"]
    move_end(active, END + hours(1), at)
    assert told(active, at) == []
    assert [d.status for d in deliveries(active)] == ["delivered", "dropped", "dropped", *["waiting"] * 3]


def test_an_end_that_moves_back_is_warned_of_again(active: Store) -> None:
    schedule(active)
    move_end(active, END + hours(1), NOW + minutes(5))
    move_end(active, END, NOW + minutes(40))
    assert written(active) == [("ends_in_15", END - minutes(15)), ("ends_in_5", END - minutes(5))]
    assert due(active, "webhook", END - minutes(15)) == ["ends_in_15"]


def test_an_end_that_did_not_move_changes_nothing(active: Store) -> None:
    schedule(active)
    before = written(active), row_counts(active)
    move_end(active, END, NOW + minutes(1))
    assert (written(active), row_counts(active)) == before
    assert [d.status for d in deliveries(active)] == ["waiting"] * 3


def test_what_ended_is_not_warned_any_more(active: Store) -> None:
    schedule(active)
    tell(active, "ended")
    with active.write() as session:
        notices.withdraw(session, "r1", NOW)
    assert written(active) == [("ended", NOW)]
    assert due(active, "webhook", END) == ["ended"]


@pytest.mark.parametrize(
    ("row", "kinds"),
    [
        pytest.param(
            Row("r1").active().with_(end_actor="controller").ended(NOW), ["ended"], id="time was up"
        ),
        pytest.param(
            Row("r1").active().with_(end_actor="grace").ended(NOW, Status.CANCELLED), ["ended"], id="an admin"
        ),
        pytest.param(
            Row("r1").active().with_(end_actor="ada").ended(NOW, Status.CANCELLED),
            [],
            id="who ended it knows already",
        ),
        pytest.param(
            Row("r1").active().with_(end_actor="ada").ended(NOW, Status.FAILED), ["failed"], id="it failed"
        ),
    ],
)
def test_an_end_is_told_to_whom_it_is_news(store: Store, row: Row, kinds: list[str]) -> None:
    row.save(store)
    with store.write() as session:
        notices.tell_end(session, session.get_one(ReservationRow, "r1"), CHANNELS, NOW)
    assert due(store, "webhook", NOW) == kinds


def test_others_keep_their_warnings(active: Store) -> None:
    Row("r2").active().save(active)
    schedule(active)
    with active.write() as session:
        notices.schedule(session, session.get_one(ReservationRow, "r2"), CHANNELS, NOW)
        notices.withdraw(session, "r1", NOW)
    assert len(written(active)) == 3


# Messages


def test_a_message_is_due_at_once_and_never_in_a_terminal(active: Store) -> None:
    tell(active, "started")
    assert due(active, "webhook", NOW) == due(active, "feed", NOW) == ["started"]
    assert due(active, "terminal", NOW) == []


def test_a_message_told_twice_at_the_same_moment_is_one(active: Store) -> None:
    tell(active, "started")
    before = row_counts(active)
    tell(active, "started")
    assert row_counts(active) == before


def test_there_are_only_the_messages_that_there_are(active: Store) -> None:
    with pytest.raises(ValueError, match="no message 'boo'; possible: promise_moved"):
        tell(active, "boo")


# Delivering


def test_nothing_is_due_early_and_no_more_than_asked_for(active: Store) -> None:
    schedule(active)
    assert due(active, "webhook", END - minutes(30) - timedelta(microseconds=1)) == []
    assert due(active, "webhook", END - minutes(30)) == ["ends_in_30"]
    assert due(active, "webhook", END, limit=2) == ["ends_in_30", "ends_in_15"]


def test_what_is_delivered_on_one_channel_still_waits_on_another(active: Store) -> None:
    tell(active, "started")
    with active.write() as session:
        notices.delivered(session, first(active), "feed", NOW)
    assert due(active, "feed", END) == []
    assert due(active, "webhook", END) == ["started"]
    assert deliveries(active, "feed")[0].delivered_at == NOW


def test_a_failed_delivery_is_tried_again_ever_more_rarely(active: Store) -> None:
    tell(active, "started")
    at, waits = NOW, []
    for _ in range(9):
        with active.write() as session:
            notices.try_later(session, first(active), "webhook", at, "no answer")
        found = deliveries(active)[0]
        waits.append((found.next_try_at - at).total_seconds())
        assert due(active, "webhook", found.next_try_at - timedelta(seconds=1)) == []
        assert due(active, "webhook", found.next_try_at) == ["started"]
        at = found.next_try_at
    assert waits == [5, 10, 20, 40, 80, 160, 300, 300, 300]
    assert (found.attempts, found.error) == (9, "no answer")


@given(st.integers(0, 10**9))
def test_the_wait_is_always_between_five_seconds_and_five_minutes(attempts: int) -> None:
    assert timedelta(seconds=5) <= backoff(attempts) <= minutes(5)


@pytest.mark.parametrize(("asked", "waited"), [(60, 60), (1, 5), (10**6, 300)])
def test_it_waits_as_long_as_the_other_side_asks_within_bounds(
    active: Store, asked: float, waited: float
) -> None:
    tell(active, "started")
    with active.write() as session:
        notices.try_later(session, first(active), "webhook", NOW, "429", timedelta(seconds=asked))
    assert deliveries(active)[0].next_try_at == NOW + timedelta(seconds=waited)


def test_what_was_dropped_meanwhile_stays_dropped(active: Store) -> None:
    tell(active, "started")
    with active.write() as session:
        notices.dropped(session, first(active), "webhook", "why")
        notices.try_later(session, first(active), "webhook", NOW, "late")
        notices.delivered(session, first(active), "webhook", NOW)
    assert [(d.status, d.error) for d in deliveries(active)] == [("dropped", "why")]


def test_what_others_wait_for_goes_before_what_failed(active: Store) -> None:
    tell(active, "started")
    with active.write() as session:
        notices.try_later(session, first(active), "webhook", NOW, "no answer")
    tell(active, "requeued", NOW + timedelta(seconds=1))
    assert due(active, "webhook", NOW + minutes(1)) == ["requeued", "started"]


# Rules without a database


def warning(kind: str = "ends_in_30", end: datetime = END, **values: Any) -> NoticeRow:
    return NoticeRow(notice_id=1, kind=kind, due_at=end - LEADS[kind], detail={}, **values)


def message(kind: str, at: datetime = NOW, **detail: Any) -> NoticeRow:
    return NoticeRow(notice_id=1, kind=kind, due_at=at, detail=detail)


def row(builder: Row | None = None, **values: Any) -> ReservationRow:
    return ReservationRow(**(builder or Row("vision-ft").active()).with_(**values).values)


@pytest.mark.parametrize(
    ("notice", "of", "now", "why"),
    [
        pytest.param(warning(), row(), END - minutes(30), "", id="on time"),
        pytest.param(
            warning(),
            row(),
            END
            - minutes(
                15,
            ),
            "a later warning has taken its place",
            id="late",
        ),
        pytest.param(warning("ends_in_5"), row(), END - minutes(1), "", id="the last is told to the last"),
        pytest.param(warning("ends_in_5"), row(), END, "the end has passed", id="past the end"),
        pytest.param(warning(end=END - hours(1)), row(), NOW, "the end was moved", id="moved"),
        pytest.param(
            warning(), row(end_wanted="cancelled"), END - minutes(30), "the reservation ended", id="ending"
        ),
        pytest.param(
            warning(), row(status="expired"), END - minutes(30), "the reservation ended", id="ended"
        ),
        pytest.param(warning(withdrawn_at=NOW), row(), NOW, "it was withdrawn", id="withdrawn"),
        pytest.param(message("ended"), row(status="expired"), NOW + hours(23), "", id="a message keeps"),
        pytest.param(message("ended"), row(), NOW + hours(25), "it is too old", id="for a day"),
        pytest.param(
            message("promise_moved"),
            row(),
            NOW,
            "the reservation does not wait any more",
            id="a promise is of no interest once it runs",
        ),
        pytest.param(message("promise_moved"), row(Row("r1")), NOW, "", id="but while it waits it is"),
        pytest.param(
            message("started"), row(status="cancelled"), NOW, "the reservation ended", id="started and ended"
        ),
    ],
)
def test_what_has_become_pointless(notice: NoticeRow, of: ReservationRow, now: datetime, why: str) -> None:
    assert pointless(notice, of, now) == why


AT_1504 = datetime(2026, 11, 15, 15, 4, tzinfo=UTC)
DISK = row(disk_name="datasets", expires_at=AT_1504)
MOVED = {
    "node": "gpu-node-4",
    "code": "node_down",
    "old": "2026-11-15T14:10:00Z",
    "new": "2026-11-15T15:00:00Z",
}


def at(hour: int, minute: int, second: int = 0) -> datetime:
    return datetime(2026, 11, 15, hour, minute, second, tzinfo=UTC)


@pytest.mark.parametrize(
    ("notice", "of", "now", "said"),
    [
        pytest.param(
            warning(end=AT_1504),
            DISK,
            at(14, 34, 2),
            "30 minutes left. vision-ft ends at 15:04 UTC. Programs stop then; files on disk datasets stay.",
            id="warning with a disk",
        ),
        pytest.param(
            warning("ends_in_5", end=AT_1504),
            row(expires_at=AT_1504),
            at(14, 59),
            "5 minutes left. vision-ft ends at 15:04 UTC. Programs stop then. Files are gone then.",
            id="warning without a disk",
        ),
        pytest.param(
            warning(end=AT_1504),
            DISK,
            at(14, 41),
            "23 minutes left. vision-ft ends at 15:04 UTC. Programs stop then; files on disk datasets stay.",
            id="told late, it says what is left then",
        ),
        pytest.param(
            warning("ends_in_5", end=AT_1504),
            DISK,
            at(15, 3, 50),
            "Less than a minute left. vision-ft ends at 15:04 UTC. Programs stop then; "
            "files on disk datasets stay.",
            id="told very late",
        ),
        pytest.param(
            warning(end=datetime(2026, 11, 16, 0, 10, tzinfo=UTC)),
            DISK,
            at(23, 40),
            "30 minutes left. vision-ft ends at Mon 16 Nov 00:10 UTC. Programs stop then; "
            "files on disk datasets stay.",
            id="over midnight",
        ),
        pytest.param(
            message("promise_moved", at(13, 5), **MOVED),
            row(),
            at(13, 5),
            "gpu-node-4 went down at 13:05 UTC, so 14:10 UTC cannot be kept. Now no later than 15:00 UTC.",
            id="broken promise",
        ),
        pytest.param(
            message("promise_moved", at(13, 5), **{**MOVED, "code": "eaten", "new": None}),
            row(),
            at(13, 5),
            "There is less room since 13:05 UTC, so 14:10 UTC cannot be kept. A new time is not known yet.",
            id="broken promise without a new one, for a cause of a later version",
        ),
        pytest.param(
            message("started"), DISK, at(14, 0), "vision-ft has started. It ends at 15:04 UTC.", id="started"
        ),
        pytest.param(
            message("ended"),
            row(status="expired", reservation_ended=AT_1504, disk_name="datasets", end_actor="controller"),
            AT_1504,
            "vision-ft ended at 15:04 UTC. Files on disk datasets are kept.",
            id="ended",
        ),
        pytest.param(
            message("ended"),
            row(
                status="cancelled",
                reservation_ended=AT_1504,
                end_actor="grace",
                end_reason="it is needed",
            ),
            AT_1504,
            "vision-ft was ended by grace at 15:04 UTC: it is needed.",
            id="ended by an admin",
        ),
        pytest.param(
            message("failed", code="image_not_found", reason="the image was not found"),
            row(Row("vision-ft").status(Status.FAILED)),
            NOW,
            "vision-ft could not start: the image was not found.",
            id="could not start",
        ),
        pytest.param(
            message("failed", code="node_lost", reason="the node was lost."),
            row(status="failed"),
            NOW,
            "vision-ft failed: the node was lost.",
            id="failed while it ran",
        ),
        pytest.param(message("requeued"), row(), NOW, "vision-ft is in the queue again.", id="requeued"),
    ],
)
def test_words(notice: NoticeRow, of: ReservationRow, now: datetime, said: str) -> None:
    assert words(notice, of, now) == said


@pytest.mark.parametrize("code", notices.CAUSES)
def test_every_cause_of_a_broken_promise_has_words(code: str) -> None:
    said = words(message("promise_moved", at(13, 5), **{**MOVED, "code": code}), row(), at(13, 5))
    assert said.endswith(", so 14:10 UTC cannot be kept. Now no later than 15:00 UTC.")
    assert "{" not in said and (said[0].isupper() or said.startswith("gpu-node-4"))
    bare = words(message("promise_moved", at(13, 5), code=code), row(), at(13, 5))
    assert bare[0].isupper() and "None" not in bare


def test_every_kind_has_words() -> None:
    for kind in notices.TOLD:
        assert words(message(kind), row(), NOW).endswith(".")
    for kind in LEADS:
        assert words(warning(kind), row(), END - LEADS[kind]).startswith(f"{kind.rpartition('_')[2]} minutes")


# Reading


def test_a_person_reads_what_is_due_oldest_first(active: Store) -> None:
    schedule(active)
    tell(active, "started")
    assert told(active, NOW) == ["started"]
    assert told(active, END - minutes(15)) == ["started", "ends_in_30", "ends_in_15"]


def test_times_in_a_message_come_back_as_told(store: Store) -> None:
    Row("r1").save(store)
    tell(store, "promise_moved", node="gpu-node-4", cause="node_down", old=NOW + hours(1), new=NOW + hours(2))
    with store.read() as session:
        (found,) = notices.of(session, "r1", NOW)
        said = words(found, session.get_one(ReservationRow, "r1"), NOW)
    assert said.endswith("so 10:00 UTC cannot be kept. Now no later than 11:00 UTC.")
    assert views.notice(found) == {
        "notice_id": found.notice_id,
        "reservation_id": "r1",
        "kind": "promise_moved",
        "due_at": "2026-03-02T09:00:00Z",
        "ends_at": None,
        "detail": {
            "node": "gpu-node-4",
            "cause": "node_down",
            "old": "2026-03-02T10:00:00Z",
            "new": "2026-03-02T11:00:00Z",
        },
    }
    assert views.notice(warning("ends_in_5"))["ends_at"] == "2026-03-02T10:00:00Z"


# Settings


EMAIL = {"host": "mail", "sender": "gpu@example.org", "address": "{user}@example.org"}


@pytest.mark.parametrize(
    ("settings", "names"),
    [
        pytest.param({}, ("feed", "terminal"), id="as it comes"),
        pytest.param({"notify": {"terminal": False}}, ("feed",), id="no terminals"),
        pytest.param({"mode": "kubernetes"}, ("feed",), id="terminals are elsewhere"),
        pytest.param(
            {"notify": {"webhook_url_file": "hook", "email": EMAIL}},
            ("feed", "terminal", "webhook", "email"),
            id="all",
        ),
    ],
)
def test_channels_are_those_that_are_set_up(settings: dict[str, Any], names: tuple[str, ...]) -> None:
    assert channels_of(Settings(**settings)) == names


@pytest.mark.parametrize(
    ("email", "port"),
    [({}, 587), ({"security": "tls"}, 465), ({"security": "none"}, 25), ({"security": "tls", "port": 1}, 1)],
)
def test_the_port_of_mail_follows_its_security(email: dict[str, Any], port: int) -> None:
    assert Settings(notify={"email": EMAIL | email}).notify.email.smtp_port == port


@pytest.mark.parametrize(
    ("text", "said"),
    [
        pytest.param("email: {sender: a@b}", "notify.email needs notify.email.host", id="no host"),
        pytest.param(
            "email: {host: m}",
            "notify.email needs notify.email.sender, notify.email.address",
            id="only a host",
        ),
        pytest.param(
            "email: {host: m, sender: a@b, address: '{user}@b', user: me}",
            "notify.email.user and notify.email.password_file go together: set both or none",
            id="no password",
        ),
        pytest.param(
            "email: {host: m, sender: a@b, address: '{user}@b', user: me, password_file: p, security: none}",
            "notify.email.user needs notify.email.security starttls or tls: a password is never sent in the "
            "clear",
            id="a password in the clear",
        ),
        pytest.param(
            "email: {host: m, sender: 'A <a@b>', address: '{user}@b'}",
            "notify.email.sender: 'A <a@b>' is not possible: must be one plain address, as gpu@example.org",
            id="a sender that is more than an address",
        ),
        pytest.param(
            "webhook_url_file: https://hooks.example.org/hunter2",
            "notify.webhook_url_file names a file; the address is a secret: write it into a file of its own",
            id="the secret itself",
        ),
        pytest.param("webhook_url: hunter2", "unknown key 'notify.webhook_url'", id="the secret as a key"),
        pytest.param("email: {password: hunter2}", "unknown key 'notify.email.password'", id="a password"),
    ],
)
def test_a_mistake_is_told(tmp_path: Path, text: str, said: str) -> None:
    path = tmp_path / "portal.yaml"
    path.write_text(f"notify: {{{text}}}")
    with pytest.raises(SettingsError) as error:
        load(path, {})
    assert error.value.message.startswith(f"{path}: {said}")
    assert "hunter2" not in error.value.message


@pytest.mark.parametrize(
    "address", ["{user}", "{user}@example.org", "gpu+{user}@example.org"], ids=["alone", "before", "within"]
)
def test_addresses_that_can_be_made(address: str) -> None:
    assert Settings(notify={"email": EMAIL | {"address": address}}).notify.email.address == address


@pytest.mark.parametrize(
    "address",
    [
        "ada@example.org",
        "gpu@{user}",
        "{user}@{user}",
        "{user}{user}@b",
        "{user}@b, root@b",
        "{user}@b\nBcc: root@b",
        "{user} <x@b>",
        "{name}@b",
    ],
)
def test_addresses_that_cannot(address: str) -> None:
    with pytest.raises(ValueError, match=r"must be one plain address with \{user\} before"):
        Settings(notify={"email": EMAIL | {"address": address}})


def test_the_rows_of_a_request_with_a_disk_name_it() -> None:
    of = row(Row("vision-ft", request=ask(disk="datasets")).active())
    assert "disk datasets stay" in words(warning(), of, END - minutes(30))
