"""Settings: who wins, what is refused, and that nothing but SettingsError ever comes out."""

import contextlib
import dataclasses
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.chain import RECORDING
from tracelake.demo.recorded_chain import RecordedChain
from tracelake.dispatcher.config import DispatcherConfig
from tracelake.http.connections import ListenerLimits
from tracelake.scheduler import SchedulerConfig
from tracelake.settings import CHILD_VARIABLE, Settings, SettingsError, reference_markdown
from tracelake.settings.configs import dispatcher_config
from tracelake.settings.declarations import DECLARED
from tracelake.sink.config import SinkConfig
from tracelake.tokens.users import UserTokenRules
from tracelake.worker import WorkerConfig

SECRET = "postgresql://u:very-secret@db/x"


def load(home: Path, toml: str = "", environ: dict[str, str] | None = None, **overrides: object) -> Settings:
    if toml:
        (home / "settings.toml").write_text(toml)
    return Settings.load({"home": home, **overrides}, environ=environ or {})


def test_a_supervised_child_does_not_read_the_file(tmp_path: Path) -> None:
    (tmp_path / "settings.toml").write_text("nonsense = 1\n")
    with pytest.raises(SettingsError):
        Settings.load({"home": tmp_path}, environ={})
    assert Settings.load({"home": tmp_path}, environ={CHILD_VARIABLE: "1", "TRACE_WORKERS": "3"}).workers == 3


def test_the_defaults_are_the_documented_ones(tmp_path: Path) -> None:
    settings = load(tmp_path)
    assert (settings.lease_seconds, settings.heartbeat_seconds, settings.max_attempts) == (120, 30, 3)
    assert (settings.retry_min_seconds, settings.retry_max_seconds) == (30, 600)
    assert (settings.outbox_retry_min_seconds, settings.outbox_retry_max_seconds) == (1, 300)
    assert (settings.artifact_max_bytes, settings.outbox_max_tries) == (16 * 1024 * 1024, 20)
    assert settings.queue_max_receives == 10


def test_later_sources_win(tmp_path: Path) -> None:
    toml = "workers = 2\nworker_slots = 2\nmax_attempts = 2\n"
    environ = {"TRACE_WORKER_SLOTS": "3", "TRACE_MAX_ATTEMPTS": "3"}
    settings = load(tmp_path, toml, environ, max_attempts=4, relay_batch=None)
    assert (settings.workers, settings.worker_slots, settings.max_attempts) == (2, 3, 4)
    assert settings.relay_batch == 256


def test_the_recorded_chain_that_comes_with_trace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "example").touch()
    assert load(tmp_path, recorded_chain="example").recorded_chain == RECORDING
    assert load(tmp_path, recorded_chain="./example").recorded_chain == tmp_path / "example"
    assert load(tmp_path, "recorded_chain = 'example'").recorded_chain == RECORDING


def test_a_recorded_chain_that_is_not_there_is_refused_before_anything_starts(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=r"no file .*/exmple; example is the recording"):
        RecordedChain.plan(load(tmp_path, recorded_chain="exmple"))


def test_home_comes_from_the_environment_and_is_absolute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert Settings.load(environ={"TRACE_HOME": "here"}).home == tmp_path / "here"
    monkeypatch.setenv("HOME", str(tmp_path))
    assert Settings.load(environ={}).home == tmp_path / ".trace"


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("TRACE_TEST_CLOCK", "yes", True),
        ("TRACE_TEST_CLOCK", "0", False),
        ("TRACE_REAPER_SECONDS", "0.25", 0.25),
        ("TRACE_PUBLIC_PORT", "8443", 8443),
        ("TRACE_LOG_LEVEL", "debug", "debug"),
        ("TRACE_DATA_DSN", SECRET, SECRET),
        ("TRACE_DATA_DSN", "", None),
    ],
)
def test_variables_are_typed(tmp_path: Path, name: str, value: str, expected: object) -> None:
    settings = load(tmp_path, environ={name: value})
    assert getattr(settings, name.removeprefix("TRACE_").lower()) == expected


