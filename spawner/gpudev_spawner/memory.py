"""What the kernel says about processes that it ended because memory ran out.

It counts them per control group, in ``memory.events`` (or ``memory.oom_control`` where groups are of the old
kind). A server shares its group with others, so only a count that rose while this server died is its word.
"""

from __future__ import annotations

import re
from pathlib import Path

PROC = Path("/proc")
GROUPS = Path("/sys/fs/cgroup")


def counter_of(pid: int, proc: Path = PROC, groups: Path = GROUPS) -> Path | None:
    """The file that counts for the group of a running process. None: this machine does not tell."""
    try:
        lines = (proc / str(pid) / "cgroup").read_text().splitlines()
    except OSError:
        return None
    for line in lines:
        _, controllers, path = line.split(":", 2)
        folder, name = groups, "memory.events"
        if "memory" in controllers.split(","):
            folder, name = groups / "memory", "memory.oom_control"
        elif controllers:
            continue
        file = folder / path.lstrip("/") / name
        if kills(file) is not None:
            return file
    return None


def kills(file: Path | None) -> int | None:
    """How many processes of the group were ended so far because memory ran out. None: not known."""
    try:
        found = re.search(r"^oom_kill (\d+)$", file.read_text(), re.M) if file else None
    except OSError:
        return None
    return int(found[1]) if found else None
