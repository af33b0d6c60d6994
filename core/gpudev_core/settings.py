"""One file, ``portal.yaml``, plus environment overrides: typed, checked, and refused with one clear message.

``GPUDEV_ADDRESS__PORT=9000`` overrides ``address.port``: the prefix ``GPUDEV_``, then the keys joined by two
underscores; the value is read as YAML. Secrets are never settings: a setting names the file that holds one.
"""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, get_args

import yaml
from pydantic import (
    AnyHttpUrl,
    BaseModel,
    ConfigDict,
    Field,
    StrictInt,
    ValidationError,
    field_validator,
    model_validator,
)
from sqlalchemy.engine import make_url
from sqlalchemy.exc import ArgumentError

from gpudev_core.catalogue import BUILT_IN, Catalogue
from gpudev_core.errors import SettingsError
from gpudev_core.models import GpuType

ENV_PREFIX = "GPUDEV_"
CONFIG_ENV = "GPUDEV_CONFIG"
"""Names the file itself, so it is not an override of a key."""

TypeName = Annotated[str, Field(pattern=r"^[a-z][a-z0-9-]{0,49}$")]


class Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class Address(Section):
    host: str = "127.0.0.1"
    port: int = Field(8000, ge=1, le=65535)
    url: AnyHttpUrl | None = None
    """What people type, when a reverse proxy stands in front. Default: made of host and port."""
    base_url: str = Field("/", pattern=r"^/([A-Za-z0-9._~-]+/)*$")


class Login(Section):
    kind: Literal["password", "github", "google", "oidc"] = "password"
    admins: tuple[str, ...] = ("admin",)
    allowed_users: tuple[str, ...] = ()
    """With ``password`` empty means: everybody who knows the password. With a provider it means nobody."""
    allowed_organizations: tuple[str, ...] = ()
    allowed_domains: tuple[str, ...] = ()
    client_id: str = ""
    client_secret_file: Path | None = None
    issuer: AnyHttpUrl | None = None
    username_claim: str = "preferred_username"
    scopes: tuple[str, ...] = ("openid", "profile", "email")

    @model_validator(mode="after")
    def _provider_needs(self) -> Login:
        if self.kind == "password":
            return self
        missing = [k for k in ("client_id", "client_secret_file") if not getattr(self, k)]
        if self.kind == "oidc" and self.issuer is None:
            missing.append("issuer")
        if missing:
            raise ValueError(f"login.kind {self.kind} needs " + ", ".join(f"login.{k}" for k in missing))
        if not (self.allowed_users or self.allowed_organizations or self.allowed_domains):
            raise ValueError(
                f"login.kind {self.kind} lets nobody in yet: set login.allowed_users, "
                "login.allowed_organizations (github) or login.allowed_domains (google, oidc)"
            )
        return self


class Servers(Section):
    run_as: Literal["hub-user", "system-users"] = "hub-user"
    start_timeout_s: int = Field(120, ge=5, le=3600)
    stop_grace_s: int = Field(30, ge=1, le=3600)
    lowest_uid: int = Field(1000, ge=1)
    """With ``system-users``: accounts below it belong to the system and get no server."""
    admission_wait_s: float = Field(5.0, ge=0, le=60)
    """How long a start through REST waits for GPUs before it answers "queued"."""


class SimulatedNodes(Section):
    gpu_type: TypeName
    nodes: int = Field(ge=1, le=1000)


DEFAULT_SIMULATED = (
    SimulatedNodes(gpu_type="t4", nodes=2),
    SimulatedNodes(gpu_type="a100", nodes=2),
    SimulatedNodes(gpu_type="h100", nodes=2),
    SimulatedNodes(gpu_type="cpu-x86", nodes=1),
)


class Gpus(Section):
    source: Literal["auto", "nvml", "simulated"] = "auto"
    """``auto``: the machine's own GPUs; where there are none, a simulated cluster."""
    simulated: tuple[SimulatedNodes, ...] = DEFAULT_SIMULATED


class TypeEntry(Section):
    """A GPU type to add to the catalogue, or to change in it."""

    instance_type: str = ""
    gpus_per_node: int = Field(ge=0, le=64)
    cpus: int = Field(ge=1)
    memory_gb: int = Field(ge=1)
    gpu_memory_gb: int = Field(0, ge=0)
    multinode: bool = False
    description: str = ""