@pytest.mark.parametrize(
    ("environ", "message"),
    [
        ({"TRACE_LEASE_SECOND": "1"}, "did you mean TRACE_LEASE_SECONDS"),
        (
            {"TRACE_LEASE_SECONDS": "soon"},
            "lease_seconds .* expected a number of seconds above 0, not 'soon'",
        ),
        ({"TRACE_LEASE_SECONDS": "0"}, "lease_seconds"),
        ({"TRACE_LEASE_SECONDS": "nan"}, "lease_seconds"),
        ({"TRACE_LEASE_SECONDS": "inf"}, "lease_seconds"),
        ({"TRACE_PUBLIC_PORT": "65536"}, "public_port .* from 0 to 65535"),
        ({"TRACE_GROUP_COMMIT_MAX": "0"}, "group_commit_max .* from 1"),
        ({"TRACE_WORKERS": "1.5"}, "workers"),
        ({"TRACE_LOG_LEVEL": "loud"}, "one of debug, info, warning, error"),
        ({"TRACE_TEST_CLOCK": "maybe"}, "true or false"),
        ({"TRACE_STATE_DSN": SECRET}, "belong together"),
        ({"TRACE_LEASE_SECONDS": "10"}, r"heartbeat_seconds \(30\) must not be above lease_seconds \(10\)"),
    ],
)
def test_what_cannot_be_used_is_refused(tmp_path: Path, environ: dict[str, str], message: str) -> None:
    with pytest.raises(SettingsError, match=message):
        load(tmp_path, environ=environ)


@pytest.mark.parametrize(
    "master",
    [
        "local",
        "local[4]",
        "local[*]",
        "local[2,3]",
        "local[*,4]",
        "spark://one.example:7077",
        "spark://one:7077,two:7077",
        "spark://[::1]:7077",
        "sc://host",
        "sc://host:15002/;use_ssl=true",
        "yarn",
        "k8s://https://host:443",
    ],
)
def test_masters_of_spark(tmp_path: Path, master: str) -> None:
    assert load(tmp_path, environ={"TRACE_SPARK_MASTER": master}).spark_master == master


@pytest.mark.parametrize(
    "master",
    [
        "lokal",
        "local[]",
        "local[0]",
        "local[x]",
        "local[2",
        "local[2,0]",
        "local[*]x",
        "spark://host",
        "spark:/host:7077",
        "host:7077",
        "http://host:7077",
        "sc://",
        "k8s://",
        "yarn-client",
    ],
)
def test_masters_that_spark_does_not_have(tmp_path: Path, master: str) -> None:
    with pytest.raises(SettingsError, match=r"spark_master .* expected a master: local\[\*\], .* spark://host:7077, "):
        load(tmp_path, environ={"TRACE_SPARK_MASTER": master})


@pytest.mark.parametrize(
    ("toml", "message"),
    [
        ("wrokers = 1", "did you mean workers"),
        ("workers = true", "workers .* not True"),
        ("workers = 'many'", "workers"),
        ("test_clock = 1", "true or false"),
        ("home = '/elsewhere'", "cannot be set in"),
        ("workers = ", "not valid TOML"),
        ("a = " + "[" * 5000, "not valid TOML"),
    ],
)
def test_the_file_is_strict(tmp_path: Path, toml: str, message: str) -> None:
    with pytest.raises(SettingsError, match=message):
        load(tmp_path, toml)


def test_a_file_that_is_not_text_is_refused(tmp_path: Path) -> None:
    (tmp_path / "settings.toml").write_bytes(b"\xff\xfe")
    with pytest.raises(SettingsError, match="UTF-8"):
        load(tmp_path)


def test_secrets_are_never_repeated(tmp_path: Path) -> None:
    settings = load(tmp_path, environ={"TRACE_DATA_DSN": SECRET})
    assert "very-secret" not in repr(settings)
    assert "very-secret" not in str(settings.to_environment())
    with pytest.raises(SettingsError) as caught:
        load(tmp_path, environ={"TRACE_DATA_DSN": "very-secret"})
    assert "very-secret" not in str(caught.value)


def test_internal_variables_are_not_settings(tmp_path: Path) -> None:
    load(tmp_path, environ={"TRACE_LISTEN_FDS": "public=3", "TRACE_TASK_CAPABILITY_TOKEN": "x", "PATH": "/"})


def test_a_child_reads_the_same_settings(tmp_path: Path) -> None:
    settings = load(tmp_path, "workers = 7\n", {"TRACE_REAPER_SECONDS": "0.123456789"}, workers=1)
    assert Settings.load(environ=settings.to_environment()) == settings


