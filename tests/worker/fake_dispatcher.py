"""A Dispatcher in memory: the calls a worker makes, with the answers of the contract and faults on demand."""

import asyncio
from collections import Counter, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID, uuid4

from tracelake.client import DispatcherUnavailableError, TaskCall
from tracelake.client.task import TaskReply
from tracelake.errors import TraceError
from tracelake.wire.claims import ClaimReply, ClaimRequest, TaskSecrets, TokenReply, TokenRequest
from tracelake.wire.head_progress import HeadProgress
from tracelake.wire.run_logs import AttemptLogReport, StoreLogsReply, StoreLogsRequest
from tracelake.wire.task_calls import (
    BufferPublishReply,
    BufferPublishRequest,
    CompleteReply,
    CompleteRequest,
    EventAnswer,
    EventsReply,
    EventsRequest,
    FilesReply,
    FilesRequest,
    HeartbeatReply,
    HeartbeatRequest,
    TaskDeliveriesReply,
    TaskDeliveriesRequest,
)
from tracelake.wire.units import EventIn, JobRef, TaskOutput, TaskPayload


@dataclass
class FakeTask:
    task_id: UUID
    operator: str
    config: dict[str, Any]
    status: str = "Queued"
    attempt: int = 0
    lease_token: UUID | None = None
    claim_ids: list[str] = field(default_factory=list)
    token: str = ""
    heartbeats: int = 0
    progress: HeadProgress | None = None
    """Of its last heartbeat."""
    cancel: bool = False
    pause: bool = False
    always_on: bool = False
    secrets: TaskSecrets | None = None
    outputs: list[TaskOutput] = field(default_factory=list)
    events: list[EventIn] = field(default_factory=list)
    final: CompleteRequest | None = None
    refuse: list[TraceError] = field(default_factory=list)
    """What the next completes answer instead of taking the result."""


