"""What the tests of the hub's configuration share."""

from types import SimpleNamespace

import pytest

from gpudev_hub.proxy import routes


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """The time that routes see: it stands at `now`."""
    clock = SimpleNamespace(now=1000.0)
    monkeypatch.setattr(routes, "time", SimpleNamespace(time=lambda: clock.now))
    return clock
