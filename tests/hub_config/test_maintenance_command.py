"""``gpu-dev-portal maintenance`` on the tables of a portal that need not run."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from gpudev_core import availability
from gpudev_core.portal import open_portal
from gpudev_core.settings import load
from gpudev_hub.command import main


@pytest.fixture
def state(tmp_path: Path) -> Path:
    portal = open_portal(load(None, {"GPUDEV_STATE": str(tmp_path), "GPUDEV_GPUS__SOURCE": "simulated"}))
    now = datetime(2026, 3, 2, 9, 0, tzinfo=UTC)
    availability.save(portal.store, portal.catalogue, portal.machine.nodes, [], now=now, by="test")
    portal.store.close()
    return tmp_path


def run(state: Path, *arguments: str) -> Result:
    return CliRunner().invoke(main, ["maintenance", *arguments, "--state", str(state)])


def test_close_look_and_open(state: Path) -> None:
    assert run(state, "list").output == "No type is closed.\n"
    begun = run(state, "begin", "h100", "--note", "new drivers", "--allow", "ada", "--allow", "@ops")
    assert begun.output == "h100 is closed: new drivers. Still open to @ops, ada.\n"
    assert run(state, "begin", "t4").output == "t4 is closed.\n"
    assert run(state, "list").output == (
        "h100 is closed: new drivers. Still open to @ops, ada.\nt4 is closed.\n"
    )
    assert json.loads(run(state, "list", "--json").output) == [
        {"gpu_type": "h100", "note": "new drivers", "allowed": ["@ops", "ada"]},
        {"gpu_type": "t4", "note": "", "allowed": []},
    ]
    assert run(state, "end", "h100").output == "h100 is open again.\n"
    assert run(state, "end", "h100").output == "h100 was not closed.\n"
    assert json.loads(run(state, "list", "--json").output)[0]["gpu_type"] == "t4"


@pytest.mark.parametrize("verb", ["begin", "end"])
def test_an_unknown_type_is_told_with_those_there_are(state: Path, verb: str) -> None:
    found = run(state, verb, "v100")
    assert found.exit_code == 1
    assert "There is no GPU type 'v100' here. Possible: a100, " in found.output


def test_a_folder_without_a_portal_is_named_and_stays_empty(tmp_path: Path) -> None:
    found = run(tmp_path / "typo", "list")
    assert found.exit_code == 1
    assert f"There is no portal in {tmp_path / 'typo'} yet." in found.output
    assert list(tmp_path.iterdir()) == []
