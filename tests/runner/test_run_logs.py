"""Logs of attempts: stored while a function runs and at its end, whatever ends it and whatever the store does."""

import asyncio
from collections.abc import Callable, Iterator
from contextvars import Context
from dataclasses import replace
from itertools import pairwise
from typing import Any, TypeVarTuple

import msgspec
import pytest

from tests.conformance.invoker_suite import Started
from tests.runner.log_store import LogStore, open_log_store
from tests.runner.support import RunnerHarness, running
from tests.support.dispatcher import DispatcherHarness
from tests.support.harnesses import harness_of_module as dispatcher
from tests.support.postgres import wait_until
from tracelake.runner import run_log
from tracelake.runner.outcome import RunEnding, RunResult
from tracelake.runner.output import KEPT_BYTES, RunOutput
from tracelake.runner.run_log import LogUploads, RunLogWriter, describe_run
from tracelake.runner.runtime_api import FunctionError
from tracelake.wire.run_logs import MAX_LOG_BYTES, RunLog

__all__ = ["dispatcher"]

SLEEP = "import time\ndef handler(event, context):\n    print('began', flush=True)\n    time.sleep(600)"


@pytest.fixture
def store() -> Iterator[LogStore]:
    with open_log_store() as item:
        yield item


@pytest.fixture(scope="module")
def harness(dispatcher: DispatcherHarness, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunnerHarness]:
    with running(dispatcher, tmp_path_factory.mktemp("runner")) as item:
        service = item.application.service
        service._tools = replace(service._tools, log_seconds=0.05)
        yield item


def begin(harness: RunnerHarness, store: LogStore, source: str, **fields: Any) -> Started:
    started = harness.invocation(harness.store.add({"main.py": source}, **fields))
    invocation = msgspec.structs.replace(started.invocation, log=store.addresses())
    harness.dispatcher.run(harness.invoke(invocation))
    return Started(harness.dispatcher, invocation)


def settle(harness: RunnerHarness) -> None:
    harness.dispatcher.run(harness.application.service.settle())
    harness.dispatcher.run(harness.application.logs.settle())


def test_a_failure_is_stored_with_its_frames_and_its_output(harness: RunnerHarness, store: LogStore) -> None:
    source = (
        "import sys, urllib.request\n"
        "def handler(event, context):\n"
        "    print('to stdout', event['capability_token'], event.get('log'))\n"
        "    print('to stderr', event['lease_token'], file=sys.stderr)\n"
        "    try:\n"
        "        urllib.request.urlopen('http://127.0.0.1:9002/other')\n"
        "    except OSError:\n"
        "        pass\n"
        "    raise ValueError('on purpose ' + event['capability_token'])\n"
    )
    started = begin(harness, store, source)
    settle(harness)
    log = store.log("run/final")
    assert log.ending == "error"
    assert log.error is not None
    assert (log.error.type, log.error.message) == ("ValueError", "on purpose [redacted]")
    assert "main.py" in log.error.frames[-1]
    assert log.stdout.text == "to stdout [redacted] None\n", "the addresses stay outside of the sandbox"
    assert log.stderr.text.startswith("to stderr [redacted]\n")
    assert log.seconds > 0
    assert log.peak_bytes > 0
    body = store.objects["run/final"].decode()
    for secret in (started.invocation.capability_token, str(started.invocation.lease_token), "X-Amz-Signature=cd"):
        assert secret not in body
    assert harness.dispatcher.row(str(started.invocation.task_id))["status"] == "Failed"


def test_output_is_stored_while_the_function_runs(harness: RunnerHarness, store: LogStore) -> None:
    started = begin(harness, store, SLEEP)
    wait_until(lambda: "run/running" in store.objects, "the log of the running function")
    assert store.log("run/running") == RunLog(
        seconds=store.log("run/running").seconds, stdout=store.log("run/running").stdout
    )
    assert store.log("run/running").stdout.text == "began\n"
    assert "run/final" not in store.objects
    harness.dispatcher.service("POST", f"/internal/tasks/{started.invocation.task_id}/cancel")
    settle(harness)
    assert (store.log("run/final").ending, store.log("run/final").stdout.text) == ("canceled", "began\n")


@pytest.mark.parametrize(
    ("source", "fields", "ending"),
    [
        (SLEEP, {"timeout_seconds": 1}, "timeout"),
        ("import os\ndef handler(event, context):\n    print('last words', flush=True)\n    os._exit(3)", {}, "exit"),
        ("def handler(event, context):\n    print('big', flush=True)\n    bytearray(900 * 2**20)", {}, ""),
        ("def handler(event, context):\n    while True: print('f' * 60_000)", {}, "output"),
        ("def handler(event, context):\n    return 1", {}, "completed"),
    ],
    ids=["timeout", "exit", "memory", "flood", "completed"],
)
def test_every_ending_has_a_log(
    harness: RunnerHarness, store: LogStore, source: str, fields: dict[str, Any], ending: str
) -> None:
    begin(harness, store, source, **fields)
    settle(harness)
    log = store.log("run/final")
    assert log.ending == ending or (not ending and log.ending in ("memory", "error", "signal"))
    assert all(size <= MAX_LOG_BYTES for _, size in store.uploads)
    if ending == "output":
        assert log.stdout.end - log.stdout.start <= KEPT_BYTES
        assert log.stdout.start > 0


