"""Causes as codes: which may pass, when the next try comes, and what the person reads."""

from __future__ import annotations

from datetime import timedelta
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from builders import NOW

from gpudev_core import failures
from gpudev_core.failures import KINDS, because, cause, next_try, of_exit, of_pod, retry_after, words

BERLIN = ZoneInfo("Europe/Berlin")


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        ("image_not_found", False),
        ("path_too_long", False),
        ("quota", False),
        ("not_offered", False),
        ("no_account", False),
        ("node_lost", True),
        ("start_timeout", True),
        ("no_answer", True),
        ("refused_by_hub", True),
        ("evicted", True),
        ("unknown", True),
        ("a_code_of_a_later_version", True),
        (None, True),
    ],
)
def test_whether_trying_again_can_help(code: str | None, expected: bool) -> None:
    assert failures.may_pass(code) is expected


def test_each_try_waits_longer_than_the_one_before() -> None:
    assert [retry_after(n).total_seconds() for n in (0, 1, 2, 3, 4, 100)] == [5, 5, 20, 60, 60, 60]


@pytest.mark.parametrize(
    ("code", "attempt", "seconds"),
    [("no_answer", 1, 5), ("no_answer", 2, 20), ("no_answer", 3, None), ("image_not_found", 1, None)],
    ids=["first", "second", "the last attempt has none after it", "what can only fail again"],
)
def test_the_next_try(code: str, attempt: int, seconds: int | None) -> None:
    expected = NOW + timedelta(seconds=seconds) if seconds else None
    assert next_try(cause(code), attempt, 3, NOW) == expected


@pytest.mark.parametrize(
    ("code", "values", "disk", "expected"),
    [
        pytest.param(
            "node_lost",
            {"node": "gpu-node-4", "at": NOW},
            "main",
            "Disk main is safe. The node gpu-node-4 was lost at 10:00, and the programs with it.",
            id="the disk comes first",
        ),
        pytest.param(
            "node_lost",
            {"node": "gpu-node-4", "at": "2026-03-02T09:00:00Z"},
            "",
            "Files without a disk are gone. The node gpu-node-4 was lost at 10:00, and the programs with it.",
            id="without a disk, and a time as JSON keeps it",
        ),
        pytest.param(
            "evicted",
            {"node": "gpu-node-4", "message": "The node was low on memory."},
            "main",
            "Disk main is safe. The server was evicted from node gpu-node-4: The node was low on memory.",
            id="evicted, with one full stop",
        ),
        pytest.param(
            "out_of_memory",
            {},
            None,
            "Files without a disk are gone. Memory ran out, and the system ended the server. "
            "Load less at once, or ask for a larger share of the node.",
            id="out of memory says what to do",
        ),
        pytest.param(
            "killed",
            {"exit_code": -9},
            "main",
            "Disk main is safe. The server was killed, as happens when memory runs out.",
            id="a kill is not said to be more than that",
        ),
        pytest.param(
            "exited",
            {"exit_code": 3, "doing": "starting"},
            "",
            "The server ended by itself while starting (exit code 3).",
            id="nobody had files yet",
        ),
        pytest.param(
            "image_not_found",
            {"image": "train:v9"},
            "",
            "The image train:v9 was not found, or the portal may not read it. Choose another image.",
            id="image",
        ),
        pytest.param(
            "waited_too_long",
            {"hours": 48.0},
            "main",
            "Disk main is safe. It waited too long, more than 48 hours. File it again.",
            id="queue",
        ),
        pytest.param("unknown", {}, "", "The cause is not known.", id="unknown"),
        pytest.param("later", {"message": "odd {x} [y]"}, "", "Odd {x} [y].", id="a code of a later version"),
    ],
)
def test_what_the_person_reads(code: str, values: dict[str, Any], disk: str | None, expected: str) -> None:
    assert words(code, values, disk, BERLIN) == expected


@pytest.mark.parametrize(
    ("disk", "had_started", "expected"),
    [
        ("main", True, "Disk main is safe. Load less at once, or ask for a larger share of the node."),
        (
            "",
            True,
            "Files without a disk are gone. Load less at once, or ask for a larger share of the node.",
        ),
        ("", False, "Load less at once, or ask for a larger share of the node."),
    ],
)
def test_what_stands_beside_the_phrase(disk: str, had_started: bool, expected: str) -> None:
    assert failures.beside("out_of_memory", disk, had_started=had_started) == expected


def test_a_time_without_the_readers_zone_names_its_own() -> None:
    assert because("node_lost", {"at": NOW}) == "the node was lost at 09:00 UTC, and the programs with it"


@pytest.mark.parametrize("code", KINDS)
def test_every_phrase_can_be_said_without_any_value(code: str) -> None:
    phrase = because(code, {})
    assert phrase and not set(phrase) & set("{}[]") and not phrase.endswith(".")


def test_node_lost_evicted_and_out_of_memory_are_told_apart() -> None:
    assert len({because(code, {}) for code in ("node_lost", "evicted", "out_of_memory", "killed")}) == 4


@pytest.mark.parametrize(
    ("exit_code", "told", "code"),
    [
        (-9, True, "out_of_memory"),
        (137, True, "out_of_memory"),
        (-9, False, "killed"),
        (1, True, "exited"),
        (-15, False, "exited"),
    ],
)
def test_how_a_process_ended(exit_code: int, told: bool, code: str) -> None:
    found = of_exit(exit_code, ran_out_of_memory=told)
    assert found.code == code and found.values["exit_code"] == exit_code


def terminated(**values: Any) -> dict[str, Any]:
    return {"containerStatuses": [{"image": "train:v9", "state": {"terminated": values}}]}


@pytest.mark.parametrize(
    ("status", "code"),
    [
        ({"phase": "Failed", "reason": "Evicted", "message": "low on memory"}, "evicted"),
        ({"phase": "Failed", "reason": "NodeLost"}, "node_lost"),
        ({"conditions": [{"type": "DisruptionTarget", "reason": "DeletionByTaintManager"}]}, "node_lost"),
        (terminated(reason="OOMKilled", exitCode=137), "out_of_memory"),
        (terminated(reason="Error", exitCode=137), "killed"),
        (terminated(reason="Error", exitCode=3), "exited"),
        (
            {"containerStatuses": [{"image": "x", "state": {"waiting": {"reason": "ImagePullBackOff"}}}]},
            "image_not_found",
        ),
        (terminated(reason="Completed", exitCode=0), None),
        ({"phase": "Running"}, None),
    ],
)
def test_how_a_pod_ended(status: dict[str, Any], code: str | None) -> None:
    found = of_pod(status, "gpu-node-4")
    assert (found.code if found else None) == code
