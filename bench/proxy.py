"""LocalProxy beside Node's configurable-http-proxy, on the same machine in the same run.

Measures, against one tiny upstream on loopback: small requests per second, the speed of a 1 GB download with
the proxy's peak memory, and websocket echoes per second with the median round trip. The two proxies take
turns, and each figure is the median of its rounds. Without npm the figures of configurable-http-proxy are
null. Takes about one minute, at most three. The last line printed is one JSON object.

    python bench/proxy.py
"""

import argparse
import asyncio
import json
import os
import re
import secrets
import shutil
import socket
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import psutil

ROUNDS = 3
SMALL_SECONDS = 4
SMALL_CONNECTIONS = 16
DOWNLOAD_BYTES = 1024**3
DOWNLOAD_LIMIT_SECONDS = 30
WS_SECONDS = 3
WS_CONNECTIONS = 8
WS_PAYLOAD_BYTES = 1024
WS_ROUND_TRIPS = 1000
NPM_PACKAGE = "configurable-http-proxy@5"
NPM_SECONDS = 60

Result = dict[str, float | None]
NOTHING: Result = dict.fromkeys(("small_rps", "download_mb_s", "download_rss_mb", "ws_msgs_s", "ws_p50_ms"))


# Websocket frames of one fixed size: the measured thing is the proxy, not a websocket library


FRAME_HEAD = b"\x81\x7e" + WS_PAYLOAD_BYTES.to_bytes(2, "big")
MASKED_FRAME_BYTES = 4 + 4 + WS_PAYLOAD_BYTES
ECHOED_FRAME_BYTES = 4 + WS_PAYLOAD_BYTES


def masked(payload: bytes, mask: bytes) -> bytes:
    """XOR with the repeated mask, as websocket clients must (and its own inverse)."""
    key = int.from_bytes(mask * (len(payload) // 4), "big")
    return (int.from_bytes(payload, "big") ^ key).to_bytes(len(payload), "big")


def client_frame(payload: bytes) -> bytes:
    mask = secrets.token_bytes(4)
    return b"\x81\xfe" + WS_PAYLOAD_BYTES.to_bytes(2, "big") + mask + masked(payload, mask)


# The upstream


class TinyUpstream(asyncio.Protocol):
    """Answers any GET at once; /big with a gigabyte as fast as it is taken; echoes websocket frames."""

    SMALL = b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: 13\r\n\r\nHello, world!"
    BIG = b"HTTP/1.1 200 OK\r\nContent-Type: application/octet-stream\r\nContent-Length: %d\r\n\r\n"
    SWITCH = b"HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n"
    PIECE = bytes(256 * 1024)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        self.pending = b""
        self.left = 0
        self.paused = False
        self.echoing = False

    def data_received(self, data: bytes) -> None:
        self.pending += data
        if self.echoing:
            self.echo()
            return
        *heads, self.pending = self.pending.split(b"\r\n\r\n")
        for head in heads:
            self.answer(head)

    def answer(self, head: bytes) -> None:
        if head.startswith(b"GET /big"):
            self.left = DOWNLOAD_BYTES
            self.transport.write(self.BIG % DOWNLOAD_BYTES)
            self.pump()
        elif head.startswith(b"GET /echo"):
            self.transport.write(self.SWITCH)
            self.echoing = True
        else:
            self.transport.write(self.SMALL)

    def echo(self) -> None:
        while len(self.pending) >= MASKED_FRAME_BYTES:
            frame, self.pending = self.pending[:MASKED_FRAME_BYTES], self.pending[MASKED_FRAME_BYTES:]
            self.transport.write(FRAME_HEAD + masked(frame[8:], frame[4:8]))

    def pump(self) -> None:
        while self.left and not self.paused and not self.transport.is_closing():
            self.transport.write(self.PIECE)
            self.left -= len(self.PIECE)

    def pause_writing(self) -> None:
        self.paused = True

    def resume_writing(self) -> None:
        self.paused = False
        self.pump()


async def run_upstream(port: int) -> None:
    await asyncio.get_running_loop().create_server(TinyUpstream, "127.0.0.1", port)
    await asyncio.Event().wait()


# The two proxies


async def run_ours(port: int, upstream_port: int) -> None:
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "hub_config"))
    from gpudev_hub.proxy import LocalProxy

    proxy = LocalProxy(public_url=f"http://127.0.0.1:{port}/")
    await proxy.add_route("/", f"http://127.0.0.1:{upstream_port}", {})
    await proxy.start()
    await asyncio.Event().wait()


