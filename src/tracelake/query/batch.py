"""Batch queries of people: checked here, kept and run elsewhere.

The Dispatcher has their state, and decides who may see and cancel which. This service checks the text against the
relations of the caller, in a limited process, and opens results: addresses of files, valid for a while.
"""

import time
from dataclasses import dataclass
from uuid import UUID

import msgspec

from tracelake.errors import TraceError
from tracelake.model.ids import new_id
from tracelake.query.control import ControlPlane
from tracelake.query.exports import ResultExports
from tracelake.query.gate.batch import CheckedBatchQuery
from tracelake.query.gate.parameters import QueryParameter
from tracelake.query.metrics import QueryMetrics
from tracelake.query.parts import SqlGate
from tracelake.query.service import hash_text
from tracelake.query.slots import QueryCaller, QuerySlots
from tracelake.tokens.users import UserClaims
from tracelake.wire.batch_query import (
    BatchListRequest,
    BatchQueriesPage,
    BatchQueryRecord,
    BatchQueryRef,
    BatchQueryReply,
    BatchSubmission,
)
from tracelake.wire.contract import Role
from tracelake.wire.query import CancelQueryReply, QueryAuditRecord, QueryRequest
from tracelake.wire.task_calls import DataFile

KIND = "batch"
"""In metrics."""


@dataclass(frozen=True, slots=True)
class BatchQueryFront:
    control: ControlPlane
    gate: SqlGate
    exports: ResultExports
    slots: QuerySlots
    metrics: QueryMetrics

    async def submit(self, user: UserClaims, request: QueryRequest) -> BatchQueryReply:
        """A refusal is recorded here; an accepted query by the Dispatcher, with its outcome."""
        query_id = request.query_id or new_id()
        started = time.monotonic()
        try:
            record = await self._submit(user, request, query_id)
        except TraceError as error:
            self.metrics.queries.labels(KIND, error.code).inc()
            self.control.record_later(
                QueryAuditRecord(
                    run_id=new_id(),
                    query_id=query_id,
                    org=user.org,
                    subject=user.sub,
                    duration_ms=int((time.monotonic() - started) * 1000),
                    outcome=error.code,
                    sql_sha256=hash_text(request.sql),
                )
            )
            raise
        self.metrics.queries.labels(KIND, "submitted").inc()
        return self._open(record)

    async def show(self, user: UserClaims, query_id: UUID) -> BatchQueryReply:
        return self._open(await self._find(user, query_id))

    async def list_files(self, user: UserClaims, query_id: UUID) -> list[DataFile]:
        """Of the result; none while there is no result."""
        return (await self._find(user, query_id)).files

    async def cancel(self, user: UserClaims, query_id: UUID) -> CancelQueryReply:
        await self._find(user, query_id)
        reply = await self.control.cancel_batch(_ref(user, query_id))
        return CancelQueryReply(query_id=query_id, canceled=reply.canceled)

    async def list_own(self, user: UserClaims, limit: int, cursor: UUID | None) -> BatchQueriesPage:
        page = await self.control.list_batches(
            BatchListRequest(org=user.org, subject=user.sub, limit=limit, cursor=cursor)
        )
        if user.readable_dags is None:
            return page
        names = await self._readable(user)
        queries = [query for query in page.queries if names.issuperset(item.name for item in query.datasets)]
        return msgspec.structs.replace(page, queries=queries)

    async def _find(self, user: UserClaims, query_id: UUID) -> BatchQueryRecord:
        """With a token that is limited to DAGs, only queries of their datasets: another token of the same person may
        have submitted others."""
        record = await self.control.show_batch(_ref(user, query_id))
        if user.readable_dags is not None:
            names = await self._readable(user)
            if not names.issuperset(item.name for item in record.query.datasets):
                raise TraceError("query_not_found")
        return record

    async def _readable(self, user: UserClaims) -> set[str]:
        return {relation.name for relation in await self.control.relations(user.org, user.readable_dags)}

    async def _submit(self, user: UserClaims, request: QueryRequest, query_id: UUID) -> BatchQueryRecord:
        for field, value, none in (
            ("format", request.format, "json"),
            ("timeout_seconds", request.timeout_seconds, None),
        ):
            if value != none:
                message = f"A batch query has no {field}: its result is Parquet, and its time limit is a setting."
                raise TraceError("body_invalid", message, field=field)
        async with self.slots.enter(QueryCaller(org=user.org, subject=user.sub, is_task=False)):
            checked = await self._check(user, request)
            submission = BatchSubmission(
                org=user.org,
                subject=user.sub,
                query_id=query_id,
                sql=request.sql,
                parameters=request.parameters,
                limit=request.limit,
                relations=checked.relations,
                blocks=checked.blocks,
                sql_sha256=hash_text(request.sql),
            )
            return await self.control.submit_batch(submission)

    async def _check(self, user: UserClaims, request: QueryRequest) -> CheckedBatchQuery:
        names = [relation.name for relation in await self.control.relations(user.org, user.readable_dags)]
        parameters = {name: QueryParameter(item.type, item.value) for name, item in request.parameters.items()}
        return await self.gate.check_batch(user.org, request.sql, parameters, names)

    def _open(self, record: BatchQueryRecord) -> BatchQueryReply:
        if not record.files:
            return record.query
        return msgspec.structs.replace(
            record.query, downloads=self.exports.for_owner(record.query.query_id, record.files)
        )


def _ref(user: UserClaims, query_id: UUID) -> BatchQueryRef:
    return BatchQueryRef(org=user.org, subject=user.sub, admin=user.may(Role.ADMIN), query_id=query_id)
