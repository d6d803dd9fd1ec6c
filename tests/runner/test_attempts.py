"""Attempts that the runner takes over: how they end at the Dispatcher, and that none runs twice."""

import asyncio
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pytest

from tests.runner.support import RunnerHarness, running
from tests.support.dispatcher import DispatcherHarness
from tracelake.ports import InvokeError
from tracelake.runner.inside import PORTS

SLEEP = "import time\ndef handler(event, context):\n    print('began', flush=True)\n    time.sleep(600)"


@pytest.fixture
def runner(state_dsn: str, queue_dsn: str, tmp_path: Path) -> Iterator[RunnerHarness]:
    harness = DispatcherHarness.start(state_dsn, queue_dsn, tmp_path)
    try:
        with running(harness, tmp_path / "runner") as item:
            yield item
    finally:
        harness.stop()


def test_returning_completes_and_raising_fails(runner: RunnerHarness) -> None:
    completed = runner.run("def handler(event, context):\n    return {'seen': event['task_id']}")
    assert completed.status == "Completed"
    failed = runner.run("def handler(event, context):\n    raise ValueError(event['capability_token'])")
    row = runner.dispatcher.row(str(failed.invocation.task_id))
    assert row["status"] == "Failed"
    assert row["error"].startswith('ValueError: [redacted]\n  File "/var/task/main.py", line 2, in handler')
    assert failed.invocation.capability_token not in row["error"]
    assert row["next_retry_at"] is not None


def test_a_bundle_that_is_not_the_one_that_was_named(runner: RunnerHarness) -> None:
    bundle = runner.store.add({"main.py": "def handler(event, context): pass"})
    other = runner.store.add({"main.py": "def handler(event, context): 1234"})
    runner.store.archives[bundle.sha256] = runner.store.archives[other.sha256]
    started = runner.invocation(bundle)
    runner.dispatcher.run(runner.invoke(started.invocation))
    runner.dispatcher.run(runner.application.service.settle())
    row = runner.dispatcher.row(str(started.invocation.task_id))
    assert (row["status"], row["next_retry_at"]) == ("Failed", None)
    assert "its size or SHA-256 differs" in row["error"]
    assert bundle.url not in row["error"]


def test_a_repeated_call_starts_nothing(runner: RunnerHarness) -> None:
    source = "import os\ndef handler(event, context):\n    pass"
    started = runner.invocation(runner.store.add({"main.py": source}))

    async def repeat() -> None:
        await asyncio.gather(*(runner.invoke(started.invocation) for _ in range(5)))
        await runner.application.service.settle()
        await runner.invoke(started.invocation)
        await runner.application.service.settle()

    runner.dispatcher.run(repeat())
    assert started.status == "Completed"
    assert runner.endings() == {"completed": 1}


def test_a_stale_attempt_is_ended(runner: RunnerHarness) -> None:
    """Canceled and claimed again by somebody else while the function sleeps."""
    started = runner.invocation(runner.store.add({"main.py": SLEEP}))
    runner.dispatcher.run(runner.invoke(started.invocation))
    runner.dispatcher.sql(
        "UPDATE tasks SET attempt = attempt + 1, lease_token = gen_random_uuid() WHERE task_id = $1",
        str(started.invocation.task_id),
    )
    runner.dispatcher.run(runner.application.service.settle(), timeout=30)
    assert runner.endings() == {"fenced": 1}
    assert started.status == "Running", "the newer attempt is not touched"


def test_cancel_ends_the_function(runner: RunnerHarness) -> None:
    started = runner.invocation(runner.store.add({"main.py": SLEEP}))
    runner.dispatcher.run(runner.invoke(started.invocation))
    reply = runner.dispatcher.service("POST", f"/internal/tasks/{started.invocation.task_id}/cancel")
    assert reply.status == 200
    runner.dispatcher.run(runner.application.service.settle())
    assert started.status == "Canceled"


def test_a_runner_that_stops_hands_over(runner: RunnerHarness) -> None:
    started = runner.invocation(runner.store.add({"main.py": SLEEP}))
    before = runner.dispatcher.row(str(started.invocation.task_id))
    runner.dispatcher.run(runner.invoke(started.invocation))
    runner.dispatcher.run(runner.application.close())
    row = runner.dispatcher.row(str(started.invocation.task_id))
    assert (row["status"], row["attempt"]) == ("Failed", 1)
    assert "stopped" in row["error"]
    assert runner.dispatcher.requeue_due() == 1, "it is tried again at once"
    assert row["max_attempts"] == before["max_attempts"] + 1, "and has lost no attempt"


