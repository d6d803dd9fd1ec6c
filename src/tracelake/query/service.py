"""The use case: from a verified caller and a text to a result, and always to a record of it.

1. Admission (`slots`): limits of the caller and turns of orgs.
2. Relations of this caller, at one moment (`control`), with their columns (`relations`).
3. The gate checks the text against exactly these, off the event loop.
4. Files that the query can need, and the limit of bytes; then files are fetched and tables read (`reading`).
5. An engine runs the checked text in a sandbox; the result is encoded (`results`) or exported (`exports`).
6. The audit. A result leaves only after the Dispatcher has stored its record.

Each query has a directory of its own, which is removed when it ends: by its result, an error, its time limit, a cancel,
or a caller that hung up.
"""

import asyncio
import hashlib
import re
import shutil
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any
from uuid import UUID

from tracelake.errors import TraceError
from tracelake.model.ids import new_id
from tracelake.query import check_results
from tracelake.query.broker import TableBroker
from tracelake.query.control import ControlPlane
from tracelake.query.execution import ExecutedQuery, QueryExecution
from tracelake.query.exports import ResultExports
from tracelake.query.files import QueryFiles
from tracelake.query.gate.parameters import QueryParameter
from tracelake.query.metrics import QueryMetrics
from tracelake.query.parts import Columns, SqlGate
from tracelake.query.reading import RelationReader
from tracelake.query.relations import (
    UNKNOWN_COLUMNS,
    BoundRelation,
    SchemaDirectory,
    bind_relations,
    named_in,
)
from tracelake.query.results import ENCODERS, encode_parquet, encode_rows
from tracelake.query.slots import QueryCaller, QuerySlots
from tracelake.tokens.token_claims import VerifiedClaims
from tracelake.tokens.users import UserClaims
from tracelake.wire.query import (
    CancelQueryReply,
    CatalogRelation,
    CatalogReply,
    QueryAuditRecord,
    QueryReply,
    QueryRequest,
    ReadableRelation,
    ResultColumn,
    TaskQueryRequest,
)

# What is not closed reaches to the end of the text: looking for its end from every place would take a text of quotes
# seconds, in which nobody else is served.
_CONSTANTS = re.compile(r"'(?:[^']|'')*(?:'|\Z)|\b\d[\w.]*|/\*.*?(?:\*/|\Z)|--[^\n]*", re.DOTALL)
_CATALOG_SECONDS = 60.0
_SMALL_STREAM = 16 * 1024
"""Encoding so many bytes takes less time than handing them to a thread and back."""
_OF_COLUMNS = frozenset({"query_unknown_column", "query_invalid"})


@dataclass(frozen=True, slots=True, kw_only=True)
class QueryLimits:
    user_seconds: int
    """The time limit of people who name none, and the most that they can name."""
    task_seconds: int
    max_input_bytes: int
    inline_rows: int
    inline_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class QueryAnswer:
    """The reply, and the result in the requested format if that is not JSON."""

    reply: QueryReply
    body: bytes | None = None


@dataclass(slots=True, kw_only=True)
class _Run:
    """One query, and what is known of it so far: its record has that much, however it ends."""

    caller: QueryCaller
    request: QueryRequest | TaskQueryRequest
    query_id: UUID
    directory: Path
    seconds: float
    run_id: UUID = field(default_factory=new_id)
    started: float = field(default_factory=time.monotonic)
    relations: tuple[BoundRelation, ...] = ()
    fingerprint: str = ""
    bytes_read: int = 0
    row_count: int = 0

    @property
    def org(self) -> str:
        return self.caller.org

    @property
    def inputs(self) -> Path:
        """What the sandbox sees: the files of the query, and nothing else."""
        return self.directory / "inputs"

    @property
    def elapsed_ms(self) -> int:
        return int((time.monotonic() - self.started) * 1000)

    @property
    def seconds_left(self) -> float:
        return max(0.1, self.seconds - (time.monotonic() - self.started))

    def to_record(self, outcome: str, org_id: UUID | None = None) -> QueryAuditRecord:
        return QueryAuditRecord(
            run_id=self.run_id,
            query_id=self.query_id,
            org=self.caller.org or None,
            token_org_id=org_id,
            subject=self.caller.subject,
            datasets=[relation.dataset for relation in self.relations],
            row_count=self.row_count,
            bytes_read=self.bytes_read,
            duration_ms=self.elapsed_ms,
            outcome=outcome,
            sql_sha256=self.fingerprint or hash_text(self.request.sql),
        )


