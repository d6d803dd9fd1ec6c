"""Secrets of a job: its operator gets them and nobody else, and nothing that the worker says repeats one."""

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from tests.worker.conftest import Bench
from tests.worker.fake_dispatcher import FakeTask, until
from tracelake.adapters.secret_file import LiteSecrets, set_secret
from tracelake.errors import SecretsUnavailableError, TraceError
from tracelake.model import redaction
from tracelake.stack.logs import JsonFormatter
from tracelake.wire.claims import TaskSecrets
from tracelake.wire.task_calls import CompleteRequest
from tracelake.wire.units import EventIn, Invalidates, StorageOut, TaskOutput
from tracelake.worker import NonRetryableError, OperatorContext, OperatorResult, wrapper
from tracelake.worker.operators import Operator

KEY = "hunter2/of+acme"
OTHER = "the key of another org"


class Seen:
    """An operator that keeps what it was given, and does what a test says."""

    def __init__(self, bench: Bench, *, inline: bool = False) -> None:
        self.contexts: list[OperatorContext] = []
        self.does: Callable[[OperatorContext], OperatorResult] = lambda _context: OperatorResult()
        bench.operators["sleep"] = Operator(self, inline=inline)

    def __call__(self, context: OperatorContext) -> OperatorResult:
        self.contexts.append(context)
        return self.does(context)

    @property
    def values(self) -> list[dict[str, str]]:
        return [dict(context.secrets) for context in self.contexts]


@pytest.fixture
def file(bench: Bench, tmp_path: Path) -> Path:
    """The secrets of two orgs, which the worker reads."""
    path = tmp_path / "secrets.toml"
    set_secret(path, "acme", "KEY", KEY)
    set_secret(path, "acme", "UNUSED", "nobody asked for it")
    set_secret(path, "other", "THEIRS", OTHER)
    bench.secrets = LiteSecrets(path)
    return path


def add(bench: Bench, *names: str, org: str = "acme", **state: object) -> FakeTask:
    wanted = TaskSecrets(org=org, names=list(names)) if names else None
    return bench.dispatcher.add("sleep", {"seconds": 0}, secrets=wanted, **state)


async def run(bench: Bench, *tasks: FakeTask) -> list[CompleteRequest]:
    """What was said about each in the end."""
    async with bench.working():
        await bench.wake(*tasks)
        await until(lambda: all(task.final is not None for task in tasks), "the final words")
    return [task.final for task in tasks if task.final is not None]


@pytest.mark.parametrize("inline", [False, True])
def test_an_operator_gets_what_its_own_job_names(bench: Bench, file: Path, inline: bool) -> None:
    seen = Seen(bench, inline=inline)

    async def main() -> None:
        for task in (add(bench, "KEY"), add(bench), add(bench, "THEIRS", org="other")):
            assert [word.status for word in await run(bench, task)] == ["Completed"]

    asyncio.run(main())
    assert seen.values == [{"KEY": KEY}, {}, {"THEIRS": OTHER}]
    assert KEY not in repr(seen.contexts[0])
    assert KEY not in repr(seen.contexts[0].secrets)


def test_a_secret_that_is_missing_is_named_and_not_tried_again(bench: Bench, file: Path) -> None:
    seen = Seen(bench)
    others = add(bench, "KEY", "THEIRS")
    [word] = asyncio.run(run(bench, others))
    assert (word.status, word.retryable, word.error_code) == ("Failed", False, None)
    assert word.error_message is not None
    assert word.error_message.startswith("secret_missing: The org acme has no secret THEIRS;")
    assert "`trace secrets set THEIRS --org acme`" in word.error_message
    assert seen.contexts == [], "it does not start without them"


def test_without_a_provider_there_are_none(bench: Bench) -> None:
    seen = Seen(bench)
    words = asyncio.run(run(bench, add(bench, "KEY"), add(bench)))
    assert [(word.status, word.retryable) for word in words] == [("Failed", False), ("Completed", True)]
    assert seen.values == [{}]


class Away:
    def __init__(self, error: Exception | None) -> None:
        self._error = error

    async def fetch(self, org: str, names: Sequence[str]) -> Mapping[str, str]:
        if self._error is None:
            await asyncio.sleep(3600)
            raise AssertionError
        raise self._error


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (SecretsUnavailableError("The vault is sealed."), "secrets_unavailable: The vault is sealed."),
        (RuntimeError(f"the answer was {KEY}"), "secrets_unavailable: Asking for secrets failed (RuntimeError)."),
        (None, "secrets_unavailable: No secret came within 0.05 seconds."),
    ],
)
def test_a_provider_that_is_away_is_tried_again(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, error: TraceError | None, said: str
) -> None:
    monkeypatch.setattr(wrapper, "SECRETS_SECONDS", 0.05)
    bench.secrets = Away(error)
    seen = Seen(bench)
    [word] = asyncio.run(run(bench, add(bench, "KEY")))
    assert (word.status, word.retryable, word.error_message) == ("Failed", True, said)
    assert seen.contexts == []


