"""Websockets through the proxy: real clients and servers on loopback, and raw bytes where order matters."""

import asyncio
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from datetime import datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import aiohttp
import pytest
from aiohttp import WSMsgType, web
from certipy import Certipy

from gpudev_hub.proxy import LocalProxy, routes, tunnel

pytestmark = pytest.mark.asyncio

MB = 1024 * 1024
PATIENCE = 20.0
TOTAL = 200 * MB
# Socket buffers of two hops can hold tens of megabytes; a proxy that buffers would take all of it.
BOUND = 80 * MB

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
RawHandler = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


@asynccontextmanager
async def proxied(target: str, stop_timeout: float = 0.1) -> AsyncIterator[LocalProxy]:
    proxy = LocalProxy(public_url="http://127.0.0.1:0/", stop_timeout=stop_timeout)
    await proxy.start()
    try:
        await proxy.add_route("/", target, {})
        yield proxy
    finally:
        async with asyncio.timeout(PATIENCE):
            await proxy.stop()


@asynccontextmanager
async def socket_server(handler: Handler) -> AsyncIterator[str]:
    app = web.Application()
    app.router.add_get("/{path:.*}", handler)
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    try:
        yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()


@asynccontextmanager
async def raw_server(handler: RawHandler) -> AsyncIterator[str]:
    writers: list[asyncio.StreamWriter] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writers.append(writer)
        with suppress(ConnectionError, asyncio.IncompleteReadError):
            await reader.readuntil(b"\r\n\r\n")
            await handler(reader, writer)
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    try:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    finally:
        server.close()
        for writer in writers:
            writer.transport.abort()


def url_of(proxy: LocalProxy, path: str = "/kernel") -> str:
    return f"http://127.0.0.1:{proxy.addresses[0][1]}{path}"


@asynccontextmanager
async def connected(proxy: LocalProxy, **options: Any) -> AsyncIterator[aiohttp.ClientWebSocketResponse]:
    async with (
        aiohttp.ClientSession() as session,
        session.ws_connect(url_of(proxy), max_msg_size=0, **options) as ws,
    ):
        yield ws


async def within(awaitable: Awaitable[Any]) -> Any:
    return await asyncio.wait_for(awaitable, PATIENCE)


async def echo(request: web.Request) -> web.WebSocketResponse:
    ws = web.WebSocketResponse(max_msg_size=0, compress=True)
    await ws.prepare(request)
    async for message in ws:
        if message.type is WSMsgType.TEXT:
            await ws.send_str(message.data)
        else:
            await ws.send_bytes(message.data)
    return ws


UPGRADE = (
    b"GET /kernel HTTP/1.1\r\nHost: h\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
    b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
)
SWITCHED = b"HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n"


@asynccontextmanager
async def raw_socket(
    proxy: LocalProxy, first: bytes = UPGRADE
) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    reader, writer = await asyncio.open_connection(*proxy.addresses[0])
    try:
        writer.write(first)
        yield reader, writer
    finally:
        writer.transport.abort()


async def stalled(counter: Callable[[], int], quiet: float = 0.5) -> int:
    """The count once it has stopped growing."""
    loop = asyncio.get_running_loop()
    async with asyncio.timeout(60):
        seen, since = counter(), loop.time()
        while loop.time() - since < quiet or seen == 0:
            await asyncio.sleep(0.01)
            if counter() != seen:
                seen, since = counter(), loop.time()
    return seen


# Messages


@pytest.mark.parametrize("compress", [0, 15])
async def test_text_and_binary_come_back(compress: int) -> None:
    async with socket_server(echo) as url, proxied(url) as proxy, connected(proxy, compress=compress) as ws:
        assert bool(ws.compress) is bool(compress)
        for text in ("", "hello", "é" * 70_000):
            await ws.send_str(text)
            assert await within(ws.receive_str()) == text
        for data in (b"", b"\0\xff" * 70_000):
            await ws.send_bytes(data)
            assert await within(ws.receive_bytes()) == data


async def test_a_message_far_beyond_four_megabytes_passes() -> None:
    async with socket_server(echo) as url, proxied(url) as proxy, connected(proxy) as ws:
        await ws.send_bytes(b"x" * 24 * MB)
        assert len(await within(ws.receive_bytes())) == 24 * MB


async def test_both_sides_can_talk_first_and_at_any_time() -> None:
    answered = asyncio.Event()

    async def handler(request: web.Request) -> web.WebSocketResponse:
        ws = web.WebSocketResponse()
        await ws.prepare(request)
        await ws.send_str("one")
        await ws.send_str("two")
        assert await ws.receive_str() == "heard"
        answered.set()
        await ws.receive()
        return ws

    async with socket_server(handler) as url, proxied(url) as proxy, connected(proxy) as ws:
        assert await within(ws.receive_str()) == "one"
        assert await within(ws.receive_str()) == "two"
        await ws.send_str("heard")
        await within(answered.wait())


