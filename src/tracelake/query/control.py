"""What the Query Service asks the Dispatcher: relations, files, results of checks, inputs of tasks, and the audit.

The service fails closed. Without an answer of the Dispatcher no query starts, and no result leaves that was not
recorded. Inputs of a task are kept for some seconds: an attempt that became stale meanwhile can read for that long.
"""

import asyncio
import logging
import time
from collections import OrderedDict, deque
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar
from uuid import UUID

import msgspec

from tracelake.errors import TraceError
from tracelake.model.backoff import Backoff
from tracelake.wire import routes
from tracelake.wire.batch_query import (
    BatchCanceled,
    BatchListRequest,
    BatchQueriesPage,
    BatchQueryRecord,
    BatchQueryRef,
    BatchSubmission,
)
from tracelake.wire.checks import MAX_RESULTS_PAGE, OrgCheckResult, OrgCheckResultsRequest
from tracelake.wire.contract import Route
from tracelake.wire.platform import DatasetFilesRequest
from tracelake.wire.query import (
    InputRelation,
    QueryAuditRecord,
    ReadableRelation,
    RelationsRequest,
    TaskInputsReply,
    TaskInputsRequest,
)
from tracelake.wire.task_calls import DataFile, Fenced
from tracelake.wire.tokens import RevocationEntry

logger = logging.getLogger(__name__)

B = TypeVar("B")
R = TypeVar("R")

INPUTS_SECONDS = 5.0
_MOST_INPUTS = 10_000
_MOST_UNRECORDED = 10_000
_RECORD_AGAIN = Backoff(0.5, 30.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class ListedFiles:
    """Files of one generation, all of one moment."""

    files: list[DataFile]
    boundary: int | None = None
    """Of a live dataset, where they end; None: its table has rows of its own alone."""


class ControlCalls(Protocol):
    """`InternalClient` with the service token."""

    async def call(self, route: Route[B, R], body: B, /, **parameters: Any) -> R: ...


class ControlPlane:
    def __init__(self, calls: ControlCalls, *, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._calls = calls
        self._monotonic = monotonic
        self._inputs: OrderedDict[tuple[UUID, int, UUID], tuple[float, TaskInputsReply]] = OrderedDict()
        self._unrecorded: deque[QueryAuditRecord] = deque(maxlen=_MOST_UNRECORDED)
        self._recording: asyncio.Task[None] | None = None

    async def relations(self, org: str, dags: Sequence[str] | None = None) -> list[ReadableRelation]:
        """Of these DAGs; None: of all."""
        request = RelationsRequest(org=org, dags=None if dags is None else list(dags))
        return (await self._ask(routes.LIST_RELATIONS, request)).relations

    async def revocations(self) -> list[RevocationEntry]:
        return (await self._ask(routes.LIST_REVOCATIONS, None)).revocations

    async def task_inputs(self, fence: Fenced) -> TaskInputsReply:
        """Raises `fenced` for an attempt that is not current."""
        key = (fence.task_id, fence.attempt, fence.lease_token)
        asked_at, reply = self._inputs.get(key, (0.0, None))
        now = self._monotonic()
        if reply is not None and now - asked_at < INPUTS_SECONDS:
            return reply
        request = TaskInputsRequest(task_id=fence.task_id, attempt=fence.attempt, lease_token=fence.lease_token)
        try:
            reply = await self._ask(routes.LIST_TASK_INPUTS, request)
        except TraceError:
            self._inputs.pop(key, None)
            raise
        self._inputs[key] = (now, reply)  # since the question: the answer may be older than its arrival
        self._inputs.move_to_end(key)
        if len(self._inputs) > _MOST_INPUTS:
            self._inputs.popitem(last=False)
        return reply

    async def files(
        self, relation: ReadableRelation | InputRelation, blocks: tuple[int, int] | None = None
    ) -> ListedFiles:
        """The committed files of the relation's generation; of units that have a part in `blocks`. None if nothing of
        it was committed."""
        request = DatasetFilesRequest(
            dataset_uuid=relation.dataset_uuid,
            dataset_version=relation.dataset_version,
            start=None if blocks is None else blocks[0],
            end=None if blocks is None else blocks[1],
        )
        files: list[DataFile] = []
        boundary: int | None = None
        while True:
            try:
                reply = await self._ask(routes.LIST_DATASET_FILES, request)
            except TraceError as error:
                if error.code == "dataset_not_committed":
                    return ListedFiles(files=[])
                raise
            if request.page is None:
                boundary = reply.boundary
            files += [file for unit in reply.units for file in unit.files]
            if reply.next is None:
                return ListedFiles(files=files, boundary=boundary)
            request = msgspec.structs.replace(request, page=reply.next)

    async def check_results(self, request: OrgCheckResultsRequest, most: int) -> AsyncIterator[list[OrgCheckResult]]:
        """The newest results of the org's checks, page by page, each once and at most so many in all."""
        while most > 0:
            request = msgspec.structs.replace(request, limit=min(most, MAX_RESULTS_PAGE))
            reply = await self._ask(routes.LIST_ORG_CHECK_RESULTS, request)
            yield reply.results
            most -= len(reply.results)
            if reply.next is None:
                return
            request = msgspec.structs.replace(request, page=reply.next)

    async def submit_batch(self, submission: BatchSubmission) -> BatchQueryRecord:
        return await self._ask(routes.SUBMIT_BATCH_QUERY, submission)

    async def show_batch(self, ref: BatchQueryRef) -> BatchQueryRecord:
        return await self._ask(routes.SHOW_BATCH_QUERY, ref)

    async def cancel_batch(self, ref: BatchQueryRef) -> BatchCanceled:
        return await self._ask(routes.CANCEL_BATCH_QUERY, ref)

    async def list_batches(self, request: BatchListRequest) -> BatchQueriesPage:
        return await self._ask(routes.LIST_BATCH_QUERIES, request)

    async def record(self, record: QueryAuditRecord) -> None:
        """Returns when the record is stored; raises if it cannot be."""
        await self._ask(routes.RECORD_QUERY, record)

    def record_later(self, record: QueryAuditRecord) -> None:
        """For queries without a result: nobody waits for the Dispatcher to hear that a query failed."""
        self._unrecorded.append(record)
        if self._recording is None or self._recording.done():
            self._recording = asyncio.create_task(self._record_all())

    async def close(self, seconds: float = 5.0) -> None:
        """Waits a moment for what is not recorded yet."""
        if self._recording is not None:
            _, pending = await asyncio.wait({self._recording}, timeout=seconds)
            for task in pending:
                task.cancel()
            if self._unrecorded:
                logger.warning("queries were not recorded", extra={"queries": len(self._unrecorded)})

    async def _record_all(self) -> None:
        tries = 0
        while self._unrecorded:
            record = self._unrecorded[0]
            try:
                await self.record(record)
            except TraceError as error:
                if error.kind.retryable:
                    tries += 1
                    await asyncio.sleep(_RECORD_AGAIN.seconds(tries))
                    continue
                logger.error("a query cannot be recorded", extra={"code": error.code})
            tries = 0
            if self._unrecorded and self._unrecorded[0] is record:
                self._unrecorded.popleft()

    async def _ask(self, route: Route[B, R], body: B) -> R:
        try:
            return await self._calls.call(route, body)
        except TraceError as error:
            if error.status in (401, 403) and error.code not in route.errors:  # our own credential, not the caller's
                logger.error("the Dispatcher refuses the service token", extra={"code": error.code})
                raise TraceError("store_unavailable") from error
            raise
