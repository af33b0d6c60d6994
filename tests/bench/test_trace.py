"""The whole bench on the sample that the repository made itself."""

from __future__ import annotations

import importlib
import json
import subprocess
import sys
from contextlib import nullcontext
from pathlib import Path
from types import ModuleType

import pytest

BENCH = Path(__file__).resolve().parents[2] / "bench"
SAMPLE = BENCH / "sample"
COMMON = {"broken_promises", "mean_wait_s", "p95_wait_s", "max_multinode_wait_s", "utilisation"}
SHARES = {
    "within_10min",
    "within_10min_or_20pct",
    "near_within_10min",
    "interval_coverage",
    "now_within_10min",
}


def bench(*arguments: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(BENCH / "trace.py"), *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=120)


def figures(*arguments: object) -> dict[str, dict[str, float]]:
    done = bench("--gpu-nodes", 3, *arguments)
    assert done.returncode == 0, done.stderr
    found: dict[str, dict[str, float]] = json.loads(done.stdout.splitlines()[-1])
    return found


def test_the_sample_runs_through_all_four_queues_and_no_promise_of_ours_is_broken() -> None:
    found = figures("--forecasts", 20)
    assert list(found) == ["ours", "greedy", "fifo", "seed_eta"]
    for one in found.values():
        assert one.keys() >= COMMON
        assert all(isinstance(value, int | float) for value in one.values())
        assert 0 < one["utilisation"] <= 1
        assert 0 <= one["mean_wait_s"] <= one["p95_wait_s"] * 20
    assert found["ours"]["broken_promises"] == 0
    assert found["seed_eta"]["broken_promises"] > 0
    assert found["fifo"]["mean_wait_s"] > found["greedy"]["mean_wait_s"]
    assert found["ours"].keys() >= SHARES
    assert all(0 <= found["ours"][name] <= 1 for name in SHARES)
    assert found["ours"]["forecasts"] == 20
    assert found == figures("--forecasts", 20), "the same seed gives the same figures"


def test_the_sample_is_what_its_script_makes(tmp_path: Path) -> None:
    script = tmp_path / "make.py"
    script.write_text((SAMPLE / "make.py").read_text())
    subprocess.run([sys.executable, str(script)], check=True)
    for name in ("pods.csv", "nodes.csv"):
        assert (tmp_path / name).read_text() == (SAMPLE / name).read_text()


def table(path: Path, columns: str, *rows: str) -> Path:
    path.write_text("\n".join([columns, *rows, ""]))
    return path


PODS = "num_gpu,creation_time,deletion_time"


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--pods", "missing.csv"], "missing.csv cannot be read: No such file"),
        (["--pods", "."], "cannot be read: Is a directory"),
        (["--pods", "columns.csv"], "columns.csv: column creation_time is missing"),
        (["--pods", "none.csv"], "none.csv: no pod with 1 to 8 GPUs and a deletion time"),
        (["--pods", "one.csv"], "one.csv: two pods with 1 to 8 GPUs, made at different times, are needed"),
        (["--pods", "words.csv"], "words.csv, line 2: num_gpu is 'many', not a number"),
        (["--nodes", "empty.csv"], "empty.csv: column sn is missing"),
        (["--gpu-nodes", "99"], "GPU_NODES is 99, and there are 14 nodes with 8 GPUs"),
        (["--gpu-nodes", "0"], "GPU_NODES is 0: at least one node is needed"),
        (["--gpu-nodes", "two"], "GPU_NODES is 'two', not a number"),
        (["--load", "0"], "LOAD is 0.0: it must be above 0 and at most 2"),
        (["--load", "nan"], "LOAD is 'nan', not a number"),
        (["--seed", "x"], "SEED is 'x', not a number"),
    ],
)
def test_bad_input_is_told_in_one_line(arguments: list[str], says: str, tmp_path: Path) -> None:
    table(tmp_path / "columns.csv", "num_gpu", "1")
    table(tmp_path / "none.csv", PODS, "0,1,2", "16,1,2", "1,1,")
    table(tmp_path / "one.csv", PODS, "1,1,20")
    table(tmp_path / "words.csv", PODS, "many,1,2")
    (tmp_path / "empty.csv").write_text("")
    given = [str(tmp_path / one) if one.endswith("csv") or one == "." else one for one in arguments]
    done = bench(*given)
    assert done.returncode == 1
    assert done.stdout == ""
    assert says in done.stderr
    assert done.stderr.count("\n") == 1


@pytest.fixture
def policies(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(BENCH))
    return importlib.import_module("policies")


@pytest.mark.parametrize(
    ("starts", "nodes", "says"),
    [
        ((0, 5), ("a", "b"), None),
        ((0, 10), ("a", "a"), None),
        ((0, 9), ("a", "a"), "a has 8 GPUs, and 12 were used at 9"),
        ((-1, 0), ("a", "b"), "started before it was asked for, or never"),
    ],
)
def test_the_check_finds_overbooked_nodes_and_wrong_starts(
    policies: ModuleType, starts: tuple[int, int], nodes: tuple[str, str], says: str | None
) -> None:
    request = importlib.import_module("workload").Request(0, 10, 20, 6, 1)
    workload = importlib.import_module("workload").Workload(("a", "b"), 8, (request, request))
    records = [
        policies.Record(request, 0, start, start + 10, (node,))
        for start, node in zip(starts, nodes, strict=True)
    ]
    with pytest.raises(AssertionError, match=says) if says else nullcontext():
        policies.check(workload, records)
