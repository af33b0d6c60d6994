"""Holds the arrows between the rooms by reading every import, also those inside functions."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent

CLOUD = {"boto3", "botocore", "kubernetes", "kubernetes_asyncio", "kubespawner"}
"""Ways to the cloud and the cluster; everything else goes through the adapters."""
DATABASE = {"sqlalchemy", "alembic", "psycopg2"}


@dataclass(frozen=True)
class Room:
    """``may_import`` are packages, or modules of packages, of ours."""

    package: str
    may_import: tuple[str, ...] = ()
    may_reach: frozenset[str] = frozenset()
    adapters: tuple[str, ...] = ()
    is_client: bool = False


ROOMS = {
    "core": Room("gpudev_core"),
    "spawner": Room(
        "gpudev_spawner", ("gpudev_core",), may_reach=frozenset({"kubespawner", "kubernetes_asyncio"})
    ),
    "services": Room("gpudev_services", ("gpudev_core",), adapters=("hub.py", "cluster.py", "aws.py")),
    "hub_config": Room("gpudev_hub", ("gpudev_core", "gpudev_spawner")),
    "cli": Room("gpudev_cli", is_client=True),
    "widgets": Room("gpudev_widgets", ("gpudev_cli.client",), is_client=True),
    "extensions": Room("gpudev_lab", ("gpudev_cli.client",), is_client=True),
}
PACKAGES = {room.package for room in ROOMS.values()}


def imports_of(source: str) -> Iterator[tuple[int, str]]:
    """Line and name of everything that is imported absolutely; relative imports stay in their package."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            yield from ((node.lineno, f"{node.module}.{alias.name}") for alias in node.names)
        elif (
            isinstance(node, ast.Call)
            and node.args
            and _name_of(node.func) in ("import_module", "__import__")
        ):
            first = node.args[0]
            if isinstance(first, ast.Constant) and isinstance(first.value, str):
                yield node.lineno, first.value


def _name_of(function: ast.expr) -> str:
    return function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")


def is_allowed(room: Room, file: Path, name: str) -> bool:
    top = name.partition(".")[0]
    if top in PACKAGES:
        inside = (room.package, *room.may_import)
        return any(name == allowed or name.startswith(f"{allowed}.") for allowed in inside)
    if top in CLOUD:
        return top in room.may_reach or file.name in room.adapters
    return not (room.is_client and top in DATABASE)


def wrong_imports(root: Path) -> list[str]:
    """Every import that goes against the arrows, as ``file:line imports name``."""
    return [
        f"{file.relative_to(root).as_posix()}:{line} imports {name}"
        for folder, room in ROOMS.items()
        for file in sorted((root / folder / room.package).rglob("*.py"))
        for line, name in imports_of(file.read_text(encoding="utf-8"))
        if not is_allowed(room, file, name)
    ]


def test_every_import_follows_the_arrows() -> None:
    assert wrong_imports(ROOT) == []


@pytest.mark.parametrize("folder", ["core", "spawner", "services", "hub_config", "cli"])
def test_the_room_is_where_the_check_looks(folder: str) -> None:
    assert (ROOT / folder / ROOMS[folder].package / "__init__.py").is_file()


def test_every_package_of_ours_is_a_room() -> None:
    found = {path.parent for path in ROOT.glob("*/gpudev_*/__init__.py")}
    assert found <= {ROOT / folder / room.package for folder, room in ROOMS.items()}


# The check itself


@pytest.mark.parametrize(
    ("file", "source", "name"),
    [
        pytest.param(
            "core/gpudev_core/a.py", "import gpudev_hub", "gpudev_hub", id="core imports another room"
        ),
        pytest.param(
            "core/gpudev_core/a.py",
            "def f():\n    from gpudev_services.web import x",
            "gpudev_services.web.x",
            id="inside a function",
        ),
        pytest.param(
            "core/gpudev_core/a.py",
            "import importlib\nimportlib.import_module('gpudev_cli')",
            "gpudev_cli",
            id="by its name as text",
        ),
        pytest.param("core/gpudev_core/a.py", "import boto3", "boto3", id="core calls the cloud"),
        pytest.param(
            "core/gpudev_core/hub.py", "import boto3", "boto3", id="an adapter's name does not help core"
        ),
        pytest.param(
            "spawner/gpudev_spawner/a.py",
            "from gpudev_services import web",
            "gpudev_services.web",
            id="spawner to services",
        ),
        pytest.param(
            "services/gpudev_services/web/a.py",
            "from gpudev_spawner import form",
            "gpudev_spawner.form",
            id="services to spawner",
        ),
        pytest.param(
            "services/gpudev_services/controller/round.py",
            "from kubernetes import client",
            "kubernetes.client",
            id="a service talks to the cluster past its adapter",
        ),
        pytest.param(
            "hub_config/gpudev_hub/a.py",
            "import gpudev_services.web",
            "gpudev_services.web",
            id="the hub imports a service",
        ),
        pytest.param(
            "cli/gpudev_cli/a.py", "from gpudev_core import models", "gpudev_core.models", id="the client"
        ),
        pytest.param(
            "cli/gpudev_cli/a.py", "import sqlalchemy.orm", "sqlalchemy.orm", id="a database client"
        ),
        pytest.param(
            "widgets/gpudev_widgets/a.py",
            "from gpudev_cli.command import main",
            "gpudev_cli.command.main",
            id="more of the command line than its client",
        ),
        pytest.param(
            "extensions/gpudev_lab/deep/er/a.py", "import gpudev_core", "gpudev_core", id="deep in a folder"
        ),
    ],
)
def test_a_wrong_import_is_caught(tmp_path: Path, file: str, source: str, name: str) -> None:
    path = tmp_path / file
    path.parent.mkdir(parents=True)
    path.write_text(source)
    assert wrong_imports(tmp_path) == [f"{file}:{source.count(chr(10)) + 1} imports {name}"]


@pytest.mark.parametrize(
    ("file", "source"),
    [
        pytest.param("core/gpudev_core/a.py", "from gpudev_core.models import Node", id="its own package"),
        pytest.param(
            "core/gpudev_core/a.py", "from . import models\nfrom .models import Node", id="relatively"
        ),
        pytest.param(
            "core/gpudev_core/a.py", "import gpudev_corelike", id="a name that only begins like ours"
        ),
        pytest.param("spawner/gpudev_spawner/kube.py", "import kubespawner", id="the spawner its base"),
        pytest.param("services/gpudev_services/controller/aws.py", "import boto3", id="an adapter the cloud"),
        pytest.param(
            "hub_config/gpudev_hub/a.py", "import gpudev_core, gpudev_spawner.form", id="the hub both"
        ),
        pytest.param(
            "widgets/gpudev_widgets/a.py",
            "from gpudev_cli.client import Client\nimport gpudev_cli.client\nfrom gpudev_cli import client",
            id="widgets the client",
        ),
    ],
)
def test_a_right_import_is_let_through(tmp_path: Path, file: str, source: str) -> None:
    path = tmp_path / file
    path.parent.mkdir(parents=True)
    path.write_text(source)
    assert wrong_imports(tmp_path) == []
