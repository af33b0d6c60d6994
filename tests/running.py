"""A real portal for tests: hub, proxy, web service and controller as processes, and people who use it."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import httpx
import psutil
from tornado.httpclient import HTTPRequest
from tornado.websocket import websocket_connect

from gpudev_core import sessions
from gpudev_core.sessions import Sessions
from gpudev_core.store import Store
from gpudev_hub import up

WAIT_S = 60.0
"""Far more than anything here takes: a limit for what never comes, not an expectation."""


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def wait_until(condition: Callable[[], Any], what: str, seconds: float = WAIT_S) -> Any:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if found := condition():
            return found
        time.sleep(0.1)
    raise AssertionError(f"did not happen within {seconds:g} s: {what}")


class RunningPortal:
    """One state folder and one port; the hub can be killed and started again."""

    def __init__(self, state: Path, **settings: str) -> None:
        self.state = state
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.hub: subprocess.Popen[bytes] | None = None
        kept = {name: value for name, value in os.environ.items() if not name.startswith("GPUDEV_")}
        self.environ = {
            **kept,
            "GPUDEV_STATE": str(state),
            "GPUDEV_ADDRESS__PORT": str(self.port),
            "GPUDEV_GPUS__SOURCE": "simulated",
            **{f"GPUDEV_{name.upper()}": value for name, value in settings.items()},
        }

    @property
    def store(self) -> Store:
        return Store(f"sqlite:///{self.state / 'portal.sqlite'}")

    @property
    def log(self) -> Path:
        return self.state / "logs" / "hub.log"

    def start(self) -> None:
        self.log.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with open(self.log, "ab") as log:
            command = [sys.executable, "-m", "jupyterhub", "-f", str(up.CONFIG)]
            self.hub = subprocess.Popen(
                command, cwd=self.state, env=self.environ, stdout=log, stderr=log, start_new_session=True
            )
        wait_until(self.is_well, f"the portal is well; see {self.log}")

    def is_well(self) -> bool:
        assert self.hub is not None
        if self.hub.poll() is not None:
            raise AssertionError(f"the hub ended: {self.log.read_text()[-3000:]}")
        with contextlib.suppress(httpx.HTTPError, ValueError):
            return bool(httpx.get(f"{self.url}/services/gpu-dev/health").json()["status"] == "healthy")
        return False

    def kill(self) -> None:
        """As a crash does it: no clean-up of any kind."""
        assert self.hub is not None
        children = psutil.Process(self.hub.pid).children()
        services = [child for child in children if "gpudev_services" in " ".join(child.cmdline())]
        self.hub.send_signal(signal.SIGKILL)
        self.hub.wait()
        _, left = psutil.wait_procs(services, timeout=WAIT_S)
        assert not left, "the services did not end with their hub"

    def stop(self) -> None:
        if self.hub is not None and self.hub.poll() is None:
            self.hub.terminate()
            self.hub.wait(WAIT_S)
        for record in self.sessions.all():
            sessions.end(record, grace_s=5)

    @property
    def sessions(self) -> Sessions:
        return Sessions(self.state / "sessions")

    def login(self, name: str) -> Person:
        return Person(self, name)


@contextlib.contextmanager
def running_portal(state: Path, **settings: str) -> Iterator[RunningPortal]:
    portal = RunningPortal(state, **settings)
    try:
        portal.start()
        yield portal
    finally:
        portal.stop()


class Person:
    """Somebody with a browser: cookies, redirects, forms."""

    def __init__(self, portal: RunningPortal, name: str) -> None:
        self.portal = portal
        self.name = name
        self.web = httpx.Client(base_url=portal.url, follow_redirects=True, timeout=WAIT_S)
        password = (portal.state / ("admin-password" if name == "admin" else "password")).read_text().strip()
        page = self.web.get("/hub/login")
        token = re.search(r'name="_xsrf" value="([^"]+)"', page.text)
        assert token, page.text[:500]
        form = {"username": name, "password": password, "_xsrf": token[1]}
        answer = self.web.post("/hub/login?next=/hub/home", data=form)
        assert answer.status_code == 200 and answer.url.path == "/hub/home", (answer.url, answer.text[:500])

    def submit(self, path: str = "/hub/spawn", **fields: str) -> httpx.Response:
        """Fill in the form and press the button."""
        page = self.web.get(path)
        assert page.status_code == 200, page.text[:1000]
        action = re.search(r'<form[^>]*id="spawn_form"[^>]*>', page.text)
        assert action, "the page has no form"
        url = re.search(r'action="([^"]+)"', action[0])
        assert url
        return self.web.post(url[1].replace("&amp;", "&"), data=fields)

    def reserve(self, gpu_type: str = "t4", gpu_count: int = 1, hours: float = 1, **fields: str) -> str:
        """The id of a new reservation."""
        answer = self.submit(gpu_type=gpu_type, gpu_count=str(gpu_count), hours=str(hours), **fields)
        found = re.search(r"/services/gpu-dev/reservations/([0-9a-f-]+)$", answer.url.path)
        assert found, (answer.status_code, re.findall(r'role="alert".*?</div>', answer.text, re.S))
        return found[1]

    def state(self, reservation_id: str) -> dict[str, Any]:
        answer = self.web.get(f"/services/gpu-dev/reservations/{reservation_id}/state")
        assert answer.status_code == 200, answer.text
        return answer.json()

    def reservation(self, reservation_id: str) -> dict[str, Any]:
        return self.state(reservation_id)["reservation"]

    def wait_for(self, reservation_id: str, status: str) -> dict[str, Any]:
        def arrived() -> dict[str, Any] | None:
            found = self.reservation(reservation_id)
            if found["status"] in ("failed", "cancelled", "expired") and status != found["status"]:
                raise AssertionError(f"{found['status']}: {self.state(reservation_id)}")
            return found if found["status"] == status else None

        return dict(wait_until(arrived, f"{reservation_id} is {status}"))

    def end(self, reservation_id: str) -> httpx.Response:
        page = self.web.get(
            f"/services/gpu-dev/reservations/{reservation_id}", headers={"Accept": "text/html"}
        )
        token = re.search(r'name="_xsrf" value="([^"]+)"', page.text)
        assert token, page.text[:500]
        path = f"/services/gpu-dev/reservations/{reservation_id}/end"
        return self.web.post(path, data={"_xsrf": token[1]}, headers={"Accept": "text/html"})

    def run(self, lab_url: str, code: str) -> str:
        """What a cell prints, in a kernel of the server."""
        server = lab_url.removesuffix("lab")
        kernel = self._in_server(lab_url, "api/kernels")
        return asyncio.run(_execute(self._socket(server, f"api/kernels/{kernel['id']}/channels"), code))

    def in_terminal(self, lab_url: str, meanwhile: Callable[[], object], awaited: str) -> str:
        """What a terminal of JupyterLab shows until ``awaited`` is in it, after ``meanwhile`` was done."""
        server = lab_url.removesuffix("lab")
        terminal = self._in_server(lab_url, "api/terminals")
        request = self._socket(server, f"terminals/websocket/{terminal['name']}")
        return asyncio.run(_watch(request, meanwhile, awaited))

    def _in_server(self, lab_url: str, path: str) -> dict[str, Any]:
        """Make something in the server: a kernel, a terminal."""
        server = lab_url.removesuffix("lab")
        self.web.get(lab_url)  # logs in to the server
        xsrf = next(c.value for c in self.web.cookies.jar if c.name == "_xsrf" and c.path == server)
        answer = self.web.post(server + path, params={"_xsrf": xsrf or ""}, json={})
        assert answer.status_code in (200, 201), answer.text
        return dict(answer.json())

    def _socket(self, server: str, path: str) -> HTTPRequest:
        cookies = "; ".join(f"{c.name}={c.value}" for c in self.web.cookies.jar if server.startswith(c.path))
        url = f"{self.portal.url.replace('http', 'ws', 1)}{server}{path}"
        return HTTPRequest(url, headers={"Cookie": cookies})

    def token(self) -> str:
        """A token as the token page makes them."""
        answer = self.hub_api("POST", f"users/{self.name}/tokens", json={"note": "test"})
        assert answer.status_code == 201, answer.text
        return str(answer.json()["token"])

    def hub_api(self, method: str, path: str, **kwargs: Any) -> httpx.Response:
        """The hub's API as its own pages use it, with cookie and XSRF token."""
        xsrf = next((c.value for c in self.web.cookies.jar if c.name == "_xsrf" and c.path == "/hub/"), "")
        headers = {"Referer": f"{self.portal.url}/hub/home"}
        params: Mapping[str, str] = {"_xsrf": xsrf or ""}
        return self.web.request(method, f"/hub/api/{path}", params=params, headers=headers, **kwargs)