class Limits(Section):
    """Of everybody for whom no rule of ``quotas`` says otherwise. ``quotas`` compares; this says how much."""

    gpus: int = Field(32, ge=0)
    reservations: int = Field(5, ge=1)
    queued: int = Field(20, ge=1)
    """What was just filed waits too, if only for a moment; so none is not possible."""
    hours: float = Field(24, gt=0, le=24 * 365)
    total_hours: float = Field(48, gt=0, le=24 * 365)
    gpu_hours: float = Field(300, ge=0)
    window_days: float = Field(7, gt=0, le=366)
    disks: int = Field(5, ge=0)
    disk_gb: int = Field(2000, ge=0)

    @model_validator(mode="after")
    def _extended_is_not_shorter(self) -> Limits:
        if self.hours > self.total_hours:
            raise ValueError(
                f"limits.hours {self.hours:g} is more than limits.total_hours {self.total_hours:g}, "
                "which counts extensions too; raise limits.total_hours"
            )
        return self


DISK_LIMITS = ("disks", "disk_gb")
RULE_LIMITS = ("gpus", "reservations", "queued", "hours", "total_hours", "gpu_hours", *DISK_LIMITS)
GroupName = Annotated[str, Field(min_length=1)]


class QuotaRule(Section):
    """Other limits for these people (nobody named: for everybody), or for these GPU types, each by itself."""

    users: tuple[Annotated[str, Field(min_length=1)], ...] = ()
    groups: tuple[GroupName, ...] = ()
    gpu_types: tuple[TypeName, ...] = ()
    gpus: int | None = Field(None, ge=0)
    reservations: int | None = Field(None, ge=0)
    queued: int | None = Field(None, ge=1)
    hours: float | None = Field(None, gt=0, le=24 * 365)
    total_hours: float | None = Field(None, gt=0, le=24 * 365)
    gpu_hours: float | None = Field(None, ge=0)
    disks: int | None = Field(None, ge=0)
    disk_gb: int | None = Field(None, ge=0)

    @model_validator(mode="after")
    def _says_whom_and_what(self) -> QuotaRule:
        if not (self.users or self.groups or self.gpu_types):
            raise ValueError(
                "a rule needs users, groups or gpu_types; what holds for everybody stands in limits"
            )
        given = [key for key in RULE_LIMITS if getattr(self, key) is not None]
        if not given:
            raise ValueError(f"the rule limits nothing; possible: {', '.join(RULE_LIMITS)}")
        for_disks = [key for key in DISK_LIMITS if key in given]
        if self.gpu_types and for_disks:
            raise ValueError(
                f"{for_disks[0]} cannot be limited by GPU type, as a disk goes with any type; "
                f"write {for_disks[0]} in a rule without gpu_types"
            )
        return self


class Queue(Section):
    pending_minutes: float = Field(5, gt=0)
    """A request that no controller picked up in this time fails and says so."""
    queued_hours: float = Field(48, gt=0)
    cleanup_s: int = Field(30, ge=0)
    """Planned between the end of one reservation and the start of the next."""


MAIL_ADDRESS = re.compile(r"[A-Za-z0-9_+-]+(\.[A-Za-z0-9_+-]+)*@[A-Za-z0-9-]+(\.[A-Za-z0-9-]+)*")
"""A plain one, as it may stand in a header and in an SMTP command: no quotes, comments or lists."""
MAIL_PORTS = {"none": 25, "starttls": 587, "tls": 465}


class Email(Section):
    """Mail is sent when ``host`` is set."""

    host: str = Field("", pattern=r"^[A-Za-z0-9.:-]*$")
    port: int | None = Field(None, ge=1, le=65535)
    security: Literal["none", "starttls", "tls"] = "starttls"
    user: str = ""
    password_file: Path | None = None
    sender: str = ""
    address: str = ""
    """``{user}@example.org``: where a person's mail goes. ``{user}`` alone: user names are addresses."""

    @model_validator(mode="after")
    def _whole(self) -> Email:
        if not self.host:
            if self.model_fields_set - {"host"}:
                raise ValueError("notify.email needs notify.email.host")
            return self
        missing = [key for key in ("sender", "address") if not getattr(self, key)]
        if missing:
            raise ValueError("notify.email needs " + ", ".join(f"notify.email.{key}" for key in missing))
        if bool(self.user) != bool(self.password_file):
            raise ValueError("notify.email.user and notify.email.password_file go together: set both or none")
        if self.user and self.security == "none":
            raise ValueError(
                "notify.email.user needs notify.email.security starttls or tls: a password is never sent "
                "in the clear"
            )
        return self

    @field_validator("sender")
    @classmethod
    def _is_one_address(cls, value: str) -> str:
        if value and not MAIL_ADDRESS.fullmatch(value):
            raise ValueError("must be one plain address, as gpu@example.org")
        return value

    @field_validator("address")
    @classmethod
    def _makes_one_address(cls, value: str) -> str:
        sample = value.replace("{user}", "a@b" if value == "{user}" else "a")
        has_user = value.count("{user}") == 1 and "{user}" in value.partition("@")[0]
        if value and not (has_user and MAIL_ADDRESS.fullmatch(sample)):
            raise ValueError('must be one plain address with {user} before the "@", as {user}@example.org')
        return value

    @property
    def smtp_port(self) -> int:
        return self.port or MAIL_PORTS[self.security]


