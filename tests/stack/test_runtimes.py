"""The runtimes file: what it adds and changes, and that nothing but a SettingsError in one sentence ever comes out."""

import contextlib
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tracelake.errors import TraceError
from tracelake.model.runtime import BUILT_IN, Runtime, RuntimeKind, RuntimeRegistry, resolve_timeout
from tracelake.processes.up import run_up
from tracelake.settings import Settings, SettingsError
from tracelake.settings.configs import dispatcher_config
from tracelake.settings.runtimes import load_runtimes, worker_queue


def settings(folder: Path, toml: str | bytes | None = None, **overrides: Any) -> Settings:
    if toml is not None:
        path = folder / "runtimes.toml"
        path.write_bytes(toml if isinstance(toml, bytes) else toml.encode())
        overrides["runtimes_file"] = path
    return Settings.load({"home": folder, **overrides}, environ={})


def load(home: Path, toml: str | bytes | None = None, **overrides: Any) -> RuntimeRegistry:
    return load_runtimes(settings(home, toml, **overrides))


def test_without_a_file_there_is_what_is_built_in(tmp_path: Path) -> None:
    assert load(tmp_path).runtimes == BUILT_IN.runtimes
    assert dispatcher_config(settings(tmp_path)).runtimes == load(tmp_path)


def test_an_empty_file_changes_nothing(tmp_path: Path) -> None:
    assert load(tmp_path, "") == load(tmp_path)


def test_runtimes_are_added(tmp_path: Path) -> None:
    registry = load(
        tmp_path,
        """
        [runtimes.ecs-spark]
        kind = "queue"
        image = "registry.example/spark:3"
        cpu = 2.5
        memory_mb = 4096
        default_timeout_seconds = 3600
        max_timeout_seconds = 7200

        [runtimes.named]
        kind = "queue"
        queue = "tasks.shared"

        [runtimes.other_lambda]
        kind = "invoke"

        [runtimes.control]
        kind = "in_process"
        """,
    )
    assert registry["ecs-spark"] == Runtime(
        "ecs-spark",
        RuntimeKind.QUEUE,
        queue="tasks.ecs-spark",
        image="registry.example/spark:3",
        cpu=2.5,
        memory_mb=4096,
        default_timeout_seconds=3600,
        max_timeout_seconds=7200,
    )
    assert registry["named"].queue == "tasks.shared"
    assert registry["other_lambda"] == Runtime("other_lambda", RuntimeKind.INVOKE, lease_is_timeout=True)
    assert registry["control"].queue is None
    assert set(registry.started_here()) == {"dispatcher", "lambda", "other_lambda", "control"}
    assert registry["ecs_platform"] == BUILT_IN["ecs_platform"]


def test_a_table_changes_the_fields_that_it_names(tmp_path: Path) -> None:
    registry = load(tmp_path, "[runtimes.lambda]\nmemory_mb = 512\n[runtimes.ecs_platform]\nqueue = 'tasks.all'\n")
    assert (registry["lambda"].memory_mb, registry["lambda"].max_timeout_seconds) == (512, 900)
    assert registry["lambda"].lease_is_timeout
    assert (registry["ecs_platform"].queue, registry["ecs_platform"].image) == ("tasks.all", "trace-worker")


def test_another_kind_begins_anew(tmp_path: Path) -> None:
    registry = load(tmp_path, "[runtimes.lambda]\nkind = 'queue'\n[runtimes.ecs_platform]\nkind = 'invoke'\n")
    assert registry["lambda"] == Runtime("lambda", RuntimeKind.QUEUE, queue="tasks.lambda")
    assert registry["ecs_platform"] == Runtime("ecs_platform", RuntimeKind.INVOKE, lease_is_timeout=True)


def test_operators_are_limited(tmp_path: Path) -> None:
    assert load(tmp_path, "[operators.noop]\nmax_concurrency = 3\n").operator_limits == {"noop": 3, "udf": 8}
    assert load(tmp_path, runner_slots=3).operator_limits == {"udf": 3}, "as many functions as a runner has slots"
    assert load(tmp_path, "[operators.udf]\nmax_concurrency = 24\n").operator_limits == {"udf": 24}


