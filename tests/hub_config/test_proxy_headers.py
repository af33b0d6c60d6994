"""The proxy's decisions about heads, without sockets."""

import pytest

from gpudev_hub.proxy.headers import (
    BadHead,
    Framing,
    Peer,
    asks_for_websocket,
    request_framing,
    request_head,
    response_framing,
    response_head,
    sort_request,
    sort_response,
    switching_head,
)

PEER = Peer(b"10.0.0.9", secure=False)


def lines_of(head: bytes) -> list[bytes]:
    assert head.endswith(b"\r\n\r\n")
    return head[:-4].split(b"\r\n")


def forwarded(
    raw: list[tuple[bytes, bytes]], peer: Peer = PEER, framing: Framing = Framing.NONE
) -> list[bytes]:
    return lines_of(request_head("GET", b"/", sort_request(raw), peer, framing))


# Request heads


def test_the_request_line_and_ordinary_headers_pass_unchanged() -> None:
    raw = [(b"Host", b"h:8000"), (b"X-Odd", b"caf\xe9"), (b"cookie", b"a=1"), (b"Cookie", b"b=2")]
    lines = lines_of(request_head("GET", b"/a%2Fb//c?", sort_request(raw), PEER, Framing.NONE))
    assert lines[:2] == [b"GET /a%2Fb//c? HTTP/1.1", b"Host: h:8000"]
    assert lines[2:5] == [b"X-Odd: caf\xe9", b"cookie: a=1", b"Cookie: b=2"]


@pytest.mark.parametrize(
    "name",
    [
        b"Connection",
        b"Keep-Alive",
        b"TE",
        b"Trailer",
        b"Upgrade",
        b"Proxy-Authorization",
        b"Proxy-Connection",
        b"Expect",
    ],
)
def test_hop_by_hop_request_headers_are_dropped(name: bytes) -> None:
    lines = forwarded([(b"Host", b"h"), (name, b"secret")])
    assert not any(line.lower().startswith(name.lower() + b":") for line in lines)


def test_headers_named_by_connection_are_dropped_but_never_the_host() -> None:
    raw = [
        (b"Host", b"h"),
        (b"Connection", b"close, X-Private ,HOST"),
        (b"x-private", b"1"),
        (b"X-Kept", b"2"),
    ]
    lines = forwarded(raw)
    assert b"x-private: 1" not in lines
    assert b"X-Kept: 2" in lines
    assert b"Host: h" in lines


def test_naming_forwarding_headers_in_connection_does_not_remove_ours() -> None:
    lines = forwarded([(b"Host", b"h"), (b"Connection", b"X-Forwarded-For, X-Real-IP")])
    assert b"X-Forwarded-For: 10.0.0.9" in lines
    assert b"X-Real-IP: 10.0.0.9" in lines


@pytest.mark.parametrize(
    ("given", "peer", "expected"),
    [
        ([(b"Host", b"h:8000")], PEER, [b"X-Forwarded-Port: 8000", b"X-Forwarded-Proto: http"]),
        ([(b"Host", b"h")], PEER, [b"X-Forwarded-Port: 80", b"X-Forwarded-Host: h"]),
        ([(b"Host", b"[::1]:7")], PEER, [b"X-Forwarded-Port: 7"]),
        (
            [(b"Host", b"h")],
            Peer(b"::1", secure=True),
            [b"X-Forwarded-Port: 443", b"X-Forwarded-Proto: https", b"X-Forwarded-For: ::1"],
        ),
        (
            [
                (b"Host", b"inner:80"),
                (b"X-Forwarded-For", b"1.2.3.4"),
                (b"x-forwarded-for", b"5.6.7.8"),
                (b"X-Forwarded-Proto", b"https"),
                (b"X-Forwarded-Port", b"443"),
                (b"X-Forwarded-Host", b"public.example.org"),
            ],
            PEER,
            [
                b"X-Forwarded-For: 1.2.3.4,5.6.7.8,10.0.0.9",
                b"X-Forwarded-Proto: https,http",
                b"X-Forwarded-Port: 443,80",
                b"X-Forwarded-Host: public.example.org",
            ],
        ),
        ([(b"Host", b"h"), (b"X-Real-IP", b"6.6.6.6")], PEER, [b"X-Real-IP: 10.0.0.9"]),
    ],
)
def test_forwarding_headers(given: list[tuple[bytes, bytes]], peer: Peer, expected: list[bytes]) -> None:
    lines = forwarded(given, peer)
    names = [line.partition(b":")[0].lower() for line in lines]
    for line in expected:
        assert line in lines
        assert names.count(line.partition(b":")[0].lower()) == 1


