"""What a plan and a forecast cost: 200 nodes of 8 GPUs, 400 sessions, 500 to 4,000 requests in the queue.

Measures the ledger that the controller keeps: a full plan from nothing, one more request, one early end with
all who may start at once or earlier, one extension, the loss of a node; and the expected starts of the whole
queue. Wall and CPU seconds of this one process; each figure is a median unless its name says p95. Takes about
a minute. The last line printed is one JSON object.

    python bench/forecast.py [--nodes 200] [--queued 500 1000 2000 4000]
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import sys
import time
from collections.abc import Callable, Sequence

from gpudev_core.ledger import Ledger
from gpudev_core.outlook import Arrival, Book, Life, Lives, Typical, expect
from gpudev_core.placement import Need

UNITS = 8
ACTIVE = 400
LENGTHS_S = (900, 1_800, 3_600, 7_200, 14_400, 28_800, 43_200, 86_400)
AT = 2_000
"""The queue for which the aims are set."""
SIMULATED = (50, 150)
NOW = 1_800_000_000

Cost = tuple[float, float]
"""Wall and CPU seconds."""


def timed(action: Callable[[], object]) -> Cost:
    wall, cpu = time.perf_counter(), time.process_time()
    action()
    return time.perf_counter() - wall, time.process_time() - cpu


def middle(costs: Sequence[Cost]) -> Cost:
    return statistics.median(cost[0] for cost in costs), statistics.median(cost[1] for cost in costs)


def p95(costs: Sequence[Cost]) -> Cost:
    walls, cpus = sorted(cost[0] for cost in costs), sorted(cost[1] for cost in costs)
    place = int(0.95 * (len(costs) - 1))
    return walls[place], cpus[place]


# A full cluster with a queue


def need(rng: random.Random) -> Need:
    if rng.random() < 0.01:
        return Need(UNITS, rng.randint(2, 4), rng.choice(LENGTHS_S))
    return Need(rng.choices((1, 2, 4, 8), (50, 15, 15, 20))[0], 1, rng.choice(LENGTHS_S))


def busy(nodes: int, rng: random.Random) -> Ledger:
    """Sessions on every node, begun at different times, two on each with four GPUs."""
    ledger = Ledger(NOW)
    for i in range(nodes):
        ledger.set_node(f"node-{i:03}", UNITS)
    for i in range(ACTIVE * nodes // 200):
        length = rng.choice(LENGTHS_S[2:])
        begun = NOW - rng.randrange(length)
        ledger.hold(f"held-{i}", {f"node-{i % nodes:03}": UNITS // 2}, begun, begun + length)
    return ledger


def ask(ledger: Ledger, needs: Sequence[Need], first: int = 0) -> None:
    for i, one in enumerate(needs, first):
        ledger.plan(f"queued-{i}", one, (one.size, i))


def due(ledger: Ledger) -> None:
    for key in [key for key, plan in ledger.plans.items() if plan.start <= ledger.now]:
        ledger.begin(key)


# What is measured


def full_plan(nodes: int, queued: int, rounds: int) -> Cost:
    costs = []
    for seed in range(rounds):
        rng = random.Random(seed)
        ledger, needs = busy(nodes, rng), [need(rng) for _ in range(queued)]
        costs.append(timed(lambda ledger=ledger, needs=needs: ask(ledger, needs)))
    return middle(costs)


def one_more(ledger: Ledger, rng: random.Random, times: int) -> list[Cost]:
    """A request that comes and is taken back, so that the queue stays as long."""
    costs = []
    for i in range(times):
        one = need(rng)
        costs.append(timed(lambda one=one, i=i: ask(ledger, [one], 10**6 + i)))
        ledger.drop(f"queued-{10**6 + i}")
    return costs


def early_ends(ledger: Ledger, rng: random.Random, times: int) -> list[Cost]:
    """Someone leaves; whoever can start does, and for each a new one joins the queue."""
    costs = []
    for i in range(times):
        ledger.set_now(ledger.now + 30)
        for key in [key for key, held in ledger.held.items() if held.end <= ledger.now]:
            ledger.release(key)
        ledger.fill()
        due(ledger)
        key = rng.choice(sorted(ledger.held))
        waiting = len(ledger.plans)
        costs.append(timed(lambda key=key: (ledger.release(key), ledger.fill())))
        due(ledger)
        ask(ledger, [need(rng) for _ in range(waiting - len(ledger.plans))], 2 * 10**6 + 1000 * i)
    return costs


def extensions(ledger: Ledger, rng: random.Random, times: int) -> list[Cost]:
    keys = rng.sample(sorted(ledger.held), min(times, len(ledger.held)))
    return [timed(lambda key=key: ledger.longest(key, ledger.held[key].end + 7_200)) for key in keys]


def node_losses(ledger: Ledger, rng: random.Random, times: int) -> list[Cost]:
    costs = []
    for name in rng.sample(sorted(ledger.places.profiles), times):
        costs.append(timed(lambda name=name: (ledger.set_node(name, 0), ledger.mend())))
        ledger.set_node(name, UNITS)
    return costs


def past(rng: random.Random) -> tuple[list[Life], list[Arrival]]:
    lives = [
        Life(length, max(1, int(length * rng.random())), NOW - i)
        for i, length in enumerate(rng.choices(LENGTHS_S, k=2_000))
    ]
    needs = [need(rng) for _ in range(1_500)]
    return lives, [Arrival(NOW - 30 * i, one, (one.size,)) for i, one in enumerate(needs)]


def outlook(nodes: int, queued: int) -> dict[str, float]:
    rng = random.Random(5)
    ledger = busy(nodes, rng)
    while len(ledger.plans) < queued:
        ask(ledger, [need(rng)], len(ledger.plans) + len(ledger.held))
        due(ledger)
    lives, arrivals = past(rng)
    book = Book.of(ledger)
    soon = timed(lambda: expect(book, lives, arrivals, (), within=1_800))
    every = timed(lambda: expect(book, lives, arrivals, ()))
    known = Lives(lives, NOW)
    form = timed(lambda: Typical(book, known).ask([(Need(4, 1, 7_200), (28_800, NOW))]))
    result: dict[str, float] = {"queued": queued}
    for name, (wall, cpu) in {"all": every, "soon": soon, "ask": form}.items():
        result |= {f"{name}_s": rounded(wall), f"{name}_cpu_s": rounded(cpu)}
    return result


# The run


def rounded(seconds: float) -> float:
    return float(f"{seconds:.3g}")


def measure(nodes: int, queued: int) -> dict[str, float]:
    print(f"{queued} queued ...", file=sys.stderr, flush=True)
    rng = random.Random(queued)
    ledger = busy(nodes, rng)
    ask(ledger, [need(rng) for _ in range(queued)])
    due(ledger)
    more = one_more(ledger, rng, 100)
    ends = early_ends(ledger, rng, 100)
    longer = extensions(ledger, rng, 30)
    losses = node_losses(ledger, rng, 5)
    figures = {
        "full": full_plan(nodes, queued, 3),
        "one_more": middle(more),
        "one_more_p95": p95(more),
        "early_end": middle(ends),
        "early_end_p95": p95(ends),
        "extension": middle(longer),
        "node_loss": middle(losses),
    }
    result: dict[str, float] = {"queued": queued}
    for name, (wall, cpu) in figures.items():
        result |= {f"{name}_s": rounded(wall), f"{name}_cpu_s": rounded(cpu)}
    return result


def report(growth: Sequence[dict[str, float]], outlooks: Sequence[dict[str, float]]) -> None:
    for rows in (growth, outlooks):
        names = [name for name in rows[0] if name != "queued"]
        print(f"{'queued':20}" + "".join(f"{row['queued']:>12,}" for row in rows))
        for name in names:
            print(f"{name:20}" + "".join(f"{row[name]:>12.5f}" for row in rows))
        print()


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--nodes", type=int, default=200)
    parser.add_argument("--queued", type=int, nargs="+", default=[500, 1_000, AT, 4_000])
    options = parser.parse_args(arguments)
    growth = [measure(options.nodes, queued) for queued in options.queued]
    print("expected starts ...", file=sys.stderr, flush=True)
    outlooks = [outlook(options.nodes, queued) for queued in (*SIMULATED, *options.queued)]
    report(growth, outlooks)
    at = next((row for row in growth if row["queued"] == AT), growth[-1])
    figures = {name: value for name, value in at.items() if name != "queued"}
    print(json.dumps({**figures, "growth": growth, "outlook": outlooks}))


if __name__ == "__main__":
    main()
