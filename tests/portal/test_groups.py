"""Groups are the hub's; limits, priority and maintenance follow them, whichever way a person comes in."""

from __future__ import annotations

from collections.abc import Iterator

import httpx
import pytest
from running import Person, RunningPortal

from gpudev_core import maintenance
from gpudev_core.tables import ReservationRow

NOTE = "new drivers"


@pytest.fixture
def group(portal: RunningPortal, person: Person) -> Iterator[str]:
    """A group in which the person is, and for which alone ``a100`` is open."""
    name = "g-" + person.name
    admin = portal.login("admin")
    assert admin.hub_api("POST", f"groups/{name}", json={}).status_code == 201
    assert admin.hub_api("POST", f"groups/{name}/users", json={"users": [person.name]}).status_code == 200
    with portal.store.write() as session:
        maintenance.begin(session, "a100", note=NOTE, allowed=["@" + name])
    yield name
    with portal.store.write() as session:
        maintenance.end(session, "a100")
    admin.hub_api("DELETE", f"groups/{name}")
    admin.web.close()


def closed(state: dict[str, object]) -> dict[str, object] | None:
    return next(kind["maintenance"] for kind in state["types"] if kind["gpu_type"] == "a100")


def test_the_form_and_the_web_service_know_a_persons_groups(
    portal: RunningPortal, person: Person, neighbour: Person, group: str
) -> None:
    for who, expected in ((person, None), (neighbour, {"note": NOTE})):
        assert closed(who.web.get(f"/hub/portal/form/{who.name}").json()) == expected
        assert closed(who.web.get("/services/gpu-dev/state").json()) == expected
        headers = {"Authorization": f"Bearer {who.token()}"}
        by_token = httpx.get(f"{portal.url}/services/gpu-dev/state", headers=headers)
        assert closed(by_token.json()) == expected


def test_a_closed_type_is_refused_on_the_form_and_by_rest_but_not_to_the_group(
    portal: RunningPortal, person: Person, neighbour: Person, group: str
) -> None:
    refused = neighbour.submit(gpu_type="a100", gpu_count="1", hours="1")
    assert refused.status_code == 400 and f"a100 is closed for maintenance: {NOTE}." in refused.text
    options = {"gpu_type": "a100", "gpu_count": 1, "hours": 1}
    by_rest = neighbour.hub_api("POST", f"users/{neighbour.name}/servers/closed", json=options)
    assert by_rest.status_code == 400 and "closed for maintenance" in by_rest.text
    reservation_id = person.reserve("a100", 1, name="by form")
    started = person.hub_api("POST", f"users/{person.name}/servers/by-rest", json=options)
    assert started.status_code in (201, 202), started.text
    with portal.store.read() as session:
        assert session.get_one(ReservationRow, reservation_id).groups == [group]
        mine = session.query(ReservationRow).filter_by(user_id=person.name, server_name="by-rest").one()
        assert mine.groups == [group]
