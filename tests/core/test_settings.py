from __future__ import annotations

import json
import os
import string
from collections.abc import Mapping
from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from gpudev_core import settings as settings_module
from gpudev_core.errors import SettingsError
from gpudev_core.settings import Settings, load, load_from_environment


@pytest.fixture
def portal_yaml(tmp_path: Path) -> Path:
    return tmp_path / "portal.yaml"


def refusal(path: Path | None, text: str | bytes = "", environ: Mapping[str, str] | None = None) -> str:
    """What is said about a file with this text."""
    if path is not None:
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(SettingsError) as caught:
        load(path, environ or {})
    return caught.value.message


PROVIDER = "client_id: portal, client_secret_file: /run/secret, allowed_domains: [example.org]"


# What is set


def test_defaults_are_a_whole_local_portal() -> None:
    settings = load(None, {})
    assert (settings.mode, settings.address.host, settings.address.port) == ("local", "127.0.0.1", 8000)
    assert settings.login.kind == "password"
    assert settings.database == f"sqlite:///{Path('.portal').absolute() / 'portal.sqlite'}"
    assert {entry.gpu_type for entry in settings.gpus.simulated} <= set(settings.types())
    assert (settings.limits.hours, settings.limits.window_days) == (24, 7)


def test_an_empty_file_means_the_defaults(portal_yaml: Path) -> None:
    portal_yaml.write_text("# nothing yet\n")
    assert load(portal_yaml, {}) == Settings()


def test_the_file_is_read_and_what_it_leaves_out_keeps_its_default(portal_yaml: Path) -> None:
    portal_yaml.write_text("address: {port: 9000}\nlimits:\n  gpus: 4\n")
    settings = load(portal_yaml, {})
    assert (settings.address.port, settings.address.host, settings.limits.gpus) == (9000, "127.0.0.1", 4)


@pytest.mark.parametrize(
    ("environ", "read", "value"),
    [
        pytest.param({"GPUDEV_ADDRESS__PORT": "7"}, lambda s: s.address.port, 7, id="a key of a section"),
        pytest.param({"GPUDEV_MODE": "kubernetes"}, lambda s: s.mode, "kubernetes", id="a top key"),
        pytest.param({"GPUDEV_IMAGES": "[a, b]"}, lambda s: s.images, ("a", "b"), id="a list, as YAML"),
        pytest.param(
            {"GPUDEV_LOGIN__ADMINS": "[ada, bob]"},
            lambda s: s.login.admins,
            ("ada", "bob"),
            id="a list inside a section",
        ),
        pytest.param(
            {"GPUDEV_ADDRESS__PORT": "7", "GPUDEV_ADDRESS": "{host: h, port: 8}"},
            lambda s: (s.address.host, s.address.port),
            ("h", 7),
            id="a key wins over its whole section, in whichever order they come",
        ),
        pytest.param(
            {"GPUDEV_CONFIG": "elsewhere"}, lambda s: s.mode, "local", id="the file's name is no key"
        ),
        pytest.param({"OTHER_MODE": "x", "GPUDEVMODE": "x"}, lambda s: s.mode, "local", id="others' names"),
    ],
)
def test_the_environment_overrides(environ: dict[str, str], read, value: object) -> None:
    assert read(load(None, environ)) == value


def test_the_environment_wins_over_the_file_key_by_key(portal_yaml: Path) -> None:
    portal_yaml.write_text("address: {port: 9000, host: 0.0.0.0}\n")
    settings = load(portal_yaml, {"GPUDEV_ADDRESS__PORT": "9001"})
    assert (settings.address.port, settings.address.host) == (9001, "0.0.0.0")


