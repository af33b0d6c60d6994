"""``gpu-dev-portal failed``, ``requeue``, ``history`` and ``forecast-report``, on both databases."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from gpudev_core import availability
from gpudev_core.catalogue import Catalogue
from gpudev_core.models import Node, Request
from gpudev_core.store import Store
from gpudev_core.tables import ForecastRow, ReservationEventRow, ReservationRow
from gpudev_hub import terminal
from gpudev_hub.command import main
from gpudev_hub.failed_command import _table

Command = Callable[..., Result]


@pytest.fixture
def command(database: str, tmp_path: Path) -> Command:
    def run(*arguments: str) -> Result:
        env = {"GPUDEV_DATABASE_URL": database, "GPUDEV_STATE": str(tmp_path), "GPUDEV_CONFIG": None}
        return CliRunner().invoke(
            main, arguments, env={**env, "GPUDEV_GPUS__SOURCE": "simulated", "TZ": "UTC"}
        )

    return run


def ago(hours: float) -> datetime:
    return datetime.now(UTC) - timedelta(hours=hours)


def save(store: Store, number: str = "r1", **values: Any) -> None:
    request = Request("t4", 2, 4.0, image="local")
    usual: dict[str, Any] = {
        "user_id": "ada",
        "server_name": number,
        "name": number,
        "gpu_type": "t4",
        "gpu_count": 2,
        "duration_hours": 4.0,
        "request": request.as_json(),
        "filed_from": "test",
        "groups": ["vision"],
        "status": "failed",
        "created_at": ago(10),
        "reservation_ended": ago(5),
    }
    with store.write() as session:
        session.add(ReservationRow(reservation_id=number, **{**usual, **values}))


def save_failed(store: Store, number: str = "r1", **values: Any) -> None:
    cause = {"failure_code": "no_answer", "failure_reason": "the server did not answer within 30 s"}
    save(store, number, start_attempts=3, **{**cause, **values})


def count(store: Store) -> int:
    with store.read() as session:
        return len(session.query(ReservationRow).all())


def offer(store: Store) -> None:
    availability.save(store, Catalogue(), [Node("n1", "t4", 4)], [], now=datetime.now(UTC), by="test")


# failed


def test_what_failed_and_why(command: Command, store: Store) -> None:
    save_failed(store, "aaaaaaaa-1")
    save_failed(store, "bbbbbbbb-1", reservation_ended=ago(24 * 8))
    save(store, "fine", status="expired")
    shown = command("failed")
    assert shown.exit_code == 0
    row = next(line for line in shown.output.splitlines() if line.startswith("aaaaaaaa "))
    assert re.search(r"ada +2 x t4 +3 +no_answer +the server did not answer within 30 s$", row)
    assert "bbbbbbbb" not in shown.output and "fine" not in shown.output
    assert "bbbbbbbb" in command("failed", "--since", "2w").output


def test_what_failed_as_json(command: Command, store: Store) -> None:
    save_failed(store)
    save(store, "r2", status="queued", requeued_from="r1", reservation_ended=None)
    (entry,) = json.loads(command("failed", "--json").output)
    assert (entry["reservation_id"], entry["failure_code"], entry["requeued_as"]) == ("r1", "no_answer", "r2")
    assert entry["failed_at"].endswith("Z") and entry["start_attempts"] == 3
    assert "(requeued as r2)" in command("failed").output


def test_nothing_failed(command: Command) -> None:
    assert command("failed").output == "Nothing has failed in that time.\n"
    assert json.loads(command("failed", "--json").output) == []


@pytest.mark.parametrize("width", [80, 120])
def test_the_table_fits_the_terminal(width: int) -> None:
    row = ReservationRow(
        reservation_id="a" * 36,
        user_id="grace.hopper@research.example.org",
        gpu_type="cpu-x86",
        gpu_count=0,
        start_attempts=3,
        failure_code="disk_not_attached",
        failure_reason="it is long " * 20 + "\x1b[31m",
        reservation_ended=ago(1),
    )
    lines = _table([row], {}, width)
    assert max(map(len, lines)) <= width and not any("\x1b" in line for line in lines)
    assert ("grace.hopper@research.example.org" in lines[1]) is (width == 120)


# requeue


def test_failed_ones_go_into_the_queue_again(command: Command, store: Store) -> None:
    offer(store)
    save_failed(store, "aaaa-1")
    save_failed(store, "bbbb-1")
    done = command("requeue", "aaaa", "bbbb-1")
    assert done.exit_code == 0 and done.output.count("is in the queue again as") == 2
    with store.read() as session:
        again = session.query(ReservationRow).filter(ReservationRow.requeued_from.is_not(None)).all()
    assert {(r.requeued_from, r.status) for r in again} == {("aaaa-1", "pending"), ("bbbb-1", "pending")}


def test_one_that_is_refused_does_not_stop_the_others(command: Command, store: Store) -> None:
    offer(store)
    for number in ("aaaa-1", "aaaa-2", "bbbb-1"):
        save_failed(store, number)
    done = command("requeue", "aaaa", "nothing", "bbbb")
    assert done.exit_code == 1 and "Traceback" not in done.output
    assert "aaaa: 2 reservations begin with aaaa: aaaa-1, aaaa-2." in done.stderr
    assert "nothing: Reservation nothing not found" in done.stderr
    assert "bbbb-1 is in the queue again" in done.stdout and count(store) == 4


def test_the_quota_holds(command: Command, store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GPUDEV_LIMITS__GPUS", "1")
    offer(store)
    save_failed(store)
    refused = command("requeue", "r1")
    assert refused.exit_code == 1 and "limit" in refused.stderr and count(store) == 1


# history


def test_history_by_user_and_by_group(command: Command, store: Store) -> None:
    ran = {"status": "cancelled", "created_at": ago(10), "launched_at": ago(9), "reservation_ended": ago(7)}
    save(store, "r1", **ran)
    save(store, "r2", **{**ran, "user_id": "bob", "groups": []})
    text = command("history").output
    assert re.search(r"^ada +1 +4\.0 +4\.0 +2\.0 +1 \(100 %\) +2\.0 +-$", text, re.M)
    assert re.search(r"^all +2 +8\.0 +8\.0 +4\.0 +2 \(100 %\) +4\.0 +-$", text, re.M)
    assert re.search(r"^all +1\.0 h +1\.0 h +1\.0 h +1\.0 h +- +2 +- +-$", text, re.M)
    by_group = command("history", "--by", "group").output
    assert re.search(r"^vision +1 ", by_group, re.M) and re.search(r"^no group +1 ", by_group, re.M)


def test_history_as_json(command: Command, store: Store) -> None:
    save(store, "r1", status="expired", launched_at=ago(9))
    found = json.loads(command("history", "--by", "type", "--json").output)
    assert found["by"] == "type" and found["lines"][0]["name"] == "t4" and found["since"].endswith("Z")
    assert found["total"]["gpu_hours"] == pytest.approx(8, abs=0.01)


def test_no_history(command: Command) -> None:
    assert command("history").output == "Nobody had a reservation in that time.\n"


# forecast-report


def waited(store: Store, number: str, *, start: float, promise: float, moved: bool = False) -> None:
    """Filed 10 hours ago, told 9; ``start`` and ``promise`` are hours ago."""
    save(store, number, status="expired", preparing_at=ago(start), launched_at=ago(start))
    told = {"expected_start": ago(9), "expected_from": ago(9.5), "expected_until": ago(8)}
    with store.write() as session:
        session.add(
            ForecastRow(
                reservation_id=number,
                at=ago(10),
                position=1,
                queue_length=1,
                method="plan",
                no_later_than=ago(promise),
                **told,
            )
        )
        if moved:
            session.add(
                ReservationEventRow(
                    reservation_id=number, at=ago(9.5), actor="controller", event="promise_moved"
                )
            )


def test_nothing_has_waited(command: Command) -> None:
    assert command("forecast-report").output == "Nothing has waited yet in that time.\n"
    assert "for h100" in command("forecast-report", "--type", "h100").output
    assert json.loads(command("forecast-report", "--json").output)["is_empty"] is True


def test_how_forecasts_came_true(command: Command, store: Store) -> None:
    waited(store, "r1", start=9.05, promise=9)
    waited(store, "r2", start=6, promise=7, moved=True)
    text = command("forecast-report").output
    assert re.search(r"^t4 +2 +2 +2 +1 +1 +0 +0$", text, re.M)
    assert re.search(r"^all +50 % +50 % +- +50 % +0 % +2\.5 h +4\.0 h$", text, re.M)
    assert "No promise was broken without" in text
    assert re.search(r"^ *within 10 min 1 #{40}$", text, re.M)
    assert re.search(r"^ *over 60 min later 1 #{40}$", text, re.M)
    assert "Nothing has waited" in command("forecast-report", "--type", "h100").output


def test_a_broken_promise_is_told_in_red(command: Command, store: Store, tmp_path: Path) -> None:
    waited(store, "r1", start=6, promise=7)
    assert "1 broken without a word. This must be 0" in command("forecast-report").output
    env = {"GPUDEV_DATABASE_URL": store.url.render_as_string(hide_password=False)}
    env |= {"GPUDEV_STATE": str(tmp_path), "GPUDEV_CONFIG": ""}
    colours = CliRunner().invoke(main, ["forecast-report"], env=env, color=True)
    assert "\x1b[31m\x1b[1m1 broken" in colours.output
    assert json.loads(command("forecast-report", "--json").output)["total"]["promises"]["broken"] == 1


# All


@pytest.mark.parametrize("name", ["failed", "history", "forecast-report"])
@pytest.mark.parametrize("value", ["7x", "", "0d", "-1d", "9999999w", "d"])
def test_a_period_that_is_none(name: str, value: str) -> None:
    answer = CliRunner().invoke(main, [name, "--since", value])
    assert answer.exit_code == 2 and "90m, 12h, 7d, 2w" in answer.output


@pytest.mark.parametrize("name", ["failed", "history", "forecast-report"])
def test_a_mistyped_folder_makes_nothing(name: str, tmp_path: Path) -> None:
    folder = tmp_path / "nowhere"
    env = {"GPUDEV_DATABASE_URL": None, "GPUDEV_CONFIG": None, "GPUDEV_STATE": None}
    answer = CliRunner().invoke(main, [name, "--state", str(folder)], env=env)
    assert answer.exit_code == 1 and f"no portal in {folder}" in answer.output and not folder.exists()


def test_ids_are_as_short_as_they_can_be_told_apart() -> None:
    found = terminal.short_ids(["nightly-2026-01", "nightly-2026-02", "3f2a1b4c-9d", "r1"])
    assert list(found.values()) == ["3f2a1b4c", "nightly-2026-01", "nightly-2026-02", "r1"]


def test_a_share_is_never_rounded_to_all_or_nothing() -> None:
    shown = [terminal.percent(part) for part in (None, 0, 0.001, 0.5, 0.999, 1)]
    assert shown == ["-", "0 %", "1 %", "50 %", "99 %", "100 %"]


def test_names_are_cut_where_figures_would_not_fit() -> None:
    rows = [("USER", "FILED"), ("x" * 40, "1")]
    assert max(map(len, terminal.figures(rows, 30))) == 30
    assert "x" * 40 in terminal.figures(rows, None)[1]
