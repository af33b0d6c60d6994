"""Setting up says what is missing, in a sentence."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """As much of a checkout as the set-up looks at."""
    shutil.copytree(ROOT / "requirements", tmp_path / "requirements")
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    return tmp_path


def install(checkout: Path, python: str) -> subprocess.CompletedProcess[str]:
    """Run the set-up where ``python3`` is this shell script, and no other Python is there."""
    folder = checkout / "bin"
    folder.mkdir()
    (folder / "python3").write_text(python)
    (folder / "python3").chmod(0o755)
    for tool in ("sh", "cat", "cksum", "dirname", "rm"):
        found = shutil.which(tool)
        assert found
        (folder / tool).symlink_to(found)
    env = {"PATH": str(folder)}
    return subprocess.run(
        [str(folder / "sh"), str(checkout / "requirements/install.sh"), "portal"],
        env=env,
        capture_output=True,
        text=True,
    )


def test_an_old_python_is_told_and_nothing_is_left_behind(checkout: Path) -> None:
    old = '#!/bin/sh\n[ "$1" = --version ] && { echo "Python 3.9.2"; exit 0; }\nexit 1\n'
    answer = install(checkout, old)
    assert answer.returncode == 1
    assert "Python 3.11 or later" in answer.stderr and "Python 3.9.2" in answer.stderr
    assert not (checkout / ".venv").exists()


def test_a_python_without_venv_is_told_what_to_install(checkout: Path) -> None:
    bare = (
        '#!/bin/sh\n[ "$1" = -c ] && exit 0\n[ "$1" = --version ] && echo "Python 3.12.3" && exit 0\nexit 1\n'
    )
    answer = install(checkout, bare)
    assert answer.returncode == 1 and "python3-venv" in answer.stderr
    assert not (checkout / ".venv").exists()
