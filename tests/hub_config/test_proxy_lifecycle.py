"""The life of the proxy: its connections, its routes as the hub sees them, its start and its stop."""

import asyncio
import socket
from contextlib import suppress
from datetime import datetime
from types import SimpleNamespace

import pytest
from jupyterhub.app import JupyterHub
from jupyterhub.objects import Hub
from proxy_harness import (
    MB,
    OK,
    RawHandler,
    activity_of,
    answering,
    answering_until_closed,
    client_of,
    client_through,
    happens,
    proxy_to,
    raw_upstream,
    read_head,
    stalled,
    until,
)
from traitlets.config import Config

from gpudev_hub.proxy import LocalProxy, exchange, upstream

pytestmark = pytest.mark.asyncio


# Connections to upstreams


def drops_the_second(heads: list[bytes]) -> RawHandler:
    """Answers one request per connection and closes, without an answer, when a second one comes."""

    async def handler(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        for last in (False, True):
            first, headers = await read_head(reader)
            await reader.readexactly(int(dict(headers).get("content-length", 0)))
            heads.append(first.split()[0])
            if last:
                return
            writer.write(OK)
            await writer.drain()

    return handler


async def test_a_request_lost_on_an_old_connection_is_repeated_once() -> None:
    heads: list[bytes] = []
    async with client_through(drops_the_second(heads)) as client:
        for _ in range(2):
            client.get()
            assert (await client.answer())[0] == 200
    assert heads == [b"GET"] * 3


@pytest.mark.parametrize("body", [b"", b"abc"])
async def test_a_post_is_never_repeated(body: bytes) -> None:
    heads: list[bytes] = []
    async with client_through(drops_the_second(heads)) as client:
        client.get()
        assert (await client.answer())[0] == 200
        client.get("/", f"Content-Length: {len(body)}", method="POST")
        client.send(body)
        assert (await client.answer())[0] == 503
    assert heads == [b"GET", b"POST"]


async def test_a_put_with_a_body_is_never_repeated() -> None:
    heads: list[bytes] = []
    async with client_through(drops_the_second(heads)) as client:
        client.get()
        await client.answer()
        client.get("/", "Content-Length: 3", method="PUT")
        client.send(b"abc")
        assert (await client.answer())[0] == 503
    assert heads == [b"GET", b"PUT"]


async def test_a_post_takes_no_connection_that_may_be_about_to_close(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exchange, "FRESH_SECONDS", -1.0)
    heads: list[bytes] = []
    async with client_through(drops_the_second(heads)) as client:
        client.get()
        await client.answer()
        client.get("/", "Content-Length: 0", method="POST")
        assert (await client.answer())[0] == 200
    assert heads == [b"GET", b"POST"]


async def test_idle_connections_are_closed_after_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(upstream, "IDLE_SECONDS", 0.05)
    closed = asyncio.Event()
    async with client_through(answering_until_closed(closed), idle_timeout=0.1) as client:
        client.get()
        await client.answer()
        assert await happens(closed)
        assert await client.rest() == b""


async def test_a_deleted_route_drops_its_idle_connections() -> None:
    closed = asyncio.Event()
    async with (
        raw_upstream(answering_until_closed(closed)) as url,
        proxy_to(url) as proxy,
        client_of(proxy) as client,
    ):
        client.get()
        await client.answer()
        await proxy.delete_route("/")
        assert await happens(closed)
        client.get()
        assert (await client.answer())[0] == 404


# JupyterHub's side


async def test_it_is_made_the_way_the_hub_makes_it() -> None:
    app = JupyterHub(config=Config({"LocalProxy": {"connect_timeout": 2.5}}))
    hub = Hub(ip="127.0.0.1", port=8081, base_url="/hub/", proto="http", routespec="/")
    proxy = LocalProxy(
        db_factory=lambda: None,
        public_url="http://127.0.0.1:0/",
        parent=app,
        app=app,
        log=app.log,
        hub=hub,
        host_routing=False,
        ssl_cert="",
        ssl_key="",
    )
    assert proxy.connect_timeout == 2.5
    assert proxy.should_start
    await proxy.start()
    try:
        await proxy.add_hub_route(hub)
        assert (await proxy.get_all_routes())["/"]["target"] == "http://127.0.0.1:8081"
    finally:
        await proxy.stop()


async def test_routes_are_listed_as_they_were_given_and_as_copies() -> None:
    proxy = LocalProxy(public_url="http://127.0.0.1:0/")
    data = {"user": "a@b", "server_name": ""}
    await proxy.add_route("/user/a%40b", "http://127.0.0.1:5000", data)
    listed = await proxy.get_all_routes()
    assert list(listed) == ["/user/a%40b/"]
    entry = listed["/user/a%40b/"]
    assert entry["target"] == "http://127.0.0.1:5000"
    assert entry["data"]["user"] == "a@b"
    assert datetime.fromisoformat(entry["data"]["last_activity"]).tzinfo is not None
    entry["data"]["user"] = "eve"
    assert (await proxy.get_route("/user/a%40b/"))["data"]["user"] == "a@b"
    assert data == {"user": "a@b", "server_name": ""}
    await proxy.delete_route("/user/a%40b/")
    assert await proxy.get_all_routes() == {}
    await proxy.delete_route("/user/a%40b/")


async def test_host_routes_need_host_routing_and_the_other_way_round() -> None:
    with pytest.raises(ValueError, match="host-routing"):
        await LocalProxy(public_url="http://127.0.0.1:0/").add_route("h/x/", "http://127.0.0.1:1", {})
    hosts = LocalProxy(public_url="http://127.0.0.1:0/", host_routing=True)
    with pytest.raises(ValueError, match="host-routing"):
        await hosts.add_route("/x/", "http://127.0.0.1:1", {})


async def test_host_routing_on_the_wire() -> None:
    page = b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nada"
    async with (
        raw_upstream(answering(OK)) as hub,
        raw_upstream(answering(page)) as ada,
        proxy_to(hub, host_routing=True) as proxy,
        client_of(proxy) as client,
    ):
        await proxy.add_route("ada.hub.test/user/ada/", ada, {})
        for host, body in (("ada.hub.test:8000", b"ada"), ("hub.test", b"ok")):
            client.send(f"GET /user/ada/lab HTTP/1.1\r\nHost: {host}\r\n\r\n".encode())
            assert (await client.answer())[2] == body


@pytest.mark.parametrize(("status", "counts"), [(200, True), (302, False), (404, False), (500, False)])
async def test_only_successful_requests_count_as_activity(
    status: int, counts: bool, clock: SimpleNamespace
) -> None:
    response = f"HTTP/1.1 {status} X\r\nContent-Length: 0\r\n\r\n".encode()
    async with raw_upstream(answering(response)) as url, proxy_to(url) as proxy, client_of(proxy) as client:
        clock.now = 2000.0
        client.get()
        await client.answer()
        client.get()  # when the second answer is here, the first has been counted
        await client.answer()
        assert await activity_of(proxy) == (2000.0 if counts else 1000.0)


async def test_a_stream_counts_as_activity_while_it_flows(clock: SimpleNamespace) -> None:
    more = asyncio.Event()

    async def handler(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_head(reader)
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nabc")
        await more.wait()
        writer.write(b"def")
        await reader.read()

    async with raw_upstream(handler) as url, proxy_to(url) as proxy, client_of(proxy) as client:
        client.get()
        await client.head()
        await client.exactly(3)
        clock.now = 2000.0
        more.set()
        await client.exactly(3)
        assert await activity_of(proxy) == 2000.0


# Starting and stopping


async def test_a_taken_port_is_named() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        proxy = LocalProxy(public_url=f"http://127.0.0.1:{port}/")
        with pytest.raises(OSError, match=f"Port {port} on 127.0.0.1 is taken"):
            await proxy.start()
        assert proxy.addresses == []
    await proxy.start()  # free now: a start that failed has left nothing behind
    assert proxy.addresses == [("127.0.0.1", port)]
    await proxy.stop()


async def test_it_can_be_stopped_and_started_again_with_its_routes() -> None:
    upstream_closed = asyncio.Event()
    async with raw_upstream(answering_until_closed(upstream_closed)) as url, proxy_to(url) as proxy:
        await proxy.start()  # already running: nothing happens
        address = proxy.addresses[0]
        async with client_of(proxy) as client:
            client.get()
            await client.answer()
            await proxy.stop()
            assert await client.rest() == b""
        assert await happens(upstream_closed)
        assert proxy.addresses == []
        await proxy.stop()
        with pytest.raises(ConnectionRefusedError):
            await asyncio.open_connection(*address)
        await proxy.start()
        async with client_of(proxy) as client:
            client.get()
            assert (await client.answer())[2] == b"ok"


async def test_stopping_is_bounded_whatever_is_open() -> None:
    sent, left = 0, []

    async def handler(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal sent
        first, _ = await read_head(reader)
        try:
            if first.startswith(b"GET /silent"):
                await reader.read()
            writer.write(b"HTTP/1.1 200 OK\r\n\r\n")
            while True:
                writer.write(b"x" * MB)
                await writer.drain()
                sent += MB
        finally:
            left.append(first)

    async with (
        raw_upstream(handler) as url,
        proxy_to(url) as proxy,
        client_of(proxy) as silent,
        client_of(proxy) as stuck,
        client_of(proxy) as idle,
    ):
        stuck.writer.transport.pause_reading()  # type: ignore[attr-defined]
        stuck.get("/endless")
        silent.get("/silent")
        await stalled(lambda: sent, quiet=0.2)
        sockets = [each.transport.get_extra_info("socket") for each in proxy._server.connections]  # type: ignore
        assert len(sockets) == 3
        async with asyncio.timeout(5):
            await proxy.stop()
        await until(lambda: len(left) == 2)
        await until(lambda: all(sock.fileno() == -1 for sock in sockets))
        assert await idle.rest() == b""
        with suppress(ConnectionResetError):
            assert await silent.rest() == b""
