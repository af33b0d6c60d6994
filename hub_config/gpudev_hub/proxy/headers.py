"""Header rules: what of a message's head is passed on, what is dropped and what is added.

Promises: header bytes pass unchanged except the hop-by-hop ones; the body's framing is stated exactly once
(never both Content-Length and Transfer-Encoding); no header line can be smuggled in through a value; the
client cannot choose X-Real-IP. Pure functions on the raw (name, value) byte pairs the parser delivers.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum

RawHeaders = Iterable[tuple[bytes, bytes]]

HOP_BY_HOP = frozenset(
    [
        b"connection",
        b"keep-alive",
        b"proxy-authenticate",
        b"proxy-authorization",
        b"proxy-connection",
        b"te",
        b"trailer",
        b"transfer-encoding",
        b"upgrade",
    ]
)
_FORWARDED = frozenset([b"x-forwarded-for", b"x-forwarded-proto", b"x-forwarded-port", b"x-forwarded-host"])
# Written by this proxy, so never copied: Expect is answered here, and the length follows the framing.
_REQUEST_SPECIAL = HOP_BY_HOP | _FORWARDED | {b"content-length", b"expect", b"host", b"x-real-ip"}
_RESPONSE_SPECIAL = HOP_BY_HOP | {b"content-length"}
# Connection options that name no header.
_OPTIONS = frozenset([b"close", b"keep-alive", b"upgrade", b""])

_PORT = re.compile(rb":(\d+)$")


class BadHead(Exception):
    """A head that cannot be passed on without changing its meaning."""


class Framing(Enum):
    """How the end of a body is told."""

    NONE = "none"
    LENGTH = "length"
    CHUNKED = "chunked"
    CLOSE = "close"


@dataclass(frozen=True, slots=True)
class Peer:
    """The client as seen on the socket: the one thing about it that it cannot make up."""

    address: bytes
    secure: bool


class Head:
    """A message's headers, sorted in one pass: lines to copy, and values that the rules decide about."""

    __slots__ = ("lines", "special")

    def __init__(self, headers: RawHeaders, special: frozenset[bytes]) -> None:
        self.lines: list[bytes] = []
        self.special: dict[bytes, list[bytes]] = {}
        for name, value in headers:
            low = name.lower()
            if low in special:
                self.special.setdefault(low, []).append(value)
            else:
                self.lines.append(name + b": " + value)
        named = self.connection_options() - _OPTIONS
        if named:
            self.lines = [line for line in self.lines if line.partition(b":")[0].lower() not in named]

    def all(self, name: bytes) -> list[bytes]:
        return self.special.get(name, [])

    def one(self, name: bytes) -> bytes:
        """The value of a header that must not be given twice with different values."""
        values = self.special.get(name)
        if values is None:
            return b""
        if any(value != values[0] for value in values):
            raise BadHead(f"conflicting {name.decode()} headers")
        return values[0]

    def connection_options(self) -> frozenset[bytes]:
        values = self.special.get(b"connection")
        if values is None:
            return frozenset()
        return frozenset(token.strip().lower() for value in values for token in value.split(b","))

    def chunked(self) -> bool:
        coding = self.one(b"transfer-encoding").lower()
        if coding not in (b"", b"chunked"):
            raise BadHead("unknown transfer coding")
        return bool(coding)


def sort_request(headers: RawHeaders) -> Head:
    return Head(headers, _REQUEST_SPECIAL)


def sort_response(headers: RawHeaders) -> Head:
    return Head(headers, _RESPONSE_SPECIAL)


def request_framing(head: Head) -> Framing:
    """How the client told the end of its body. Raises BadHead on a transfer coding other than chunked."""
    if head.chunked():
        return Framing.CHUNKED
    return Framing.LENGTH if head.all(b"content-length") else Framing.NONE