def test_a_file_that_others_may_read_is_mended_and_then_used(bench: Bench, file: Path) -> None:
    seen = Seen(bench)
    file.chmod(0o644)

    async def main() -> None:
        [word] = await run(bench, add(bench, "KEY"))
        assert (word.status, word.retryable) == ("Failed", True)
        assert "chmod 600 HOME/secrets.toml" in str(word.error_message)
        file.chmod(0o600)
        assert [word.status for word in await run(bench, add(bench, "KEY"))] == ["Completed"]

    asyncio.run(main())
    assert seen.values == [{"KEY": KEY}]


@pytest.mark.parametrize("kind", [RuntimeError, NonRetryableError, KeyError])
def test_errors_and_progress_do_not_repeat_it(
    bench: Bench, file: Path, caplog: pytest.LogCaptureFixture, kind: type[Exception]
) -> None:
    seen = Seen(bench)

    def tell(context: OperatorContext) -> OperatorResult:
        key = context.secrets["KEY"]
        context.progress(f"with {key}")
        # The cut of a long error may go through the middle of it.
        raise kind(f"{key} {'.' * 1950} {key}")

    seen.does = tell
    caplog.set_level(logging.INFO)
    [word] = asyncio.run(run(bench, add(bench, "KEY")))
    assert word.error_message is not None
    assert "[secret] ...." in word.error_message
    assert "hunter" not in word.error_message
    assert [record.progress for record in caplog.records if hasattr(record, "progress")] == ["with [secret]"]


def test_an_error_that_was_shortened_does_not_hold_a_piece_of_it(
    bench: Bench, file: Path, caplog: pytest.LogCaptureFixture
) -> None:
    seen = Seen(bench)
    told = [f"Spark: {KEY[:-4]}", "Spark: ...", "Spark: no"]

    def tell(context: OperatorContext) -> OperatorResult:
        try:
            raise ValueError(f"it was {context.secrets['KEY']}")
        except ValueError as error:
            raise RuntimeError(told.pop(0)) from error

    seen.does = tell

    async def main() -> list[str]:
        return [str((await run(bench, add(bench, "KEY")))[0].error_message) for _ in range(3)]

    assert asyncio.run(main()) == [
        "RuntimeError: it repeated part of a secret; see the worker's log",
        "RuntimeError: Spark: ...",
        "RuntimeError: Spark: no",
    ]
    shown = [record.exc_info[0] for record in caplog.records if record.exc_info]
    assert shown == [ValueError, RuntimeError, RuntimeError], "where all of it stands, all of it is blanked"


def test_the_log_of_a_worker_does_not_repeat_it(bench: Bench, file: Path, caplog: pytest.LogCaptureFixture) -> None:
    """As `trace worker` formats it, with its provider."""
    from tracelake.stack import job_secrets

    bench.secrets = job_secrets._HiddenInLogs(bench.secrets)
    seen = Seen(bench)

    def tell(context: OperatorContext) -> OperatorResult:
        key = context.secrets["KEY"]
        logging.getLogger("somebody's").error("got %s", key, extra={"where": {"deep": [f"<{key}>"]}})
        try:
            raise ValueError(key)
        except ValueError as error:
            raise RuntimeError(f"https://node/{key}") from error

    seen.does = tell
    caplog.set_level(logging.INFO)
    asyncio.run(run(bench, add(bench, "KEY")))
    lines = [JsonFormatter("worker").format(record) for record in caplog.records]
    assert sum("[secret]" in line for line in lines) == 2, "the operator's own line, and the one about its failure"
    assert "ValueError: [secret]" in "".join(lines)
    assert not [line for line in lines if "hunter" in line]
    assert "hunter" not in redaction.scrub(f"printed {KEY}")


def test_an_event_that_repeats_it_is_not_sent(bench: Bench, file: Path) -> None:
    """What names a unit is stored; blanking it would make another unit of it."""
    seen = Seen(bench)
    output = TaskOutput(output_index=0, dataset_uuid=uuid4(), dataset_version=uuid4(), storage=StorageOut(kind="none"))

    def event(**fields: Any) -> EventIn:
        return EventIn(dataset_uuid=output.dataset_uuid, dataset_version=output.dataset_version, **fields)

    events = [
        event(partition_key=f"by {KEY}"),
        event(cursor=1, revision=KEY),
        event(cursor=1, invalidates=Invalidates(start=0, end=1, reason=KEY)),
    ]
    emitting: list[EventIn] = []

    def tell(context: OperatorContext) -> OperatorResult:
        if emitting:
            context.emit([emitting.pop()])
        return OperatorResult(events=[events.pop()])

    seen.does = tell

    async def main() -> None:
        emitting.extend(events)
        for _ in range(6):
            if not events:
                break
            task = add(bench, "KEY", outputs=[output])
            [word] = await run(bench, task)
            assert (word.status, word.retryable, word.events, task.events) == ("Failed", False, [], [])
            assert "hunter" not in str(word.error_message)

    asyncio.run(main())
    assert emitting == []
    assert len(seen.contexts) == 6, "three by emit, three by what was returned"