def test_the_setting_is_the_default_of_lambda_unless_the_file_says(tmp_path: Path) -> None:
    assert load(tmp_path, lambda_timeout_seconds=29.5)["lambda"].default_timeout_seconds == 30
    toml = "[runtimes.lambda]\ndefault_timeout_seconds = 20\n"
    assert load(tmp_path, toml, lambda_timeout_seconds=29.5)["lambda"].default_timeout_seconds == 20
    with pytest.raises(SettingsError, match="lambda_timeout_seconds must not be above 900"):
        load(tmp_path, lambda_timeout_seconds=901)
    toml = "[runtimes.lambda]\nmax_timeout_seconds = 1000\n"
    assert load(tmp_path, toml, lambda_timeout_seconds=901)["lambda"].default_timeout_seconds == 901


@pytest.mark.parametrize(
    ("toml", "where", "what"),
    [
        ("[runtimes.x]\nkind = 'queue'\nmemory = 5", "runtimes.x.memory", "did you mean memory_mb?"),
        ("[runtime.x]\nkind = 'queue'", "runtime", "did you mean runtimes?"),
        ("[operators.range_spliter]\nmax_concurrency = 1", "operators.range_spliter", "did you mean range_splitter?"),
        ("[operators.noop]\nmax_concurency = 1", "max_concurency", "did you mean max_concurrency?"),
        ("[operators.noop]", "operators.noop", "max_concurrency is missing"),
        ("[operators.noop]\nmax_concurrency = 0", "operators.noop.max_concurrency", "expected a whole number from 1"),
        ("[operators.noop]\nmax_concurrency = true", "expected a whole number", "not True"),
        ("[runtimes.x]\nqueue = 'tasks.x'", "runtimes.x", "a new runtime needs a kind"),
        ("[runtimes.x]\nkind = 'lambda'", "runtimes.x.kind", "one of queue, invoke, in_process, not 'lambda'"),
        ("[runtimes.x]\nkind = 1", "runtimes.x.kind", "not 1"),
        ("[runtimes.x]\nkind = 'invoke'\nqueue = 'tasks.x'", "runtimes.x", "of kind invoke has no queue"),
        ("[runtimes.dispatcher]\nqueue = 'tasks.x'", "runtimes.dispatcher", "of kind in_process has no queue"),
        ("[runtimes.x]\nkind = 'in_process'\ncpu = 1", "runtimes.x", "of kind in_process has no cpu"),
        ("[runtimes.x]\nkind = 'queue'\nqueue = 'buffers'", "runtimes.x.queue", "the name of a task queue"),
        ("[runtimes.x]\nkind = 'queue'\nqueue = 'Tasks X'", "runtimes.x.queue", "not 'Tasks X'"),
        ("[runtimes.x]\nkind = 'queue'\ncpu = 'two'", "runtimes.x.cpu", "a number of CPUs above 0"),
        ("[runtimes.x]\nkind = 'queue'\ncpu = nan", "runtimes.x.cpu", "not nan"),
        ("[runtimes.x]\nkind = 'queue'\ncpu = 0", "runtimes.x.cpu", "not 0"),
        ("[runtimes.x]\nkind = 'queue'\nmemory_mb = 1.5", "runtimes.x.memory_mb", "not 1.5"),
        ("[runtimes.x]\nkind = 'queue'\nimage = ''", "runtimes.x.image", "the name of an image"),
        ("[runtimes.x]\nkind = 'queue'\ndefault_timeout_seconds = 0", "default_timeout_seconds", "from 1 to 604800"),
        ("[runtimes.lambda]\ndefault_timeout_seconds = 901", "runtimes.lambda", "must not be above"),
        ("[runtimes.lambda]\nmax_timeout_seconds = 59", "runtimes.lambda", "must not be above"),
        ("[runtimes.Big]\nkind = 'queue'", "'Big'", "is no name for runtimes"),
        ("[runtimes.'x y']\nkind = 'queue'", "'x y'", "is no name for runtimes"),
        (f"[runtimes.{'x' * 65}]\nkind = 'queue'", "xxx", "is no name for runtimes"),
        ("runtimes = 1", "runtimes", "expected tables like [runtimes.NAME], not 1"),
        ("[runtimes]\nx = 1", "runtimes.x", "expected a table, not 1"),
        ("runtimes = [1]", "runtimes", "expected tables"),
        ("x", "is not valid TOML", ""),
        (b"\xff", "is not UTF-8 text", ""),
        ("a = " + "[" * 5000, "is not valid TOML", ""),
        ("# " + "x" * 1024 * 1024, "is larger than", ""),
    ],
)  # fmt: skip
def test_mistakes_are_named_in_one_sentence(tmp_path: Path, toml: str | bytes, where: str, what: str) -> None:
    with pytest.raises(SettingsError) as refused:
        load(tmp_path, toml)
    message = str(refused.value)
    assert where in message
    assert what in message
    assert str(tmp_path / "runtimes.toml") in message
    assert "\n" not in message
    assert len(message) < 400 + len(str(tmp_path))


