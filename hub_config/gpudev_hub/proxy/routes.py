"""The route table: which registered target answers for a host and path.

Promises: the longest registered prefix wins, prefixes match whole path segments only, and nothing but a
registered target is ever returned. Pure: no sockets, no clock but the one handed in.
"""

import copy
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any
from urllib.parse import unquote, urlsplit

UNIX_SCHEMES = ("http+unix", "unix+http")
DEFAULT_PORTS = {"http": 80, "https": 443}


@dataclass(frozen=True, slots=True)
class Target:
    """Where a route leads, taken apart once when the route is added rather than on every request."""

    url: str
    tls: bool
    host: str
    port: int
    unix_path: str
    path_prefix: bytes


def parse_target(url: str) -> Target:
    """Take a target URL apart. Raises ValueError when it is not a place that can be connected to."""
    parts = urlsplit(url)
    prefix = parts.path.rstrip("/").encode()
    if parts.scheme in UNIX_SCHEMES and parts.netloc:
        return Target(url, False, "", 0, unquote(parts.netloc), prefix)
    if parts.scheme not in DEFAULT_PORTS or not parts.hostname:
        raise ValueError(f"Route target {url!r} must be http://host[:port] or https://host[:port]")
    port = parts.port if parts.port is not None else DEFAULT_PORTS[parts.scheme]
    return Target(url, parts.scheme == "https", parts.hostname, port, "", prefix)


@dataclass(slots=True)
class Route:
    routespec: str
    target: Target
    data: dict[str, Any]
    last_activity: float = field(default_factory=lambda: time.time())

    def touch(self) -> None:
        self.last_activity = time.time()

    def describe(self) -> dict[str, Any]:
        """The shape JupyterHub reads; a copy, so that no caller can change the table."""
        stamp = datetime.fromtimestamp(self.last_activity, UTC).isoformat(timespec="milliseconds")
        data = {**copy.deepcopy(self.data), "last_activity": stamp.replace("+00:00", "Z")}
        return {"routespec": self.routespec, "target": self.target.url, "data": data}


@dataclass(slots=True)
class _Node:
    route: Route | None = None
    children: dict[str, "_Node"] = field(default_factory=dict)


def _without_dots(path: str) -> str:
    """Resolve '.' and '..' as browsers do, percent-encoded or not."""
    kept: list[str] = []
    for segment in path.split("/"):
        plain = segment.lower().replace("%2e", ".")
        if plain == "..":
            if kept:
                kept.pop()
        elif plain != ".":
            kept.append(segment)
    return "/".join(kept)


def path_segments(raw_target: str) -> list[str]:
    """Decoded segments of a request target, for matching only: what is sent upstream stays as it came."""
    path = raw_target.partition("?")[0].partition("#")[0]
    if "/." in path or "/%2" in path:
        path = _without_dots(path)
    if "%" in path:
        path = unquote(path)
    path = path.strip("/")
    return path.split("/") if path else []


def host_name(host_header: str) -> str:
    """The host without its port, as a route key."""
    if host_header.startswith("["):
        return host_header[1:].partition("]")[0].lower()
    return host_header.partition(":")[0].lower()


def spec_segments(routespec: str) -> list[str]:
    """A routespec's trie key. A host routespec ('host/path/') begins with its host."""
    if routespec.startswith("/"):
        return path_segments(routespec)
    host, _, path = routespec.partition("/")
    return [host_name(host), *path_segments("/" + path)]


class RouteTable:
    """A trie of path segments; with host routing the first segment is the host."""

    def __init__(self, host_routing: bool = False) -> None:
        self.host_routing = host_routing
        self._root = _Node()
        self._by_spec: dict[str, Route] = {}

    def add(self, routespec: str, target: str, data: dict[str, Any]) -> Route:
        route = Route(routespec, parse_target(target), copy.deepcopy(data))
        node = self._root
        for segment in spec_segments(routespec):
            node = node.children.setdefault(segment, _Node())
        if node.route is not None:
            # Two spellings of one prefix are one route; the hub re-adds routes it wants kept, and a
            # re-added route that leads to the same place has not become active by that.
            self._by_spec.pop(node.route.routespec, None)
            if node.route.target == route.target:
                route.last_activity = node.route.last_activity
        node.route = route
        self._by_spec[routespec] = route
        return route

    def remove(self, routespec: str) -> Route | None:
        """Remove a route and return it, or None when there was none."""
        path = [self._root]
        segments = spec_segments(routespec)
        for segment in segments:
            child = path[-1].children.get(segment)
            if child is None:
                return None
            path.append(child)
        removed, path[-1].route = path[-1].route, None
        for parent, segment, child in reversed(list(zip(path, segments, path[1:], strict=False))):
            if child.route is None and not child.children:
                del parent.children[segment]
        if removed is not None:
            self._by_spec.pop(removed.routespec, None)
        return removed

    def match(self, host_header: str, raw_target: str) -> Route | None:
        segments = path_segments(raw_target)
        if self.host_routing:
            segments.insert(0, host_name(host_header))
        node: _Node | None = self._root
        best = self._root.route
        for segment in segments:
            node = node.children.get(segment) if node is not None else None
            if node is None:
                break
            best = node.route or best
        return best

    def __iter__(self) -> Iterator[Route]:
        return iter(self._by_spec.values())

    def __contains__(self, routespec: str) -> bool:
        return routespec in self._by_spec
