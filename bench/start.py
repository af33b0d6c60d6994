"""How long until people can work, beside plain JupyterHub on the same machine in the same run.

Measures seconds from the start of the portal to its login page (everything installed), and from pressing
Start to a JupyterLab server that answers through the proxy; the same for plain JupyterHub with
SimpleLocalProcessSpawner. The two take turns, one start each, and each figure is the median. Plain JupyterHub
uses Node's configurable-http-proxy where npm can be had, else the portal's own proxy; the output says which.
Takes about two minutes. The last line printed is one JSON object.

    python bench/start.py [--starts 7]
"""

from __future__ import annotations

import argparse
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import httpx
from proxy import free_port, install_chp

LIMIT_S = 90.0
LOOK_EVERY_S = 0.02

PLAIN_CONFIG = """
import sys
c = get_config()
c.JupyterHub.bind_url = "http://127.0.0.1:{port}/"
c.JupyterHub.hub_bind_url = "http://127.0.0.1:{hub_port}"
c.JupyterHub.authenticator_class = "shared-password"
c.SharedPasswordAuthenticator.user_password = "plain-password"
c.Authenticator.allow_all = True
c.JupyterHub.spawner_class = "simple"
c.SimpleLocalProcessSpawner.home_dir_template = {home!r}
c.Spawner.cmd = [sys.executable, "-m", "jupyterhub.singleuser"]
c.Spawner.args = ["--allow-root"]
c.Spawner.default_url = "/lab"
c.JupyterHub.allow_named_servers = True
{proxy}
"""


class Portal:
    """What is measured: it is started, and people press Start in it."""

    def __init__(
        self, name: str, command: list[str], folder: Path, port: int, environ: dict[str, str]
    ) -> None:
        self.name = name
        self.url = f"http://127.0.0.1:{port}"
        self._log = folder / f"{name}.log"
        self._command, self._folder, self._environ = command, folder, environ
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> float:
        """Seconds to the login page."""
        began = time.monotonic()
        with open(self._log, "ab") as log:
            self._process = subprocess.Popen(
                self._command, cwd=self._folder, env=self._environ, stdout=log, stderr=log
            )
        wait_until(lambda: answers(self.url + "/hub/login"), f"{self.name}: login page")
        return time.monotonic() - began

    def stop(self) -> None:
        if self._process is not None:
            self._process.terminate()
            self._process.wait(60)


