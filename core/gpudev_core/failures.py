"""Why something failed, as codes on one page: whether trying again can help, and what the person reads.

A cause travels as a code with values; ``because`` is the short phrase that rows keep, ``words`` what a person
is told: first what became of the files, then the cause, then what to do. Nothing here is guessed: where two
causes look the same from outside, the phrase says so.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta, tzinfo
from typing import Any, NamedTuple

STARTING = "starting"
"""Value ``doing`` of something that ended before anybody could work with it."""


class _Kind(NamedTuple):
    may_pass: bool
    """Whether trying again can help."""
    phrase: str
    """A part in brackets is left out where its value is not known."""
    what_next: str = ""


KINDS: Mapping[str, _Kind] = {
    "image_not_found": _Kind(
        False,
        "the image[ {image}] was not found, or the portal may not read it",
        "Choose another image.",
    ),
    "disk_not_attached": _Kind(True, "the disk could not be attached[ on {node}][: {message}]"),
    "no_answer": _Kind(True, "the server did not answer[ within {seconds:g} s]"),
    "start_timeout": _Kind(True, "the server did not start[ within {seconds:g} s]"),
    "exited": _Kind(True, "the server ended by itself[ while {doing}][ (exit code {exit_code})]"),
    "out_of_memory": _Kind(
        True,
        "memory ran out[ on {node}], and the system ended the server",
        "Load less at once, or ask for a larger share of the node.",
    ),
    "killed": _Kind(True, "the server was killed, as happens when memory runs out"),
    "evicted": _Kind(True, "the server was evicted[ from node {node}][ at {at}][: {message}]"),
    "node_lost": _Kind(True, "the node[ {node}] was lost[ at {at}], and the programs with it"),
    "refused_by_hub": _Kind(True, "the hub refused to start the server[: {message}]"),
    "quota": _Kind(False, "it is over the quota[: {message}]", "Ask for less, or end something first."),
    "not_offered": _Kind(False, "the GPU type[ {gpu_type}] is not offered any more", "Choose another type."),
    "not_picked_up": _Kind(True, "nobody picked it up[ within {minutes:g} minutes]", "File it again."),
    "waited_too_long": _Kind(True, "it waited too long[, more than {hours:g} hours]", "File it again."),
    "path_too_long": _Kind(False, "the path[ {path}] is too long for this machine", "Choose shorter names."),
    "no_space": _Kind(True, "no space is left[ on {path}]"),
    "no_account": _Kind(False, "[{message}]"),
    "unknown": _Kind(True, "[{message}]"),
}

BACKOFF = (timedelta(seconds=5), timedelta(seconds=20), timedelta(seconds=60))
"""How long to wait after the first, the second and every later failure to start."""

_ENDED_RUNNING = frozenset({"exited", "out_of_memory", "killed", "evicted", "node_lost"})
"""What may have ended something that people worked with, and so files with it."""
_SIGKILL = (-9, 137)
"""As a process tells it, and as a container does."""
_NO_IMAGE = frozenset({"ErrImagePull", "ImagePullBackOff", "ErrImageNeverPull", "InvalidImageName"})
_LOST_NODE = frozenset({"NodeLost", "NodeShutdown", "Shutdown", "Terminated", "DeletionByTaintManager"})


@dataclass(frozen=True)
class Cause:
    code: str
    may_pass: bool
    values: Mapping[str, Any] = field(default_factory=dict)

    @property
    def phrase(self) -> str:
        return because(self.code, self.values)


def cause(code: str, **values: Any) -> Cause:
    return Cause(code, may_pass(code), values)


def may_pass(code: str | None) -> bool:
    """Whether trying again can help. A code of a later version is tried again."""
    return KINDS.get(code or "", KINDS["unknown"]).may_pass


def retry_after(attempt: int) -> timedelta:
    """How long to wait after the ``attempt``-th failure, counted from 1."""
    return BACKOFF[min(max(attempt, 1), len(BACKOFF)) - 1]


def next_try(why: Cause, attempt: int, most: int, now: datetime) -> datetime | None:
    """When to try again after ``attempt`` of at most ``most`` attempts. None: not at all."""
    return now + retry_after(attempt) if why.may_pass and attempt < most else None


def because(code: str | None, values: Mapping[str, Any], zone: tzinfo = UTC) -> str:
    """The cause as a phrase that can stand after a colon."""
    kind = KINDS.get(code or "", KINDS["unknown"])
    known = {key: value for key, value in values.items() if value not in (None, "")}
    if "at" in known:
        known["at"] = _clock(known["at"], zone)
    return _fill(kind.phrase, known).removesuffix(".") or "the cause is not known"


def words(code: str | None, values: Mapping[str, Any], disk: str | None, zone: tzinfo = UTC) -> str:
    """What the person reads: the files first, because that is what they fear for."""
    phrase = because(code, values, zone)
    what_next = KINDS.get(code or "", KINDS["unknown"]).what_next
    sentences = [_about_files(code, values, disk), f"{phrase[0].upper()}{phrase[1:]}.", what_next]
    return " ".join(sentence for sentence in sentences if sentence)


def beside(code: str | None, disk: str | None, *, had_started: bool) -> str:
    """What ``words`` says without the cause itself, for where the kept phrase stands beside it."""
    values = {} if had_started else {"doing": STARTING}
    sentences = (_about_files(code, values, disk), KINDS.get(code or "", KINDS["unknown"]).what_next)
    return " ".join(sentence for sentence in sentences if sentence)


def of_exit(exit_code: int, *, ran_out_of_memory: bool = False, starting: bool = False) -> Cause:
    """``ran_out_of_memory``: the kernel said so. Without its word, a kill stays a kill."""
    doing = {"doing": STARTING} if starting else {}
    if exit_code in _SIGKILL:
        return cause("out_of_memory" if ran_out_of_memory else "killed", exit_code=exit_code, **doing)
    return cause("exited", exit_code=exit_code, **doing)


def of_pod(status: Mapping[str, Any], node: str = "") -> Cause | None:
    """What a pod's ``status`` (as the API gives it) says about its end. None: it says nothing."""
    reasons = {status.get("reason"), *(c.get("reason") for c in status.get("conditions") or ())}
    if reasons & _LOST_NODE:
        return cause("node_lost", node=node)
    if status.get("reason") == "Evicted":
        return cause("evicted", node=node, message=status.get("message"))
    containers = [c.get("state") or {} for c in status.get("containerStatuses") or ()]
    ended = [state["terminated"] for state in containers if state.get("terminated")]
    if any(end.get("reason") == "OOMKilled" for end in ended):
        return cause("out_of_memory", node=node)
    waiting = [state["waiting"].get("reason") for state in containers if state.get("waiting")]
    if _NO_IMAGE.intersection(waiting):
        images = [c.get("image") for c in status.get("containerStatuses") or ()]
        return cause("image_not_found", image=images[0])
    codes = [end["exitCode"] for end in ended if end.get("exitCode")]
    return of_exit(codes[0]) if codes else None


def _about_files(code: str | None, values: Mapping[str, Any], disk: str | None) -> str:
    if disk:
        return f"Disk {disk} is safe."
    ran = code in _ENDED_RUNNING and values.get("doing") != STARTING
    return "Files without a disk are gone." if ran else ""


def _fill(phrase: str, known: Mapping[str, Any]) -> str:
    """Put the values in; a part in brackets goes when one of its values is missing."""

    def part(match: re.Match[str]) -> str:
        names = re.findall(r"{(\w+)", match[1])
        return match[1].format_map(known) if all(name in known for name in names) else ""

    return re.sub(r"\[([^\[\]]*)\]", part, phrase)


def _clock(at: datetime | str, zone: tzinfo) -> str:
    """A time as a clock shows it; one that was kept as JSON is text."""
    when = datetime.fromisoformat(at) if isinstance(at, str) else at
    return f"{when.astimezone(zone):%H:%M}" + (" UTC" if zone is UTC else "")