def test_a_client_without_an_address_cannot_leave_one_behind() -> None:
    raw = [(b"Host", b"h"), (b"X-Real-IP", b"6.6.6.6"), (b"X-Forwarded-For", b"6.6.6.6")]
    assert not any(b"6.6.6.6" in line for line in forwarded(raw, Peer(b"", secure=False)))


@pytest.mark.parametrize(
    ("raw", "framing", "line"),
    [
        ([(b"Content-Length", b"5")], Framing.LENGTH, b"Content-Length: 5"),
        ([(b"Content-Length", b"0")], Framing.LENGTH, b"Content-Length: 0"),
        ([(b"Transfer-Encoding", b"Chunked")], Framing.CHUNKED, b"Transfer-Encoding: chunked"),
        (
            [(b"Transfer-Encoding", b"chunked"), (b"Content-Length", b"5")],
            Framing.CHUNKED,
            b"Transfer-Encoding: chunked",
        ),
        ([], Framing.NONE, None),
    ],
)
def test_the_framing_of_a_request_is_stated_once(
    raw: list[tuple[bytes, bytes]], framing: Framing, line: bytes | None
) -> None:
    head = sort_request([(b"Host", b"h"), *raw])
    assert request_framing(head) is framing
    lines = lines_of(request_head("POST", b"/", head, PEER, framing))
    told = [each for each in lines if each.lower().startswith((b"content-length", b"transfer-encoding"))]
    assert told == ([line] if line else [])


@pytest.mark.parametrize(
    "raw",
    [
        [(b"Transfer-Encoding", b"gzip, chunked")],
        [(b"Transfer-Encoding", b"chunked"), (b"Transfer-Encoding", b"identity")],
        [(b"Transfer-Encoding", b"xchunked")],
    ],
)
def test_unknown_transfer_codings_are_refused(raw: list[tuple[bytes, bytes]]) -> None:
    with pytest.raises(BadHead):
        request_framing(sort_request(raw))
    with pytest.raises(BadHead):
        response_framing("GET", 200, sort_response(raw), False)


@pytest.mark.parametrize("value", [b"a\r\nX-Evil: 1", b"a\nX-Evil: 1", b"a\rb", b"a\0b"])
def test_a_value_cannot_bring_a_line_of_its_own(value: bytes) -> None:
    raw = [(b"Host", b"h"), (b"X-A", value)]
    with pytest.raises(BadHead):
        request_head("GET", b"/", sort_request(raw), PEER, Framing.NONE)
    with pytest.raises(BadHead):
        response_head(200, "OK", sort_response(raw), Framing.NONE)
    with pytest.raises(BadHead):
        switching_head("Switching Protocols", raw)


def test_conflicting_lengths_are_refused_and_equal_ones_merged() -> None:
    with pytest.raises(BadHead):
        response_head(
            200,
            "OK",
            sort_response([(b"Content-Length", b"1"), (b"Content-Length", b"2")]),
            Framing.LENGTH,
        )
    same = sort_response([(b"Content-Length", b"1"), (b"Content-Length", b"1")])
    assert lines_of(response_head(200, "OK", same, Framing.LENGTH)).count(b"Content-Length: 1") == 1


