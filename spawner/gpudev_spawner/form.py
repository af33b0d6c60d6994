"""The spawn form: what it sends as plain options, and its HTML. It only parses; the rules live in core."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from jinja2 import Environment, PackageLoader, select_autoescape

from gpudev_core import quotas, views
from gpudev_core.errors import PortalError, Refused
from gpudev_core.portal import Portal
from gpudev_core.requests import FIELDS, MIN_HOURS
from gpudev_spawner.groups import groups_of

NEW_DISK = "+"
KEPT = (*FIELDS, "new_disk_name")
"""Fields of the form whose input is kept when it comes back."""
USUAL_HOURS = 4.0
MOST_HOURS = 24.0 * 366

_templates = Environment(
    loader=PackageLoader("gpudev_spawner"),
    autoescape=select_autoescape(),
    trim_blocks=True,
    lstrip_blocks=True,
)


@dataclass(frozen=True)
class Urls:
    """Where the form's live figures and its assets come from."""

    feed: str
    state: str
    asset: Callable[[str], str]


@dataclass(frozen=True)
class Input:
    """What a person has typed, and what was refused of it: ``errors`` by field, "" for the whole request."""

    values: Mapping[str, str] = field(default_factory=dict)
    errors: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)


def user_options(form_data: Mapping[str, list[Any]]) -> dict[str, Any]:
    """Form fields as ``user_options``. A new disk is sent as its own field and becomes ``+name``."""
    values = typed(form_data)
    options: dict[str, Any] = {key: values[key] for key in FIELDS if values.get(key)}
    if options.get("disk") == NEW_DISK:
        options["disk"] = NEW_DISK + values.get("new_disk_name", "").strip()
    return options


def typed(form_data: Mapping[str, list[Any]]) -> dict[str, str]:
    """The last value of every field the form knows; all else that was sent is left aside."""
    return {key: str(form_data[key][-1]) for key in KEPT if form_data.get(key)}


def prefill(query: Mapping[str, list[str]]) -> dict[str, str]:
    """``opt-gpu_type=h100`` in the address fills in a field, and never does more."""
    return typed({key.removeprefix("opt-"): value for key, value in query.items() if key.startswith("opt-")})


def refusal(error: PortalError) -> dict[str, dict[str, Any]]:
    """An error as the form shows it, beside its field."""
    where = error.field if isinstance(error, Refused) else ""
    fits = error.fits if isinstance(error, Refused) else None
    return {where: {"message": error.message, "fits": fits, "reason": error.reason}}


def asked_hours(text: str) -> float | None:
    """The hours for which waits are to be told; None where they are not a usable number."""
    try:
        hours = float(text)
    except ValueError:
        return None
    return hours if MIN_HOURS <= hours <= MOST_HOURS else None


def state(
    portal: Portal, user: str, now: datetime, groups: tuple[str, ...] = (), hours: float | None = None
) -> dict[str, Any]:
    """``hours`` None: what the form proposes."""
    most = quotas.limits_for(portal.settings, user, groups).hours
    with portal.store.read() as session:
        return views.form(
            session, portal.settings, portal.catalogue, user, now, groups, hours or min(USUAL_HOURS, most)
        )


def render(form_state: Mapping[str, Any], given: Input, urls: Urls, simulated: bool) -> str:
    return _templates.get_template("form.html").render(
        state=form_state,
        values=given.values,
        errors=given.errors,
        feed_url=urls.feed,
        state_url=urls.state,
        asset=urls.asset,
        simulated=simulated,
    )


def plain_form(spawner: Any) -> str:
    """For a hub without the portal's own pages: the same form, without live figures."""
    portal: Portal = spawner.portal
    current = state(portal, spawner.user.name, datetime.now(UTC), groups_of(spawner.user))
    urls = Urls(feed="", state="", asset=lambda name: "")
    return render(current, Input(), urls, portal.simulated)
