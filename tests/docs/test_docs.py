"""The documents name what there is: settings, GPU types, commands, make targets, and pages that exist."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path
from types import ModuleType
from typing import Any
from urllib.parse import unquote

import click
import pytest

from gpudev_cli.command import main as gpu_dev
from gpudev_core.catalogue import BUILT_IN
from gpudev_hub.command import main as gpu_dev_portal

ROOT = Path(__file__).parents[2]
REFERENCE = ROOT / "docs" / "reference"
GROUPS: dict[str, click.Group] = {"gpu-dev": gpu_dev, "gpu-dev-portal": gpu_dev_portal}
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
LINK = re.compile(r"\]\(([^)\s]+)\)")
FENCE = re.compile(r"^```.*?^```", re.S | re.M)
HEADING = re.compile(r"^#+ (.+)$", re.M)
TARGET = re.compile(r"^([a-z][a-z-]*):", re.M)
CODE = re.compile(r"^```.*?^```|`[^`\n]+`", re.S | re.M)
MAKE = re.compile(r"\bmake (?:[A-Z]+=\S+ )*([a-z][a-z-]+)")


def load_generate() -> ModuleType:
    spec = importlib.util.spec_from_file_location("docs_generate", ROOT / "docs" / "generate.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


generate: Any = load_generate()


def name_of(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


def anchors_of(page: Path) -> set[str]:
    """The addresses of a page's headings, as code hosts make them."""
    text = FENCE.sub("", page.read_text(encoding="utf-8"))
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in HEADING.findall(text)}


@pytest.mark.parametrize("key", [key for key, _ in generate.settings_keys()])
def test_every_setting_is_in_the_reference(key: str) -> None:
    assert f"| `{key}` |" in (REFERENCE / "settings.md").read_text(), "run: .venv/bin/python docs/generate.py"


def test_no_setting_is_described_that_is_not_there() -> None:
    assert set(generate.DESCRIPTIONS) == {key for key, _ in generate.settings_keys()}


@pytest.mark.parametrize("gpu_type", [kind.name for kind in BUILT_IN])
def test_every_gpu_type_is_in_the_reference(gpu_type: str) -> None:
    page = (REFERENCE / "gpu-types.md").read_text()
    assert f"| `{gpu_type}` |" in page, "run: .venv/bin/python docs/generate.py"


@pytest.mark.parametrize("page", sorted(REFERENCE.glob("*.md")), ids=name_of)
def test_tables_are_as_the_code_says(page: Path) -> None:
    text = page.read_text()
    assert generate.renewed(text) == text, "run: .venv/bin/python docs/generate.py"


@pytest.mark.parametrize(
    ("group", "name"),
    [(group, name) for group in GROUPS for name in GROUPS[group].list_commands(click.Context(GROUPS[group]))],
)
def test_every_command_and_option_is_in_the_reference(group: str, name: str) -> None:
    text = (REFERENCE / "commands.md").read_text()
    assert f"### {group} {name}\n" in text
    section = text.split(f"### {group} {name}\n")[1].split("\n#")[0]
    command = GROUPS[group].get_command(click.Context(GROUPS[group]), name)
    assert command is not None and command.help, f"{name} says nothing about itself"
    options = [parameter for parameter in command.params if isinstance(parameter, click.Option)]
    for option in (text for found in options for text in found.opts):
        assert f"`{option}" in section


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_every_link_leads_somewhere(page: Path) -> None:
    for link in LINK.findall(FENCE.sub("", page.read_text(encoding="utf-8"))):
        if re.match(r"[a-z]+:", link):
            continue
        path, _, anchor = link.partition("#")
        target = (page.parent / unquote(path)).resolve() if path else page
        assert target.exists(), f"{name_of(page)} links to {link}"
        assert target.is_relative_to(ROOT), f"{name_of(page)} links out of the project: {link}"
        if anchor:
            assert anchor in anchors_of(target), f"{name_of(page)} links to {link}"


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_every_make_target_that_is_named_exists(page: Path) -> None:
    targets = set(TARGET.findall((ROOT / "Makefile").read_text()))
    code = CODE.findall(page.read_text(encoding="utf-8"))
    named = {target for piece in code for target in MAKE.findall(piece)}
    assert named <= targets, f"{name_of(page)} names {sorted(named - targets)}"


def test_every_make_target_is_in_the_reference() -> None:
    text = (REFERENCE / "commands.md").read_text()
    for target in set(TARGET.findall((ROOT / "Makefile").read_text())):
        assert f"| `make {target}` |" in text


def test_every_page_is_in_the_index() -> None:
    index = ROOT / "docs" / "README.md"
    linked = {(index.parent / link).resolve() for link in LINK.findall(index.read_text())}
    assert set((ROOT / "docs").rglob("*.md")) - {index} <= linked


def test_pictures_are_small() -> None:
    for picture in (ROOT / "docs" / "images").glob("*.png"):
        assert picture.stat().st_size < 200_000, f"{picture.name} is larger than 200 KB"
