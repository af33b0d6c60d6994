"""Requests and nodes out of the tables of a cluster trace (names as in Alibaba's openb trace of 2023).

A pod with GPUs becomes a request: it is asked for when the pod was made, runs as long as the pod lived, and
asks for the next of the usual lengths; half of the people ask for one or two lengths more. One in a hundred
is made a request of several nodes. Arrival times are scaled until the wanted load is reached.
"""

from __future__ import annotations

import csv
import random
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

LENGTHS_S = (900, 1_800, 3_600, 7_200, 14_400, 28_800, 43_200, 86_400)
ASK_MORE = 0.5
MULTINODE = 0.01
MOST_NODES = 4
SPARSE_HEAD = 0.02
"""The first arrivals of the trace are spread over months; at the scale of the rest they would be no load."""


class BadInput(Exception):
    """Told in one line."""


@dataclass(frozen=True, slots=True)
class Request:
    at: int
    run: int
    length: int
    units: int
    nodes: int


@dataclass(frozen=True, slots=True)
class Workload:
    nodes: tuple[str, ...]
    units: int
    requests: tuple[Request, ...]

    @property
    def capacity(self) -> int:
        return len(self.nodes) * self.units


def read(pods: Path, nodes: Path, count: int, load: float, seed: int) -> Workload:
    if count < 1:
        raise BadInput(f"GPU_NODES is {count}: at least one node is needed")
    if not 0 < load <= 2:
        raise BadInput(f"LOAD is {load}: it must be above 0 and at most 2")
    names, units = read_nodes(nodes, count)
    rng = random.Random(seed)
    lives = list(read_pods(pods, units))
    lives = lives[int(len(lives) * SPARSE_HEAD) :]
    if len(lives) < 2 or lives[0][0] == lives[-1][0]:
        raise BadInput(f"{pods}: two pods with 1 to {units} GPUs, made at different times, are needed")
    first = lives[0][0]
    asked = [make_request(at - first, run, gpus, units, count, rng) for at, run, gpus in lives]
    return Workload(names, units, scaled(asked, count * units * load))


def make_request(at: int, run: int, gpus: int, units: int, count: int, rng: random.Random) -> Request:
    run = min(run, LENGTHS_S[-1])
    step = next(i for i, length in enumerate(LENGTHS_S) if length >= run)
    if rng.random() < ASK_MORE:
        step = min(len(LENGTHS_S) - 1, step + rng.choice((1, 2)))
    several = rng.random() < MULTINODE and count > 1
    nodes = rng.randint(2, min(MOST_NODES, count)) if several else 1
    return Request(at, run, LENGTHS_S[step], units if several else gpus, nodes)


def scaled(requests: list[Request], busy: float) -> tuple[Request, ...]:
    """Arrivals closer together or farther apart, so that on average ``busy`` GPUs are worked on."""
    work = sum(one.run * one.units * one.nodes for one in requests)
    factor = work / busy / requests[-1].at
    return tuple(Request(int(one.at * factor), one.run, one.length, one.units, one.nodes) for one in requests)


def read_nodes(path: Path, count: int) -> tuple[tuple[str, ...], int]:
    """The first ``count`` of the largest nodes."""
    rows = [(row["sn"], number(path, line, row, "gpu")) for line, row in table(path, ("sn", "gpu"))]
    units = max((gpus for _, gpus in rows), default=0)
    if units < 1:
        raise BadInput(f"{path}: no node with GPUs")
    names = tuple(name for name, gpus in rows if gpus == units)
    if count > len(names):
        raise BadInput(f"{path}: GPU_NODES is {count}, and there are {len(names)} nodes with {units} GPUs")
    return names[:count], units


def read_pods(path: Path, units: int) -> list[tuple[int, int, int]]:
    """Creation, seconds of life and GPUs of the pods that fit on one node, in order of creation."""
    lives = []
    for line, row in table(path, ("num_gpu", "creation_time", "deletion_time")):
        gpus = number(path, line, row, "num_gpu")
        if 1 <= gpus <= units and row["deletion_time"]:
            made, gone = number(path, line, row, "creation_time"), number(path, line, row, "deletion_time")
            lives.append((made, max(1, gone - made), gpus))
    if not lives:
        raise BadInput(f"{path}: no pod with 1 to {units} GPUs and a deletion time")
    return sorted(lives)


def table(path: Path, columns: tuple[str, ...]) -> Iterator[tuple[int, dict[str, str]]]:
    try:
        with path.open(newline="", encoding="utf-8") as file:
            reader = csv.DictReader(file)
            missing = [name for name in columns if name not in (reader.fieldnames or ())]
            if missing:
                raise BadInput(f"{path}: column {missing[0]} is missing")
            for row in reader:
                yield reader.line_num, row
    except OSError as error:
        raise BadInput(f"{path} cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise BadInput(f"{path} is not a table of text") from None


def number(path: Path, line: int, row: dict[str, str], column: str) -> int:
    try:
        return int(float(row[column] or 0))
    except (TypeError, ValueError, OverflowError):
        raise BadInput(f"{path}, line {line}: {column} is {row[column]!r}, not a number") from None
