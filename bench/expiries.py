"""A thousand reservations that expire in the same minute: are all of them ended within the grace?

They are active, their ends are spread over one minute, and a stop through the hub takes 0.2 s. The
controller's own loop runs in a process apart, on PostgreSQL and on SQLite. Measured is the time from each
one's end to the commit of its ``expired``. Takes about three minutes. The last line printed is one JSON
object.

    python bench/expiries.py
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path

import stage
from sqlalchemy import insert, select

from gpudev_core.portal import Portal
from gpudev_core.tables import ReservationRow

COUNT = 1000
STOP_S = 0.2
SPREAD_S = 60
AHEAD_S = 15
LOOK_EVERY_S = 0.05


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--count", type=int, default=COUNT)
    options = parser.parse_args()
    result: dict[str, float] = {}
    slowest: list[float] = []
    with stage.databases() as urls:
        for name, url in urls.items():
            with tempfile.TemporaryDirectory(prefix="gpudev-state-") as state:
                late = measure(url, Path(state), options.count)
            slowest.append(max(late))
            result[f"slowest_s_{name}"] = round(slowest[-1], 2)
            print(f"{name}: {len(late)} ended, the slowest {slowest[-1]:.2f} s after its end")
    grace = stage.Servers().stop_grace_s
    print(
        json.dumps(
            {"expired": options.count, "slowest_s": round(max(slowest), 2), "grace_s": grace, **result}
        )
    )


def measure(url: str, state: Path, count: int) -> list[float]:
    """For each of them the seconds from its end to the commit that says so."""
    node_count = -(-count // 8)
    portal = stage.portal(url, state, node_count)
    ends = put_active(portal, count)
    seen: dict[str, float] = {}
    with stage.controller(url, state, node_count, STOP_S, [(f"user-{n}", "server") for n in range(count)]):
        while len(seen) < count:
            time.sleep(LOOK_EVERY_S)
            with portal.store.read() as session:
                over = session.scalars(
                    select(ReservationRow.reservation_id).where(ReservationRow.status == "expired")
                ).all()
            now = time.time()
            for key in over:
                seen.setdefault(key, now - ends[key])
    portal.store.close()
    return list(seen.values())


def put_active(portal: Portal, count: int) -> dict[str, float]:
    """Reservations that run already, written as they are. Their ends, in seconds."""
    now = datetime.now(UTC)
    first = now + timedelta(seconds=AHEAD_S)
    rows = [
        {
            "reservation_id": f"r{number}",
            "user_id": f"user-{number}",
            "server_name": "server",
            "name": "server",
            "gpu_type": stage.GPU_TYPE,
            "gpu_count": 1,
            "duration_hours": 1.0,
            "request": {"gpu_type": stage.GPU_TYPE, "gpu_count": 1, "hours": 1.0},
            "filed_from": "bench",
            "status": "active",
            "created_at": now - timedelta(hours=1),
            "preparing_at": now - timedelta(hours=1),
            "launched_at": now - timedelta(hours=1),
            "expires_at": first + timedelta(seconds=SPREAD_S * number / count),
            "latest_end": first + timedelta(seconds=SPREAD_S * number / count),
            "placement": [{"node": f"node-{number // 8 + 1}", "units": [number % 8]}],
            "start_attempts": 1,
            "groups": [],
            "secondary_users": [],
            "priority": 0,
            "jupyter_enabled": True,
        }
        for number in range(count)
    ]
    with portal.store.write() as session:
        session.execute(insert(ReservationRow), rows)
    return {row["reservation_id"]: row["expires_at"].timestamp() for row in rows}


if __name__ == "__main__":
    main()
