"""Makes ``pods.csv`` and ``nodes.csv`` beside it: a small made-up trace with the columns of a real one.

python bench/sample/make.py
"""

import csv
import random
from pathlib import Path

HERE = Path(__file__).resolve().parent
PODS = 600
NODES = 16
SEED = 20


def pods(rng: random.Random) -> list[dict[str, object]]:
    """Half an hour is usual, a few stay for a day; people come in bursts."""
    at, rows = 0, []
    for i in range(PODS):
        at += int(rng.expovariate(1 / 300)) if rng.random() < 0.4 else int(rng.expovariate(1 / 20))
        stay = max(30, min(100_000, int(rng.lognormvariate(7.0, 1.4))))
        gpus = rng.choices((0, 1, 2, 4, 8), (10, 70, 10, 6, 4))[0]
        rows.append({"name": f"pod-{i:04}", "num_gpu": gpus, "creation_time": at, "deletion_time": at + stay})
    return rows


def nodes() -> list[dict[str, object]]:
    return [{"sn": f"node-{i:02}", "gpu": 8 if i < 14 else 4} for i in range(NODES)]


def write(path: Path, rows: list[dict[str, object]]) -> None:
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)


if __name__ == "__main__":
    write(HERE / "pods.csv", pods(random.Random(SEED)))
    write(HERE / "nodes.csv", nodes())
