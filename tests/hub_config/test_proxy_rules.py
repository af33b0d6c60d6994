"""The proxy's decisions, without sockets: routes, headers and error pages."""

import errno
import json

import pytest

from gpudev_hub.proxy import routes
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
from gpudev_hub.proxy.local import listen_address, listen_error
from gpudev_hub.proxy.pages import MESSAGES, REASONS, error_json, error_page, prefers_json
from gpudev_hub.proxy.routes import RouteTable, host_name, parse_target, path_segments

PEER = Peer(b"10.0.0.9", secure=False)


def lines_of(head: bytes) -> list[bytes]:
    assert head.endswith(b"\r\n\r\n")
    return head[:-4].split(b"\r\n")


def forwarded(
    raw: list[tuple[bytes, bytes]], peer: Peer = PEER, framing: Framing = Framing.NONE
) -> list[bytes]:
    return lines_of(request_head("GET", b"/", sort_request(raw), peer, framing))


# Routes


@pytest.fixture
def table() -> RouteTable:
    table = RouteTable()
    for spec, port in [
        ("/", 1),
        ("/user/ada/", 2),
        ("/user/ada/gpu/", 3),
        ("/services/book/", 4),
        ("/user/j%C3%BCrgen/", 5),
        ("/user/a%40b/", 6),
    ]:
        table.add(spec, f"http://127.0.0.1:{port}", {})
    return table


@pytest.mark.parametrize(
    ("target", "port"),
    [
        ("/", 1),
        ("/hub/login", 1),
        ("/user/ada", 2),
        ("/user/ada/", 2),
        ("/user/ada?x=/user/ada/gpu/", 2),
        ("/user/ada#/gpu", 2),
        ("/user/ada/lab/tree/gpu", 2),
        ("/user/ada/gpu", 3),
        ("/user/ada/gpu/lab", 3),
        ("/user/ada/gpus", 2),
        ("/user/adam/", 1),
        ("/user/", 1),
        ("/user/a", 1),
        ("/user/%61da/lab", 2),
        ("/user/ada%2Flab", 2),
        ("/user/jürgen/lab", 5),
        ("/user/j%c3%bcrgen/lab", 5),
        ("/user/a@b/lab", 6),
        ("/user/a%40b/lab", 6),
        ("/user/adam/../ada/lab", 2),
        ("/user/adam/%2e%2E/ada/lab", 2),
        ("/user/./ada/lab", 2),
        ("/../../user/ada", 2),
        ("/user//ada/", 1),
        ("/user/%zz", 1),
        ("/services/book/api", 4),
    ],
)
def test_the_longest_prefix_of_whole_segments_wins(table: RouteTable, target: str, port: int) -> None:
    route = table.match("any", target)
    assert route is not None
    assert route.target.port == port


def test_without_a_default_route_other_paths_match_nothing() -> None:
    table = RouteTable()
    table.add("/user/ada/", "http://127.0.0.1:1", {})
    assert table.match("", "/hub/") is None


@pytest.mark.parametrize(
    ("host", "target", "port"),
    [
        ("hub.example.org", "/hub/", 1),
        ("ada.example.org", "/user/ada/lab", 2),
        ("ADA.example.org:8443", "/user/ada/lab", 2),
        ("ada.example.org", "/user/bob/", 1),
        ("bob.example.org", "/user/ada/lab", 1),
        ("[::1]:8000", "/x", 3),
    ],
)
def test_host_routes_match_host_and_path(host: str, target: str, port: int) -> None:
    table = RouteTable(host_routing=True)
    table.add("/", "http://127.0.0.1:1", {})
    table.add("ada.example.org/user/ada/", "http://127.0.0.1:2", {})
    table.add("[::1]/", "http://127.0.0.1:3", {})
    route = table.match(host, target)
    assert route is not None
    assert route.target.port == port


def test_removing_a_route_uncovers_the_shorter_one_and_keeps_the_longer(table: RouteTable) -> None:
    assert table.remove("/user/ada/") is not None
    assert table.match("", "/user/ada/lab").target.port == 1  # type: ignore[union-attr]
    assert table.match("", "/user/ada/gpu/lab").target.port == 3  # type: ignore[union-attr]
    assert "/user/ada/" not in table
    assert table.remove("/user/ada/") is None
    assert table.remove("/never/was/") is None


def test_removed_branches_leave_nothing_behind() -> None:
    table = RouteTable()
    table.add("/a/b/c/", "http://127.0.0.1:1", {})
    table.remove("/a/b/c/")
    assert table._root.children == {}


def test_two_spellings_of_a_prefix_are_one_route() -> None:
    table = RouteTable()
    table.add("/user/a%40b/", "http://127.0.0.1:1", {})
    table.add("/user/a@b/", "http://127.0.0.1:2", {})
    assert [route.routespec for route in table] == ["/user/a@b/"]