def test_dsns_of_embedded_clusters_come_from_their_files(tmp_path: Path) -> None:
    settings = load(tmp_path)
    with pytest.raises(SettingsError, match="trace up"):
        settings.resolve_state_dsn()
    settings.layout.make()
    for name in ("state", "queue", "data", "data_read"):
        (tmp_path / "secrets" / f"{name}.dsn").write_text(f"{SECRET}{name}\n")
    assert settings.resolve_state_dsn() == f"{SECRET}state"
    assert settings.resolve_queue_dsn() == f"{SECRET}queue"
    assert settings.resolve_data_dsn() == f"{SECRET}data"
    assert settings.resolve_data_read_dsn() == f"{SECRET}data_read"
    own = dataclasses.replace(settings, data_dsn=SECRET)
    assert own.resolve_data_dsn() == own.resolve_data_read_dsn() == SECRET
    read_only = dataclasses.replace(own, data_read_dsn=f"{SECRET}reader")
    assert (read_only.resolve_data_dsn(), read_only.resolve_data_read_dsn()) == (SECRET, f"{SECRET}reader")


def test_every_setting_is_documented() -> None:
    page = reference_markdown()
    for spec in dataclasses.fields(Settings):
        assert f"| `{spec.name}` | `TRACE_{spec.name.upper()}` |" in page
        assert spec.metadata["doc"].endswith(".")


_NAMES = [spec.name for spec in dataclasses.fields(Settings)]
_TEXT = st.text(st.characters(exclude_characters="\0"), max_size=40)


@given(
    st.dictionaries(
        st.sampled_from([f"TRACE_{name.upper()}" for name in _NAMES]) | _TEXT.map(lambda text: f"TRACE_{text}"),
        _TEXT | st.integers().map(str) | st.floats().map(str) | st.sampled_from(["9" * 5000, "~nobody-here"]),
        max_size=4,
    )
)
def test_any_environment_gives_settings_or_a_settings_error(environ: dict[str, str]) -> None:
    with contextlib.suppress(SettingsError):
        Settings.load(environ=environ)


_VALUES = st.none() | st.booleans() | st.integers() | st.floats() | _TEXT | st.binary() | st.lists(st.integers())


@given(st.dictionaries(st.sampled_from(_NAMES) | _TEXT, _VALUES, max_size=4))
def test_any_override_gives_settings_or_a_settings_error(overrides: dict[str, Any]) -> None:
    with contextlib.suppress(SettingsError):
        Settings.load(overrides, environ={})


@given(st.binary(max_size=200) | _TEXT.map(lambda text: f"workers = {text}".encode("utf-8", "surrogatepass")))
def test_any_file_gives_settings_or_a_settings_error(content: bytes) -> None:
    with tempfile.TemporaryDirectory() as home:
        (Path(home) / "settings.toml").write_bytes(content)
        with contextlib.suppress(SettingsError):
            Settings.load({"home": home}, environ={})


PARTS = (
    (DispatcherConfig, ""),
    (UserTokenRules, "user_"),
    (ListenerLimits, "http_"),
    (WorkerConfig, ""),
    (SinkConfig, "sink_"),
    (SchedulerConfig, "scheduler_"),
)


@pytest.mark.parametrize(("config", "prefix"), PARTS)
def test_a_default_is_declared_once(config: Any, prefix: str) -> None:
    """A part has none of its own for what is a setting."""
    own = [spec for spec in dataclasses.fields(config) if prefix + spec.name in DECLARED]
    assert own
    for spec in own:
        assert spec.default is dataclasses.MISSING, spec.name
        assert spec.default_factory is dataclasses.MISSING, spec.name


def test_the_dispatcher_is_given_every_setting_of_its_names() -> None:
    defaults: dict[str, Any] = {name: spec.default for name, spec in DECLARED.items()}
    numbers: dict[str, Any] = {name: d + 1 for name, d in defaults.items() if type(d) in (int, float) and d > 1}
    settings = dataclasses.replace(Settings(), **numbers)
    config = dispatcher_config(settings)
    names = {spec.name for spec in dataclasses.fields(config)} & {*numbers}
    assert len(names) > 25
    assert {name: getattr(config, name) for name in names} == {name: numbers[name] for name in names}