def response_framing(method: str, status: int, head: Head, old_client: bool) -> Framing:
    """How to tell the client the end of the body. An old client (HTTP/1.0) does not know chunks."""
    if method == "HEAD" or status in (204, 304) or status < 200:
        return Framing.NONE
    if not head.chunked() and head.all(b"content-length"):
        return Framing.LENGTH
    return Framing.CLOSE if old_client else Framing.CHUNKED


def asks_for_websocket(method: str, head: Head) -> bool:
    return (
        method == "GET"
        and head.special.get(b"upgrade", [b""])[0].lower() == b"websocket"
        and b"upgrade" in head.connection_options()
    )


def _framing_line(head: Head, framing: Framing) -> list[bytes]:
    if framing is Framing.CHUNKED:
        return [b"Transfer-Encoding: chunked"]
    length = head.one(b"content-length") if framing is Framing.LENGTH else b""
    return [b"Content-Length: " + length] if length else []


def _forwarded_lines(head: Head, host: bytes, peer: Peer) -> list[bytes]:
    """X-Forwarded-* as configurable-http-proxy writes them: this hop is appended to what came in.

    The host alone is not appended: it is the name the browser asked for, told by the first proxy.
    """
    port = _PORT.search(host)
    own_port = port[1] if port else (b"443" if peer.secure else b"80")
    scheme = b"https" if peer.secure else b"http"
    lines = [
        b"X-Forwarded-Proto: " + b",".join([*head.all(b"x-forwarded-proto"), scheme]),
        b"X-Forwarded-Port: " + b",".join([*head.all(b"x-forwarded-port"), own_port]),
        b"X-Forwarded-Host: " + (b",".join(head.all(b"x-forwarded-host")) or host),
    ]
    if peer.address:
        lines.append(b"X-Forwarded-For: " + b",".join([*head.all(b"x-forwarded-for"), peer.address]))
        lines.append(b"X-Real-IP: " + peer.address)
    return lines


def _joined(lines: list[bytes]) -> bytes:
    """The head as bytes. A line break inside a value would start a new header, so it is refused."""
    head = b"\r\n".join(lines) + b"\r\n\r\n"
    breaks = len(lines) + 1
    if head.count(b"\n") != breaks or head.count(b"\r") != breaks or b"\0" in head:
        raise BadHead("control character in a header")
    return head


def request_head(
    method: str, target: bytes, head: Head, peer: Peer, framing: Framing, upgrade: bool = False
) -> bytes:
    """The head to send upstream for a client's request."""
    host = head.one(b"host")
    lines = [b"%b %b HTTP/1.1" % (method.encode("ascii"), target), b"Host: " + host]
    lines += head.lines
    lines += _forwarded_lines(head, host, peer)
    lines += _framing_line(head, framing)
    if upgrade:
        lines += [b"Connection: Upgrade", b"Upgrade: websocket"]
    return _joined(lines)


def response_head(
    status: int,
    reason: str,
    head: Head,
    framing: Framing,
    *,
    keep_alive: bool = True,
    old_client: bool = False,
) -> bytes:
    """The head to send to the client for an upstream's response."""
    lines = [b"HTTP/1.1 %d %b" % (status, reason.encode("utf-8", "surrogateescape"))]
    lines += head.lines
    # An answer without a body may still state the length it would have had (HEAD and 304, not 204 or 1xx).
    states_length = framing is Framing.NONE and status >= 200 and status != 204 and not head.chunked()
    lines += _framing_line(head, Framing.LENGTH if states_length else framing)
    if not keep_alive:
        lines.append(b"Connection: close")
    elif old_client:
        lines.append(b"Connection: keep-alive")
    return _joined(lines)


def switching_head(reason: str, headers: RawHeaders) -> bytes:
    """The 101 head: Connection and Upgrade are its meaning, so here they are passed on."""
    lines = [b"HTTP/1.1 101 " + reason.encode("utf-8", "surrogateescape")]
    lines += [name + b": " + value for name, value in headers]
    return _joined(lines)
