"""The hub's configuration, all of it, driven by ``portal.yaml``.

Used as ``jupyterhub -f jupyterhub_config.py``, as ``gpu-dev-portal up`` does. To change a setting of the hub
itself, load this file from your own with ``load_subconfig`` and set it after.
"""

import os
import sys
from pathlib import Path

from gpudev_core.portal import this_portal
from gpudev_core.settings import ENV_PREFIX
from gpudev_hub import login, ports
from gpudev_hub.pages import with_pages
from gpudev_hub.proxy import LocalProxy
from gpudev_spawner.local import GpuLocalSpawner

c = get_config()  # noqa: F821 - given by traitlets

os.umask(0o077)  # databases and logs are the portal's own; servers get the usual mask back
portal = this_portal()
settings = portal.settings
state, address = settings.state_dir, settings.address
prefix = f"{address.base_url}services/gpu-dev/"

# Where it listens and what it keeps.
c.JupyterHub.bind_url = f"http://{ports.in_url(address.host)}:{address.port}{address.base_url}"
if address.url:
    public_url = str(address.url).rstrip("/") + "/"
    c.JupyterHub.public_url = public_url
    c.OAuthenticator.oauth_callback_url = public_url + "hub/oauth_callback"
    if address.url.scheme == "https":
        c.JupyterHub.tornado_settings = {"cookie_options": {"secure": True}}
c.JupyterHub.hub_bind_url = f"http://127.0.0.1:{ports.kept(state / 'hub-port')}"
c.JupyterHub.db_url = f"sqlite:///{state / 'hub.sqlite'}"
c.JupyterHub.cookie_secret_file = str(state / "cookie-secret")
c.JupyterHub.proxy_class = LocalProxy
c.JupyterHub.cleanup_servers = False  # running servers outlive the hub; `up` ends them when it ends

# Who may come in.
login.configure(c, settings)
c.JupyterHub.authenticator_class = with_pages(
    login.authenticator_class(settings.login.kind), portal, prefix + "reservations/"
)

# Servers. The queue stands outside the hub: what the controller starts has its GPUs already, so the hub
# has nothing to hold back, and a refused request is no reason to give up on the hub.
c.JupyterHub.spawner_class = GpuLocalSpawner
c.GpuLocalSpawner.reservations_url = prefix + "reservations/"
c.GpuLocalSpawner.api_url = f"http://{ports.reachable(address.host)}:{address.port}{prefix}".rstrip("/")
c.Spawner.start_timeout = settings.servers.start_timeout_s
c.Spawner.http_timeout = settings.servers.start_timeout_s
c.Spawner.default_url = "/lab"
c.Spawner.poll_interval = 5
c.Spawner.consecutive_failure_limit = 0
c.Spawner.server_token_scopes = [
    "users:activity!user",
    "access:servers!server",
    "access:services!service=gpu-dev",
]
c.JupyterHub.allow_named_servers = True
c.JupyterHub.concurrent_spawn_limit = 0
c.JupyterHub.active_server_limit = 0

# Services, each with the rights it needs and no more.
environment = {
    name: value
    for name, value in os.environ.items()
    if name.startswith(ENV_PREFIX) or name in ("VIRTUAL_ENV", "TZ", "LD_LIBRARY_PATH")
}
c.JupyterHub.services = [
    {
        "name": "gpu-dev",
        "url": f"http://127.0.0.1:{ports.free()}",
        "command": [sys.executable, "-m", "gpudev_services.web"],
        "environment": environment,
        "oauth_no_confirm": True,
        "oauth_client_allowed_scopes": ["custom:gpu-dev:admin"],
    },
    {
        "name": "gpu-dev-controller",
        "command": [sys.executable, "-m", "gpudev_services.controller"],
        "environment": environment,
    },
]
c.JupyterHub.custom_scopes = {
    "custom:gpu-dev:admin": {"description": "See and end everybody's reservations."},
}
c.JupyterHub.load_roles = [
    {"name": "gpu-dev-admin", "users": list(settings.login.admins), "scopes": ["custom:gpu-dev:admin"]},
    {
        # Sees which servers run, starts and stops them, and forgets those whose reservation has ended.
        "name": "gpu-dev-controller",
        "services": ["gpu-dev-controller"],
        "scopes": ["list:users", "read:users:name", "servers", "delete:servers"],
    },
]
c.JupyterHub.extra_user_scopes = {"access:services!service=gpu-dev"}

# Pages.
c.JupyterHub.template_paths = [str(Path(login.__file__).parent / "templates")]
c.JupyterHub.template_vars = {
    "portal_url": prefix,
    "portal_assets": f"{address.base_url}hub/portal/assets/",
    "login_kind": settings.login.kind,
}
c.JupyterHub.redirect_to_server = False
c.JupyterHub.default_url = prefix
