"""Logs of attempts in a worker: which line belongs to which attempt, what is blanked and cut, and when it is sent."""

import asyncio
import json
import logging
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from uuid import UUID, uuid4

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.worker.conftest import Bench
from tests.worker.fake_dispatcher import FakeTask, until
from tracelake.errors import StoreUnavailableError, TraceError
from tracelake.model.backoff import Backoff
from tracelake.model.log_attribution import ATTEMPT_KEY, attempt_key, carry_key
from tracelake.ports import SecretValues
from tracelake.spark.child.serve import log_failure
from tracelake.spark.gateway import LogRelay
from tracelake.wire.run_logs import MAX_LINE_CHARACTERS, AttemptLogReport, StoreLogsReply, StoreLogsRequest
from tracelake.worker import NonRetryableError, OperatorContext, OperatorResult
from tracelake.worker.attempt_log import KEPT_BYTES, AttemptLog
from tracelake.worker.log_uploads import AttemptLogs
from tracelake.worker.operators import Operator

logger = logging.getLogger("tracelake.spark.test_operator")
TOKEN = "eyJhbGciOiJFUzI1NiJ9.eyJzdWIiOiJhYmMifQ.c2lnbmF0dXJlLXRoYXQtaXMtbG9uZw"
SIGNED = "http://store/bucket/key?X-Amz-Credential=AKIA1/x&X-Amz-Signature=0123456789abcdef"


@pytest.fixture(autouse=True)
def info_level() -> Iterator[None]:
    root = logging.getLogger()
    level = root.level
    root.setLevel(logging.INFO)
    yield
    root.setLevel(level)


def operate(bench: Bench, work: Callable[[OperatorContext], OperatorResult], *, inline: bool = False) -> None:
    bench.operators["sleep"] = Operator(work, inline=inline)


async def run(bench: Bench, *tasks: FakeTask) -> list[AttemptLogReport]:
    """The logs that arrived when the worker has ended."""
    async with bench.working():
        await bench.wake(*tasks)
        await until(lambda: all(task.final for task in tasks), "all tasks")
    return [bench.dispatcher.logs[task.task_id, task.attempt] for task in tasks]


def texts(report: AttemptLogReport) -> list[str]:
    return [line.text for line in report.lines]


def test_attempts_that_run_at_once_never_mix(bench: Bench) -> None:
    together = threading.Barrier(4)

    def work(context: OperatorContext) -> OperatorResult:
        together.wait(30)
        with ThreadPoolExecutor(2) as threads:
            for number in range(20):
                logger.info("line %d of %s", number, context.task_id)
                threads.submit(carry_key(logger.info), "thread %d of %s", number, context.task_id)
        context.progress(f"progress of {context.task_id}")
        return OperatorResult()

    operate(bench, work)
    tasks = [bench.dispatcher.add("sleep", {"seconds": 0}) for _ in range(4)]
    reports = asyncio.run(run(bench, *tasks))
    for task, report in zip(tasks, reports, strict=True):
        lines = [line for line in report.lines if line.source == "operator"]
        assert len(lines) == 41
        assert all(str(task.task_id) in line.text for line in lines)
        assert f"progress of {task.task_id}" in texts(report)
        others = {str(other.task_id) for other in tasks} - {str(task.task_id)}
        assert not any(other in text for other in others for text in texts(report))


def test_the_life_of_an_attempt_is_told(bench: Bench) -> None:
    operate(bench, lambda _context: OperatorResult())
    (report,) = asyncio.run(run(bench, bench.dispatcher.add("sleep", {"seconds": 0})))
    assert texts(report) == ["attempt 1 of sleep claimed by worker test-worker", "completed"]
    assert (report.ending, report.start, {line.source for line in report.lines}) == ("completed", 0, {"worker"})