async def _execute(request: HTTPRequest, code: str) -> str:
    """Run one cell over the kernel's websocket, as JupyterLab does."""
    content = {"code": code, "silent": False, "store_history": False, "allow_stdin": False}
    header = {
        "msg_id": "cell",
        "msg_type": "execute_request",
        "session": "test",
        "username": "",
        "version": "5.3",
    }
    message = {"header": header, "parent_header": {}, "metadata": {}, "content": content, "channel": "shell"}
    socket = await websocket_connect(request)
    await socket.write_message(json.dumps(message))
    printed = ""
    while True:
        answer = json.loads(str(await asyncio.wait_for(socket.read_message(), WAIT_S)))
        if answer["parent_header"].get("msg_id") != "cell":
            continue
        if answer["msg_type"] == "stream":
            printed += answer["content"]["text"]
        if answer["msg_type"] == "error":
            raise AssertionError(answer["content"])
        if answer["msg_type"] == "status" and answer["content"]["execution_state"] == "idle":
            socket.close()
            return printed


async def _watch(request: HTTPRequest, meanwhile: Callable[[], object], awaited: str) -> str:
    """Read a terminal's websocket, as JupyterLab does."""
    socket = await websocket_connect(request)
    shown = ""
    await socket.write_message(json.dumps(["stdin", "echo begun\r"]))
    while "begun" not in shown:
        shown += await _output(socket)
    await asyncio.to_thread(meanwhile)
    while awaited not in shown:
        shown += await _output(socket)
    socket.close()
    return shown


async def _output(socket: Any) -> str:
    kind, *rest = json.loads(str(await asyncio.wait_for(socket.read_message(), WAIT_S)))
    return str(rest[0]) if kind == "stdout" else ""