def test_processes_find_the_file_through_the_environment(
    portal_yaml: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    portal_yaml.write_text("limits: {gpus: 3}\n")
    for name in [name for name in os.environ if name.startswith("GPUDEV_")]:
        monkeypatch.delenv(name)
    assert load_from_environment() == Settings()
    monkeypatch.setenv("GPUDEV_CONFIG", str(portal_yaml))
    assert load_from_environment().limits.gpus == 3


def test_catalogue_entries_add_and_replace_types(portal_yaml: Path) -> None:
    portal_yaml.write_text(
        "catalogue:\n"
        "  mi300: {gpus_per_node: 8, cpus: 96, memory_gb: 1024, multinode: true}\n"
        "  t4: {gpus_per_node: 2, cpus: 8, memory_gb: 64}\n"
        "gpus: {simulated: [{gpu_type: mi300, nodes: 1}]}\n"
    )
    types = load(portal_yaml, {}).types()
    assert types["mi300"].counts == (1, 2, 4, 8, 16, 24, 32)
    assert types["t4"].counts == (1, 2)
    assert "h100" in types


def test_rules_may_name_types_of_the_sites_own(portal_yaml: Path) -> None:
    portal_yaml.write_text(
        "catalogue: {mi300: {gpus_per_node: 8, cpus: 96, memory_gb: 1024}}\n"
        "quotas:\n"
        "- {groups: [vision], gpu_types: [mi300, h100], gpus: 4, hours: 72, total_hours: 96}\n"
        "priorities: {vision: 10, guests: -5}\n"
    )
    settings = load(portal_yaml, {})
    assert (settings.quotas[0].gpu_types, settings.quotas[0].reservations) == (("mi300", "h100"), None)
    assert settings.priorities == {"vision": 10, "guests": -5}


def test_rules_may_come_from_the_environment() -> None:
    settings = load(None, {"GPUDEV_QUOTAS": "[{users: [ada], gpus: 64}]", "GPUDEV_PRIORITIES": "{ops: 1}"})
    assert (settings.quotas[0].users, settings.quotas[0].gpus, settings.priorities) == (
        ("ada",),
        64,
        {"ops": 1},
    )


def test_settings_cannot_be_changed_after_reading() -> None:
    with pytest.raises(ValueError, match="frozen"):
        Settings().address.port = 1


@pytest.mark.parametrize("state", ["~/portal", "relative/portal"])
def test_the_state_folder_is_absolute_for_every_process(state: str) -> None:
    folder = load(None, {"GPUDEV_STATE": state}).state_dir
    assert folder.is_absolute()
    assert "~" not in str(folder)


# What is refused


@pytest.mark.parametrize(
    ("text", "said"),
    [
        pytest.param("adress: {port: 1}", "unknown key 'adress'. Did you mean 'address'?", id="top key"),
        pytest.param(
            "address: {prot: 1}", "unknown key 'address.prot'. Did you mean 'port'?", id="key of a section"
        ),
        pytest.param(
            "gpus: {simulated: [{gpu_typ: t4, nodes: 1}]}",
            "unknown key 'gpus.simulated.0.gpu_typ'. Did you mean 'gpu_type'?",
            id="key inside a list",
        ),
        pytest.param(
            "catalogue: {x1: {gpus_per_nod: 1, gpus_per_node: 1, cpus: 1, memory_gb: 1}}",
            "unknown key 'catalogue.x1.gpus_per_nod'. Did you mean 'gpus_per_node'?",
            id="key of a catalogue entry",
        ),
        pytest.param(
            "queue: {zzz: 1}",
            "unknown key 'queue.zzz'. Possible: pending_minutes, queued_hours, cleanup_s.",
            id="no key near",
        ),
    ],
)
def test_an_unknown_key_is_named_with_what_was_meant(portal_yaml: Path, text: str, said: str) -> None:
    assert refusal(portal_yaml, text) == f"{portal_yaml}: {said}"


@pytest.mark.parametrize(
    ("text", "key", "value"),
    [
        pytest.param("address: {port: many}", "address.port", "'many'", id="text for a number"),
        pytest.param("address: {port: 70000}", "address.port", "70000", id="port above 65535"),
        pytest.param("address: {port: 0}", "address.port", "0", id="port 0"),
        pytest.param("address: {base_url: portal}", "address.base_url", "'portal'", id="base_url without /"),
        pytest.param("address: {url: 'not a url'}", "address.url", "'not a url'", id="not a URL"),
        pytest.param("mode: cloud", "mode", "'cloud'", id="a mode that is none"),
        pytest.param("limits: {hours: -1}", "limits.hours", "-1", id="negative hours"),
        pytest.param("limits: {hours: .nan}", "limits.hours", "nan", id="hours that are not a number"),
        pytest.param("limits: {gpu_hours: .inf}", "limits.gpu_hours", "inf", id="endless GPU-hours"),
        pytest.param("quotas: [{users: [a], gpus: -1}]", "quotas.0.gpus", "-1", id="a negative quota"),
        pytest.param("quotas: [{users: [a], queued: 0}]", "quotas.0.queued", "0", id="no queue at all"),
        pytest.param("quotas: [{users: ada, gpus: 1}]", "quotas.0.users", "'ada'", id="a name for names"),
        pytest.param("priorities: {ops: 1.5}", "priorities.ops", "1.5", id="a priority and a half"),
        pytest.param("priorities: {ops: true}", "priorities.ops", "True", id="a priority that is none"),
        pytest.param("images: []", "images", "[]", id="no image"),
        pytest.param("images: one", "images", "'one'", id="text for a list"),
        pytest.param("queue: 1", "queue", "1", id="a number for a section"),
        pytest.param("database_url: 'mysql://db/x'", "database_url", "'mysql://db/x'", id="another database"),
        pytest.param(
            "gpus: {simulated: [{gpu_type: t4, nodes: 0}]}", "gpus.simulated.0.nodes", "0", id="inside a list"
        ),
    ],
)
def test_a_bad_value_is_named_with_file_and_key(portal_yaml: Path, text: str, key: str, value: str) -> None:
    message = refusal(portal_yaml, text)
    assert message.startswith(f"{portal_yaml}: {key}: {value} is not possible: ")
    assert "\n" not in message


@pytest.mark.parametrize(
    ("text", "said"),
    [
        pytest.param(
            "gpus: {simulated: [{nodes: 1}]}", "gpus.simulated.0.gpu_type is missing", id="missing key"
        ),
        pytest.param(
            "gpus: {simulated: [{gpu_type: z9, nodes: 1}]}",
            "gpus.simulated names gpu_type 'z9', which is not in the catalogue",
            id="simulated type that the catalogue lacks",
        ),
        pytest.param('catalogue: {"a\\nb": {}}', "catalogue.a b.[key]: ", id="a type's name of two lines"),
        pytest.param(
            "quotas: [{users: [ada], gpus: 1}, {gpus: 1}]",
            "quotas.1: a rule needs users, groups or gpu_types; what holds for everybody stands in limits",
            id="a rule for nobody",
        ),
        pytest.param("quotas: [{groups: [ops]}]", "quotas.0: the rule limits nothing", id="an empty rule"),
        pytest.param(
            "quotas: [{gpu_types: [h100], disk_gb: 9}]",
            "quotas.0: disk_gb cannot be limited by GPU type",
            id="disks of a GPU type",
        ),
        pytest.param(
            "quotas: [{gpu_types: [z9], gpus: 1}]",
            "quotas.0 names gpu_type 'z9', which is not in the catalogue (t4, ",
            id="a rule for a type that the catalogue lacks",
        ),
        pytest.param(
            "quotas: [{users: [ada], hours: 72}]",
            "quotas.0: hours 72 is more than total_hours 48",
            id="a rule with hours that no total allows",
        ),
        pytest.param(
            "limits: {hours: 72}",
            "limits.hours 72 is more than limits.total_hours 48",
            id="hours that no total allows",
        ),
        pytest.param("quotas: {users: [ada]}", "quotas: Input should be a valid list", id="rules as keys"),
        pytest.param(
            f"login: {{kind: oidc, {PROVIDER}}}",
            "login.kind oidc needs login.issuer",
            id="oidc without issuer",
        ),
        pytest.param(
            "login: {kind: github}",
            "login.kind github needs login.client_id, login.client_secret_file",
            id="provider without a client",
        ),
        pytest.param(
            "login: {kind: google, client_id: x, client_secret_file: /x}",
            "lets nobody in yet",
            id="provider that would let nobody in",
        ),
        pytest.param("- a\n- b", "must hold keys and values, but holds list", id="a list"),
        pytest.param("just text", "must hold keys and values, but holds str", id="a text"),
        pytest.param("address: {port: 1", "is not YAML: line 1", id="an open bracket"),
        pytest.param("mode: 'a\n\nb: [}\n", "is not YAML: line 4", id="an open quote"),
        pytest.param("mode: 2026-13-45", "is not YAML", id="a date that is none"),
        pytest.param(b"mode: \xff\xfe", "is not YAML", id="bytes that are no text"),
    ],
)
def test_what_cannot_be_is_refused_in_one_line(portal_yaml: Path, text: str | bytes, said: str) -> None:
    message = refusal(portal_yaml, text)
    assert message.startswith(f"{portal_yaml}: ")
    assert said in message
    assert "\n" not in message


def test_oidc_with_all_it_needs_is_accepted(portal_yaml: Path) -> None:
    portal_yaml.write_text(f"login: {{kind: oidc, issuer: 'https://id.example.org', {PROVIDER}}}")
    assert load(portal_yaml, {}).login.kind == "oidc"


@pytest.mark.parametrize("what", ["missing", "folder"])
def test_a_file_that_cannot_be_read_is_named_with_the_reason(portal_yaml: Path, what: str) -> None:
    if what == "folder":
        portal_yaml.mkdir()
    with pytest.raises(SettingsError) as caught:
        load(portal_yaml, {})
    reason = {"missing": "No such file or directory", "folder": "Is a directory"}[what]
    assert caught.value.message == f"{portal_yaml}: cannot be read: {reason}"


@pytest.mark.parametrize(
    ("environ", "said"),
    [
        pytest.param(
            {"GPUDEV_ADDRESS__PORT": "many"},
            "environment GPUDEV_ADDRESS__PORT: address.port: 'many' is not possible: ",
            id="bad value",
        ),
        pytest.param(
            {"GPUDEV_ADDRES__PORT": "1"},
            "environment GPUDEV_ADDRES__PORT: unknown key 'addres'. Did you mean 'address'?",
            id="unknown section",
        ),
        pytest.param(
            {"GPUDEV_ADDRESS__PROT": "1"},
            "environment GPUDEV_ADDRESS__PROT: unknown key 'address.prot'. Did you mean 'port'?",
            id="unknown key",
        ),
        pytest.param(
            {"GPUDEV_GPUS__SIMULATED": "[{gpu_type: t4, nodes: 0}]"},
            "environment GPUDEV_GPUS__SIMULATED: gpus.simulated.0.nodes: 0 is not possible: ",
            id="bad value inside a list",
        ),
        pytest.param(
            {"GPUDEV_ADDRESS__PORT": "[1"}, "environment GPUDEV_ADDRESS__PORT: is not YAML: ", id="not YAML"
        ),
        pytest.param(
            {"GPUDEV_STATE": "2026-13-45"},
            "environment GPUDEV_STATE: is not YAML: ",
            id="a date that is none",
        ),
    ],
)
def test_a_bad_override_is_blamed_on_the_environment(
    portal_yaml: Path, environ: dict[str, str], said: str
) -> None:
    message = refusal(portal_yaml, "address: {host: h}", environ)
    assert message.startswith(said)
    assert "\n" not in message


@pytest.mark.parametrize(
    ("text", "environ"),
    [
        pytest.param("database_url: 'mysql://me:hunter2@db/x'", {}, id="another database"),
        pytest.param("", {"GPUDEV_DATABASE_URL": "mysql://me:hunter2@db/x"}, id="in the environment"),
        pytest.param(
            "", {"GPUDEV_DATABASE_URL": "postgresql://me:hunter2@[db: x"}, id="odd in the environment"
        ),
        pytest.param("", {"GPUDEV_DATABASE_URL": "{a: hunter2"}, id="not YAML in the environment"),
        pytest.param("database_url: postgresql://me:hunter2@db: x", {}, id="on a line that is not YAML"),
        pytest.param("database_url: [hunter2]", {}, id="of the wrong type"),
        pytest.param("database_url: {password: hunter2}", {}, id="as a section"),
        pytest.param("login: {client_secret: hunter2}", {}, id="under a key that there is not"),
        pytest.param("client_secret: hunter2", {}, id="under a top key that there is not"),
    ],
)
def test_no_message_repeats_a_password(portal_yaml: Path, text: str, environ: dict[str, str]) -> None:
    assert "hunter2" not in refusal(portal_yaml, text, environ)


JSON_LIKE = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.text(max_size=5) | st.sampled_from(list(Settings.model_fields)), inner, max_size=3
        )
    ),
    max_leaves=8,
)
SECTIONS = st.dictionaries(st.sampled_from(list(Settings.model_fields)) | st.text(max_size=6), JSON_LIKE)