def wait_until(condition: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + LIMIT_S
    while time.monotonic() < deadline:
        if condition():
            return
        time.sleep(LOOK_EVERY_S)
    raise SystemExit(f"{what}: not within {LIMIT_S:g} s")


def answers(url: str) -> bool:
    try:
        return httpx.get(url, timeout=5).status_code == 200
    except httpx.HTTPError:
        return False


def log_in(url: str, name: str, password: str) -> httpx.Client:
    client = httpx.Client(base_url=url, follow_redirects=True, timeout=60)
    page = client.get("/hub/login").text
    token = re.search(r'name="_xsrf" value="([^"]+)"', page)
    assert token, "no login form"
    fields = {"username": name, "password": password, "_xsrf": token[1]}
    client.post("/hub/login?next=/hub/token", data=fields).raise_for_status()
    return client


def xsrf_of(client: httpx.Client) -> str:
    return next(c.value or "" for c in client.cookies.jar if c.name == "_xsrf" and c.path == "/hub/")


def until_it_answers(url: str, server: str, began: float) -> float:
    """Seconds until the server's own API answers through the proxy."""

    def is_there() -> bool:
        answer = httpx.get(f"{url}/user/{server}/api", timeout=5)
        return answer.status_code == 200 and "version" in answer.text

    wait_until(is_there, f"{server} answers")
    return time.monotonic() - began


def press_start_ours(client: httpx.Client, name: str) -> float:
    began = time.monotonic()
    fields = {"gpu_type": "t4", "gpu_count": "1", "hours": "1", "disk": "", "name": "bench"}
    answer = client.post("/hub/spawn", params={"_xsrf": xsrf_of(client)}, data=fields, follow_redirects=False)
    assert answer.status_code == 302, answer.text[:500]
    return until_it_answers(str(client.base_url).rstrip("/"), f"{name}/bench", began)


def press_start_plain(client: httpx.Client, name: str) -> float:
    began = time.monotonic()
    path = f"/hub/api/users/{name}/servers/bench"
    headers = {"Referer": str(client.base_url) + "hub/home"}
    answer = client.post(path, params={"_xsrf": xsrf_of(client)}, json={}, headers=headers)
    assert answer.status_code in (201, 202), answer.text[:500]
    return until_it_answers(str(client.base_url).rstrip("/"), f"{name}/bench", began)


def plain_proxy() -> tuple[str, str]:
    """Configuration lines of plain JupyterHub's proxy, and its name."""
    chp = install_chp()
    if chp is None:
        lines = "from gpudev_hub.proxy import LocalProxy\nc.JupyterHub.proxy_class = LocalProxy"
        return lines, "the portal's proxy"
    lines = f"c.ConfigurableHTTPProxy.command = {[chp]!r}"
    lines += f"\nc.ConfigurableHTTPProxy.api_url = 'http://127.0.0.1:{free_port()}'"
    return lines, "configurable-http-proxy"


def make_portals(folder: Path) -> tuple[Portal, Portal, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("GPUDEV_")}
    port = free_port()
    state = folder / "state"
    ours_environ = {**kept, "GPUDEV_GPUS__SOURCE": "simulated", "GPUDEV_LIMITS__GPU_HOURS": "100000"}
    command = [str(Path(sys.executable).with_name("gpu-dev-portal")), "up"]
    ours = Portal("ours", [*command, "--port", str(port), "--state", str(state)], folder, port, ours_environ)
    proxy, proxy_name = plain_proxy()
    plain_port = free_port()
    config = folder / "plain.py"
    home = str(folder / "homes") + "/{username}"
    config.write_text(PLAIN_CONFIG.format(port=plain_port, hub_port=free_port(), home=home, proxy=proxy))
    hub = [sys.executable, "-m", "jupyterhub", "-f", str(config)]
    plain = Portal("plain", hub, folder, plain_port, {**kept, "CONFIGPROXY_AUTH_TOKEN": "0" * 64})
    return ours, plain, proxy_name


def measure(starts: int, folder: Path) -> dict[str, float | int | str]:
    ours, plain, proxy_name = make_portals(folder)
    try:
        first_login, plain_login = ours.start(), plain.start()
        ours.stop()
        login = ours.start()  # the first start also makes the databases
        seconds: dict[str, list[float]] = {"ours": [], "plain": []}
        for number in range(starts + 1):
            name = f"bench{number}"
            for portal, press in ((ours, press_start_ours), (plain, press_start_plain)):
                password = (
                    (folder / "state" / "password").read_text().strip()
                    if portal is ours
                    else "plain-password"
                )
                client = log_in(portal.url, name, password)
                seconds[portal.name].append(press(client, name))
                stop_server(client, name)
                label = "warm-up" if number == 0 else str(number)
                print(f"{portal.name:>5} {label}: {seconds[portal.name][-1]:.2f} s", flush=True)
    finally:
        ours.stop()
        plain.stop()
    start, plain_start = (statistics.median(seconds[key][1:]) for key in ("ours", "plain"))
    return {
        "login_page_s": round(login, 2),
        "first_login_page_s": round(first_login, 2),
        "plain_login_page_s": round(plain_login, 2),
        "start_s": round(start, 2),
        "plain_start_s": round(plain_start, 2),
        "ratio": round(start / plain_start, 2),
        "starts": starts,
        "plain_proxy": proxy_name,
    }


def stop_server(client: httpx.Client, name: str) -> None:
    """Nothing of the last start may run during the next."""
    path, params = f"/hub/api/users/{name}/servers/bench", {"_xsrf": xsrf_of(client)}
    headers = {"Referer": str(client.base_url) + "hub/home"}
    client.delete(path, params=params, headers=headers)

    def is_gone() -> bool:
        servers = client.get(f"/hub/api/users/{name}", params=params, headers=headers).json()["servers"]
        return not servers.get("bench", {}).get("pending") and not servers.get("bench", {}).get("ready")

    wait_until(is_gone, "the server stops")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--starts", type=int, default=7, help="measured starts of each (default 7)")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="gpudev-bench-") as folder:
        print(json.dumps(measure(arguments.starts, Path(folder))))


if __name__ == "__main__":
    main()