def install_chp() -> str | None:
    """Path of configurable-http-proxy's program, installed into a cache folder; None without npm."""
    if not shutil.which("npm") or not shutil.which("node"):
        print("npm or node is not installed: configurable-http-proxy is not measured")
        return None
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    cache = Path(base) / "gpudev-bench"
    program = cache / "node_modules" / "configurable-http-proxy" / "bin" / "configurable-http-proxy"
    if not program.exists():
        cache.mkdir(parents=True, exist_ok=True)
        command = ["npm", "install", "--no-audit", "--no-fund", "--prefix", str(cache), NPM_PACKAGE]
        try:
            subprocess.run(command, check=True, capture_output=True, timeout=NPM_SECONDS)
        except (subprocess.SubprocessError, OSError) as error:
            print(f"npm could not install {NPM_PACKAGE}: {type(error).__name__}; it is not measured")
            return None
    return str(program)


# Processes and ports


def free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


def wait_for(port: int, seconds: float = 15) -> None:
    deadline = time.monotonic() + seconds
    while True:
        try:
            socket.create_connection(("127.0.0.1", port), timeout=1).close()
            return
        except OSError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.05)


@contextmanager
def process(command: list[str], **environment: str) -> Iterator[subprocess.Popen[bytes]]:
    child = subprocess.Popen(command, env={**os.environ, **environment}, stdout=subprocess.DEVNULL)
    try:
        yield child
    finally:
        child.terminate()
        try:
            child.wait(timeout=5)
        except subprocess.TimeoutExpired:
            child.kill()
            child.wait()


def role(name: str, *arguments: object) -> list[str]:
    return [sys.executable, __file__, "--role", name, *map(str, arguments)]


# Load


def small_with_wrk(wrk: str, port: int) -> float:
    command = [wrk, "-t1", f"-c{SMALL_CONNECTIONS}", f"-d{SMALL_SECONDS}s", f"http://127.0.0.1:{port}/small"]
    out = subprocess.run(
        command, check=True, capture_output=True, text=True, timeout=SMALL_SECONDS + 20
    ).stdout
    if "Non-2xx" in out:
        raise RuntimeError(f"wrk saw errors:\n{out}")
    found = re.search(r"Requests/sec:\s+([\d.]+)", out)
    assert found is not None
    return float(found[1])


async def small_without_wrk(port: int) -> float:
    """A plain keep-alive load in raw sockets; slower than wrk, and the same for both proxies."""
    request = b"GET /small HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"
    deadline = time.perf_counter() + SMALL_SECONDS

    async def one() -> int:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        count = 0
        while time.perf_counter() < deadline:
            writer.write(request)
            head = await reader.readuntil(b"\r\n\r\n")
            assert head.startswith(b"HTTP/1.1 200"), head
            await reader.readexactly(13)
            count += 1
        writer.close()
        return count

    return sum(await asyncio.gather(*(one() for _ in range(SMALL_CONNECTIONS)))) / SMALL_SECONDS


def measure_small(port: int) -> float:
    wrk = shutil.which("wrk")
    return small_with_wrk(wrk, port) if wrk else float(ask_role("small", port))


class PeakMemory(threading.Thread):
    def __init__(self, pid: int) -> None:
        super().__init__(daemon=True)
        self._process = psutil.Process(pid)
        self._done = threading.Event()
        self.peak = 0

    def run(self) -> None:
        while not self._done.wait(0.02):
            self.peak = max(self.peak, self._process.memory_info().rss)

    def stop(self) -> float:
        self._done.set()
        self.join()
        return self.peak / 1e6


