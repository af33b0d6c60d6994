"""How fast requests are accepted, and how soon what is given back is handed on, on both databases.

Accepted per second: four threads file requests for which there is room; from the first filing to the last
``preparing`` that is committed. Freed to admitted: all GPUs are held and a hundred wait; one reservation
after the other ends, and the time from that commit to the commit of the next ``preparing`` is taken. The
controller's loop runs in a process apart and is woken as usual. Takes about two minutes. The last line
printed is one JSON object.

    python bench/admission.py
"""

from __future__ import annotations

import argparse
import itertools
import json
import statistics
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path

import stage
from sqlalchemy import func, select

from gpudev_core import lifecycle, reservations
from gpudev_core.models import Request, Status
from gpudev_core.portal import Portal
from gpudev_core.reservations import Filing
from gpudev_core.tables import ReservationRow

REQUESTS = 400
THREADS = 4
USERS = 50
NODES = 55
QUEUED = 100
SAMPLES = 250
LOOK_EVERY_S = 0.002

_numbers = itertools.count()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--requests", type=int, default=REQUESTS)
    parser.add_argument("--samples", type=int, default=SAMPLES)
    options = parser.parse_args()
    result: dict[str, float] = {}
    p99: list[float] = []
    with stage.databases() as urls:
        for name, url in urls.items():
            with tempfile.TemporaryDirectory(prefix="gpudev-state-") as state:
                rate, waits = measure(url, Path(state), options.requests, options.samples)
            result[f"per_second_{name}"] = round(rate, 1)
            result[f"freed_to_admitted_p50_s_{name}"] = round(statistics.median(waits), 4)
            p99.append(percentile(waits, 99))
            result[f"freed_to_admitted_p99_s_{name}"] = round(p99[-1], 4)
            print(
                f"{name}: {rate:.0f} accepted/s; freed to admitted {statistics.median(waits):.3f} s (median)"
            )
    print(json.dumps({**result, "freed_to_admitted_p99_s": round(max(p99), 4), "samples": options.samples}))


def measure(url: str, state: Path, requests: int, samples: int) -> tuple[float, list[float]]:
    portal = stage.portal(url, state, NODES)
    with stage.controller(url, state, NODES):
        file(portal)
        wait_until(portal, 1)
        began = time.perf_counter()
        with ThreadPoolExecutor(THREADS) as pool:
            list(pool.map(lambda _: file(portal), range(requests)))
        wait_until(portal, 1 + requests)
        rate = requests / (time.perf_counter() - began)
        fill(portal)
        waits = sorted(one_handover(portal) for _ in range(samples))
    portal.store.close()
    return rate, waits


def file(portal: Portal) -> None:
    number = next(_numbers)
    filing = Filing(f"user-{number % USERS}", Request(stage.GPU_TYPE, 1, 20, image="local"), "bench")
    reservations.file(portal.store, filing, portal.catalogue, portal.settings, now=datetime.now(UTC))


def fill(portal: Portal) -> None:
    """Hold every GPU, and let a hundred wait."""
    all_units = NODES * 8
    for _ in range(all_units + QUEUED - held(portal)):
        file(portal)
    wait_until(portal, all_units)
    time.sleep(2)  # the last plan is written


def one_handover(portal: Portal) -> float:
    before = admitted(portal)
    with portal.store.write() as session:
        row = session.scalars(select(ReservationRow).where(ReservationRow.status == "active").limit(1)).one()
        now = datetime.now(UTC)
        lifecycle.want_end(
            session, row.reservation_id, Status.ACTIVE, Status.CANCELLED, now=now, actor="x", reason="done"
        )
        session.refresh(row)
        lifecycle.finish(session, row, now=now)
    freed = time.perf_counter()
    wait_until(portal, before + 1)
    took = time.perf_counter() - freed
    file(portal)
    time.sleep(0.02)
    return took


def admitted(portal: Portal) -> int:
    """How many were ever admitted."""
    with portal.store.read() as session:
        query = select(func.count()).where(ReservationRow.preparing_at.is_not(None))
        return session.scalar(query) or 0


def held(portal: Portal) -> int:
    with portal.store.read() as session:
        return len(reservations.open_rows(session))


def wait_until(portal: Portal, count: int) -> None:
    while admitted(portal) < count:
        time.sleep(LOOK_EVERY_S)


def percentile(ordered: Sequence[float], percent: float) -> float:
    return ordered[min(len(ordered) - 1, int(len(ordered) * percent / 100))]


if __name__ == "__main__":
    main()
