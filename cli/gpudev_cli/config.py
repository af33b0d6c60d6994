"""Which portal, and with which token.

The address is kept in ``~/.config/gpu-dev/config.json``, the token in ``~/.gpu-dev/credentials``, which its
owner alone can read. ``GPU_DEV_API_URL`` and ``GPU_DEV_TOKEN`` come first. Inside a server of the portal
nothing has to be set: the server has the address and a token of its own.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from gpudev_cli.client import ClientError

FAR_AHEAD = "2999-01-01T00:00:00Z"


def config_file() -> Path:
    base = os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config"
    return Path(base) / "gpu-dev" / "config.json"


def credentials_file() -> Path:
    return Path.home() / ".gpu-dev" / "credentials"


def url() -> str:
    found = os.environ.get("GPU_DEV_API_URL") or _read(config_file()).get("api_url")
    if not found:
        raise ClientError("no portal is known yet. Say which: gpu-dev login URL")
    return str(found)


def token() -> str:
    """The token that goes with ``url``: a server's own is for its own portal, and for no other."""
    own = os.environ.get("JUPYTERHUB_API_TOKEN") if os.environ.get("GPU_DEV_API_URL") else None
    return str(os.environ.get("GPU_DEV_TOKEN") or own or _read(credentials_file()).get("api_key") or "")


def save(api_url: str, api_key: str) -> None:
    config = config_file()
    config.parent.mkdir(parents=True, exist_ok=True)
    config.write_text(json.dumps({**_read(config), "api_url": api_url}, indent=2) + "\n")
    credentials = credentials_file()
    credentials.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    descriptor = os.open(credentials, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "w") as file:
        os.fchmod(descriptor, 0o600)
        json.dump({"api_key": api_key, "expires_at": FAR_AHEAD}, file)


def _read(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_text())
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        raise ClientError(f"{path} cannot be read: {error}. Mend or remove it.") from None
    if not isinstance(found, dict):
        raise ClientError(f"{path} must hold keys and values. Mend or remove it.")
    return found
