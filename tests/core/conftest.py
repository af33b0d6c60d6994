import pytest
from builders import Desk

from gpudev_core.store import Store


@pytest.fixture
def desk(store: Store) -> Desk:
    return Desk(store)
