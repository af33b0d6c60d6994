from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from builders import CATALOGUE, NOW, ask
from hypothesis import given, settings
from hypothesis import strategies as st

from gpudev_core import quotas
from gpudev_core.errors import Refused
from gpudev_core.models import Reason, Request
from gpudev_core.quotas import Counted, More, Use
from gpudev_core.settings import Limits, Settings

LIMITS = Limits(gpus=16, reservations=3, queued=2, hours=24, gpu_hours=100, disks=2, disk_gb=500)


def site(*rules: dict[str, Any], **more: Any) -> Settings:
    return Settings.model_validate({"limits": LIMITS, "quotas": list(rules), **more})


def check(request: Request, use: Use, *rules: dict[str, Any]) -> None:
    allowed = quotas.limits_for(site(*rules), "ada", ["vision", "staff"], request.gpu_type)
    quotas.check(request, CATALOGUE[request.gpu_type], allowed, use)


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
            ["1 GPU is more", "0 left", "End one first"],
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
            ["You have 3 of 3 reservations.", "End one first (a, b, c)."],
            id="one reservation too many",
        ),
        pytest.param(
            ask(),
            Use(reservations=3, names=("a", "b", "c"), next_end=("b", NOW)),
            "reservations",
            "too_many_reservations",
            None,
            ["You have 3 of 3 reservations. End one, or wait: b ends first."],
            id="one reservation too many, and one ends soon",
        ),
        pytest.param(
            ask(),
            Use(reservations=2, queued=2),
            "reservations",
            "too_many_queued",
            None,
            ["You have 2 of 2 reservations in the queue.", "until one has started"],
            id="one too many in the queue",
        ),
        pytest.param(
            ask("h100", 32, 1),
            Use(),
            "gpu_count",
            "too_many_gpus",
            16,
            ["2 nodes (16 GPUs) would fit."],
            id="whole nodes that would fit",
        ),
        pytest.param(
            ask(disk="d", new_disk=True),
            Use(disks=1, disk_gb=500),
            "disk",
            "too_many_disk_gb",
            None,
            ["Limit 500 GB", "500 GB in use", "0 GB left", "delete one first"],
            id="disks are full",
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
PARTS = (st.integers(0, 4), st.integers(0, 40), st.floats(0, 200), st.integers(0, 4))
USES = st.builds(
    lambda use, of_type: replace(use, by_type=dict.fromkeys(CATALOGUE, of_type)),
    st.builds(Use, *PARTS),
    st.builds(Use, *PARTS),
)
RULES = st.lists(
    st.fixed_dictionaries(
        {"gpu_types": st.just([*CATALOGUE]), "gpus": st.integers(0, 30)},
        optional={"gpu_hours": st.floats(0, 150), "hours": st.floats(1, 30), "queued": st.integers(1, 3)},
    ),
    max_size=2,
)


@given(REQUESTS, USES, RULES)
@settings(deadline=None, max_examples=300)
def test_following_what_fits_ends_in_a_grant_or_in_a_plain_no(
    request: Request, use: Use, rules: list[dict[str, Any]]
) -> None:
    """Each refusal takes away; the same limit never refuses what it offered itself."""
    seen = set()
    while True:
        try:
            check(request, use, *rules)
        except Refused as error:
            assert error.reason not in seen
            seen.add(error.reason)
            if error.fits is None:
                return
            request = replace(request, **{error.field: error.fits})
        else:
            assert request.gpu_count == 0 or use.gpus + request.gpu_count <= LIMITS.gpus
            assert request.gpu_count == 0 or use.gpu_hours + request.gpu_hours <= LIMITS.gpu_hours + 1e-6
            most_gpus = max((rule["gpus"] for rule in rules), default=1000)
            of_type = use.of(request.gpu_type)
            assert request.gpu_count == 0 or of_type.gpus + request.gpu_count <= most_gpus
            assert request.hours <= max((rule["hours"] for rule in rules if "hours" in rule), default=24)
            return


def test_limits_and_use_are_shown_side_by_side() -> None:
    allowed = quotas.limits_for(site(), "ada", [])
    shown = quotas.left(allowed, Use(reservations=1, gpus=4, gpu_hours=12.3456, disks=2, queued=1, disk_gb=9))
    assert shown["gpus"] == {"limit": 16, "used": 4}
    assert shown["gpu_hours"] == {"limit": 100, "used": 12.35, "window_days": 7}
    assert shown["reservations"] == {"limit": 3, "used": 1}
    assert shown["disks"] == {"limit": 2, "used": 2}
    assert shown["queued"] == {"limit": 2, "used": 1}
    assert shown["disk_gb"] == {"limit": 500, "used": 9}
    assert (shown["hours"], shown["total_hours"]) == (24, 48)


# Which rule holds


@pytest.mark.parametrize(
    ("rules", "gpu_type", "expected"),
    [
        pytest.param([], "h100", 24, id="no rule: what everybody has"),
        pytest.param([{"users": ["bob"], "hours": 1}], "h100", 24, id="a rule for somebody else"),
        pytest.param([{"groups": ["law"], "hours": 1}], "h100", 24, id="a rule for another group"),
        pytest.param([{"gpu_types": ["t4"], "hours": 1}], "h100", 24, id="a rule for another type"),
        pytest.param(
            [{"users": ["ada"], "gpus": 1}, {"groups": ["staff"], "hours": 6}],
            "h100",
            6,
            id="a nearer rule that says nothing of it leaves it to the next",
        ),
        pytest.param(
            [{"users": ["ada"], "hours": 2}, {"groups": ["staff"], "hours": 9}],
            "h100",
            2,
            id="the person before a group, though it is less",
        ),
        pytest.param(
            [{"groups": ["staff"], "hours": 9}, {"gpu_types": ["h100"], "hours": 12}],
            "h100",
            9,
            id="a group before everybody, though everybody's names the type",
        ),
        pytest.param(
            [{"users": ["ada"], "hours": 9}, {"users": ["ada"], "gpu_types": ["h100"], "hours": 3}],
            "h100",
            3,
            id="of the person's the one that names the type",
        ),
        pytest.param(
            [{"groups": ["staff"], "hours": 9}, {"groups": ["staff"], "gpu_types": ["h100"], "hours": 3}],
            "t4",
            9,
            id="the other one for another type",
        ),
        pytest.param(
            [{"groups": ["vision"], "hours": 6}, {"groups": ["staff"], "hours": 8}],
            "h100",
            8,
            id="of two groups the more generous",
        ),
        pytest.param(
            [{"users": ["bob"], "groups": ["staff"], "hours": 7}],
            "h100",
            7,
            id="a rule for people and groups holds for either",
        ),
        pytest.param([{"groups": ["staff"], "total_hours": 5}], "h100", 5, id="not more than in all"),
    ],
)
def test_hours_come_from_the_most_specific_rule(
    rules: list[dict[str, Any]], gpu_type: str, expected: float
) -> None:
    found = quotas.limits_for(site(*rules), "ada", ["vision", "staff"], gpu_type)
    assert found.hours == expected
    again = quotas.limits_for(site(*reversed(rules)), "ada", ["staff", "vision"], gpu_type)
    assert again == found, "neither the order of rules nor that of groups matters"


def test_what_is_counted_has_a_limit_of_all_types_and_one_of_the_type() -> None:
    rules = (
        {"groups": ["staff"], "gpus": 24, "disks": 9},
        {"gpu_types": ["h100", "a100"], "gpus": 8, "queued": 1},
        {"users": ["ada"], "gpu_types": ["h100"], "gpus": 4, "gpu_hours": 50},
    )
    found = quotas.limits_for(site(*rules), "ada", ["staff"], "h100")
    assert found.overall == Counted(gpus=24, reservations=3, queued=2, gpu_hours=100)
    assert found.of_type == Counted(gpus=4, queued=1, gpu_hours=50)
    assert (found.disks, found.disk_gb) == (9, 500)
    assert quotas.limits_for(site(*rules), "bob", [], "a100").of_type == Counted(gpus=8, queued=1)
    assert quotas.limits_for(site(*rules), "ada", ["staff"]).of_type == Counted()


@pytest.mark.parametrize(
    ("groups", "expected"),
    [
        pytest.param([], 0, id="in no group"),
        pytest.param(["law"], 0, id="in a group without one"),
        pytest.param(["low", "law"], -5, id="a group without one does not lift"),
        pytest.param(["low", "high"], 10, id="the highest"),
    ],
)
def test_the_priority_of_a_person(groups: list[str], expected: int) -> None:
    assert quotas.priority_of(site(priorities={"low": -5, "high": 10}), groups) == expected


# Limits of one type


H100 = {"gpu_types": ["h100"]}


@pytest.mark.parametrize(
    ("request_", "rule", "use", "reason", "fits", "said"),
    [
        pytest.param(
            ask("h100", 1, 13),
            {**H100, "hours": 12},
            Use(),
            "too_long",
            12,
            "h100: at most 12 h per reservation.",
            id="hours",
        ),
        pytest.param(
            ask("h100", 4),
            {**H100, "gpus": 4},
            Use(gpus=5, by_type={"h100": Use(gpus=2, names=("train",))}),
            "too_many_gpus",
            2,
            "h100: 4 GPUs are more than your limit leaves. Limit 4 at once, 2 in use by train, 2 left. "
            "2 would fit.",
            id="GPUs",
        ),
        pytest.param(
            ask("h100", 1),
            {**H100, "gpus": 0},
            Use(gpus=5),
            "too_many_gpus",
            None,
            "h100: 1 GPU is more than your limit leaves. Limit 0 at once, 0 in use, 0 left. "
            "Choose another type.",
            id="a type that is not for everybody",
        ),
        pytest.param(
            ask("h100"),
            {**H100, "reservations": 1},
            Use(reservations=2, by_type={"h100": Use(reservations=1, next_end=("train", NOW))}),
            "too_many_reservations",
            None,
            "h100: you have 1 of 1 reservations. End one, or wait: train ends first.",
            id="reservations",
        ),
        pytest.param(
            ask("h100"),
            {**H100, "queued": 1},
            Use(queued=1, by_type={"h100": Use(queued=1)}),
            "too_many_queued",
            None,
            "h100: you have 1 of 1 reservations in the queue. "
            "End one of them, or wait until one has started.",
            id="in the queue",
        ),
        pytest.param(
            ask("h100", 16, 3),
            {**H100, "gpu_hours": 40},
            Use(gpu_hours=20, by_type={"h100": Use(gpu_hours=8)}),
            "too_many_gpu_hours",
            2,
            "h100: 2 nodes of 8 × h100 for 3 h come to 48 GPU-hours. You have 32 of 40 left, counted over "
            "the last 7 days. 2 h would fit.",
            id="GPU-hours",
        ),
    ],
)
def test_a_limit_of_one_type_is_named_with_it(
    request_: Request, rule: dict[str, Any], use: Use, reason: str, fits: Any, said: str
) -> None:
    with pytest.raises(Refused) as caught:
        check(request_, use, rule)
    assert (caught.value.message, caught.value.reason, caught.value.fits) == (said, reason, fits)
    check(replace(request_, gpu_type="a100"), use, rule)


def test_the_smaller_of_two_limits_is_told() -> None:
    use = Use(gpus=15, by_type={"h100": Use(gpus=1)})
    with pytest.raises(Refused, match=r"^2 GPUs .* Limit 16 at once"):
        check(ask("h100", 2), use, {**H100, "gpus": 4})


def test_when_the_next_one_ends_travels_as_a_time() -> None:
    with pytest.raises(Refused) as caught:
        check(ask(), Use(reservations=3, next_end=("train", NOW)))
    assert caught.value.values == {"limit": 3, "used": 3, "next": "train", "at": NOW}


def test_only_what_a_rule_says_otherwise_is_shown_for_a_type() -> None:
    settings_ = site({**H100, "gpus": 4, "hours": 12})
    overall = quotas.limits_for(settings_, "ada", [])
    use = Use(gpus=9, by_type={"h100": Use(gpus=3)})

    def shown(gpu_type: str) -> dict[str, Any]:
        allowed = quotas.limits_for(settings_, "ada", [], gpu_type)
        return quotas.left_of_type(gpu_type, allowed, overall, use)

    assert shown("h100") == {"gpus": {"limit": 4, "used": 3}, "hours": 12}
    assert shown("t4") == {}


# Held at once, disks, extensions


def test_what_is_held_counts_at_once_and_nothing_else_does() -> None:
    allowed = quotas.limits_for(site({**H100, "gpus": 4}), "ada", [], "h100")
    held = Use(gpus=4, gpu_hours=1000, queued=50, by_type={"h100": Use(gpus=2)})
    quotas.check_held(2, "h100", allowed, held)
    with pytest.raises(Refused, match=r"^h100: 4 GPUs .* 2 left. End one first.$") as caught:
        quotas.check_held(4, "h100", allowed, held)
    assert caught.value.fits is None, "a reservation that is about to start cannot become smaller"


def test_a_new_disk_of_a_known_size() -> None:
    allowed = quotas.limits_for(site(), "ada", [])
    quotas.check_new_disk(allowed, Use(disk_gb=400), size_gb=100)
    with pytest.raises(Refused, match=r"A disk of 101 GB .* 400 GB in use, 100 GB left"):
        quotas.check_new_disk(allowed, Use(disk_gb=400), size_gb=101)


@pytest.mark.parametrize(
    ("gpus", "hours", "use", "rules", "longest", "bound"),
    [
        pytest.param(4, 24, Use(gpu_hours=0), [], 24, Reason("total_hours", {"limit": 48}), id="in all"),
        pytest.param(
            4, 50, Use(), [], 0, Reason("total_hours", {"limit": 48}), id="a limit that was lowered"
        ),
        pytest.param(
            4,
            4,
            Use(gpu_hours=90),
            [],
            2.5,
            Reason("gpu_hours", {"limit": 100, "used": 90, "window_days": 7}),
            id="the window",
        ),
        pytest.param(
            3,
            4,
            Use(gpu_hours=90, by_type={"h100": Use(gpu_hours=19)}),
            [{**H100, "gpu_hours": 20}],
            0.3333,
            Reason("gpu_hours", {"limit": 20, "used": 19, "window_days": 7, "gpu_type": "h100"}),
            id="the window of the type",
        ),
        pytest.param(
            0, 4, Use(gpu_hours=100), [], 44, Reason("total_hours", {"limit": 48}), id="a CPU has no window"
        ),
        pytest.param(
            4,
            4,
            Use(),
            [{"users": ["ada"], "total_hours": 6}],
            2,
            Reason("total_hours", {"limit": 6}),
            id="a rule of the person's",
        ),
    ],
)
def test_the_longest_extension_and_what_bounds_it(
    gpus: int, hours: float, use: Use, rules: list[dict[str, Any]], longest: float, bound: Reason
) -> None:
    allowed = quotas.limits_for(site(*rules), "ada", [], "h100")
    found = quotas.longest_extension(gpus, CATALOGUE["h100"], hours, allowed, use)
    assert found == More(longest, bound)
    if longest:
        assert quotas.check_extension(gpus, CATALOGUE["h100"], hours, longest, allowed, use) == found
    with pytest.raises(Refused) as caught:
        quotas.check_extension(gpus, CATALOGUE["h100"], hours, longest + 0.01, allowed, use)
    assert (caught.value.reason, caught.value.fits) == (bound.code, longest or None)


def test_a_refused_extension_says_why_and_what_would_fit() -> None:
    allowed, kind = quotas.limits_for(site(), "ada", [], "h100"), CATALOGUE["h100"]
    with pytest.raises(Refused) as in_all:
        quotas.check_extension(1, kind, 46, 4, allowed, Use())
    assert in_all.value.message == "Not longer: 48 h in all is the limit. 2 h more would fit."
    with pytest.raises(Refused) as window:
        quotas.check_extension(4, kind, 4, 5, allowed, Use(gpu_hours=92))
    assert window.value.message == (
        "Not longer: 4 × h100 for 5 h more come to 20 GPU-hours. You have 8 of 100 left, counted over the "
        "last 7 days. 2 h more would fit."
    )
