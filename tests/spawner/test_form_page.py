"""The form as HTML, before any script: what is closed cannot be chosen, what is promised is told."""

from __future__ import annotations

import re
from typing import Any

import pytest

from gpudev_spawner import form

TIME = "2026-03-02T11:01:00Z"


def kind(name: str, **more: Any) -> dict[str, Any]:
    size = {"count": 1, "nodes": 1, "starts_now": True, "about": TIME, "no_later_than": TIME, "on": ["n"]}
    given = {
        "gpu_type": name, "is_cpu": False, "gpu_memory_gb": 16, "per_node": 4, "multinode": False, "total": 4,
        "free": 4, "promised": 0, "down": 0, "queued": 0, "maintenance": None, "counts": [size],
        "nodes": [{"name": "gpu-node-1", "cells": "ffpp"}],
    }  # fmt: skip
    return given | more


def page(*types: dict[str, Any], values: dict[str, str] | None = None, **quota: Any) -> str:
    meter = {"limit": 8, "used": 0}
    state = {
        "now": TIME, "as_of": TIME, "stale": False, "types": list(types), "disks": [], "images": ["local"],
        "quota": {
            "gpus": meter, "gpu_hours": {**meter, "window_days": 7}, "reservations": meter, "disks": meter,
            "hours": 24, "total_hours": 48, "types": {}, **quota,
        },
    }  # fmt: skip
    urls = form.Urls(feed="", state="", asset=lambda name: "")
    return form.render(state, form.Input(values or {}), urls, simulated=False)


def radio(html: str, gpu_type: str) -> str:
    found = re.search(rf'<input type="radio" name="gpu_type" value="{gpu_type}"[^>]*>', html)
    assert found
    return found[0]


def test_a_closed_type_cannot_be_chosen_and_says_why() -> None:
    note = "new <driver>"
    html = page(kind("t4", maintenance={"note": note}), kind("l4"), values={"gpu_type": "t4"})
    assert "disabled" in radio(html, "t4") and "checked" not in radio(html, "t4")
    assert "checked" in radio(html, "l4") and "disabled" not in radio(html, "l4")
    assert "Closed for maintenance" in html and "new &lt;driver&gt;" in html


def test_forecast_and_promise_of_a_full_type() -> None:
    size = {"count": 1, "nodes": 1, "starts_now": False, "on": ["n"], "no_later_than": TIME}
    apart = page(kind("t4", free=0, counts=[{**size, "about": "2026-03-02T10:30:00Z"}]))
    assert re.search(r"The first about <time[^>]*>2026-03-02 10:30 UTC</time>, no later than <time", apart)
    assert re.search(
        r"The first no later than <time", page(kind("t4", free=0, counts=[{**size, "about": TIME}]))
    )


def test_promised_cells_have_their_own_look_and_a_word_in_the_legend() -> None:
    html = page(kind("t4"))
    assert 'aria-label="gpu-node-1: 2 free, 2 promised"' in html and html.count('class="gp-c p"') == 2 + 1
    assert "idle, promised to someone in the queue" in html


def test_hours_reach_to_the_largest_limit_of_any_type() -> None:
    html = page(kind("t4"), hours=4, types={"t4": {"hours": 12}})
    assert re.findall(r'class="gp-chip" type="button" value="(\d+)"', html) == ["1", "2", "4", "8", "12"]
    assert 'max="12"' in html and "At most 4 h, t4 12 h." in html


@pytest.mark.parametrize(
    ("text", "hours"),
    [("4", 4.0), ("0.5", 0.5), ("", None), ("x", None), ("nan", None), ("-1", None), ("1e9", None)],
)
def test_only_usable_hours_are_asked_for(text: str, hours: float | None) -> None:
    assert form.asked_hours(text) == hours