async def test_pings_reach_the_other_side_and_pongs_come_back() -> None:
    pinged: list[bytes] = []

    async def handler(request: web.Request) -> web.WebSocketResponse:
        ws = web.WebSocketResponse(autoping=False)
        await ws.prepare(request)
        message = await ws.receive()
        assert message.type is WSMsgType.PING
        pinged.append(message.data)
        await ws.pong(message.data)
        await ws.ping(b"and back")
        await ws.receive()
        return ws

    async with socket_server(handler) as url, proxied(url) as proxy, connected(proxy, autoping=False) as ws:
        await ws.ping(b"there")
        pong = await within(ws.receive())
        assert (pong.type, pong.data) == (WSMsgType.PONG, b"there")
        ping = await within(ws.receive())
        assert (ping.type, ping.data) == (WSMsgType.PING, b"and back")
    assert pinged == [b"there"]


async def test_the_servers_close_code_and_reason_reach_the_client() -> None:
    async def handler(request: web.Request) -> web.WebSocketResponse:
        ws = web.WebSocketResponse()
        await ws.prepare(request)
        await ws.close(code=4001, message=b"kernel died")
        return ws

    async with socket_server(handler) as url, proxied(url) as proxy, connected(proxy) as ws:
        message = await within(ws.receive())
    assert (message.type, message.data, message.extra) == (WSMsgType.CLOSE, 4001, "kernel died")


async def test_the_clients_close_code_and_reason_reach_the_server() -> None:
    closed: asyncio.Future[tuple[int, str]] = asyncio.get_running_loop().create_future()

    async def handler(request: web.Request) -> web.WebSocketResponse:
        ws = web.WebSocketResponse()
        await ws.prepare(request)
        message = await ws.receive()
        closed.set_result((message.data, message.extra))
        return ws

    async with socket_server(handler) as url, proxied(url) as proxy, connected(proxy) as ws:
        await ws.close(code=4002, message=b"tab closed")
        assert await within(closed) == (4002, "tab closed")
        assert ws.close_code == 1000  # the server's reply, not an abnormal end


# The handshake


async def test_the_upstream_chooses_the_subprotocol() -> None:
    async def handler(request: web.Request) -> web.WebSocketResponse:
        ws = web.WebSocketResponse(protocols=("v1.kernel.websocket.jupyter.org",))
        await ws.prepare(request)
        await ws.receive()
        return ws

    async with socket_server(handler) as url, proxied(url) as proxy:
        offered = ("other", "v1.kernel.websocket.jupyter.org")
        async with connected(proxy, protocols=offered) as ws:
            assert ws.protocol == "v1.kernel.websocket.jupyter.org"


async def test_the_upstream_sees_path_and_headers_of_the_client() -> None:
    seen: asyncio.Future[tuple[str, dict[str, str]]] = asyncio.get_running_loop().create_future()

    async def handler(request: web.Request) -> web.WebSocketResponse:
        seen.set_result((request.raw_path, dict(request.headers)))
        return await echo(request)

    given = {
        "Cookie": "a=1; b=2",
        "Origin": "http://hub.test",
        "Authorization": "token t",
        "Host": "hub.test:8000",
        "X-Real-IP": "6.6.6.6",
    }
    async with (
        socket_server(handler) as url,
        proxied(url) as proxy,
        aiohttp.ClientSession() as session,
        session.ws_connect(url_of(proxy, "/a//b?session_id=x"), headers=given),
    ):
        path, headers = await within(seen)
    assert path == "/a//b?session_id=x"
    assert {name: headers[name] for name in given if name != "X-Real-IP"} == {
        name: value for name, value in given.items() if name != "X-Real-IP"
    }
    assert headers["X-Real-IP"] == "127.0.0.1"
    assert headers["X-Forwarded-Proto"] == "http"


@pytest.mark.parametrize(
    ("status", "headers"), [(403, {}), (404, {}), (302, {"Location": "/hub/login"}), (200, {})]
)
async def test_a_refused_upgrade_is_passed_on_with_its_body(status: int, headers: dict[str, str]) -> None:
    async def handler(request: web.Request) -> web.Response:
        return web.Response(status=status, text="not here", headers=headers)

    async with socket_server(handler) as url, proxied(url) as proxy, raw_socket(proxy) as (reader, _):
        whole = await within(reader.read())
    head, _, body = whole.partition(b"\r\n\r\n")
    assert head.startswith(f"HTTP/1.1 {status} ".encode())
    assert body == b"not here"
    for name, value in headers.items():
        assert f"{name}: {value}".encode() in head


