"""The notebook's availability panel, against answers of every kind; ``tests/portal`` runs it in a kernel."""

from __future__ import annotations

from html import escape

import httpx
import pytest

from gpudev_cli.client import Client, ClientError
from gpudev_widgets import AvailabilityPanel, availability

SIZE = {"nodes": 1, "starts_now": True, "about": None, "no_later_than": None, "reason": None}
H100 = {
    "gpu_type": "h100",
    "total": 16,
    "free_for_you": 16,
    "max_per_node": 8,
    "sizes": [{**SIZE, "count": 8}, {**SIZE, "count": 16, "nodes": 2}],
    "nodes": [{"name": "gpu-node-5", "cells": "ffffmmpp"}, {"name": "gpu-node-6", "cells": "dddddddd"}],
}
LATER = {"starts_now": False, "about": "2026-11-15T12:30:00Z", "no_later_than": "2026-11-15T13:10:00Z"}
FULL = {
    "gpu_type": "<b>t4",
    "total": 8,
    "free_for_you": 0,
    "max_per_node": 4,
    "sizes": [{**SIZE, "count": 1, **LATER}],
    "nodes": [{"name": "<i>n", "cells": "oooo"}],
}


def panel(*answers: httpx.Response) -> AvailabilityPanel:
    waiting = list(answers)
    transport = httpx.MockTransport(lambda _: waiting.pop(0))
    return AvailabilityPanel(Client("http://portal/services/gpu-dev", "token", transport=transport))


def figures(*types: dict[str, object]) -> httpx.Response:
    return httpx.Response(200, json={"availability": {str(t["gpu_type"]): t for t in types}})


def test_it_says_the_same_as_a_table_and_as_text() -> None:
    shown = panel(figures(H100, FULL))
    assert shown.text.splitlines()[1].split() == ["h100", "16", "of", "16", "up", "to", "2", "nodes", "-"]
    table = shown.children[0].value
    assert ">up to 2 nodes</td>" in table and ">full</td>" in table
    about = shown.text.splitlines()[2]
    assert "1 GPU: about" in about and ", by " in about and escape(about.split("1 GPU")[1]) in table
    assert "gpu-node-5: 4 free, 2 yours, 2 idle, promised to someone in the queue" in table
    assert table.count("repeating-linear-gradient") == 2 + 1, "two promised cells, and the legend"


def test_text_of_the_portal_is_never_markup() -> None:
    table = panel(figures(FULL)).children[0].value
    assert "&lt;b&gt;t4" in table and "<b>" not in table and "<i>n" not in table


def test_the_button_looks_again_and_trouble_is_told() -> None:
    shown = panel(figures(H100), httpx.Response(502, text="<html>"), figures(FULL))
    shown.children[1].click()
    assert shown.text.startswith("No figures:") and "h100" not in shown.children[0].value
    shown.children[1].click()
    assert "full" in shown.text


def test_outside_a_server_it_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("GPU_DEV_API_URL", raising=False)
    with pytest.raises(ClientError, match="GPU_DEV_API_URL is not set"):
        availability()
