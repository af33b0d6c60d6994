"""The whole portal with its rows in PostgreSQL instead of a file."""

from __future__ import annotations

from pathlib import Path

import pytest
from running import running_portal


@pytest.mark.parametrize("database_kind", ["postgresql"], indirect=True)
def test_a_queue_drains_by_itself(empty_database: str, tmp_path: Path) -> None:
    with running_portal(tmp_path / "state", database_url=empty_database) as portal:
        ada, bob = portal.login("ada"), portal.login("bob")
        first = ada.reserve("h100", 16, disk="+", new_disk_name="main")
        active = ada.wait_for(first, "active")
        assert ada.web.get(active["lab_url"]).status_code == 200
        second = bob.reserve("h100", 8)
        bob.wait_for(second, "queued")
        ada.end(first)
        ada.wait_for(first, "cancelled")
        bob.wait_for(second, "active")
        assert not (portal.state / "portal.sqlite").exists()