@pytest.mark.parametrize("error", [NonRetryableError("the rows are wrong"), ValueError("the rows are wrong")])
def test_what_nobody_expected_is_told_with_its_traceback_and_without_our_paths(bench: Bench, error: Exception) -> None:
    def work(_context: OperatorContext) -> OperatorResult:
        raise error

    operate(bench, work)
    (report,) = asyncio.run(run(bench, bench.dispatcher.add("sleep", {"seconds": 0})))
    assert report.ending == "failed"
    *_, failure, end = report.lines
    assert failure.level == "warning"
    if isinstance(error, NonRetryableError):
        assert failure.text == "operator failed: the rows are wrong"
    else:
        assert failure.text.splitlines()[0] == "operator failed"
        assert 'File "tracelake/worker/wrapper.py"' in failure.text
    name = "" if isinstance(error, NonRetryableError) else "ValueError: "
    assert (end.level, end.text.splitlines()[0]) == ("error", f"failed: {name}the rows are wrong")


def test_an_error_of_a_query_is_logged_in_the_words_of_its_report(caplog: pytest.LogCaptureFixture) -> None:
    raised = RuntimeError('[DIVIDE_BY_ZERO] Division by zero. If necessary set "spark.sql.ansi.enabled" to "false".')
    log_failure(raised, NonRetryableError("[DIVIDE_BY_ZERO] Division by zero."))
    log_failure(raised, raised)
    told, unexpected = caplog.records
    assert (told.getMessage(), told.exc_info) == ("operator failed: [DIVIDE_BY_ZERO] Division by zero.", None)
    assert unexpected.exc_info is not None


def test_secrets_tokens_and_signed_addresses_are_blanked(bench: Bench) -> None:
    log = AttemptLog(uuid4(), 1, SecretValues({"KEY": "hunter2 of acme"}).hide)
    log.add("info", "operator", f"the key is hunter2 of acme, {TOKEN}")
    log.add("info", "operator", f"get {SIGNED} with Bearer abcdef and postgresql://me:pass@host/db")
    log.add("info", "operator", "x" * (MAX_LINE_CHARACTERS - 5) + " hunter2 of acme")
    text = "".join(line.text for line in log.tail.lines)
    for secret in ("hunter2", "acme", TOKEN[:20], "0123456789abcdef", "AKIA1", "abcdef", "pass@"):
        assert secret not in text
    assert max(len(line.text) for line in log.tail.lines) <= MAX_LINE_CHARACTERS


@pytest.mark.parametrize("word", ["a", "x-trace-", "a://", "://:", "eyJ", "X-Amz-Signature=", "password:", "A_-"])
def test_hostile_lines_cost_little(word: str) -> None:
    """A pattern that looks at a long word again from each of its letters would take minutes."""
    log = AttemptLog(UUID(int=1), 1)
    log.add("info", "operator", word * 200_000)
    (line,) = log.tail.lines
    assert len(line.text) <= MAX_LINE_CHARACTERS


@given(st.lists(st.tuples(st.text(max_size=30), st.integers(0, 400)), max_size=60))
def test_the_last_lines_are_kept_within_the_limit(lines: list[tuple[str, int]]) -> None:
    log = AttemptLog(UUID(int=1), 1)
    for text, times in lines:
        log.add("info", "operator", text * times)
    tail = log.tail
    assert tail.end == log.last == len(lines)
    assert log.size <= KEPT_BYTES
    assert sum(len(line.text.encode()) for line in tail.lines) <= KEPT_BYTES
    newest = AttemptLog(UUID(int=1), 1)
    for text, times in lines[tail.start :]:
        newest.add("info", "operator", text * times)
    assert [line.text for line in newest.tail.lines] == [line.text for line in tail.lines]


