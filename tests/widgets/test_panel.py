"""The notebook's availability panel, against answers of every kind; ``tests/portal`` runs it in a kernel."""

from __future__ import annotations

import httpx
import pytest

from gpudev_cli.client import Client, ClientError
from gpudev_widgets import AvailabilityPanel, availability

H100 = {
    "gpu_type": "h100",
    "total": 16,
    "available": 16,
    "queued": 0,
    "max_reservable": 16,
    "max_per_node": 8,
}
FULL = {"gpu_type": "<b>t4", "total": 8, "available": 0, "queued": 3, "max_reservable": 0, "max_per_node": 4}


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


def test_text_of_the_portal_is_never_markup() -> None:
    table = panel(figures(FULL)).children[0].value
    assert "&lt;b&gt;t4" in table and "<b>" not in table


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
