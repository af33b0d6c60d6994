from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from builders import CATALOGUE, ask
from hypothesis import given, settings
from hypothesis import strategies as st

from gpudev_core import quotas
from gpudev_core.errors import Refused
from gpudev_core.models import Request
from gpudev_core.quotas import Use
from gpudev_core.settings import Limits

LIMITS = Limits(gpus=16, reservations=3, hours=24, gpu_hours=100, disks=2)


def check(request: Request, use: Use, limits: Limits = LIMITS) -> None:
    quotas.check(request, CATALOGUE[request.gpu_type], limits, use)


@pytest.mark.parametrize(
    ("request_", "use"),
    [
        pytest.param(ask("h100", 1, 1), Use(), id="one GPU for an hour"),
        pytest.param(ask("h100", 1, 24), Use(), id="as long as one may be"),
        pytest.param(ask("h100", 8, 1), Use(gpus=8), id="the last eight GPUs"),
        pytest.param(ask("h100", 4, 5), Use(gpu_hours=80), id="the last GPU-hours"),
        pytest.param(ask("h100", 1, 1), Use(reservations=2), id="the last reservation"),
        pytest.param(ask(disk="d", new_disk=True), Use(disks=1), id="the last disk"),
        pytest.param(ask(disk="d"), Use(disks=2), id="an old disk when no new one is left"),
        pytest.param(
            ask("cpu-x86", 0, 24), Use(gpus=16, gpu_hours=100), id="a CPU machine when no GPU is left"
        ),
        pytest.param(
            ask("cpu-x86", 0, 24), Use(gpus=40, gpu_hours=400), id="a CPU machine though limits were lowered"
        ),
    ],
)
def test_what_the_limits_leave_is_granted(request_: Request, use: Use) -> None:
    check(request_, use)


@pytest.mark.parametrize(
    ("request_", "use", "field", "reason", "fits", "said"),
    [
        pytest.param(
            ask("t4", 1, 25), Use(), "hours", "too_long", 24, ["25 h", "at most 24 h"], id="an hour too long"
        ),
        pytest.param(
            ask("h100", 16, 1),
            Use(gpus=12, names=("train", "eval")),
            "gpu_count",
            "too_many_gpus",
            4,
            ["Limit 16", "12 in use by train, eval", "4 left", "4 would fit"],
            id="more GPUs than are left",
        ),
        pytest.param(
            ask("h100", 8, 1),
            Use(gpus=13),
            "gpu_count",
            "too_many_gpus",
            2,
            ["3 left", "2 would fit"],
            id="odd rest",
        ),
        pytest.param(
            ask("h100", 1, 1),
            Use(gpus=16),
            "gpu_count",
            "too_many_gpus",
            None,
            ["0 left", "End one first"],
            id="no GPU is left",
        ),
        pytest.param(
            ask("h100", 1, 1),
            Use(gpus=20),
            "gpu_count",
            "too_many_gpus",
            None,
            [" 0 left"],
            id="limit lowered",
        ),
        pytest.param(
            ask("h100", 8, 10),
            Use(gpu_hours=60),
            "hours",
            "too_many_gpu_hours",
            5,
            ["80 GPU-hours", "40 of 100 left", "last 7 days", "5 h would fit"],
            id="more GPU-hours than are left",
        ),
        pytest.param(
            ask("h100", 8, 1),
            Use(gpu_hours=97),
            "hours",
            "too_many_gpu_hours",
            None,
            ["3 of 100 left"],
            id="not even half an hour is left",
        ),
        pytest.param(
            ask(),
            Use(reservations=3, names=("a", "b", "c")),
            "reservations",
            "too_many_reservations",
            None,
            ["3 of 3", "by a, b, c", "End one first"],
            id="one reservation too many",
        ),
        pytest.param(
            ask(disk="d", new_disk=True),
            Use(disks=2),
            "disk",
            "too_many_disks",
            None,
            ["2 of 2 disks", "Use one of them"],
            id="one disk too many",
        ),
    ],
)
def test_a_refusal_names_limit_use_and_what_fits(
    request_: Request, use: Use, field: str, reason: str, fits: Any, said: list[str]
) -> None:
    with pytest.raises(Refused) as caught:
        check(request_, use)
    error = caught.value
    assert (error.field, error.reason, error.fits) == (field, reason, fits)
    assert [part for part in said if part not in error.message] == []
    if fits is not None:
        check(replace(request_, **{field: fits}), use)


REQUESTS = st.builds(
    ask,
    st.sampled_from([*CATALOGUE]),
    st.sampled_from([0, 1, 2, 4, 8, 16, 24, 32]),
    st.floats(0.0833, 48).map(lambda h: round(h, 4)),
).filter(lambda r: r.gpu_count in CATALOGUE[r.gpu_type].counts)
USES = st.builds(Use, st.integers(0, 4), st.integers(0, 40), st.floats(0, 200), st.integers(0, 4))


@given(REQUESTS, USES)
@settings(deadline=None, max_examples=300)
def test_following_what_fits_ends_in_a_grant_or_in_a_plain_no(request: Request, use: Use) -> None:
    """Each refusal takes away; the same limit never refuses what it offered itself."""
    seen = set()
    while True:
        try:
            check(request, use)
        except Refused as error:
            assert error.reason not in seen
            seen.add(error.reason)
            if error.fits is None:
                return
            request = replace(request, **{error.field: error.fits})
        else:
            assert request.gpu_count == 0 or use.gpus + request.gpu_count <= LIMITS.gpus
            assert request.gpu_count == 0 or use.gpu_hours + request.gpu_hours <= LIMITS.gpu_hours + 1e-6
            assert request.hours <= LIMITS.hours
            return


def test_limits_and_use_are_shown_side_by_side() -> None:
    shown = quotas.left(LIMITS, Use(reservations=1, gpus=4, gpu_hours=12.3456, disks=2))
    assert shown["gpus"] == {"limit": 16, "used": 4}
    assert shown["gpu_hours"] == {"limit": 100, "used": 12.35, "window_days": 7}
    assert shown["reservations"] == {"limit": 3, "used": 1}
    assert shown["disks"] == {"limit": 2, "used": 2}
    assert shown["hours"] == 24
