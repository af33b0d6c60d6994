"""Many reservations that expire at the same moment. ``make bench-expiries`` does it with a thousand."""

from __future__ import annotations

from datetime import timedelta

from model_controller import START, Scene

from gpudev_core import reservations
from gpudev_core.models import Request, Status
from gpudev_core.reservations import Filing
from gpudev_core.settings import Limits, Settings
from gpudev_core.store import Store

COUNT = 24
"""All that the three large nodes of the scene hold."""


def test_many_that_expire_in_the_same_minute_are_all_ended_within_the_grace(store: Store) -> None:
    settings = Settings(limits=Limits(gpu_hours=1e6))
    scene = Scene(store, settings, local=False)
    scene.outside.start_s, scene.outside.stop_s = 0, 5
    try:
        scene.round()
        for number in range(COUNT):
            filing = Filing(f"user-{number}", Request("h100", 1, 0.5), "test", reservation_id=f"r{number}")
            reservations.file(store, filing, scene.portal.catalogue, settings, now=scene.outside.now)
        scene.round()
        scene.until(START + timedelta(seconds=1))
        assert len(scene.rows(Status.ACTIVE)) == COUNT
        end = START + timedelta(minutes=30)
        scene.until(end + timedelta(seconds=settings.servers.stop_grace_s))
        assert [row.status for row in scene.rows()] == ["expired"] * COUNT
        assert not scene.outside.running
    finally:
        scene.close()
