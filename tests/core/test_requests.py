from __future__ import annotations

import math
import re
from typing import Any

import pytest
from builders import CATALOGUE
from hypothesis import example, given, settings
from hypothesis import strategies as st

from gpudev_core.errors import Refused
from gpudev_core.models import Request
from gpudev_core.requests import SLUG_MAX, free_slug, from_user_options, slug

IMAGES = ("local", "pytorch:2.9")
SERVER_NAME = re.compile(r"(?!.*--)[a-z][a-z0-9-]{0,29}(?<!-)")


def read(**options: Any) -> Request:
    return from_user_options({"gpu_type": "h100", "hours": 4, **options}, CATALOGUE, IMAGES)


def refused(**options: Any) -> Refused:
    with pytest.raises(Refused) as caught:
        read(**options)
    return caught.value


# What is read


def test_the_whole_request_is_read() -> None:
    request = read(gpu_count=8, hours=2.5, disk="data-1", name="My run", image="pytorch:2.9")
    assert request == Request("h100", 8, 2.5, "data-1", False, "My run", "pytorch:2.9")


@pytest.mark.parametrize(
    ("options", "field", "value"),
    [
        pytest.param({}, "gpu_count", 1, id="one GPU when none is named"),
        pytest.param({"gpu_count": ""}, "gpu_count", 1, id="one GPU when the field was left empty"),
        pytest.param({"gpu_count": "8"}, "gpu_count", 8, id="a number as forms send it"),
        pytest.param({"gpu_count": 4.0}, "gpu_count", 4, id="a whole float"),
        pytest.param({"gpu_count": 32}, "gpu_count", 32, id="four whole nodes"),
        pytest.param({"gpu_type": "cpu-x86"}, "gpu_count", 0, id="a CPU machine has no GPU"),
        pytest.param({"gpu_type": "cpu-x86", "gpu_count": 1}, "gpu_count", 0, id="one CPU machine"),
        pytest.param({"gpu_type": " h100 "}, "gpu_type", "h100", id="spaces around a type"),
        pytest.param({"hours": "0.5"}, "hours", 0.5, id="hours as text"),
        pytest.param({"hours": 5 / 60}, "hours", 0.0833, id="exactly five minutes"),
        pytest.param({"hours": 0.0833}, "hours", 0.0833, id="five minutes as people and messages write it"),
        pytest.param({"hours": 1 / 3}, "hours", 0.3333, id="hours are rounded"),
        pytest.param({"image": ""}, "image", "local", id="the first image when none is named"),
        pytest.param({"disk": "+new-2"}, "disk", "new-2", id="the name of a new disk is without its plus"),
        pytest.param({"disk": "+new-2"}, "new_disk", True, id="a plus makes a new disk"),
        pytest.param({"disk": "old"}, "new_disk", False, id="without a plus it is an old one"),
        pytest.param({"disk": None, "name": None}, "disk", "", id="null is as good as absent"),
        pytest.param({"name": "  train  "}, "name", "train", id="spaces around a name"),
        pytest.param({"name": "x" * 60}, "name", "x" * 60, id="the longest name"),
        pytest.param(
            {"name": "Zoë’s 🚀 run"}, "name", "Zoë’s 🚀 run", id="a name in any script keeps its letters"
        ),
        pytest.param(
            {"name": "<b onclick='x'>"}, "name", "<b onclick='x'>", id="text is kept as text; pages escape it"
        ),
    ],
)
def test_a_good_value_is_read(options: dict[str, Any], field: str, value: object) -> None:
    assert getattr(read(**options), field) == value


@pytest.mark.parametrize(
    ("gpu_type", "counts"),
    [
        ("t4", [1, 2, 4]),
        ("t4-small", [1]),
        ("l4", [1, 2, 4]),
        ("a10g", [1, 2, 4]),
        ("a100", [1, 2, 4, 8, 16, 24, 32]),
        ("h100", [1, 2, 4, 8, 16, 24, 32]),
        ("h200", [1, 2, 4, 8, 16, 24, 32]),
        ("b200", [1, 2, 4, 8, 16, 24, 32]),
        ("cpu-x86", [0, 1]),
        ("cpu-arm", [0, 1]),
    ],
)
def test_each_type_has_its_counts_and_no_others(gpu_type: str, counts: list[int]) -> None:
    def is_possible(count: int) -> bool:
        try:
            read(gpu_type=gpu_type, gpu_count=count)
        except Refused as error:
            assert error.field == "gpu_count"
            return False
        return True

    assert [count for count in range(-1, 50) if is_possible(count)] == counts


def test_what_is_stored_reads_back_as_the_same_request() -> None:
    request = read(gpu_count=2, hours=0.0833, name="n", image="local")
    stored = request.as_json()
    assert Request(**stored) == request
    stored.pop("new_disk")
    assert from_user_options(stored, CATALOGUE, IMAGES) == request


# What is refused

