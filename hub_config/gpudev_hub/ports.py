"""Ports on loopback for the parts that only talk to each other."""

from __future__ import annotations

import socket
from pathlib import Path


def free() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def kept(path: Path) -> int:
    """The same port at every start, unless another program has taken it meanwhile.

    Servers that outlive the hub still know then where to find it.
    """
    if path.exists() and not is_taken("127.0.0.1", port := int(path.read_text())):
        return port
    port = free()
    path.write_text(f"{port}\n")
    return port


def is_taken(host: str, port: int) -> bool:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError:
            return True
    return False


def reachable(host: str) -> str:
    """Where programs of this machine find what listens on ``host``, as it stands in a URL."""
    return {"0.0.0.0": "127.0.0.1", "": "127.0.0.1", "::": "[::1]"}.get(host, in_url(host))


def in_url(host: str) -> str:
    """An IPv6 address stands in brackets there."""
    return f"[{host}]" if ":" in host else host
