"""When work counts as finished: when the Dispatcher says so, whatever happens between two looks."""

import asyncio
from datetime import UTC, datetime
from typing import Any
from uuid import uuid4

import pytest

from tests.client.scripted_server import Certificates
from tracelake.client import waiting
from tracelake.client.errors import ClientError, DispatcherUnavailableError, WaitTimeoutError
from tracelake.client.http import HttpClient
from tracelake.client.user import TextCredential, UserClient
from tracelake.client.waiting import StartedWork, await_build, await_work
from tracelake.errors import TraceError
from tracelake.model.backoff import Backoff
from tracelake.wire import routes
from tracelake.wire.dags import BuildProgress, DagVersionRow, DagVersionsReply, DeployReply, Plan
from tracelake.wire.failures import ErrorGroup
from tracelake.wire.jobs import TriggerReply
from tracelake.wire.trigger_progress import TriggerProgressReply, WaitingInput

NOW = datetime(2026, 11, 18, tzinfo=UTC)
A, B = uuid4(), uuid4()


class ScriptedClient(UserClient):
    """Replies to the calls of one route with what a test lists, one after the other; the last one stays."""

    def __init__(self, http: HttpClient) -> None:
        super().__init__(http, TextCredential("x"))
        self.replies: dict[Any, list[Any]] = {}

    async def call(self, route: Any, body: Any = None, /, **_parameters: Any) -> Any:
        replies = self.replies[route]
        reply = replies.pop(0) if len(replies) > 1 else replies[0]
        if isinstance(reply, TraceError):
            raise reply
        return reply


@pytest.fixture
def client(certificates: Certificates, monkeypatch: pytest.MonkeyPatch) -> ScriptedClient:
    monkeypatch.setattr(waiting, "_POLL", Backoff(0.0, 0.0))
    return ScriptedClient(HttpClient("https://localhost", certificates.ca_file))


def progress(*, finished: bool = True, done: int = 1, failed: int = 0, **fields: Any) -> TriggerProgressReply:
    return TriggerProgressReply(
        idempotency_key="k",
        triggered_at=NOW,
        now=NOW,
        finished=finished,
        done=done,
        open=0 if finished else 1,
        failed=failed,
        **fields,
    )


def wait(client: ScriptedClient, *replies: Any, timeout: float | None = None) -> TriggerProgressReply:
    client.replies[routes.SHOW_TRIGGER] = list(replies)
    work = StartedWork("d", "src", TriggerReply(idempotency_key="k"))
    return asyncio.run(await_work(client, work, timeout))


def test_it_waits_until_nothing_is_open(client: ScriptedClient) -> None:
    assert wait(client, progress(finished=False), progress(finished=False), progress(done=2)).done == 2


def test_the_time_is_over(client: ScriptedClient) -> None:
    with pytest.raises(WaitTimeoutError, match="the work of d/src has not ended within 0 seconds; it goes on"):
        wait(client, progress(finished=False), timeout=0)


@pytest.mark.parametrize(
    ("end", "message"),
    [
        (
            progress(failed=3, errors=[ErrorGroup(error="no rows\nat x", tasks=2, jobs=["d/j"], task_id=A)]),
            "3 tasks failed, 2 of them with: no rows$",
        ),
        (progress(dead_letters=1), "a sink refused 1 batches of rows"),
        (
            progress(inputs=[WaitingInput(job="d/j", dataset="x", events=4, state="held")]),
            "4 events wait behind a failed unit",
        ),
    ],
    ids=["tasks", "batches", "events"],
)
def test_what_is_missing_for_good_is_an_error(client: ScriptedClient, end: TriggerProgressReply, message: str) -> None:
    with pytest.raises(ClientError, match=message) as error:
        wait(client, end)
    assert error.value.code == "tasks_failed"


def test_an_outage_is_waited_for(client: ScriptedClient) -> None:
    away = DispatcherUnavailableError("no connection")
    assert wait(client, *[away] * 60, progress()).finished
    with pytest.raises(DispatcherUnavailableError):
        wait(client, away)
    with pytest.raises(TraceError, match="trigger_not_found"):
        wait(client, TraceError("trigger_not_found"))


def test_tasks_that_were_created_at_once() -> None:
    assert StartedWork("d", "j", TriggerReply(idempotency_key="k", task_id=A)).task_ids == [A]
    assert StartedWork("d", "j", TriggerReply(idempotency_key="k", tasks=[A, B])).task_ids == [A, B]


def version(state: Any, **build: Any) -> DagVersionsReply:
    counts: dict[str, Any] = {"done": 0, "open": 0, "failed": 0, "draining_edges": 0} | build
    progress = BuildProgress(**counts) if build else None
    row = DagVersionRow(number=2, dag_version_id=A, state=state, created_by="x", created_at=NOW, jobs=1, build=progress)
    return DagVersionsReply(dag="d", versions=[row])


@pytest.mark.parametrize(
    ("replies", "message"),
    [
        ([version("Building", open=1), version("Building", done=1), version("Active")], None),
        ([version("Building", open=1), version("Inactive")], "was abandoned"),
        (
            [version("Building", failed=2)],
            "cannot finish: 2 tasks failed; see `trace tasks --dag d --version 2 --status Failed`$",
        ),
        (
            [version("Building", dead_letters=1, rejected_datasets=["x"])],
            "cannot finish: 1 batch was rejected: `trace dlq replay --dataset x`$",
        ),
        (
            [version("Building", failed=1, dead_letters=2, old_dead_letters=1, rejected_datasets=["x"])],
            "1 task failed; see .* 2 batches were rejected, 1 of them before this deploy: `trace dlq replay",
        ),
        ([DagVersionsReply(dag="d", versions=[])], "was abandoned"),
    ],
)
def test_builds(client: ScriptedClient, replies: list[Any], message: str | None) -> None:
    client.replies[routes.LIST_VERSIONS] = replies
    plan = Plan(dag="d", version=2, new_version=True, needs_build=True, jobs=[], datasets=[])
    reply = DeployReply(plan=plan, state="Building")
    if message is None:
        asyncio.run(await_build(client, reply, None))
        return
    with pytest.raises(ClientError, match=message) as error:
        asyncio.run(await_build(client, reply, None))
    assert error.value.code == "build_failed"