def test_a_bundle_that_cannot_be_fetched_has_a_log(harness: RunnerHarness, store: LogStore) -> None:
    bundle = harness.store.add({"main.py": "def handler(event, context): pass  # gone"})
    harness.store.archives.pop(bundle.sha256)
    started = harness.invocation(bundle)
    harness.dispatcher.run(harness.invoke(msgspec.structs.replace(started.invocation, log=store.addresses())))
    settle(harness)
    assert store.log("run/final").ending == "bundle"
    assert bundle.url not in store.log("run/final").message


def test_a_fenced_attempt_keeps_its_own_log(harness: RunnerHarness, store: LogStore) -> None:
    started = begin(harness, store, SLEEP)
    wait_until(lambda: "run/running" in store.objects, "the function runs")
    quick = harness.store.add({"main.py": "def handler(event, context): print('newer')"})
    newer = msgspec.structs.replace(
        started.invocation, attempt=started.invocation.attempt + 1, bundle=quick, log=store.addresses("newer")
    )
    harness.dispatcher.run(harness.invoke(newer))
    settle(harness)
    assert (store.log("run/final").ending, store.log("run/final").stdout.text) == ("fenced", "began\n")
    assert store.log("newer/final").stdout.text == "newer\n"


def test_a_store_that_is_away_fails_no_attempt(
    harness: RunnerHarness, store: LogStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The report does not wait for the log, which is stored once the store is back."""
    monkeypatch.setattr(run_log, "_BEFORE_REPORT_SECONDS", 0.1)
    store.statuses = [503, 0, 503]
    started = begin(harness, store, "def handler(event, context): print('kept')")
    harness.dispatcher.run(harness.application.service.settle())
    assert started.status == "Completed"
    assert "run/final" not in store.objects, "or the report waited for the log"
    harness.dispatcher.run(harness.application.logs.settle())
    assert store.log("run/final").stdout.text == "kept\n"
    assert store.statuses == []


def test_an_address_that_is_refused_is_not_tried_again(harness: RunnerHarness, store: LogStore) -> None:
    store.statuses = [403, 200]
    started = begin(harness, store, "def handler(event, context): pass")
    settle(harness)
    assert started.status == "Completed"
    assert [name for name, _ in store.uploads] == ["run/final"]


# --- without a sandbox


def run_result(**fields: Any) -> RunResult:
    values: dict[str, Any] = {"ending": RunEnding.ERROR, "seconds": 1.0}
    return RunResult(**(values | fields))


def test_the_final_log_is_never_replaced(store: LogStore) -> None:
    """A late upload of the running function, and a second final log, arrive after the final one."""

    async def send() -> None:
        output = RunOutput()
        uploads = LogUploads()
        writer = RunLogWriter(store.addresses(), output, [], uploads)
        output.stdout.feed(b"old\n")
        late = msgspec.json.encode(RunLog(stdout=run_log._stored(output.stdout)))
        output.stdout.feed(b"new\n")
        await writer.finish(run_result(), {})
        await uploads.store(store.addresses().running_url, late)
        await writer.finish(run_result(ending=RunEnding.FENCED), {})
        await uploads.settle()

    asyncio.run(send())
    assert (store.log("run/final").ending, store.log("run/final").stdout.text) == ("error", "old\nnew\n")
    assert store.log("run/running").stdout.text == "old\n"


Arguments = TypeVarTuple("Arguments")


class ImpatientLoop(asyncio.SelectorEventLoop):
    """A loop on a clock of its own: what is to happen later happens at once."""

    now = 0.0

    def time(self) -> float:
        return self.now

    def call_later(
        self, delay: float, callback: Callable[[*Arguments], object], *args: *Arguments, context: Context | None = None
    ) -> asyncio.TimerHandle:
        self.now += delay
        return self.call_at(self.now, callback, *args, context=context)


def test_uploads_while_running_are_few(store: LogStore) -> None:
    """An hour of a function that never stops printing."""
    loop, output, sent = ImpatientLoop(), RunOutput(), []

    class Uploads(LogUploads):
        async def store(self, url: str, body: bytes) -> bool:
            if loop.now > 3600:
                raise asyncio.CancelledError
            sent.append(loop.now)
            output.stdout.feed(b"more\n")
            return True

    async def follow() -> None:
        output.stdout.feed(b"more\n")
        with pytest.raises(asyncio.CancelledError):
            await RunLogWriter(store.addresses(), output, [], Uploads()).follow()

    with asyncio.Runner(loop_factory=lambda: loop) as runner:
        runner.run(follow())
    assert 100 < len(sent) < 400
    assert min(later - earlier for earlier, later in pairwise(sent)) >= 2


def test_errors_are_redacted_before_they_are_cut() -> None:
    secret = "s" * 50
    error = FunctionError(
        error_type="T" * 190 + secret, error_message="m" * 15_990 + secret, stack_trace=["f" * 1_990 + secret] * 100
    )
    log = describe_run(run_result(error=error), {"host": 2}, RunOutput(), [secret])
    assert log.error is not None
    assert "sss" not in msgspec.json.encode(log).decode()
    assert len(log.error.frames) == 51
    assert log.refused == {"host": 2}


def test_logs_of_a_store_that_stays_away_take_bounded_memory(store: LogStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_log, "_MOST_WAITING_BYTES", 1000)
    outcomes: list[str] = []

    async def send() -> None:
        uploads = LogUploads(outcomes.append)
        gone = "http://127.0.0.1:9/log?x=1"
        for _ in range(5):
            await uploads.store_final(gone, b"x" * 400, wait_seconds=0)
        assert len(uploads._waiting) == 2
        monkeypatch.setattr(run_log, "_BEFORE_REPORT_SECONDS", 0)
        await uploads.close()
        assert not uploads._waiting

    asyncio.run(send())
    assert outcomes == ["failed"] * 3