def test_adding_a_route_again_keeps_its_activity_only_for_the_same_target(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    table = RouteTable()
    monkeypatch.setattr(routes.time, "time", lambda: 1000.0)
    table.add("/x/", "http://127.0.0.1:1", {})
    monkeypatch.setattr(routes.time, "time", lambda: 2000.0)
    assert table.add("/x/", "http://127.0.0.1:1", {}).last_activity == 1000.0
    assert table.add("/x/", "http://127.0.0.1:2", {}).last_activity == 2000.0


def test_a_description_is_a_copy_with_an_utc_stamp(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(routes.time, "time", lambda: 1_700_000_000.25)
    data = {"user": "ada", "deep": {"a": 1}}
    route = RouteTable().add("/x/", "http://127.0.0.1:1", data)
    data["deep"]["a"] = 2  # type: ignore[index]
    described = route.describe()
    described["data"]["deep"]["a"] = 3
    assert route.describe() == {
        "routespec": "/x/",
        "target": "http://127.0.0.1:1",
        "data": {"user": "ada", "deep": {"a": 1}, "last_activity": "2023-11-14T22:13:20.250Z"},
    }


@pytest.mark.parametrize(
    ("url", "tls", "host", "port", "unix", "prefix"),
    [
        ("http://127.0.0.1:8081", False, "127.0.0.1", 8081, "", b""),
        ("http://localhost", False, "localhost", 80, "", b""),
        ("https://srv/", True, "srv", 443, "", b""),
        ("http://[::1]:9/base/", False, "::1", 9, "", b"/base"),
        ("http+unix://%2Frun%2Fhub.sock", False, "", 0, "/run/hub.sock", b""),
    ],
)
def test_targets_are_taken_apart(url: str, tls: bool, host: str, port: int, unix: str, prefix: bytes) -> None:
    target = parse_target(url)
    assert (target.tls, target.host, target.port) == (tls, host, port)
    assert (target.unix_path, target.path_prefix) == (unix, prefix)


@pytest.mark.parametrize("url", ["", "127.0.0.1:8000", "ftp://x", "http://", "file:///etc/passwd"])
def test_a_target_that_is_no_http_address_is_refused(url: str) -> None:
    with pytest.raises(ValueError, match="must be http"):
        parse_target(url)


def test_segments_and_hosts() -> None:
    assert path_segments("/") == []
    assert path_segments("//user/ada//") == ["user", "ada"]
    assert host_name("[fe80::1]:80") == "fe80::1"
    assert host_name("") == ""


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


# Pages and addresses


@pytest.mark.parametrize(
    ("accept", "json_wanted"),
    [
        ("", False),
        ("*/*", False),
        ("text/html,application/xhtml+xml,*/*;q=0.8", False),
        ("application/json", True),
        ("Application/JSON, text/plain, */*", True),
        ("application/json;q=0.5, text/html", False),
        ("text/html;q=0.5, application/json;q=0.9", True),
        ("application/json;q=0", False),
        ("application/json;q=often", False),
        ("text/html, application/json", False),
    ],
)
def test_who_prefers_json(accept: str, json_wanted: bool) -> None:
    assert prefers_json(accept) is json_wanted


@pytest.mark.parametrize("status", sorted(MESSAGES))
def test_every_status_has_a_page_and_a_json_answer(status: int) -> None:
    content_type, page = error_page(status, "/hub/home")
    assert content_type.startswith(b"text/html")
    assert MESSAGES[status].encode() in page
    assert REASONS[status].encode() in page
    assert b'href="/hub/home"' in page
    assert json.loads(error_json(status)[1]) == {"message": MESSAGES[status], "status": status}


def test_what_is_put_into_the_page_is_escaped() -> None:
    _, page = error_page(503, '/"><script>alert(1)</script>')
    assert b"<script>" not in page


@pytest.mark.parametrize(
    ("url", "address"),
    [
        ("http://127.0.0.1:8000/", ("127.0.0.1", 8000)),
        ("http://:8000/base/", (None, 8000)),
        ("http://*:8000", (None, 8000)),
        ("https://hub.example.org", ("hub.example.org", 443)),
        ("http://[::1]:0", ("::1", 0)),
        ("http://0.0.0.0", ("0.0.0.0", 80)),
    ],
)
def test_where_to_listen(url: str, address: tuple[str | None, int]) -> None:
    assert listen_address(url) == address


@pytest.mark.parametrize(
    ("number", "host", "words"),
    [
        (errno.EADDRINUSE, "127.0.0.1", "Port 8000 on 127.0.0.1 is taken"),
        (errno.EACCES, None, "Port 8000 on all interfaces may not be opened"),
        (errno.EADDRNOTAVAIL, "1.2.3.4", "Port 8000 on 1.2.3.4 cannot be listened on"),
    ],
)
def test_why_it_cannot_listen(number: int, host: str | None, words: str) -> None:
    error = listen_error(OSError(number, "no"), host, 8000)
    assert error.errno == number
    assert words in str(error)
