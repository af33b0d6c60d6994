"""Replays a cluster's trace through four queues, and says how the promises and forecasts came true.

The portal's own ledger ("ours"), greedy backfill, FIFO, and the predecessor's ETA over greedy starts, on the
same requests. What each promised at submit is compared with its starts; capacity is checked anew from the
recorded starts and ends. Forecasts of the portal are made from what was over at their time, for waiting
requests and moments drawn by chance, and compared with what came. The last line printed is one JSON object.

    python bench/trace.py --pods pods.csv --nodes nodes.csv [--load 0.9] [--seed 1] [--gpu-nodes 12]
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import random
import statistics
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from policies import NEVER, Ours, Policy, Queue, Record, Replay, SeedEta, check
from workload import BadInput, Workload, read

from gpudev_core.outlook import Arrival, Book, Errors, Expected, Life, Outcome, Planned, expect, learnt
from gpudev_core.placement import Need
from gpudev_core.profile import EVER

SAMPLE = Path(__file__).resolve().parent / "sample"
FORECASTS = 500
"""Of waiting requests at submit, and as many of moments: more say little more, and take their time."""
CLOSE_S = 600
NEAR_S = 900
LOOK_AHEAD_S = 1_800
PARTS = 40

Figures = dict[str, float | int | None]


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


# The four queues


def make(name: str, workload: Workload) -> Policy:
    if name == "ours":
        return Ours(workload)
    return SeedEta(workload) if name == "seed_eta" else Queue(workload, is_strict=name == "fifo")


def replay(name: str) -> list[Record]:
    workload, began = _workload, time.monotonic()
    total, shown = len(workload.requests), [0]

    def progress(done: int) -> None:
        if done * 4 // total > shown[0]:
            shown[0] = done * 4 // total
            say(f"  {name}: {25 * shown[0]} % of {total} requests, {time.monotonic() - began:.0f} s")

    return Replay(workload).run(make(name, workload), progress)


def figures(workload: Workload, records: Sequence[Record]) -> Figures:
    waits = sorted(one.wait for one in records)
    several = [one.wait for one in records if one.request.nodes > 1]
    until = workload.requests[-1].at
    busy = sum(
        max(0, min(one.end, until) - one.start) * one.request.units * one.request.nodes for one in records
    )
    return {
        "broken_promises": sum(one.start > one.promise for one in records),
        "mean_wait_s": round(statistics.fmean(waits), 1),
        "p95_wait_s": waits[int(0.95 * (len(waits) - 1))],
        "max_multinode_wait_s": max(several, default=0),
        "utilisation": round(busy / (workload.capacity * until), 4),
    }


# Forecasts


@dataclass(frozen=True, slots=True)
class Moment:
    """The book at one time: for the request that had just come, or (None) for all who start soon."""

    came: int | None
    book: Book


def moments(workload: Workload, seed: int, most: int) -> tuple[list[Record], list[Moment], int]:
    """The same run twice: once to count, once to take the books of the moments that were drawn."""
    changes, waited = 0, []

    def count(now: int, came: int | None) -> None:
        nonlocal changes
        changes += bool(policy.ledger.plans)
        if came is not None and str(came) in policy.ledger.plans:
            waited.append(came)

    policy = Ours(workload)
    records = Replay(workload, count).run(policy)
    rng = random.Random(seed)
    submits = set(rng.sample(waited, min(most, len(waited))))
    drawn = set(rng.sample(range(1, changes + 1), min(most, changes)))
    taken: list[Moment] = []
    changes = 0

    def take(now: int, came: int | None) -> None:
        nonlocal changes
        changes += bool(policy.ledger.plans)
        if came in submits and str(came) in policy.ledger.plans:
            taken.append(Moment(came, Book.of(policy.ledger)))
        if policy.ledger.plans and changes in drawn:
            taken.append(Moment(None, Book.of(policy.ledger)))

    policy = Ours(workload)
    Replay(workload, take).run(policy)
    return records, taken, len(waited)


def forecast(part: int) -> list[dict[str, Expected]]:
    """Only what was over by then is known: ``expect`` leaves out the rest, and less is handed to it."""
    found = []
    for i in range(part, len(_moments), PARTS):
        moment = _moments[i]
        now, only = moment.book.now, None if moment.came is None else (str(moment.came),)
        lives = [life for life in _lives if life.ended <= now]
        arrivals = [one for one in _arrivals if one.at <= now]
        within = EVER if only else LOOK_AHEAD_S
        found.append(expect(moment.book, lives, arrivals, (), seed=i, only=only, within=within))
    return found


def forecasts(
    pool: Callable[[Iterable[int]], Iterable[list[dict[str, Expected]]]],
) -> list[dict[str, Expected]]:
    began, told = time.monotonic(), {}
    for part, found in enumerate(pool(range(PARTS))):
        told.update(zip(range(part, len(_moments), PARTS), found, strict=True))
        if (part + 1) % 4 == 0:
            say(f"  forecasts: {100 * (part + 1) // PARTS} %, {time.monotonic() - began:.0f} s")
    return [told[i] for i in range(len(_moments))]


def accuracy(records: Sequence[Record], told: Sequence[dict[str, Expected]]) -> Figures:
    close = fair = covered = at_once = submits = near = near_close = 0
    outcomes: list[Outcome] = []
    for moment, found in zip(_moments, told, strict=True):
        now = moment.book.now
        for key, one in found.items():
            actual = records[int(key)].start
            off = abs(actual - one.start)
            if one.start - now <= NEAR_S:
                near += 1
                near_close += off <= CLOSE_S
            if moment.came is None:
                continue
            submits += 1
            close += off <= CLOSE_S
            fair += off <= max(CLOSE_S, 0.2 * (actual - now))
            at_once += actual - now <= CLOSE_S
            shown = learnt(one, plan_of(moment.book, key), now, Errors(outcomes, now))
            covered += shown.low <= actual <= shown.high
            outcomes.append(Outcome(one.start, shown.low, shown.high, actual, now))
    return {
        "within_10min": share(close, submits),
        "within_10min_or_20pct": share(fair, submits),
        "near_within_10min": share(near_close, near),
        "interval_coverage": share(covered, submits),
        "now_within_10min": share(at_once, submits),
        "forecasts": submits,
        "near_forecasts": near,
    }


def plan_of(book: Book, key: str) -> Planned:
    return next(plan for plan in book.plans if plan.key == key)


def share(part: int, whole: int) -> float | None:
    return round(part / whole, 4) if whole else None


# The run

_workload: Workload
_moments: list[Moment] = []
_lives: list[Life] = []
_arrivals: list[Arrival] = []


def prepare(workload: Workload, records: Sequence[Record], taken: list[Moment]) -> None:
    """What the processes that make forecasts are born with."""
    global _moments, _lives, _arrivals
    _moments = taken
    _lives = sorted(
        (Life(one.request.length, one.request.run, one.end) for one in records), key=lambda life: life.ended
    )
    needs = [(one.at, Need(one.units, one.nodes, one.length)) for one in workload.requests]
    _arrivals = [Arrival(at, need, (need.size,)) for at, need in needs]


def run(workload: Workload, seed: int, most: int) -> dict[str, Figures]:
    global _workload
    _workload = workload
    say(f"{len(workload.requests)} requests on {len(workload.nodes)} nodes of {workload.units} GPUs")
    records, taken, waited = moments(workload, seed, most)
    prepare(workload, records, taken)
    say(f"  ours: {waited} requests had to wait; forecasts at {len(taken)} moments")
    context = multiprocessing.get_context("fork")
    with context.Pool(min(4, os.cpu_count() or 1)) as pool:
        others = {name: pool.apply_async(replay, (name,)) for name in ("fifo", "greedy", "seed_eta")}
        told = forecasts(lambda parts: pool.imap(forecast, parts))
        done = {"ours": records, **{name: others[name].get() for name in ("greedy", "fifo", "seed_eta")}}
    for found in done.values():
        check(workload, found)
    say("  capacity and whole nodes hold, checked from the recorded starts and ends")
    result = {name: figures(workload, found) for name, found in done.items()}
    result["ours"] |= accuracy(records, told)
    return result


def report(result: dict[str, Figures]) -> None:
    names = list(result)
    print(f"{'':26}" + "".join(f"{name:>12}" for name in names))
    for key in result["greedy"]:
        print(f"{key:26}" + "".join(f"{result[name][key]:>12,}" for name in names))
    for key in [key for key in result["ours"] if key not in result["greedy"]]:
        value = result["ours"][key]
        print(f"{key:26}{'-' if value is None else value:>12}")


def as_number(name: str, text: str, kind: type[int] | type[float]) -> float:
    try:
        value = kind(text)
    except ValueError:
        raise BadInput(f"{name} is {text!r}, not a number") from None
    if value != value or abs(value) >= NEVER:
        raise BadInput(f"{name} is {text!r}, not a number that can be used")
    return value


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--pods", type=Path, default=SAMPLE / "pods.csv")
    parser.add_argument("--nodes", type=Path, default=SAMPLE / "nodes.csv")
    parser.add_argument("--load", default="0.9", help="GPUs asked for on average, as a part of all")
    parser.add_argument("--seed", default="1")
    parser.add_argument("--gpu-nodes", default="12", help="how many nodes of the table are used")
    parser.add_argument("--forecasts", default=str(FORECASTS), help="at submit, and of moments, at most")
    options = parser.parse_args(arguments)
    try:
        seed = int(as_number("SEED", options.seed, int))
        count = int(as_number("GPU_NODES", options.gpu_nodes, int))
        load = as_number("LOAD", options.load, float)
        most = int(as_number("--forecasts", options.forecasts, int))
        workload = read(options.pods, options.nodes, count, load, seed)
    except BadInput as wrong:
        say(f"bench-trace: {wrong}.")
        return 1
    result = run(workload, seed, most)
    report(result)
    print(json.dumps(result))
    return 0


if __name__ == "__main__":
    sys.exit(main())
