"""A hub-managed service ends with its hub, also when the hub was killed and could not say so."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable

_LOOK_EVERY_S = 0.5


def when_parent_ends(action: Callable[[], object]) -> None:
    """Call ``action`` once the process that started us is gone."""
    parent = os.getppid()

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(_LOOK_EVERY_S)
        action()

    threading.Thread(target=watch, name="parent", daemon=True).start()