def test_a_file_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="does not exist"):
        load(tmp_path, runtimes_file=tmp_path / "none.toml")
    with pytest.raises(SettingsError, match="cannot be read: Is a directory"):
        load(tmp_path, runtimes_file=tmp_path)


_VALUES = st.recursive(
    st.booleans()
    | st.integers(-5, 10**6)
    | st.floats()
    | st.sampled_from(["queue", "invoke", "in_process", "tasks.x"]),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.sampled_from(["kind", "a"]), inner, max_size=2),
    max_leaves=4,
)
_KEYS = st.sampled_from(
    ["kind", "queue", "image", "cpu", "memory_mb", "default_timeout_seconds", "max_timeout_seconds", "a.b", "Kind"]
)


def _toml(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key} = {_toml(item)}" for key, item in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(_toml, value)) + "]"
    return repr(value)


@given(
    tables=st.dictionaries(
        st.sampled_from(["lambda", "dispatcher", "ecs_platform", "new", "New", "-"]),
        st.dictionaries(_KEYS, _VALUES, max_size=4),
        max_size=3,
    )
)
def test_nothing_but_a_settings_error(tmp_path_factory: pytest.TempPathFactory, tables: dict[str, Any]) -> None:
    home = tmp_path_factory.mktemp("home")
    lines = []
    for name, table in tables.items():
        lines.append(f"[runtimes.{name}]")
        lines.extend(f"{key} = {_toml(value)}" for key, value in table.items())
    with contextlib.suppress(SettingsError):
        registry = load(home, "\n".join(lines))
        for runtime in registry.runtimes.values():
            assert (runtime.kind is RuntimeKind.QUEUE) == (runtime.queue is not None)
            assert resolve_timeout(runtime, None, 1800) <= (runtime.max_timeout_seconds or 10**9)


def test_a_worker_receives_from_the_queue_of_its_runtime(tmp_path: Path) -> None:
    toml = "[runtimes.shared]\nkind = 'queue'\nqueue = 'tasks.all'\n"
    for runtime, queue in (("ecs_platform", "tasks.ecs_platform"), ("shared", "tasks.all")):
        chosen = settings(tmp_path, toml, worker_runtime=runtime)
        assert worker_queue(chosen, load_runtimes(chosen)) == queue
    for runtime, words in (("ecs_platfrom", "did you mean ecs_platform?"), ("lambda", "started by the Dispatcher")):
        chosen = settings(tmp_path, toml, worker_runtime=runtime)
        with pytest.raises(SettingsError) as refused:
            worker_queue(chosen, load_runtimes(chosen))
        assert words in str(refused.value)


def test_a_stack_with_a_mistake_does_not_start(tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir()
    for bad in ({"toml": "[runtimes.x]"}, {"worker_runtime": "lambda"}):
        with pytest.raises(SettingsError):
            run_up(settings(tmp_path, home=home, **bad), lambda _home: pytest.fail("started"))
    assert list(home.iterdir()) == []


def test_children_read_the_same_file(tmp_path: Path) -> None:
    parent = settings(tmp_path, "[operators.noop]\nmax_concurrency = 3\n")
    child = Settings.load(environ=parent.to_environment())
    assert child.runtimes_file == parent.runtimes_file == tmp_path / "runtimes.toml"
    assert Settings.load(environ=settings(tmp_path).to_environment()).runtimes_file is None


def test_timeouts_are_resolved() -> None:
    plain = Runtime("plain", RuntimeKind.QUEUE, queue="tasks.plain")
    assert (resolve_timeout(plain, None, 1800), resolve_timeout(plain, 7, 1800)) == (1800, 7)
    assert resolve_timeout(BUILT_IN["lambda"], None, 1800) == 60
    assert resolve_timeout(BUILT_IN["lambda"], 900, 1800) == 900
    short = Runtime("short", RuntimeKind.INVOKE, max_timeout_seconds=10)
    assert resolve_timeout(short, None, 1800) == 10
    with pytest.raises(TraceError) as refused:
        resolve_timeout(BUILT_IN["lambda"], 901, 1800)
    assert (refused.value.code, refused.value.details) == ("job_invalid", {"field": "limits.timeout_seconds"})