class Notify(Section):
    """How people are told, beside the pages. What is not set up here is not sent."""

    webhook_url_file: Path | None = None
    email: Email = Email()
    terminal: bool = True

    @model_validator(mode="after")
    def _address_in_a_file(self) -> Notify:
        if re.match(r"[a-z]+:/", str(self.webhook_url_file or ""), re.I):
            raise ValueError(
                "notify.webhook_url_file names a file; the address is a secret: write it into a file of "
                "its own"
            )
        return self


class Settings(Section):
    mode: Literal["local", "kubernetes"] = "local"
    state: Path = Path(".portal")
    database_url: str = ""
    """SQLAlchemy URL. Empty: SQLite in the state folder."""
    address: Address = Address()
    login: Login = Login()
    servers: Servers = Servers()
    gpus: Gpus = Gpus()
    limits: Limits = Limits()
    quotas: tuple[QuotaRule, ...] = ()
    priorities: Mapping[GroupName, Annotated[StrictInt, Field(ge=-1000, le=1000)]] = Field(
        default_factory=dict
    )
    """By group; larger goes first. People of no such group have 0."""
    queue: Queue = Queue()
    notify: Notify = Notify()
    images: tuple[str, ...] = ("local",)
    catalogue: Mapping[TypeName, TypeEntry] = Field(default_factory=dict)

    @field_validator("images")
    @classmethod
    def _some_image(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        if not value:
            raise ValueError("at least one image is needed; the first is the default")
        return value

    @field_validator("database_url")
    @classmethod
    def _known_database(cls, value: str) -> str:
        if value and not re.match(r"^(sqlite|postgresql(\+psycopg2)?)://", value):
            raise ValueError("must begin with sqlite:// or postgresql://")
        try:
            make_url(value or "sqlite://")
        except (ArgumentError, ValueError):
            raise ValueError("is not a database address; the port must be a number") from None
        return value

    @model_validator(mode="after")
    def _simulated_types_exist(self) -> Settings:
        known = self.types()
        for entry in self.gpus.simulated:
            if entry.gpu_type not in known:
                raise ValueError(
                    f"gpus.simulated names gpu_type {entry.gpu_type!r}, which is not in the catalogue "
                    f"({', '.join(known)}); add it under catalogue"
                )
        return self

    @model_validator(mode="after")
    def _rules_can_hold(self) -> Settings:
        known = self.types()
        for number, rule in enumerate(self.quotas):
            if missing := next((name for name in rule.gpu_types if name not in known), None):
                raise ValueError(
                    f"quotas.{number} names gpu_type {missing!r}, which is not in the catalogue "
                    f"({', '.join(known)}); add it under catalogue"
                )
            total = self.limits.total_hours if rule.total_hours is None else rule.total_hours
            if rule.hours is not None and rule.hours > total:
                raise ValueError(
                    f"quotas.{number}: hours {rule.hours:g} is more than total_hours {total:g}, "
                    "which counts extensions too; give this rule a larger total_hours"
                )
        return self

    def types(self) -> Catalogue:
        own = [GpuType(name=name, **entry.model_dump()) for name, entry in self.catalogue.items()]
        return Catalogue(BUILT_IN).with_types(own)

    @property
    def database(self) -> str:
        return self.database_url or f"sqlite:///{self.state_dir / 'portal.sqlite'}"

    @property
    def state_dir(self) -> Path:
        return self.state.expanduser().absolute()


def load(path: Path | None, environ: Mapping[str, str]) -> Settings:
    """Read ``path`` (None: defaults alone), apply the environment, check everything."""
    source = str(path) if path else "settings"
    data = _read_yaml(path) if path else {}
    origin: dict[tuple[str, ...], str] = {}
    for name, value in sorted(environ.items()):  # a section comes before its keys, which win
        if (name.startswith(ENV_PREFIX) and "__" in name) or name in _TOP_LEVEL_ENV:
            keys = tuple(name.removeprefix(ENV_PREFIX).lower().split("__"))
            _put(data, keys, _yaml_value(name, value))
            origin[keys] = name
    try:
        return Settings.model_validate(data)
    except ValidationError as error:
        raise SettingsError(_message(error, source, origin)) from None


def load_from_environment() -> Settings:
    """As hub, services and spawner do: the file that ``GPUDEV_CONFIG`` names, if it names one."""
    path = os.environ.get(CONFIG_ENV)
    return load(Path(path) if path else None, os.environ)


_TOP_LEVEL_ENV = {ENV_PREFIX + name.upper() for name in Settings.model_fields}
_NOT_YAML = (yaml.YAMLError, ValueError, RecursionError)


def _read_yaml(path: Path) -> dict[str, Any]:
    try:
        data = yaml.safe_load(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise SettingsError(f"{path}: cannot be read: {error.strerror}") from None
    except _NOT_YAML as error:
        raise SettingsError(f"{path}: is not YAML: {_yaml_problem(error)}") from None
    if data is None:
        return {}
    if not isinstance(data, dict):
        raise SettingsError(f"{path}: must hold keys and values, but holds {type(data).__name__}")
    return data


def _yaml_value(name: str, value: str) -> Any:
    try:
        return yaml.safe_load(value)
    except _NOT_YAML as error:
        raise SettingsError(f"environment {name}: is not YAML: {_yaml_problem(error)}") from None


def _yaml_problem(error: Exception) -> str:
    """Where and what, but never the text itself: it may hold a password."""
    mark = getattr(error, "problem_mark", None)
    problem = getattr(error, "problem", None) or getattr(error, "reason", None) or "a value cannot be read"
    return (f"line {mark.line + 1}: " if mark else "") + " ".join(problem.split())


def _put(data: dict[str, Any], keys: tuple[str, ...], value: Any) -> None:
    for key in keys[:-1]:
        inner = data.get(key)
        data[key] = dict(inner) if isinstance(inner, dict) else {}
        data = data[key]
    data[keys[-1]] = value


def _message(error: ValidationError, source: str, origin: Mapping[tuple[str, ...], str]) -> str:
    """The first error, as: where, which key, which value, what is wrong."""
    # A mistyped key is often why another one is missing, so it is told first.
    first = min(error.errors(include_url=False), key=lambda e: e["type"] != "extra_forbidden")
    keys = tuple(str(part) for part in first["loc"])
    is_unknown = first["type"] == "extra_forbidden"
    where = _where(keys, source, origin, inside=is_unknown)
    key = " ".join(".".join(keys).split())
    if is_unknown:
        return f"{where}: unknown key {key!r}.{_did_you_mean(keys)}"
    text = first["msg"].removeprefix("Value error, ").replace("tuple", "list")
    if first["type"] == "missing":
        return f"{where}: {key} is missing."
    if isinstance(first["input"], dict | Settings | Section) or not key:
        # Our own sentences name the key themselves, but cannot know the place of an entry in its list.
        is_named = not key or (first["type"] == "value_error" and not keys[-1].isdigit())
        return f"{where}: {text}" if is_named else f"{where}: {key}: {text}"
    return f"{where}: {key}: {_shown(key, first['input'])} is not possible: {text[0].lower()}{text[1:]}"


def _where(keys: tuple[str, ...], source: str, origin: Mapping[tuple[str, ...], str], *, inside: bool) -> str:
    """The variable that set the key (or, with ``inside``, something in it); otherwise the file."""
    for named, variable in origin.items():
        if keys[: len(named)] == named or (inside and named[: len(keys)] == keys):
            return f"environment {variable}"
    return source


def _shown(key: str, value: Any) -> str:
    """A value as a message may show it: the address of a database without its password."""
    if key != "database_url":
        return repr(value)
    return repr(re.sub(r"^(.*://)?.*@", r"\1***@", value)) if isinstance(value, str) else type(value).__name__


def _did_you_mean(keys: tuple[str, ...]) -> str:
    section: Any = Settings
    for key in keys[:-1]:
        section = _inner(section, key)
    names = list(section.model_fields) if _is_section(section) else []
    close = difflib.get_close_matches(keys[-1], names, n=1)
    if close:
        return f" Did you mean {close[0]!r}?"
    return f" Possible: {', '.join(names)}." if names else ""


def _inner(annotation: Any, key: str) -> Any:
    """What a section has under ``key``, or what a list or a mapping has inside."""
    if _is_section(annotation):
        field = annotation.model_fields.get(key)
        return field.annotation if field else None
    return next((inner for inner in get_args(annotation) if _is_section(inner)), None)


def _is_section(annotation: Any) -> bool:
    return isinstance(annotation, type) and issubclass(annotation, Section)
