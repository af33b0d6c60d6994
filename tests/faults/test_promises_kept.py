"""Where everybody uses all of their time every promise is met to the second; limits hold in a crowd."""

from __future__ import annotations

import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

from model_controller import START, Scene

from gpudev_core import reservations
from gpudev_core.errors import Refused
from gpudev_core.models import Request, Status
from gpudev_core.reservations import Filing
from gpudev_core.settings import Limits, Settings
from gpudev_core.store import Store

ROOMY = Settings(limits=Limits(gpus=500, reservations=500, queued=500, gpu_hours=1e6))
CROWD = [
    ("h100", 8, 1.0),
    ("h100", 4, 0.5),
    ("h100", 16, 2.0),
    ("h100", 8, 0.25),
    ("h100", 24, 1.0),
    ("h100", 2, 0.5),
    ("h100", 8, 3.0),
    ("h100", 16, 0.5),
    ("h100", 1, 0.25),
    ("h100", 8, 0.5),
    ("t4", 4, 0.5),
    ("t4", 2, 1.0),
    ("t4", 4, 0.25),
    ("t4", 1, 2.0),
    ("cpu-x86", 0, 0.5),
    ("cpu-x86", 0, 0.5),
    ("cpu-x86", 0, 1.0),
    ("cpu-x86", 0, 0.25),
]


def test_with_nobody_leaving_early_every_promised_start_is_met_to_the_second(store: Store) -> None:
    """Preparation and clean-up take exactly what is allowed for them."""
    scene = Scene(store, ROOMY, local=False)
    scene.outside.start_s = ROOMY.servers.start_timeout_s
    scene.outside.stop_s = ROOMY.servers.stop_grace_s + ROOMY.queue.cleanup_s
    scene.outside.hooks = False
    try:
        scene.round()
        for number, (gpu_type, count, hours) in enumerate(CROWD):
            scene.outside.tick(START + timedelta(seconds=number))
            filing = Filing(
                f"user-{number}", Request(gpu_type, count, hours), "test", reservation_id=f"r{number}"
            )
            reservations.file(store, filing, scene.portal.catalogue, ROOMY, now=scene.outside.now)
            scene.round()
        promised = {row.reservation_id: row.no_later_than for row in scene.rows(Status.QUEUED)}
        assert len(promised) >= 10 and all(promised.values())
        while scene.open_rows():
            scene.until(scene.next_event())
        rows = {row.reservation_id: row for row in scene.rows()}
        assert {key: rows[key].preparing_at for key in promised} == promised
        assert Counter(row.status for row in rows.values()) == {"expired": len(CROWD)}
        for row in rows.values():
            assert row.expires_at and row.launched_at
            assert row.expires_at - row.launched_at == timedelta(hours=row.duration_hours)
    finally:
        scene.close()


def test_fifty_at_once_never_pass_a_limit_while_the_controller_admits(store: Store) -> None:
    limits = Limits(gpus=6, reservations=4, queued=50, gpu_hours=1e6)
    scene = Scene(store, Settings(limits=limits))
    scene.round()
    over = threading.Event()

    def rounds() -> None:
        while not over.is_set():
            scene.round()

    admitting = threading.Thread(target=rounds)
    admitting.start()
    try:
        with ThreadPoolExecutor(50) as pool:
            accepted = list(pool.map(lambda number: _file(scene, number), range(50)))
    finally:
        over.set()
        admitting.join()
    scene.round()
    try:
        rows = scene.open_rows()
        by_user = Counter(row.user_id for row in rows)
        gpus = Counter({user: sum(r.gpu_count for r in rows if r.user_id == user) for user in by_user})
        assert max(by_user.values()) <= limits.reservations and max(gpus.values()) <= limits.gpus
        assert {row.reservation_id for row in rows} == {key for key in accepted if isinstance(key, str)}
        assert set(gpus.values()) == {limits.gpus}, "all that the limits allow was given"
    finally:
        scene.close()


def _file(scene: Scene, number: int) -> str | Refused:
    portal = scene.portal
    filing = Filing(f"user-{number % 2}", Request("h100", 2, 1.0), "test", reservation_id=f"r{number}")
    try:
        reservations.file(portal.store, filing, portal.catalogue, portal.settings, now=scene.outside.now)
    except Refused as refused:
        return refused
    return f"r{number}"