def test_runs_are_counted_by_org_and_bundle(runner: RunnerHarness) -> None:
    noisy = "import http.client\ndef handler(event, context):\n    link = http.client.HTTPConnection('127.0.0.1:9002')"
    noisy += "\n    for _ in range(3):\n        link.request('GET', '/elsewhere'); link.getresponse().read()"
    bundle = runner.store.add({"main.py": noisy.replace("9002", str(PORTS[1]))})
    slow = runner.store.add({"main.py": SLEEP}, timeout_seconds=1)
    for ref in (bundle, bundle, slow):
        runner.dispatcher.run(runner.invoke(runner.invocation(ref).invocation))
        runner.dispatcher.run(runner.application.service.settle())
    samples = runner.samples()
    mine = {"org": "acme", "bundle": str(bundle.bundle_id)}
    assert samples("trace_function_runs_total", **mine, ending="completed") == 2
    assert samples("trace_function_seconds_count", **mine) == 2
    assert samples("trace_function_refused_requests_total", **mine) == 6
    assert samples("trace_function_kills_total", **mine) == 0
    assert samples("trace_function_kills_total", bundle=str(slow.bundle_id), reason="timeout") == 1
    assert 0 <= samples("trace_function_cold_starts_total", **mine) <= 2


def test_an_unpacked_bundle_that_was_changed_is_fetched_again(runner: RunnerHarness) -> None:
    source = "def handler(event, context):\n    raise ValueError('as it was pushed')"
    bundle = runner.store.add({"main.py": source, "data/words.txt": "one"})

    def run() -> str:
        started = runner.invocation(bundle)
        runner.dispatcher.run(runner.invoke(started.invocation))
        runner.dispatcher.run(runner.application.service.settle())
        error: str = runner.dispatcher.row(str(started.invocation.task_id))["error"]
        return error.splitlines()[0]

    assert run() == "ValueError: as it was pushed"
    place = runner.directory / "bundles" / bundle.sha256
    main = place / "main.py"

    def overwrite() -> None:
        times = main.stat()
        main.chmod(0o644)
        main.write_text(source.replace("pushed", "forged"))  # as long as before
        main.chmod(0o444)
        os.utime(main, ns=(times.st_atime_ns, times.st_mtime_ns))

    def plant() -> None:
        place.chmod(0o755)
        (place / "json.py").write_text("raise SystemExit")

    def replace_file() -> None:
        (place / "data").chmod(0o755)
        (place / "data" / "words.txt").unlink()
        (place / "data" / "words.txt").write_text("two")

    changes: list[Callable[[], object]] = [overwrite, plant, replace_file]
    changes += [lambda: main.chmod(0o755), lambda: shutil.rmtree(place)]
    for number, change in enumerate(changes, 1):
        change()
        assert run() == "ValueError: as it was pushed"
        assert runner.samples()("trace_function_changed_bundles_total") == number
    assert run() == "ValueError: as it was pushed"
    assert runner.samples()("trace_function_changed_bundles_total") == len(changes), "one as it was left is used"
    main.chmod(0o644)
    main.write_text("pass")
    runner.store.archives.clear()
    assert run().startswith("bundle: the object store answered 404"), "and never used as it is"


def test_a_newer_attempt_ends_the_older_one_first(runner: RunnerHarness) -> None:
    bundle = runner.store.add({"main.py": SLEEP})
    started = runner.invocation(bundle)
    newer = msgspec.structs.replace(started.invocation, attempt=started.invocation.attempt + 1)
    quick = runner.store.add({"main.py": "def handler(event, context): pass"})

    async def take_both() -> None:
        await runner.invoke(started.invocation)
        await runner.invoke(msgspec.structs.replace(newer, bundle=quick))
        with pytest.raises(InvokeError, match="fenced"):
            await runner.invoke(msgspec.structs.replace(started.invocation))
        await runner.application.service.settle()

    runner.dispatcher.run(take_both())
    assert runner.endings()["fenced"] == 1


def test_what_cannot_run_is_refused(runner: RunnerHarness) -> None:
    with pytest.raises(InvokeError, match="runner_refused") as refusal:
        runner.dispatcher.run(runner.invoke(runner.invocation(None).invocation))
    assert not refusal.value.retryable
    runner.application.service._problem = "the sandbox is not tight: it has root's user id"
    with pytest.raises(InvokeError, match="not tight") as refusal:
        runner.dispatcher.run(runner.invoke(runner.invocation(None).invocation))
    assert not refusal.value.retryable
    reply = runner.dispatcher.run(runner.invoker._runner._http.request("POST", "/internal/invocations", body=b"{}"))  # type: ignore[union-attr]
    assert reply.status == 401