@dataclass(eq=False, kw_only=True)
class QueryService:
    control: ControlPlane
    gate: SqlGate
    execution: QueryExecution
    files: QueryFiles
    broker: TableBroker
    exports: ResultExports
    slots: QuerySlots
    limits: QueryLimits
    metrics: QueryMetrics
    directory: Path
    """Of the queries that run; each has one below it."""

    def __post_init__(self) -> None:
        self._schemas = SchemaDirectory(self.control, self.files, self.execution)
        self._running: dict[tuple[str, str, UUID], asyncio.Task[Any]] = {}

    # Calls

    async def query(self, user: UserClaims, request: QueryRequest) -> QueryAnswer:
        caller = QueryCaller(org=user.org, subject=user.sub, is_task=False, dags=user.readable_dags)
        run = self._start(caller, request, request.query_id or new_id(), self.limits.user_seconds)

        async def list_relations() -> Sequence[ReadableRelation]:
            return await self._list_readable(user)

        return await self._perform(run, list_relations, scratch_prefix=None)

    async def query_as_task(self, claims: VerifiedClaims, request: TaskQueryRequest) -> QueryAnswer:
        nameless = QueryCaller(org="", subject=claims.sub, is_task=True)
        run = self._start(nameless, request, new_id(), self.limits.task_seconds)
        try:
            if claims.task_id != request.task_id or claims.attempt != request.attempt:
                raise TraceError("token_mismatch")
            inputs = await self.control.task_inputs(request)  # refuses a stale attempt
        except TraceError as refusal:
            self._record_refusal(run, refusal.code, org_id=claims.org_id)
            raise
        except asyncio.CancelledError:
            self._record_refusal(run, "query_canceled", org_id=claims.org_id)
            raise
        run.caller = replace(nameless, org=inputs.org)
        granted = {(grant.dataset_uuid, grant.dataset_version) for grant in claims.datasets}

        async def list_relations() -> Sequence[ReadableRelation]:
            readable = (await self.control.task_inputs(request)).relations  # again: it may have waited for its turn
            return [item for item in readable if (item.dataset_uuid, item.dataset_version) in granted]

        return await self._perform(run, list_relations, scratch_prefix=claims.s3.scratch_prefix)

    def runs(self, user: UserClaims, query_id: UUID) -> bool:
        return (user.org, user.sub, query_id) in self._running

    async def cancel(self, user: UserClaims, query_id: UUID) -> CancelQueryReply:
        task = self._running.get((user.org, user.sub, query_id))
        if task is None:
            raise TraceError("query_not_found")
        task.cancel(_CANCELED)
        await asyncio.wait({task})
        return CancelQueryReply(query_id=query_id, canceled=task.cancelled() or _was_canceled(task))

    async def catalog(self, user: UserClaims) -> CatalogReply:
        caller = QueryCaller(org=user.org, subject=user.sub, is_task=False, dags=user.readable_dags)
        directory = self.directory / str(new_id())
        try:
            async with asyncio.timeout(_CATALOG_SECONDS), self.slots.enter(caller):
                directory.mkdir()
                relations = bind_relations(await self._list_readable(user))
                columns, _ = await self._describe(caller, relations, directory)
        except TimeoutError:
            raise TraceError("query_timeout") from None
        finally:
            await _remove(directory, again=True)
        return CatalogReply(
            relations=[
                CatalogRelation(
                    name=name,
                    dataset_uuid=relation.source.dataset_uuid,
                    dataset_version=relation.source.dataset_version,
                    storage=relation.source.storage,
                    columns=_listed(columns.get(name, {}).items()) or relation.source.expected_columns,
                )
                for name, relation in relations.items()
            ]
        )

    # Steps

    async def _list_readable(self, user: UserClaims) -> list[ReadableRelation]:
        """What people of an org can query: its published datasets, and the results of its checks. A token that is
        limited to DAGs reads the datasets of these, and no results, which are of all DAGs."""
        relations = await self.control.relations(user.org, user.readable_dags)
        return relations if user.readable_dags is not None else [*relations, check_results.RELATION]

    def _start(
        self, caller: QueryCaller, request: QueryRequest | TaskQueryRequest, query_id: UUID, most_seconds: int
    ) -> _Run:
        seconds = min(request.timeout_seconds or most_seconds, most_seconds)
        directory = self.directory / str(new_id())
        return _Run(caller=caller, request=request, query_id=query_id, directory=directory, seconds=seconds)

    async def _perform(
        self, run: _Run, list_relations: Callable[[], Awaitable[Sequence[ReadableRelation]]], scratch_prefix: str | None
    ) -> QueryAnswer:
        """Runs as a task of its own, which `cancel` can find; whoever waits for it and leaves takes it along."""
        key = (run.caller.org, run.caller.subject, run.query_id)
        if key in self._running:
            self._record_refusal(run, "query_id_taken")
            raise TraceError("query_id_taken", field="query_id")
        task = asyncio.create_task(self._record_run(run, list_relations, scratch_prefix))
        self._running[key] = task
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            if not task.done():  # the caller hung up
                task.cancel()
                await asyncio.wait({task})
                raise
            if task.cancelled():
                raise TraceError("query_canceled") from None
            raise
        finally:
            del self._running[key]

    def _record_refusal(self, run: _Run, code: str, org_id: UUID | None = None) -> None:
        """Of a query that does not even wait for its turn."""
        self.metrics.queries.labels("task" if run.caller.is_task else "user", code).inc()
        self.control.record_later(run.to_record(code, org_id))

    async def _record_run(
        self, run: _Run, list_relations: Callable[[], Awaitable[Sequence[ReadableRelation]]], scratch_prefix: str | None
    ) -> QueryAnswer:
        kind = "task" if run.caller.is_task else "user"
        outcome = "internal"
        removal: asyncio.Task[None] | None = None
        self.metrics.running_queries.inc()
        try:
            try:
                async with asyncio.timeout(run.seconds), self.slots.enter(run.caller):
                    answer = await self._run(run, await list_relations(), scratch_prefix)
            except TimeoutError:
                raise TraceError("query_timeout", timeout_seconds=run.seconds) from None
            removal = asyncio.create_task(_remove(run.directory))
            await self.control.record(run.to_record("ok"))
            outcome = "ok"
            return answer
        except asyncio.CancelledError:
            outcome = "query_canceled"
            raise
        except TraceError as error:
            outcome = error.code
            raise
        finally:
            self.metrics.running_queries.dec()
            self.metrics.queries.labels(kind, outcome).inc()
            self.metrics.query_seconds.labels(kind).observe(run.elapsed_ms / 1000)
            self.metrics.bytes_read.inc(run.bytes_read)
            if outcome != "ok":
                self.control.record_later(run.to_record(outcome))
            await (removal or _remove(run.directory, again=True))

    async def _run(self, run: _Run, sources: Sequence[ReadableRelation], scratch_prefix: str | None) -> QueryAnswer:
        run.directory.mkdir()
        relations = bind_relations(sources)
        mentioned = {name: relations[name] for name in sorted(named_in(run.request.sql, relations))}
        columns, failures = await self._describe(run.caller, mentioned, run.directory)
        types = {name: columns.get(name, UNKNOWN_COLUMNS) for name in relations}
        parameters = {name: QueryParameter(item.type, item.value) for name, item in run.request.parameters.items()}
        try:
            checked = await self.gate.check(run.caller.org, run.request.sql, parameters, types)
        except TraceError as refusal:
            if failures and refusal.code in _OF_COLUMNS:  # it may have them: they are not known
                raise next(iter(failures.values())) from None
            raise
        run.fingerprint = checked.fingerprint
        used = {name: relations[name] for name in sorted(checked.relations)}
        run.relations = tuple(used.values())
        for name in used.keys() & failures.keys():
            raise failures[name]
        reader = RelationReader(
            control=self.control,
            files=self.files,
            broker=self.broker,
            max_input_bytes=self.limits.max_input_bytes,
        )
        local = await reader.read(run, used, types, checked)
        export = run.directory / "result.parquet"
        result = await self.execution.run(
            checked.sql,
            checked.parameters,
            local,
            slot=self.slots.engine(run.caller, run.bytes_read),
            directory=run.inputs,
            limit=run.request.limit,
            export=export,
            seconds=run.seconds_left,
            inline_rows=self.limits.inline_rows,
            inline_bytes=self.limits.inline_bytes,
        )
        run.row_count = result.row_count
        return await self._answer(run, result, export, scratch_prefix)

    async def _describe(
        self, caller: QueryCaller, relations: Mapping[str, BoundRelation], directory: Path
    ) -> tuple[dict[str, Columns], dict[str, TraceError]]:
        """Columns of the relations, and why those of some are not known. A broken file of one dataset is no error of a
        query that only has its name somewhere in the text."""
        columns: dict[str, Columns] = {}
        failures: dict[str, TraceError] = {}
        for name, relation in relations.items():
            listed = self._schemas.known(relation)
            if listed is None:
                try:
                    listed = await self._schemas.read(relation, directory, self.slots.engine(caller, 0))
                except TraceError as error:
                    if error.retryable:
                        raise
                    failures[name] = error
                    continue
            if listed is None:
                message = f"Nothing of the dataset {name} has been committed yet."
                failures[name] = TraceError("dataset_not_committed", message)
            else:
                columns[name] = listed
        return columns, failures

    async def _answer(self, run: _Run, result: ExecutedQuery, export: Path, scratch_prefix: str | None) -> QueryAnswer:
        if len(result.stream) <= _SMALL_STREAM:
            rows, body = self._encode(result, run.request.format)
        else:
            rows, body = await asyncio.to_thread(self._encode, result, run.request.format)
        truncated = result.truncated or (body is None and len(rows) < result.row_count)
        location, download = None, None
        if truncated and not result.truncated:  # the engine has exported nothing, since all rows were in its stream
            await asyncio.to_thread(lambda: export.write_bytes(encode_parquet(result.read())))
        if truncated and scratch_prefix is not None:
            location = await self.exports.for_task(export, scratch_prefix, run.run_id)
        elif truncated:
            download = await self.exports.for_user(export, run.caller, run.run_id)
        reply = QueryReply(
            query_id=run.query_id,
            columns=_listed(result.columns),
            rows=rows,
            row_count=result.row_count,
            truncated=truncated,
            output_location=location,
            download=download,
            datasets=[relation.dataset for relation in run.relations],
            bytes_read=run.bytes_read,
            elapsed_ms=run.elapsed_ms,
        )
        return QueryAnswer(reply=reply, body=body)

    def _encode(self, result: ExecutedQuery, result_format: str) -> tuple[list[list[Any]], bytes | None]:
        """Rows of JSON, or the bytes of another format."""
        if result_format == "arrow":
            return [], result.stream
        table = result.read()
        if result_format == "json":
            return encode_rows(table, self.limits.inline_bytes), None
        return [], ENCODERS[result_format](table)


_CANCELED = "canceled by its caller"


def _was_canceled(task: "asyncio.Task[Any]") -> bool:
    error = task.exception()
    return isinstance(error, TraceError) and error.code == "query_canceled"


def _listed(columns: Any) -> list[ResultColumn]:
    return [ResultColumn(name=name, type=kind) for name, kind in columns]


async def _remove(directory: Path, *, again: bool = False) -> None:
    """Twice if it was told to stop: a thread may have made another file meanwhile."""
    for _ in range(1 + again):
        await asyncio.shield(asyncio.to_thread(shutil.rmtree, directory, ignore_errors=True))


def hash_text(sql: str) -> str:
    """Of a query that the gate refused: without constants and comments, in lower case, with single spaces."""
    return hashlib.sha256(" ".join(_CONSTANTS.sub("?", sql).lower().split()).encode()).hexdigest()