BAD_NUMBERS: list[Any] = [math.nan, math.inf, -math.inf, "nan", "inf", "1e999", "four", [4], {"n": 4}, True]
BAD_NUMBERS += [10**400, "9" * 5000]
BAD_TEXTS: list[Any] = [7, 1.5, True, ["h100"], {"a": 1}, "a\nb", "a\x00b", "\x7f", "a\x85b", "a\u2028b"]
BAD_TEXTS += ["a\u202eb", "a\ud800b"]


@pytest.mark.parametrize("value", BAD_NUMBERS, ids=lambda v: repr(v)[:12])
@pytest.mark.parametrize("field", ["gpu_count", "hours"])
def test_what_is_not_a_number_is_refused(field: str, value: Any) -> None:
    error = refused(**{field: value})
    assert (error.field, error.reason) == (field, "bad_value")
    assert error.message.startswith(f"{field} must be a number, not ")


@pytest.mark.parametrize("value", BAD_TEXTS, ids=repr)
@pytest.mark.parametrize("field", ["gpu_type", "disk", "name", "image"])
def test_what_is_not_one_line_of_text_is_refused(field: str, value: Any) -> None:
    error = refused(**{field: value})
    assert (error.field, error.reason) == (field, "bad_value")


@pytest.mark.parametrize(
    ("options", "field", "reason", "said"),
    [
        pytest.param(
            {"gpu_type": "v100"}, "gpu_type", "unknown_gpu_type", "t4-small", id="a type that is none"
        ),
        pytest.param({"gpu_type": "H100"}, "gpu_type", "unknown_gpu_type", "'H100'", id="a type in capitals"),
        pytest.param({"gpu_type": ""}, "gpu_type", "missing", "gpu_type is missing", id="no type"),
        pytest.param({"gpu_count": 3}, "gpu_count", "bad_count", "1, 2, 4, 8, 16, 24 or 32", id="three GPUs"),
        pytest.param({"gpu_count": 0}, "gpu_count", "bad_count", "0 GPUs", id="no GPU of a GPU type"),
        pytest.param({"gpu_count": -1}, "gpu_count", "bad_count", "-1 GPUs", id="fewer than none"),
        pytest.param({"gpu_count": 2.5}, "gpu_count", "bad_count", "2.5 GPUs", id="half a GPU"),
        pytest.param({"gpu_count": 40}, "gpu_count", "bad_count", "whole nodes", id="five nodes"),
        pytest.param({"gpu_count": 1e308}, "gpu_count", "bad_count", "1e+308", id="more than there are"),
        pytest.param(
            {"gpu_type": "cpu-x86", "gpu_count": 2},
            "gpu_count",
            "bad_count",
            "no GPU",
            id="GPUs of a CPU machine",
        ),
        pytest.param({"hours": None}, "hours", "missing", "such as 4", id="no hours"),
        pytest.param({"hours": ""}, "hours", "missing", "such as 4", id="hours left empty"),
        pytest.param({"hours": 0}, "hours", "too_short", "5 minutes", id="no time"),
        pytest.param({"hours": -1}, "hours", "too_short", "5 minutes", id="negative time"),
        pytest.param({"hours": 0.08}, "hours", "too_short", "5 minutes", id="less than five minutes"),
        pytest.param({"disk": "+"}, "disk", "bad_disk_name", "''", id="a new disk without a name"),
        pytest.param({"disk": "++a"}, "disk", "bad_disk_name", "'+a'", id="two plus signs"),
        pytest.param({"disk": "Data"}, "disk", "bad_disk_name", "'Data'", id="a disk in capitals"),
        pytest.param({"disk": "1a"}, "disk", "bad_disk_name", "letter first", id="a digit first"),
        pytest.param({"disk": "a--b"}, "disk", "bad_disk_name", "single hyphens", id="a double hyphen"),
        pytest.param({"disk": "a-"}, "disk", "bad_disk_name", "'a-'", id="a hyphen last"),
        pytest.param({"disk": "../etc"}, "disk", "bad_disk_name", "'../etc'", id="a path"),
        pytest.param({"disk": "$(reboot)"}, "disk", "bad_disk_name", "reboot", id="a shell's words"),
        pytest.param({"disk": "a" * 31}, "disk", "bad_disk_name", "30", id="a disk name too long"),
        pytest.param({"name": "x" * 61}, "name", "bad_name", "61 characters", id="a name too long"),
        pytest.param({"name": "42"}, "name", "bad_name", "letter a-z", id="a name without letters"),
        pytest.param({"name": "имя"}, "name", "bad_name", "letter a-z", id="a name without Latin letters"),
        pytest.param(
            {"image": "evil:latest"}, "image", "unknown_image", "pytorch:2.9", id="an image not offered"
        ),
        pytest.param({"gpus": 4}, "gpus", "unknown_option", "gpu_count", id="an option that is none"),
        pytest.param({"__class__": "x"}, "__class__", "unknown_option", "Possible", id="a hostile option"),
        pytest.param(
            {"new_disk": True}, "new_disk", "unknown_option", "Possible", id="the plus by another way"
        ),
    ],
)
def test_a_bad_request_is_refused_by_its_field(
    options: dict[str, Any], field: str, reason: str, said: str
) -> None:
    error = refused(**options)
    assert (error.field, error.reason) == (field, reason)
    assert said in error.message