async def test_no_upstream_is_503() -> None:
    async with raw_server(lambda r, w: asyncio.sleep(0)) as url:
        pass  # the port is free again
    async with proxied(url) as proxy, aiohttp.ClientSession() as session:
        with pytest.raises(aiohttp.WSServerHandshakeError) as caught:
            await within(session.ws_connect(url_of(proxy)))
    assert caught.value.status == 503


async def test_an_upgrade_with_a_body_is_refused() -> None:
    async with socket_server(echo) as url, proxied(url) as proxy:
        first = UPGRADE.replace(b"Host: h\r\n", b"Host: h\r\nContent-Length: 2\r\n") + b"xx"
        async with raw_socket(proxy, first) as (reader, _):
            assert (await within(reader.readline())).startswith(b"HTTP/1.1 400")


async def test_other_upgrades_are_answered_as_plain_http() -> None:
    async def handler(request: web.Request) -> web.Response:
        return web.Response(text=str("Upgrade" in request.headers))

    async with socket_server(handler) as url, proxied(url) as proxy:
        first = b"GET / HTTP/1.1\r\nHost: h\r\nConnection: Upgrade, close\r\nUpgrade: h2c\r\n\r\n"
        async with raw_socket(proxy, first) as (reader, _):
            assert (await within(reader.read())).endswith(b"\r\n\r\nFalse")