@given(SECTIONS)
@hypothesis_settings(deadline=None, max_examples=80)
def test_any_file_is_either_read_or_refused_in_one_line(tmp_path_factory, data: dict[str, object]) -> None:
    path = tmp_path_factory.getbasetemp() / "any.yaml"
    path.write_text(yaml.safe_dump(data, allow_unicode=False))
    try:
        settings = load(path, {})
    except SettingsError as error:
        assert len(error.message.splitlines()) == 1
        assert error.message.startswith(f"{path}: ")
    else:
        json.loads(settings.model_dump_json())


@given(st.text(alphabet=string.printable, max_size=30))
@hypothesis_settings(deadline=None, max_examples=80)
def test_any_override_is_either_read_or_refused_in_one_line(value: str) -> None:
    try:
        load(None, {"GPUDEV_ADDRESS__HOST": value})
    except SettingsError as error:
        assert len(error.message.splitlines()) == 1
        assert error.message.startswith("environment GPUDEV_ADDRESS__HOST: ")


def test_every_setting_can_be_set_by_its_environment_name() -> None:
    """A key whose name in the environment meant something else could never be overridden."""
    names = {settings_module.ENV_PREFIX + name.upper() for name in Settings.model_fields}
    assert settings_module.CONFIG_ENV not in names