@pytest.mark.parametrize(
    "options",
    [
        pytest.param({"gpu_count": 3}, id="count between"),
        pytest.param({"gpu_count": -5}, id="count below"),
        pytest.param({"gpu_count": 1000}, id="count above"),
        pytest.param({"gpu_type": "cpu-arm", "gpu_count": 8}, id="count of a CPU machine"),
        pytest.param({"hours": 0.01}, id="hours"),
        pytest.param({"name": "long " * 20}, id="name with a space at the cut"),
    ],
)
def test_what_fits_is_accepted_when_it_is_used(options: dict[str, Any]) -> None:
    error = refused(**options)
    assert error.fits is not None
    assert getattr(read(**{**options, error.field: error.fits}), error.field) == error.fits


def test_a_long_name_whose_start_is_no_name_has_nothing_that_fits() -> None:
    assert refused(name="1" * 60 + "a").fits is None


@pytest.mark.parametrize("options", [None, [], "gpu_type=h100", 4, [["gpu_type", "h100"]]], ids=repr)
def test_options_that_are_no_mapping_are_refused(options: Any) -> None:
    with pytest.raises(Refused, match="keys and values"):
        from_user_options(options, CATALOGUE, IMAGES)


JSON_LIKE = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text()
    | st.text(st.characters(categories=["Cs"]), max_size=3)
    | st.sampled_from(["h100", "cpu-x86", "4", "+d", "local", "1e400"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)
OPTIONS = st.fixed_dictionaries(
    {},
    optional={
        "gpu_type": st.sampled_from([*CATALOGUE]) | JSON_LIKE,
        **dict.fromkeys(("gpu_count", "hours", "disk", "name", "image"), JSON_LIKE),
    },
)


@given(OPTIONS | st.dictionaries(st.text(), JSON_LIKE, max_size=3) | JSON_LIKE)
@example({"gpu_type": "x" * 100_000})
@example({"x" * 100_000: 1})
@example({"gpu_type": "h100", "hours": 4, "name": "x" * 100_000})
@settings(deadline=None, max_examples=400)
def test_any_json_is_either_a_storable_request_or_refused_in_one_short_line(options: Any) -> None:
    try:
        request = from_user_options(options, CATALOGUE, IMAGES)
    except Refused as error:
        assert len(error.message.splitlines()) == 1
        assert len(error.message) < 600
        error.message.encode()
    else:
        assert request.gpu_count in CATALOGUE[request.gpu_type].counts
        assert math.isfinite(request.hours)
        assert not request.name or slug(request.name)
        str(request.as_json()).encode()


# Server names


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        pytest.param("train", "train", id="what is good stays"),
        pytest.param("My Run #2", "my-run-2", id="words are joined by single hyphens"),
        pytest.param("--a--b--", "a-b", id="hyphens at the ends go"),
        pytest.param("2026 run", "run", id="a letter comes first"),
        pytest.param("Zoë", "zo", id="other letters go"),
        pytest.param("123", "", id="no letter, no name"),
        pytest.param("", "", id="nothing"),
        pytest.param("a" * 29 + " b", "a" * 29, id="a cut never leaves a hyphen"),
    ],
)
def test_a_name_becomes_a_server_name(name: str, expected: str) -> None:
    assert slug(name) == expected


@given(st.text() | st.text("aB1-_ é\n", max_size=80))
@settings(deadline=None, max_examples=300)
def test_a_slug_is_empty_or_a_server_name(name: str) -> None:
    result = slug(name)
    assert result == "" or SERVER_NAME.fullmatch(result)
    assert slug(result) == result


@pytest.mark.parametrize(
    ("wanted", "taken", "expected"),
    [
        pytest.param("run", set(), "run", id="free"),
        pytest.param("run", {"run"}, "run-2", id="taken once"),
        pytest.param("run", {"run", "run-2", "run-4"}, "run-3", id="the first gap"),
        pytest.param("a" * 30, {"a" * 30}, "a" * 28 + "-2", id="a long one is cut"),
        pytest.param(
            "a" * 27 + "-bc", {"a" * 27 + "-bc"}, "a" * 27 + "-2", id="a cut leaves no double hyphen"
        ),
    ],
)
def test_a_taken_name_gets_a_number(wanted: str, taken: set[str], expected: str) -> None:
    assert free_slug(wanted, taken) == expected


@given(st.text("ab-", min_size=1, max_size=40).map(slug).filter(bool), st.integers(0, 120))
@settings(deadline=None, max_examples=60)
def test_many_servers_of_one_name_all_get_names_of_their_own(wanted: str, number: int) -> None:
    taken: set[str] = set()
    for _ in range(number):
        name = free_slug(wanted, taken)
        assert SERVER_NAME.fullmatch(name)
        assert len(name) <= SLUG_MAX
        assert name not in taken
        taken.add(name)