async def test_bytes_that_come_along_with_the_handshake_are_not_lost() -> None:
    heard: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()

    async def handler(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(SWITCHED + b"right behind")
        heard.set_result(await reader.readexactly(5))
        await reader.read()

    async with (
        raw_server(handler) as url,
        proxied(url) as proxy,
        raw_socket(proxy, UPGRADE + b"early") as (reader, _),
    ):
        await within(reader.readuntil(b"\r\n\r\n"))
        assert await within(reader.readexactly(12)) == b"right behind"
        assert await within(heard) == b"early"


# Back-pressure and endings


async def test_a_client_that_does_not_read_holds_the_upstream_back() -> None:
    sent = 0

    async def handler(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal sent
        writer.write(SWITCHED)
        while sent < TOTAL:
            writer.write(b"x" * MB)
            await writer.drain()
            sent += MB
        await reader.read()

    async with raw_server(handler) as url, proxied(url) as proxy, raw_socket(proxy) as (reader, writer):
        writer.transport.pause_reading()  # type: ignore[attr-defined]
        assert await stalled(lambda: sent) < BOUND
        writer.transport.resume_reading()  # type: ignore[attr-defined]
        await within(reader.readuntil(b"\r\n\r\n"))
        for _ in range(TOTAL // MB):
            await within(reader.readexactly(MB))
        assert sent == TOTAL


async def test_an_upstream_that_does_not_read_holds_the_client_back() -> None:
    go, received = asyncio.Event(), 0

    async def handler(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal received
        writer.write(SWITCHED)
        writer.transport.pause_reading()  # type: ignore[attr-defined]
        await go.wait()
        writer.transport.resume_reading()  # type: ignore[attr-defined]
        while received < TOTAL:
            received += len(await reader.read(MB))
        writer.write(b"all")
        await writer.drain()

    sent = 0

    async def upload(writer: asyncio.StreamWriter) -> None:
        nonlocal sent
        while sent < TOTAL:
            writer.write(b"x" * MB)
            await writer.drain()
            sent += MB

    async with raw_server(handler) as url, proxied(url) as proxy, raw_socket(proxy) as (reader, writer):
        await within(reader.readuntil(b"\r\n\r\n"))
        task = asyncio.create_task(upload(writer))
        assert await stalled(lambda: sent) < BOUND
        go.set()
        await asyncio.wait_for(task, 60)
        assert await within(reader.readexactly(3)) == b"all"


async def test_when_the_client_vanishes_the_upstream_hears_of_it() -> None:
    left = asyncio.Event()

    async def handler(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(SWITCHED)
        with suppress(ConnectionError):
            await reader.read()
        left.set()

    async with raw_server(handler) as url, proxied(url) as proxy:
        async with raw_socket(proxy) as (reader, _):
            await within(reader.readuntil(b"\r\n\r\n"))
        await within(left.wait())


async def test_when_the_upstream_vanishes_the_client_hears_of_it_after_the_last_bytes() -> None:
    async def handler(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(SWITCHED + b"last words")
        await writer.drain()

    async with raw_server(handler) as url, proxied(url) as proxy, raw_socket(proxy) as (reader, _):
        await within(reader.readuntil(b"\r\n\r\n"))
        assert await within(reader.read()) == b"last words"


async def test_a_side_that_ends_can_still_hear_the_other_out() -> None:
    async def handler(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(SWITCHED)
        asked = await reader.read()  # until the client ends its side
        writer.write(b"re: " + asked)
        await writer.drain()

    async with raw_server(handler) as url, proxied(url) as proxy, raw_socket(proxy) as (reader, writer):
        await within(reader.readuntil(b"\r\n\r\n"))
        writer.write(b"bye")
        writer.write_eof()
        assert await within(reader.read()) == b"re: bye"


async def test_when_both_sides_have_ended_nothing_lingers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tunnel, "LINGER_SECONDS", 3600.0)

    async def handler(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(SWITCHED)
        writer.write_eof()
        await reader.read()
        await asyncio.Event().wait()  # neither side closes its socket of its own accord

    async with raw_server(handler) as url, proxied(url) as proxy, raw_socket(proxy) as (reader, writer):
        await within(reader.read())
        assert len(proxy._forwarder.tunnels) == 1  # type: ignore[union-attr]
        writer.write_eof()
        async with asyncio.timeout(PATIENCE):
            while proxy._forwarder.tunnels:  # type: ignore[union-attr]
                await asyncio.sleep(0.005)


async def test_an_upstream_that_ignores_the_end_is_dropped_in_bounded_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(tunnel, "LINGER_SECONDS", 0.05)
    never = asyncio.Event()

    async def handler(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(SWITCHED)
        await never.wait()

    async with raw_server(handler) as url, proxied(url) as proxy, raw_socket(proxy) as (reader, writer):
        await within(reader.readuntil(b"\r\n\r\n"))
        writer.write_eof()
        with suppress(ConnectionResetError):
            assert await within(reader.read()) == b""


async def test_open_sockets_do_not_hold_up_a_stop() -> None:
    left = asyncio.Event()

    async def handler(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(SWITCHED)
        with suppress(ConnectionError):
            await reader.read()
        left.set()

    async with (
        raw_server(handler) as url,
        proxied(url, stop_timeout=60) as proxy,
        raw_socket(proxy) as (reader, _),
    ):
        await within(reader.readuntil(b"\r\n\r\n"))
        async with asyncio.timeout(5):
            await proxy.stop()
        await within(left.wait())
        with suppress(ConnectionResetError):
            assert await within(reader.read()) == b""


@pytest.mark.parametrize("speaker", ["client", "upstream"])
async def test_traffic_counts_as_activity(speaker: str, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = SimpleNamespace(now=1000.0)
    monkeypatch.setattr(routes, "time", SimpleNamespace(time=lambda: clock.now))
    speak = asyncio.Event()

    async def handler(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(SWITCHED)
        if speaker == "client":
            await reader.readexactly(1)
            clock.now = 3000.0
        await speak.wait()
        writer.write(b"x")
        await reader.read()

    async def stamp() -> float:
        listed = await proxy.get_all_routes()
        return datetime.fromisoformat(listed["/"]["data"]["last_activity"]).timestamp()

    async with raw_server(handler) as url, proxied(url) as proxy:
        clock.now = 1500.0
        async with raw_socket(proxy) as (reader, writer):
            await within(reader.readuntil(b"\r\n\r\n"))
            assert await stamp() == 1500.0
            clock.now = 2000.0
            if speaker == "client":
                writer.write(b"x")
                async with asyncio.timeout(PATIENCE):
                    while clock.now != 3000.0:
                        await asyncio.sleep(0.005)
            else:
                speak.set()
                await within(reader.readexactly(1))
            assert await stamp() == 2000.0


async def test_websockets_work_over_tls_transports_too(tmp_path: Path) -> None:
    maker = Certipy(store_dir=str(tmp_path))
    maker.create_ca("ca")
    files = maker.create_signed_pair("front", "ca", alt_names=["IP:127.0.0.1"])["files"]
    proxy = LocalProxy(
        public_url="https://127.0.0.1:0/", ssl_cert=files["cert"], ssl_key=files["key"], stop_timeout=0.1
    )
    trusting = ssl.create_default_context(cafile=files["ca"])
    async with socket_server(echo) as url:
        await proxy.start()
        try:
            await proxy.add_route("/", url, {})
            wss = f"https://127.0.0.1:{proxy.addresses[0][1]}/kernel"
            async with (
                aiohttp.ClientSession() as session,
                session.ws_connect(wss, ssl=trusting, max_msg_size=0) as ws,
            ):
                await ws.send_bytes(b"x" * 5 * MB)
                assert len(await within(ws.receive_bytes())) == 5 * MB
                await ws.close(code=4003)
                assert ws.close_code == 1000
        finally:
            await proxy.stop()