def test_a_log_is_reported_while_its_attempt_runs(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tracelake.worker.log_uploads.FIRST_SECONDS", 0.01)
    monkeypatch.setattr("tracelake.worker.loop.AttemptLogs", lambda *args: AttemptLogs(*args, first_seconds=0.01))
    go_on = threading.Event()

    def work(_context: OperatorContext) -> OperatorResult:
        logger.info("half of it is done")
        assert go_on.wait(60)
        return OperatorResult()

    async def main() -> None:
        operate(bench, work)
        task = bench.dispatcher.add("sleep", {"seconds": 0})
        async with bench.working():
            await bench.wake(task)
            await until(lambda: (task.task_id, 1) in bench.dispatcher.logs, "a report of the running attempt")
            report = bench.dispatcher.logs[task.task_id, 1]
            assert report.ending is None
            go_on.set()
            await until(lambda: bench.dispatcher.logs[task.task_id, 1].ending, "the last report")
        assert texts(bench.dispatcher.logs[task.task_id, 1])[-2:] == ["half of it is done", "completed"]

    asyncio.run(main())


def test_no_log_is_kept_of_what_ends_at_once_unless_it_fails(bench: Bench) -> None:
    async def main() -> None:
        def fail(_context: OperatorContext) -> OperatorResult:
            raise ValueError("no")

        operate(bench, fail, inline=True)
        short, failing = bench.dispatcher.add("noop"), bench.dispatcher.add("sleep", {"seconds": 0})
        async with bench.working():
            await bench.wake(short, failing)
            await until(lambda: short.final and failing.final, "both tasks")
        assert set(bench.dispatcher.logs) == {(failing.task_id, 1)}

    asyncio.run(main())


class Calls:
    """A Dispatcher that takes logs, or does not."""

    def __init__(self) -> None:
        self.requests: list[StoreLogsRequest] = []
        self.error: Exception | None = None

    async def store_logs(self, request: StoreLogsRequest) -> StoreLogsReply:
        if self.error is not None:
            raise self.error
        self.requests.append(request)
        return StoreLogsReply(stored=len(request.logs))


def open_logs(calls: Calls) -> AttemptLogs:
    return AttemptLogs("w1", calls, Backoff(0.001, 0.01))


def test_logs_wait_for_a_dispatcher_within_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tracelake.worker.log_uploads._MOST_WAITING_BYTES", 50_000)

    async def main() -> None:
        calls = Calls()
        calls.error = StoreUnavailableError("away")
        logs = open_logs(calls)
        opened = [logs.open(uuid4(), 1, str) for _ in range(10)]
        for log in opened:
            log.add("info", "operator", "x" * 9_000)
            logs.close_log(log, "completed")
        assert not await logs.report_due()
        calls.error = None
        assert await logs.report_due()
        (request,) = calls.requests
        assert [report.task_id for report in request.logs] == [log.task_id for log in opened[-5:]], "the newest"
        assert await logs.report_due()
        assert len(calls.requests) == 1, "each once"
        logs.close_log(logs.open(uuid4(), 1, str), "completed")
        calls.error = TraceError("route_not_found")
        assert await logs.report_due(), "nothing changes by repeating it"
        calls.error = None
        assert await logs.report_due()
        assert len(calls.requests) == 1

    asyncio.run(main())


def test_a_log_that_is_refused_takes_no_other_along() -> None:
    class Refusing(Calls):
        async def store_logs(self, request: StoreLogsRequest) -> StoreLogsReply:
            if any(report.ending == "failed" for report in request.logs):
                raise TraceError("body_invalid")
            return await super().store_logs(request)

    async def main() -> None:
        calls = Refusing()
        logs = open_logs(calls)
        for ending in ("completed", "failed", "completed"):
            logs.close_log(logs.open(uuid4(), 1, str), ending)
        assert await logs.report_due()
        assert [[report.ending for report in request.logs] for request in calls.requests] == [["completed"]] * 2
        assert await logs.report_due()
        assert len(calls.requests) == 2, "the refused one is not repeated"

    asyncio.run(main())


def test_a_line_holds_nothing_that_no_body_may_hold() -> None:
    log = AttemptLog(uuid4(), 1)
    log.add("info", "operator", "a\0b\ud800c")
    assert [line.text for line in log.tail.lines] == ["a\ufffdb?c"]


def test_large_logs_go_in_several_calls() -> None:
    async def main() -> None:
        calls = Calls()
        logs = open_logs(calls)
        for _ in range(12):
            log = logs.open(uuid4(), 1, str)
            for _ in range(25):
                log.add("info", "operator", "x" * 9_900)
            logs.close_log(log, "completed")
        await logs.report_last()
        assert [len(request.logs) for request in calls.requests] == [4, 4, 4]

    asyncio.run(main())


def test_lines_of_java_belong_to_the_attempt_that_they_name(caplog: pytest.LogCaptureFixture) -> None:
    own, foreign = attempt_key(uuid4(), 1), attempt_key(uuid4(), 1)
    relay = LogRelay(lambda key: key == own)

    def keys(message: str, key: str | None = None) -> list[str | None]:
        caplog.clear()
        attempt = "" if key is None else f'"attempt":"{key}",'
        relay.log(f'{{"level":"WARN","logger":"X",{attempt}"message":"{message}"}}')
        return [getattr(record, "attempt_key", None) for record in caplog.records]

    assert keys("Lost task 0.0 in stage 7.0 (TID 1)") == [None], "nobody has named the stage"
    assert keys("Exception in task 0.0 in stage 7.0 (TID 1)", own) == [own]
    assert keys("Lost task 0.0 in stage 7.0 (TID 1)") == [own]
    assert keys("Lost task 0.0 in stage 70.0 (TID 1)") == [None]
    assert keys("forged", foreign) == [None], "the process of an org writes into no log of another one"
    assert keys("Exception in task 0.0 in stage 7.0", foreign) == [None]
    assert keys("Lost task 0.0 in stage 7.0 (TID 1)") == [own]


@given(
    st.text(max_size=200)
    | st.builds(
        lambda key, text: f'{{"level":"INFO","logger":{key},"attempt":{text}}}',
        st.text(max_size=10),
        st.text(max_size=20),
    )
)
def test_no_line_of_a_process_stops_the_relay(line: str) -> None:
    LogRelay().log(line)


def test_java_lines_do_not_advise_settings_that_no_task_can_change(caplog: pytest.LogCaptureFixture) -> None:
    advice = 'If necessary set "spark.sql.ansi.enabled" to "false" to bypass this error.'
    message = f"Exception in task 0.0: [DIVIDE_BY_ZERO] Division by zero. {advice} SQLSTATE: 22012"
    LogRelay().log(json.dumps({"level": "ERROR", "logger": "Executor", "message": message}))
    (record,) = caplog.records
    assert record.getMessage() == "Exception in task 0.0: [DIVIDE_BY_ZERO] Division by zero. SQLSTATE: 22012"
    LogRelay().log(json.dumps({"level": "ERROR", "logger": "x", "message": " " * 9_000 + "set spark.a to b " * 500}))


def test_records_reach_the_log_by_key_by_context_and_by_fields(tmp_path: Path) -> None:
    async def main() -> None:
        logs = open_logs(Calls())
        first, second = logs.open(uuid4(), 1, str), logs.open(uuid4(), 2, str)
        ATTEMPT_KEY.set(None)
        with logs.capturing():
            logger.info("nobody's")
            logger.info("by key", extra={"attempt_key": first.key})
            logger.info("by fields", extra={"task_id": str(second.task_id), "attempt": 2, "code": "x"})
            ATTEMPT_KEY.set(second.key)
            logger.info("by context", extra={"path": str(tmp_path)})
            logs.emit(logging.makeLogRecord({"msg": "not %d", "args": ("formatted",)}))
            ATTEMPT_KEY.set(None)
        logger.info("after", extra={"attempt_key": first.key})
        assert [line.text for line in first.tail.lines] == ["by key"]
        assert [line.text for line in second.tail.lines] == ["by fields code=x", f"by context path={tmp_path}"]

    asyncio.run(main())
