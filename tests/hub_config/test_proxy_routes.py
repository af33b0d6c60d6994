"""The proxy's routes and addresses, without sockets."""

import errno

import pytest

from gpudev_hub.proxy import routes
from gpudev_hub.proxy.local import listen_address, listen_error
from gpudev_hub.proxy.routes import RouteTable, host_name, parse_target, path_segments

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


# Addresses to listen on


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
