"""Writes the tables of the reference pages from the code they describe.

    .venv/bin/python docs/generate.py           writes them
    .venv/bin/python docs/generate.py --check   only says which pages are out of date (exit code 1)

A table stands between ``<!-- table: NAME -->`` and ``<!-- end of table -->``; all else in a page is written
by hand. A settings key that has no description here stops the script.
"""

from __future__ import annotations

import re
import sys
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic.fields import FieldInfo

from gpudev_core.catalogue import BUILT_IN
from gpudev_core.settings import ENV_PREFIX, Section, Settings

REFERENCE = Path(__file__).parent / "reference"
BLOCK = re.compile(r"(<!-- table: ([a-z-]+) -->\n).*?(<!-- end of table -->)", re.S)

DESCRIPTIONS = {
    "mode": "Only `local` works in this version.",
    "state": "Folder for all that the portal keeps.",
    "database_url": "SQLAlchemy address of the portal's own tables (`sqlite://` or `postgresql://`). "
    "Empty: SQLite in the state folder. JupyterHub's own database is always SQLite in the state folder.",
    "images": "Images that may be asked for; the first is the default. In local mode every image is the "
    "portal's own Python environment.",
    "address.host": "IPv4 address or host name to listen on. `0.0.0.0`: every network interface.",
    "address.port": "Port to listen on.",
    "address.url": "What people type, when a reverse proxy stands in front; with `base_url` at its end. "
    "Empty: made of host and port.",
    "address.base_url": "Path under which everything is served; begins and ends with `/`.",
    "login.kind": "How people log in.",
    "login.admins": "User names that see and end everybody's reservations and use the hub's admin page.",
    "login.allowed_users": "User names that may come in. With `password`, empty means everybody who knows "
    "it. Admins may always come in.",
    "login.allowed_organizations": "GitHub organisations whose members may come in (`github`).",
    "login.allowed_domains": "E-mail domains whose people may come in (`google`, `oidc`).",
    "login.client_id": "Client id that the provider gave.",
    "login.client_secret_file": "File that holds the client secret. The secret itself is never a setting.",
    "login.issuer": "Address of the OpenID Connect issuer (`oidc`).",
    "login.username_claim": "Claim that becomes the user name (`oidc`).",
    "login.scopes": "Scopes to ask for (`oidc`).",
    "servers.run_as": "`hub-user`: every server runs as the hub's own user. `system-users`: each runs as the "
    "system user of the same name; the hub must run as root.",
    "servers.start_timeout_s": "Seconds a server gets to start, and again to answer.",
    "servers.stop_grace_s": "Seconds programs get to end, when the controller ends them, before they are "
    "killed.",
    "servers.lowest_uid": "With `system-users`: accounts with a lower user id are the system's and get no "
    "server.",
    "servers.admission_wait_s": 'Seconds a start through REST waits for GPUs before it answers "queued".',
    "gpus.source": "`nvml`: the machine's own GPUs. `simulated`: made-up ones. `auto`: the machine's own; "
    "where there are none, made-up ones.",
    "gpus.simulated": "Nodes of the simulated cluster.",
    "gpus.simulated[].gpu_type": "A type of the catalogue.",
    "gpus.simulated[].nodes": "How many nodes of it.",
    "limits.gpus": "GPUs a person may have at once, queued and running together.",
    "limits.reservations": "Reservations a person may have at once, queued and running together.",
    "limits.queued": "Reservations a person may have in the queue at once, with those just filed.",
    "limits.hours": "Hours of one reservation when it is filed.",
    "limits.total_hours": "Hours of one reservation with all its extensions.",
    "limits.gpu_hours": "GPU-hours a person may use in the window.",
    "limits.window_days": "Length of that window: a rolling one, not a calendar week.",
    "limits.disks": "Disks a person may have.",
    "limits.disk_gb": "GB of all disks of a person; when they are used up, no new disk can be made.",
    "quotas": "Other limits for some people, groups or GPU types. See "
    "[which rule wins](../how-to/limit-what-people-may-have.md#which-rule-wins).",
    "quotas[].users": "People for whom the rule holds, by user name.",
    "quotas[].groups": "Groups of the hub for whose people it holds. Neither users nor groups: everybody.",
    "quotas[].gpu_types": "GPU types for which it holds, each by itself. Empty: all together.",
    "quotas[].gpus": "As `limits.gpus`.",
    "quotas[].reservations": "As `limits.reservations`.",
    "quotas[].queued": "As `limits.queued`.",
    "quotas[].hours": "As `limits.hours`.",
    "quotas[].total_hours": "As `limits.total_hours`.",
    "quotas[].gpu_hours": "As `limits.gpu_hours`.",
    "quotas[].disks": "As `limits.disks`; not together with `gpu_types`.",
    "quotas[].disk_gb": "As `limits.disk_gb`; not together with `gpu_types`.",
    "priorities": "Whole number by group of the hub, from -1000 to 1000; larger goes first. A person has the "
    "highest of the groups that are listed; otherwise 0.",
    "queue.pending_minutes": "A request that no controller picked up in this time fails and says so.",
    "queue.queued_hours": "A request that waited longer than this, and was not promised a later time, fails "
    "and says so.",
    "queue.cleanup_s": "Seconds planned between the end of one reservation and the start of the next.",
    "notify.webhook_url_file": "File that holds the address to which messages are posted, as of a Slack "
    "channel. The address itself is a secret and never a setting. Empty: none.",
    "notify.email.host": "Mail server (SMTP). Empty: no mail.",
    "notify.email.port": "Its port. Empty: 587, with `tls` 465, with `none` 25.",
    "notify.email.security": "`starttls` and `tls`: encrypted, and the server's certificate is checked. "
    "`none`: in the clear.",
    "notify.email.user": "Name to log in to the mail server with. Empty: no login.",
    "notify.email.password_file": "File that holds the password for it. The password itself is never a "
    "setting.",
    "notify.email.sender": "Address that the mail is from.",
    "notify.email.address": "Address of a person, made of the user name: `{user}@example.org`. `{user}` "
    "alone: user names are addresses.",
    "notify.terminal": "Whether warnings are written into the terminals of the reservation's own server.",
    "catalogue": "GPU types to add, or to change, by name.",
    "catalogue.NAME.instance_type": "Kind of machine; only shown in the tables.",
    "catalogue.NAME.gpus_per_node": "GPUs of one node; 0 for a CPU machine.",
    "catalogue.NAME.cpus": "CPUs of one node.",
    "catalogue.NAME.memory_gb": "Memory of one node in GB.",
    "catalogue.NAME.gpu_memory_gb": "Memory of one GPU in GB, shown on the form.",
    "catalogue.NAME.multinode": "Whether 2, 3 and 4 whole nodes may be asked for.",
    "catalogue.NAME.description": "Words for the type.",
}


