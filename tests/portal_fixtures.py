"""One real portal for the whole test session, and people who use it."""

from collections.abc import Iterator

import pytest
from running import Person, RunningPortal, running_portal


@pytest.fixture(scope="session")
def portal(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningPortal]:
    """The one portal that most tests share; each of them uses people of its own."""
    with running_portal(tmp_path_factory.mktemp("portal"), limits__gpus="64") as running:
        yield running


@pytest.fixture
def person(portal: RunningPortal, request: pytest.FixtureRequest) -> Iterator[Person]:
    """Somebody nobody else is, and whose reservations are over when the test is."""
    name = "u" + format(abs(hash(request.node.nodeid)) % 10**10, "010d")
    with using(portal.login(name)) as found:
        yield found


@pytest.fixture
def neighbour(portal: RunningPortal, person: Person) -> Iterator[Person]:
    with using(portal.login(person.name + "b")) as found:
        yield found


class using:
    """Ends all that a person has reserved."""

    def __init__(self, person: Person) -> None:
        self._person = person

    def __enter__(self) -> Person:
        return self._person

    def __exit__(self, *_: object) -> None:
        person = self._person
        state = person.web.get("/services/gpu-dev/state").json()
        for found in state["reservations"]:
            if found["status"] in ("pending", "queued", "preparing", "active"):
                person.end(found["reservation_id"])
                person.wait_for(found["reservation_id"], "cancelled")
        person.web.close()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--shots", help="folder for pictures of the pages that the browser tests see")