@pytest.mark.parametrize(
    ("method", "raw", "asks"),
    [
        ("GET", [(b"Connection", b"Upgrade"), (b"Upgrade", b"websocket")], True),
        ("GET", [(b"Connection", b"keep-alive, Upgrade"), (b"Upgrade", b"WebSocket")], True),
        ("GET", [(b"Connection", b"keep-alive"), (b"Upgrade", b"websocket")], False),
        ("GET", [(b"Connection", b"Upgrade"), (b"Upgrade", b"h2c")], False),
        ("GET", [(b"Connection", b"Upgrade")], False),
        ("POST", [(b"Connection", b"Upgrade"), (b"Upgrade", b"websocket")], False),
    ],
)
def test_who_asks_for_a_websocket(method: str, raw: list[tuple[bytes, bytes]], asks: bool) -> None:
    assert asks_for_websocket(method, sort_request(raw)) is asks


def test_an_upgrade_request_keeps_its_meaning() -> None:
    raw = [
        (b"Host", b"h"),
        (b"Connection", b"Upgrade"),
        (b"Upgrade", b"websocket"),
        (b"Sec-WebSocket-Key", b"k"),
    ]
    lines = lines_of(request_head("GET", b"/", sort_request(raw), PEER, Framing.NONE, upgrade=True))
    assert {b"Connection: Upgrade", b"Upgrade: websocket", b"Sec-WebSocket-Key: k"} <= set(lines)


# Response heads


@pytest.mark.parametrize(
    ("method", "status", "raw", "old", "framing"),
    [
        ("GET", 200, [(b"Content-Length", b"5")], False, Framing.LENGTH),
        ("GET", 200, [(b"Transfer-Encoding", b"chunked")], False, Framing.CHUNKED),
        ("GET", 200, [(b"Transfer-Encoding", b"chunked"), (b"Content-Length", b"5")], False, Framing.CHUNKED),
        ("GET", 200, [], False, Framing.CHUNKED),
        ("GET", 200, [], True, Framing.CLOSE),
        ("GET", 200, [(b"Transfer-Encoding", b"chunked")], True, Framing.CLOSE),
        ("GET", 200, [(b"Content-Length", b"5")], True, Framing.LENGTH),
        ("HEAD", 200, [(b"Content-Length", b"5")], False, Framing.NONE),
        ("GET", 204, [], False, Framing.NONE),
        ("GET", 304, [(b"Content-Length", b"5")], False, Framing.NONE),
        ("GET", 103, [], False, Framing.NONE),
    ],
)
def test_framing_of_responses(
    method: str, status: int, raw: list[tuple[bytes, bytes]], old: bool, framing: Framing
) -> None:
    assert response_framing(method, status, sort_response(raw), old) is framing


@pytest.mark.parametrize(
    ("status", "raw", "stated"),
    [
        (200, [(b"Content-Length", b"5")], True),
        (304, [(b"Content-Length", b"5")], True),
        (204, [(b"Content-Length", b"5")], False),
        (103, [(b"Content-Length", b"5")], False),
        (200, [(b"Content-Length", b"5"), (b"Transfer-Encoding", b"chunked")], False),
    ],
)
def test_the_length_of_a_body_that_is_not_sent(
    status: int, raw: list[tuple[bytes, bytes]], stated: bool
) -> None:
    lines = lines_of(response_head(status, "X", sort_response(raw), Framing.NONE))
    assert (b"Content-Length: 5" in lines) is stated


def test_response_headers_pass_in_order_and_number_without_hop_by_hop_ones() -> None:
    raw = [
        (b"Set-Cookie", b"a=1"),
        (b"Connection", b"X-Hop"),
        (b"Keep-Alive", b"timeout=5"),
        (b"X-Hop", b"1"),
        (b"Set-Cookie", b"b=2"),
    ]
    lines = lines_of(response_head(200, "Fine", sort_response(raw), Framing.NONE))
    assert lines == [b"HTTP/1.1 200 Fine", b"Set-Cookie: a=1", b"Set-Cookie: b=2"]


@pytest.mark.parametrize(
    ("keep", "old", "line"),
    [(False, False, b"Connection: close"), (True, True, b"Connection: keep-alive"), (True, False, None)],
)
def test_the_connection_header_says_what_happens(keep: bool, old: bool, line: bytes | None) -> None:
    lines = lines_of(
        response_head(200, "OK", sort_response([]), Framing.NONE, keep_alive=keep, old_client=old)
    )
    assert [each for each in lines if each.startswith(b"Connection")] == ([line] if line else [])