def settings_keys(section: type[Section] = Settings, prefix: str = "") -> Iterator[tuple[str, FieldInfo]]:
    """Every key with its dots, in the order of the code; ``[]`` stands for a list, ``NAME`` for a name."""
    for name, field in section.model_fields.items():
        key = prefix + name
        inner = _section_in(field.annotation)
        if _is_section(field.annotation):
            yield from settings_keys(field.annotation, key + ".")
            continue
        yield key, field
        if inner is not None:
            entry = ".NAME." if get_origin(field.annotation) is not tuple else "[]."
            yield from settings_keys(inner, key + entry)


def settings_table() -> str:
    lines = ["| key | type | default | meaning | environment |", "|---|---|---|---|---|"]
    # What stands alone comes first, as in a file that a person writes.
    for key, field in sorted(settings_keys(), key=lambda found: "." in found[0]):
        cells = [f"`{key}`", _type(field), _default(field), DESCRIPTIONS[key], _variable(key)]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def gpu_types_table() -> str:
    lines = [
        "| type | GPUs per node | GPU memory | CPUs | memory | instance type | what may be asked for |",
        "|---|---|---|---|---|---|---|",
    ]
    for kind in BUILT_IN:
        memory = f"{kind.gpu_memory_gb} GB" if kind.gpu_memory_gb else "-"
        gpus = "0 (3 slots)" if kind.is_cpu else str(kind.gpus_per_node)
        counts = "one slot" if kind.is_cpu else ", ".join(map(str, kind.counts))
        cells = [
            f"`{kind.name}`",
            gpus,
            memory,
            str(kind.cpus),
            f"{kind.memory_gb} GB",
            kind.instance_type,
            counts,
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


TABLES = {"settings": settings_table, "gpu-types": gpu_types_table}


def renewed(page: str) -> str:
    """The page with its tables as they ought to be."""
    return BLOCK.sub(lambda found: found[1] + TABLES[found[2]]() + found[3], page)


def _is_section(annotation: Any) -> bool:
    return isinstance(annotation, type) and issubclass(annotation, Section)


def _section_in(annotation: Any) -> type[Section] | None:
    return next((inner for inner in get_args(annotation) if _is_section(inner)), None)


def _type(field: FieldInfo) -> str:
    words = _words(field.annotation)
    limits = {type(limit).__name__.lower(): limit for limit in field.metadata}
    low = limits.get("ge") or limits.get("gt")
    high = limits.get("le") or limits.get("lt")
    if low is not None:
        words += f", from {low.ge:g}" if "ge" in limits else f", above {low.gt:g}"
    if high is not None:
        words += f" to {high.le:g}" if "le" in limits else f", below {high.lt:g}"
    return words


def _words(annotation: Any) -> str:
    plain = {str: "text", int: "whole number", float: "number", bool: "true or false", Path: "path"}
    if annotation in plain:
        return plain[annotation]
    origin, inner = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        return _words(inner[0])
    if origin is Literal:
        return " or ".join(f"`{value}`" for value in inner)
    if origin is tuple:
        return "list of entries" if _section_in(annotation) else f"list of {_words(inner[0])}"
    if origin in (Union, types.UnionType):
        return _words(next(one for one in inner if one is not type(None)))
    return "address" if "Url" in getattr(annotation, "__name__", "") else "entries by name"


def _default(field: FieldInfo) -> str:
    if field.is_required():
        return "needed"
    value = field.get_default(call_default_factory=True)
    if isinstance(value, tuple) and value and isinstance(value[0], Section):
        return "; ".join(f"{entry.nodes} × {entry.gpu_type}" for entry in value)
    if isinstance(value, tuple):
        return f"`[{', '.join(value)}]`" if value else "empty"
    if isinstance(value, bool):
        return f"`{str(value).lower()}`"
    if isinstance(value, float):
        return f"`{value:g}`"
    return f"`{value}`" if value not in (None, "", {}) else "empty"


def _variable(key: str) -> str:
    if "[]" in key or ".NAME." in key:
        return "-"
    return f"`{ENV_PREFIX}{key.upper().replace('.', '__')}`"


def main() -> int:
    old = [path for path in sorted(REFERENCE.glob("*.md")) if path.read_text() != renewed(path.read_text())]
    for path in old:
        if "--check" not in sys.argv[1:]:
            path.write_text(renewed(path.read_text()))
        print(f"{path.name}: {'out of date' if '--check' in sys.argv[1:] else 'written'}")
    return 1 if old and "--check" in sys.argv[1:] else 0


if __name__ == "__main__":
    sys.exit(main())