def measure_download(port: int, pid: int) -> tuple[float, float]:
    """Megabytes per second, and the proxy's peak memory meanwhile in megabytes."""
    memory = PeakMemory(pid)
    with socket.create_connection(("127.0.0.1", port), timeout=DOWNLOAD_LIMIT_SECONDS) as sock:
        memory.start()
        began = time.perf_counter()
        sock.sendall(b"GET /big HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
        buffer, got = bytearray(1024 * 1024), 0
        while got < DOWNLOAD_BYTES:
            count = sock.recv_into(buffer)
            if not count or time.perf_counter() - began > DOWNLOAD_LIMIT_SECONDS:
                raise RuntimeError(f"the download stopped at {got} bytes")
            got += count
        seconds = time.perf_counter() - began
    return DOWNLOAD_BYTES / 1e6 / seconds, memory.stop()


async def websocket_to(port: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(
        b"GET /echo HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
        b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
    )
    head = await reader.readuntil(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 101"), head
    return reader, writer


async def websocket_load(port: int) -> tuple[float, float]:
    """Echoes per second over several connections, and the median round trip of one connection in ms."""
    payload = secrets.token_hex(WS_PAYLOAD_BYTES // 2).encode()
    frame = client_frame(payload)

    async def round_trips(more: Callable[[int], bool]) -> list[float]:
        reader, writer = await websocket_to(port)
        trips: list[float] = []
        while more(len(trips)):
            began = time.perf_counter()
            writer.write(frame)
            echoed = await reader.readexactly(ECHOED_FRAME_BYTES)
            trips.append(time.perf_counter() - began)
        assert echoed[4:] == payload
        writer.close()
        return trips

    alone = await round_trips(lambda done: done < WS_ROUND_TRIPS)
    deadline = time.perf_counter() + WS_SECONDS
    together = await asyncio.gather(
        *(round_trips(lambda done: time.perf_counter() < deadline) for _ in range(WS_CONNECTIONS))
    )
    return sum(map(len, together)) / WS_SECONDS, statistics.median(alone) * 1000


def ask_role(name: str, port: int) -> str:
    """The answer of a load generator, run in a process of its own."""
    return subprocess.run(
        role(name, port), check=True, capture_output=True, text=True, timeout=60
    ).stdout.strip()


def measure(port: int, pid: int) -> Result:
    download, memory = measure_download(port, pid)
    messages, median_trip = map(float, ask_role("websocket", port).split())
    return {
        "small_rps": measure_small(port),
        "download_mb_s": download,
        "download_rss_mb": memory,
        "ws_msgs_s": messages,
        "ws_p50_ms": median_trip,
    }


def median_of(rounds: list[Result]) -> Result:
    if not rounds:
        return NOTHING
    return {key: round(statistics.median(each[key] or 0.0 for each in rounds), 3) for key in NOTHING}


# The run


def compare() -> tuple[Result, Result]:
    upstream_port, our_port, chp_port, api_port = (free_port() for _ in range(4))
    program = install_chp()
    with ExitStack() as children:
        children.enter_context(process(role("upstream", upstream_port)))
        wait_for(upstream_port)
        ours = children.enter_context(process(role("ours", our_port, upstream_port)))
        proxies: list[tuple[int, int, list[Result]]] = [(our_port, ours.pid, [])]
        if program:
            command = ["node", program, "--ip", "127.0.0.1", "--port", str(chp_port), "--log-level", "error"]
            command += ["--api-ip", "127.0.0.1", "--api-port", str(api_port)]
            command += ["--default-target", f"http://127.0.0.1:{upstream_port}"]
            node = children.enter_context(process(command, CONFIGPROXY_AUTH_TOKEN=secrets.token_hex(16)))
            proxies.append((chp_port, node.pid, []))
        for port, _, _ in proxies:
            wait_for(port)
        for _ in range(ROUNDS):
            for port, pid, results in proxies:
                results.append(measure(port, pid))
    medians = [median_of(results) for _, _, results in proxies]
    return medians[0], medians[1] if program else NOTHING


def ratio(ours: Result, theirs: Result, key: str) -> float | None:
    mine, other = ours[key], theirs[key]
    return round(mine / other, 3) if mine and other else None


def report(ours: Result, chp: Result) -> None:
    labels = {
        "small_rps": "small requests per second",
        "download_mb_s": "1 GB download, MB/s",
        "download_rss_mb": "  proxy's peak memory, MB",
        "ws_msgs_s": "websocket echoes per second",
        "ws_p50_ms": "  median round trip, ms",
    }
    print(f"{'':32}{'LocalProxy':>14}{'CHP (Node)':>14}")
    for key, label in labels.items():
        cells = [f"{value:>14,.2f}" if value is not None else f"{'-':>14}" for value in (ours[key], chp[key])]
        print(f"{label:32}{''.join(cells)}")


def main() -> None:
    generator = "wrk" if shutil.which("wrk") else "asyncio, in a process of its own"
    print(f"Load of small requests: {generator}; {SMALL_CONNECTIONS} connections; median of {ROUNDS} rounds")
    ours, chp = compare()
    report(ours, chp)
    figures: dict[str, Any] = {"ours": ours, "chp": chp}
    for name, key in (("small", "small_rps"), ("download", "download_mb_s"), ("ws", "ws_msgs_s")):
        figures[f"ratio_{name}"] = ratio(ours, chp, key)
    print(json.dumps(figures))


def play(name: str, ports: list[int]) -> None:
    roles: dict[str, Callable[..., Any]] = {
        "upstream": run_upstream,
        "ours": run_ours,
        "small": small_without_wrk,
        "websocket": websocket_load,
    }
    answer = asyncio.run(roles[name](*ports))
    print(*(answer if isinstance(answer, tuple) else (answer,)))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--role", help=argparse.SUPPRESS)
    parser.add_argument("ports", nargs="*", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.role:
        play(options.role, options.ports)
    else:
        main()
