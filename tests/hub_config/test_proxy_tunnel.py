"""The bytes of a websocket through the proxy: how they are held back, counted and ended."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from types import SimpleNamespace

import pytest
from proxy_harness import (
    BOUND,
    MB,
    SWITCHED,
    TOTAL,
    Flood,
    RawHandler,
    activity_of,
    after_head,
    happens,
    proxy_to,
    raw_socket,
    raw_upstream,
    read_head,
    stalled,
    take_all_when_told,
    until,
    within,
)

from gpudev_hub.proxy import tunnel

pytestmark = pytest.mark.asyncio


@asynccontextmanager
async def socket_through(
    handler: RawHandler,
) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    """A client's raw socket to a handler of what follows the request."""
    async with (
        raw_upstream(after_head(handler)) as url,
        proxy_to(url) as proxy,
        raw_socket(proxy) as streams,
    ):
        yield streams


# Back-pressure


async def test_a_client_that_does_not_read_holds_the_upstream_back() -> None:
    flood = Flood()

    async def handler(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(SWITCHED)
        await flood.pour(writer)
        await reader.read()

    async with socket_through(handler) as (reader, writer):
        writer.transport.pause_reading()  # type: ignore[attr-defined]
        assert await stalled(lambda: flood.sent) < BOUND
        writer.transport.resume_reading()  # type: ignore[attr-defined]
        await within(reader.readuntil(b"\r\n\r\n"))
        for _ in range(TOTAL // MB):
            await within(reader.readexactly(MB))
        assert flood.sent == TOTAL


async def test_an_upstream_that_does_not_read_holds_the_client_back() -> None:
    go, flood = asyncio.Event(), Flood()

    async def handler(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(SWITCHED)
        await take_all_when_told(go, reader, writer)
        writer.write(b"all")
        await writer.drain()

    async with socket_through(handler) as (reader, writer):
        await within(reader.readuntil(b"\r\n\r\n"))
        task = asyncio.create_task(flood.pour(writer))
        assert await stalled(lambda: flood.sent) < BOUND
        go.set()
        await asyncio.wait_for(task, 60)
        assert await within(reader.readexactly(3)) == b"all"


@pytest.mark.parametrize("speaker", ["client", "upstream"])
async def test_traffic_counts_as_activity(speaker: str, clock: SimpleNamespace) -> None:
    speak = asyncio.Event()

    async def handler(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(SWITCHED)
        if speaker == "client":
            await reader.readexactly(1)
            clock.now = 3000.0
        await speak.wait()
        writer.write(b"x")
        await reader.read()

    async with raw_upstream(after_head(handler)) as url, proxy_to(url) as proxy:
        clock.now = 1500.0
        async with raw_socket(proxy) as (reader, writer):
            await within(reader.readuntil(b"\r\n\r\n"))
            assert await activity_of(proxy) == 1500.0
            clock.now = 2000.0
            if speaker == "client":
                writer.write(b"x")
                await until(lambda: clock.now == 3000.0)
            else:
                speak.set()
                await within(reader.readexactly(1))
            assert await activity_of(proxy) == 2000.0


# Endings


def listening_until(left: asyncio.Event) -> RawHandler:
    """Switches protocols and notes when the client has gone."""

    async def handler(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_head(reader)
        writer.write(SWITCHED)
        with suppress(ConnectionError):
            await reader.read()
        left.set()

    return handler


async def test_when_the_client_vanishes_the_upstream_hears_of_it() -> None:
    left = asyncio.Event()
    async with raw_upstream(listening_until(left)) as url, proxy_to(url) as proxy:
        async with raw_socket(proxy) as (reader, _):
            await within(reader.readuntil(b"\r\n\r\n"))
            assert not left.is_set()
        assert await happens(left)


async def test_when_the_upstream_vanishes_the_client_hears_of_it_after_the_last_bytes() -> None:
    async def handler(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(SWITCHED + b"last words")
        await writer.drain()

    async with socket_through(handler) as (reader, _):
        await within(reader.readuntil(b"\r\n\r\n"))
        assert await within(reader.read()) == b"last words"


async def test_a_side_that_ends_can_still_hear_the_other_out() -> None:
    async def handler(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(SWITCHED)
        asked = await reader.read()  # until the client ends its side
        writer.write(b"re: " + asked)
        await writer.drain()

    async with socket_through(handler) as (reader, writer):
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

    async with (
        raw_upstream(after_head(handler)) as url,
        proxy_to(url) as proxy,
        raw_socket(proxy) as (reader, writer),
    ):
        await within(reader.read())
        assert len(proxy._forwarder.tunnels) == 1  # type: ignore[union-attr]
        writer.write_eof()
        await until(lambda: not proxy._forwarder.tunnels)  # type: ignore[union-attr]


async def test_an_upstream_that_ignores_the_end_is_dropped_in_bounded_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(tunnel, "LINGER_SECONDS", 0.05)
    never = asyncio.Event()

    async def handler(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(SWITCHED)
        await never.wait()

    async with socket_through(handler) as (reader, writer):
        await within(reader.readuntil(b"\r\n\r\n"))
        writer.write_eof()
        with suppress(ConnectionResetError):
            assert await within(reader.read()) == b""


async def test_open_sockets_do_not_hold_up_a_stop() -> None:
    left = asyncio.Event()
    async with (
        raw_upstream(listening_until(left)) as url,
        proxy_to(url, stop_timeout=60) as proxy,
        raw_socket(proxy) as (reader, _),
    ):
        await within(reader.readuntil(b"\r\n\r\n"))
        async with asyncio.timeout(5):
            await proxy.stop()
        assert await happens(left)
        with suppress(ConnectionResetError):
            assert await within(reader.read()) == b""
