"""What is looked at before the portal is started."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest
from running import free_port

from gpudev_core.errors import SettingsError
from gpudev_core.settings import Settings, load
from gpudev_hub import checks, ports, up


def settings(tmp_path: Path, **more: str) -> Settings:
    return load(None, {"GPUDEV_STATE": str(tmp_path), **{f"GPUDEV_{k.upper()}": v for k, v in more.items()}})


def test_a_mode_that_this_command_does_not_run(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="mode: 'kubernetes'"):
        checks.check_settings(settings(tmp_path, mode="kubernetes"))


def test_gpus_that_were_asked_for_and_are_not_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import pynvml

    def no_driver() -> None:
        raise pynvml.NVMLError(pynvml.NVML_ERROR_LIBRARY_NOT_FOUND)

    monkeypatch.setattr(pynvml, "nvmlInit", no_driver)
    with pytest.raises(SettingsError, match="nvidia-smi"):
        checks.check_settings(settings(tmp_path, gpus__source="nvml"))


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, for whom this mode is")
def test_system_users_must_be_able_to_reach_the_state_folder(tmp_path: Path) -> None:
    closed = tmp_path / "closed"
    closed.mkdir(mode=0o700)
    with pytest.raises(SettingsError, match="closed"):
        checks.check_settings(
            settings(closed / "state", servers__run_as="system-users", gpus__source="simulated")
        )


def test_dangerous_settings_are_allowed_and_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    assert "is root on this machine" in checks.warnings(settings(tmp_path))[0]
    told = checks.warnings(settings(tmp_path, servers__run_as="system-users", address__host="0.0.0.0"))
    assert ["keep nobody apart" in told[0], "without TLS" in told[1]] == [True, True]
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert checks.warnings(settings(tmp_path)) == []


@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
def test_a_free_port_is_free_on_either_kind_of_address(host: str) -> None:
    assert not ports.is_taken(host, free_port())


def test_a_kept_port_stays_the_same_until_somebody_else_takes_it(tmp_path: Path) -> None:
    path = tmp_path / "hub-port"
    first = ports.kept(path)
    assert ports.kept(path) == first
    with socket.socket() as other:
        other.bind(("127.0.0.1", first))
        other.listen()
        second = ports.kept(path)
    assert second != first and ports.kept(path) == second


def test_a_large_log_is_put_aside_and_a_small_one_goes_on(tmp_path: Path) -> None:
    log = tmp_path / "hub.log"
    up.put_aside(log, 10)
    log.write_text("short")
    up.put_aside(log, 10)
    assert log.read_text() == "short"
    log.write_text("much too long")
    up.put_aside(log, 10)
    assert not log.exists() and (tmp_path / "hub.log.1").read_text() == "much too long"


def test_addresses_as_people_type_them(tmp_path: Path) -> None:
    assert checks.public_url(settings(tmp_path, address__host="'::1'")) == "http://[::1]:8000/"
    assert checks.public_url(settings(tmp_path)) == "http://localhost:8000/"
    assert (
        checks.public_url(settings(tmp_path, address__url="https://gpu.example.org"))
        == "https://gpu.example.org/"
    )