@dataclass
class FakeDispatcher:
    lease_seconds: float = 120.0
    away: bool = False
    lose_answers: bool = False
    """Calls are done, and their answers lost."""
    new_token_at_heartbeat: bool = False
    tasks: dict[UUID, FakeTask] = field(default_factory=dict)
    calls: Counter[str] = field(default_factory=Counter)
    refused_while_away: Counter[str] = field(default_factory=Counter)
    batches: list[int] = field(default_factory=list)
    tokens: int = 0
    file_answers: deque[FilesReply | TraceError] = field(default_factory=deque)
    """What the next questions for files are answered; then there are none."""
    file_requests: list[tuple[str, FilesRequest]] = field(default_factory=list)
    delivery_answers: deque[TaskDeliveriesReply] = field(default_factory=deque)
    delivery_requests: list[tuple[str, TaskDeliveriesRequest]] = field(default_factory=list)
    publish_answers: deque[TraceError] = field(default_factory=deque)
    publishes: list[tuple[str, BufferPublishRequest]] = field(default_factory=list)
    logs: dict[tuple[UUID, int], AttemptLogReport] = field(default_factory=dict)
    """The newest report of each attempt."""

    def add(self, operator: str = "noop", config: dict[str, Any] | None = None, **state: Any) -> FakeTask:
        task = FakeTask(uuid4(), operator, config or {}, **state)
        self.tasks[task.task_id] = task
        return task

    def expire_tokens(self) -> None:
        for task in self.tasks.values():
            task.token = ""

    def fence(self, task: FakeTask) -> None:
        """As if somebody else had claimed it."""
        task.attempt += 1
        task.lease_token = uuid4()

    # --- the calls of a worker

    async def claim_batch(self, requests: Sequence[ClaimRequest]) -> list[ClaimReply | TraceError]:
        await self._arrive("claim")
        return self._answer([self._claim(request) for request in requests])

    async def token(self, request: TokenRequest) -> TokenReply:
        await self._arrive("token")
        task = self.tasks[request.task_id]
        if task.lease_token != request.lease_token:
            raise TraceError("fenced")
        return TokenReply(capability_token=self._new_token(task))

    async def batch(self, calls: Sequence[TaskCall]) -> list[TaskReply | TraceError]:
        await self._arrive("batch")
        self.batches.append(len(calls))
        return self._answer([self._task_call(call) for call in calls])

    async def files(self, capability_token: str, request: FilesRequest) -> FilesReply:
        await self._arrive("files")
        answer = self.file_answers.popleft() if self.file_answers else FilesReply(units=[])
        if isinstance(answer, TraceError):
            raise answer
        self.file_requests.append((capability_token, request))
        return answer

    async def deliveries(self, capability_token: str, request: TaskDeliveriesRequest) -> TaskDeliveriesReply:
        await self._arrive("deliveries")
        self.delivery_requests.append((capability_token, request))
        return self.delivery_answers.popleft()

    async def buffer_publish(self, capability_token: str, request: BufferPublishRequest) -> BufferPublishReply:
        await self._arrive("buffer-publish")
        answer = self.publish_answers.popleft() if self.publish_answers else None
        if answer is not None:
            raise answer
        self.publishes.append((capability_token, request))
        return BufferPublishReply(publish_id=uuid4(), publish_seq=len(self.publishes), duplicate=False)

    async def store_logs(self, request: StoreLogsRequest) -> StoreLogsReply:
        await self._arrive("logs")
        self.logs |= {(report.task_id, report.attempt): report for report in request.logs}
        return StoreLogsReply(stored=len(request.logs))

    # --- how they are answered

    async def _arrive(self, name: str) -> None:
        await asyncio.sleep(0)
        if self.away:
            self.refused_while_away[name] += 1
            raise DispatcherUnavailableError("away")
        self.calls[name] += 1

    def _answer(self, answers: list[Any]) -> list[Any]:
        if self.lose_answers:
            raise DispatcherUnavailableError("the answer was lost")
        return answers

    def _new_token(self, task: FakeTask) -> str:
        self.tokens += 1
        task.token = f"token-{self.tokens}"
        return task.token

    def _claim(self, request: ClaimRequest) -> ClaimReply | TraceError:
        task = self.tasks.get(request.task_id)
        if task is None:
            return ClaimReply(status="NotClaimed", reason="NotFound")
        assert request.claim_id is not None
        again = bool(task.claim_ids) and task.claim_ids[-1] == request.claim_id
        if task.status != "Queued" and not again:
            reason = "AlreadyRunning" if task.status == "Running" else task.status
            return ClaimReply(status="NotClaimed", reason=reason)
        if not again:
            task.status = "Running"
            task.attempt += 1
            task.lease_token = uuid4()
            self._new_token(task)
            task.claim_ids.append(request.claim_id)
        return ClaimReply(
            status="Claimed",
            attempt=task.attempt,
            lease_token=task.lease_token,
            lease_expires_at=self._lease(),
            capability_token=task.token,
            always_on=task.always_on,
            pause=task.pause,
            secrets=task.secrets,
            task=TaskPayload(
                task_id=task.task_id,
                attempt=task.attempt,
                job=JobRef(dag_name="dag", name="job"),
                operator=task.operator,
                config=task.config,
                inputs=[],
                outputs=task.outputs,
            ),
        )

    def _lease(self) -> datetime:
        return datetime.now(UTC) + timedelta(seconds=self.lease_seconds)

    def _task_call(self, call: TaskCall) -> TaskReply | TraceError:
        request = call.request
        assert isinstance(request, HeartbeatRequest | CompleteRequest | EventsRequest)
        task = self.tasks[request.task_id]
        if (task.attempt, task.lease_token) != (request.attempt, request.lease_token):
            return TraceError("fenced", attempt=task.attempt, status=task.status)
        if call.capability_token != task.token:
            return TraceError("credential_expired")
        if isinstance(request, HeartbeatRequest):
            task.progress = request.progress
            return self._heartbeat(task)
        if isinstance(request, EventsRequest):
            return self._events(task, request)
        return self._complete(task, request)

    def _events(self, task: FakeTask, request: EventsRequest) -> TaskReply | TraceError:
        self.calls["events"] += 1
        if task.refuse:
            return task.refuse.pop(0)
        known = [event in task.events for event in request.events]
        task.events += [event for event in request.events if event not in task.events]
        answers = [EventAnswer(duplicate=duplicate, routed=True) for duplicate in known]
        return EventsReply(accepted=len(answers), duplicate=all(known), events=answers)

    def _heartbeat(self, task: FakeTask) -> TaskReply | TraceError:
        if task.status != "Running":
            return TraceError("fenced")
        self.calls["heartbeat"] += 1
        task.heartbeats += 1
        fresh = self._new_token(task) if self.new_token_at_heartbeat else None
        return HeartbeatReply(
            lease_expires_at=self._lease(), cancel=task.cancel, pause=task.pause, capability_token=fresh
        )

    def _complete(self, task: FakeTask, request: CompleteRequest) -> TaskReply | TraceError:
        self.calls["complete"] += 1
        if task.refuse:
            return task.refuse.pop(0)
        if task.final is not None:
            return CompleteReply(status=task.status, duplicate=True)
        if task.cancel and request.status == "Completed":
            return TraceError("cancel_requested")
        task.final = request
        task.status = request.status
        return CompleteReply(status=request.status)


async def until(condition: Callable[[], object], what: str, seconds: float = 30.0) -> None:
    """Polls; running out of time is a failure that says what was awaited."""
    try:
        async with asyncio.timeout(seconds):
            while not condition():
                await asyncio.sleep(0.005)
    except TimeoutError:
        raise AssertionError(f"waited in vain for {what}") from None
