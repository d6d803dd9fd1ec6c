"""Off is the default, and costs nothing: no import, no column, no field, no statement."""

import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.support.configs import dispatcher_config
from tests.support.dispatcher import DispatcherHarness
from tests.tracing.support import Collector, Traced, chain
from tracelake.settings import Settings, SettingsError

_IMPORTS = """
import sys
from tests.tracing.off import main
main(sys.argv[1:])
print(sorted(name for name in sys.modules if name.split(".")[0] in ("opentelemetry", "google", "requests")))
"""

_UUID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")

VALUES = {
    "http://127.0.0.1:4318": True,
    "https://collector.example:4318/some/path": True,
    "": True,
    "http://user:password@127.0.0.1:4318": False,
    "127.0.0.1:4318": False,
    "grpc://127.0.0.1:4317": False,
    "http://127.0.0.1:4318/?key=secret": False,
}

RATIOS = {"0": True, "0.25": True, "1": True, "1.1": False, "-1": False, "nan": False, "some": False}


@pytest.fixture
def plain(state_dsn: str, queue_dsn: str, tmp_path: Path) -> Iterator[Traced]:
    harness = DispatcherHarness.start(state_dsn, queue_dsn, tmp_path)
    flow = Traced(harness)
    flow.deploy(str(chain()))
    yield flow
    harness.stop()


def test_nothing_is_stored_or_handed_out(plain: Traced) -> None:
    header = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
    assert plain.post_trigger("chain", "src", header, cursor=5) == 200
    (task,) = plain.tasks("first")
    lease = plain.claim(task["task_id"])
    assert "traceparent" not in lease["task"]
    plain.complete(task["task_id"], lease, events=[plain.event("chain", "first", cursor=5)])
    assert plain.harness.dispatcher.tracing is None
    for table in ("events", "tasks"):
        rows = plain.harness.sql(f"SELECT count(*) AS all, count(traceparent) AS traced FROM {table}")
        assert (rows[0]["all"], rows[0]["traced"]) == (2, 0)


@pytest.mark.parametrize("arguments", [["dispatcher"], ["help"]])
def test_opentelemetry_is_not_imported(arguments: list[str]) -> None:
    done = subprocess.run(
        [sys.executable, "-c", _IMPORTS, *arguments], capture_output=True, text=True, check=True, cwd=Path.cwd()
    )
    assert done.stdout.splitlines()[-1] == "[]"


@contextmanager
def counted(harness: DispatcherHarness) -> Iterator[list[str]]:
    """The statements that the Dispatcher sends meanwhile."""
    sent: list[str] = []
    pool: Any = harness.dispatcher.ports.store._pool
    connections = [holder._con for holder in pool._holders if holder._con is not None]

    def note(record: Any) -> None:
        sent.append(_UUID.sub("org", record.query))

    async def listen(word: str) -> None:
        for connection in connections:
            getattr(connection, word)(note)

    harness.run(listen("add_query_logger"))
    yield sent
    harness.run(listen("remove_query_logger"))


def statements(flow: Traced) -> list[str]:
    """What a trigger and the attempt after it cost, once everything is known."""
    flow.trigger("chain", "src", cursor=1)
    flow.run_all("first", "second")
    with counted(flow.harness) as sent:
        flow.trigger("chain", "src", cursor=2)
        (task,) = flow.tasks("first", "Queued")
        lease = flow.claim(task["task_id"])
        flow.complete(task["task_id"], lease, events=[flow.event("chain", "first", cursor=2)])
    assert sent
    return sent


def test_tracing_adds_one_look_at_tasks_that_end(flow: Traced, plain_beside: Traced, seen: Collector) -> None:
    """And nothing to anything else."""
    traced, untraced = statements(flow), statements(plain_beside)
    more = [query for query in traced if "created_at FROM tasks WHERE task_id = ANY" in query]
    assert len(more) == 1
    traced.remove(more[0])
    assert traced == untraced


@pytest.fixture
def plain_beside(fresh_state_dsn: object, fresh_queue_dsn: object, tmp_path: Path) -> Iterator[Traced]:
    assert callable(fresh_state_dsn)
    assert callable(fresh_queue_dsn)
    (tmp_path / "beside").mkdir()
    harness = DispatcherHarness.start(fresh_state_dsn(), fresh_queue_dsn(), tmp_path / "beside")
    flow = Traced(harness)
    flow.deploy(str(chain()))
    yield flow
    harness.stop()


@pytest.mark.parametrize(("value", "good"), VALUES.items())
def test_the_address_of_a_collector(value: str, good: bool, tmp_path: Path) -> None:
    if good:
        assert Settings.load({"home": tmp_path, "otlp_endpoint": value}, environ={}).otlp_endpoint == value
    else:
        with pytest.raises(SettingsError, match="otlp_endpoint"):
            Settings.load({"home": tmp_path, "otlp_endpoint": value}, environ={})


@pytest.mark.parametrize(("value", "good"), RATIOS.items())
def test_the_ratio(value: str, good: bool, tmp_path: Path) -> None:
    environ = {"TRACE_OTLP_SAMPLE_RATIO": value}
    if good:
        assert Settings.load({"home": tmp_path}, environ=environ).otlp_sample_ratio == float(value)
    else:
        with pytest.raises(SettingsError, match="otlp_sample_ratio"):
            Settings.load({"home": tmp_path}, environ=environ)


def test_it_is_off_by_default(tmp_path: Path) -> None:
    settings = Settings.load({"home": tmp_path}, environ={})
    assert (settings.otlp_endpoint, settings.otlp_sample_ratio) == ("", 1.0)
    assert dispatcher_config().otlp_endpoint == ""
    assert Settings.load({"home": tmp_path}, environ=settings.to_environment()) == settings
