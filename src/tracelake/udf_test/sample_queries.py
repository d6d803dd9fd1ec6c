"""The Query Service over the samples of a test: its own gate, engine and sandbox, with a control plane of one task.

Where there is a sample, its parts start before the run, so that their start takes no time of the function's.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from tracelake.http.router import Endpoint, HttpRequest, answer
from tracelake.query.batch import BatchQueryFront
from tracelake.query.broker import TableBroker
from tracelake.query.control import ControlPlane
from tracelake.query.endpoints import QueryEndpoints
from tracelake.query.engine.server import EngineServer
from tracelake.query.execution import EngineResources, QueryExecution
from tracelake.query.exports import ResultExports
from tracelake.query.files import QueryFiles
from tracelake.query.gate.processes import GateProcesses
from tracelake.query.metrics import QueryMetrics
from tracelake.query.service import QueryLimits, QueryService
from tracelake.query.slots import QuerySlots, SlotLimits
from tracelake.settings import Settings
from tracelake.settings.configs import take_config
from tracelake.storage.file_cache import FileCache
from tracelake.udf_test.memory_objects import MemoryObjects
from tracelake.udf_test.sample_task import LAYOUT
from tracelake.udf_test.task_calls import SampleTaskCalls
from tracelake.wire import routes
from tracelake.wire.contract import Route
from tracelake.wire.platform import DatasetFilesReply, DatasetFilesRequest
from tracelake.wire.query import (
    InputRelation,
    InputSelection,
    QueryAuditRecord,
    QueryAuditReply,
    TaskInputsReply,
    TaskInputsRequest,
)

B = TypeVar("B")
R = TypeVar("R")

_ORG = "test"


class SampleControl:
    """The calls of the Query Service to a Dispatcher, answered for one task."""

    def __init__(self, calls: SampleTaskCalls) -> None:
        self._calls = calls
        endpoints = (
            answer(routes.LIST_TASK_INPUTS, self._list_inputs),
            answer(routes.LIST_DATASET_FILES, self._list_files),
            answer(routes.RECORD_QUERY, self._record),
        )
        self._endpoints: dict[str, Endpoint] = {endpoint.route.path: endpoint for endpoint in endpoints}

    async def call(self, route: Route[B, R], body: B, /, **_parameters: Any) -> R:
        reply: R = await self._endpoints[route.path].handler(HttpRequest(route, body))
        return reply

    async def _list_inputs(self, request: HttpRequest[TaskInputsRequest]) -> TaskInputsReply:
        self._calls.check_fence(request.body)
        relations = [
            InputRelation(
                name=item.name,
                dataset_uuid=item.dataset_uuid,
                dataset_version=item.dataset_version,
                storage="s3",
                selections=[InputSelection(unit=item.unit, where=item.where)],
            )
            for item in self._calls.task.invocation.inputs
        ]
        return TaskInputsReply(org=_ORG, relations=relations)

    async def _list_files(self, request: HttpRequest[DatasetFilesRequest]) -> DatasetFilesReply:
        owner, version = request.body.dataset_uuid, request.body.dataset_version
        assert owner is not None
        assert version is not None
        units = self._calls.list_units(owner, version)
        return DatasetFilesReply(dataset_uuid=owner, dataset_version=version, units=units)

    async def _record(self, _request: HttpRequest[QueryAuditRecord]) -> QueryAuditReply:
        return QueryAuditReply()


@dataclass(eq=False)
class SampleQueries:
    """The endpoint of task queries; its engine and its gate start when they are first needed."""

    engine: EngineServer
    gate: GateProcesses
    query: Endpoint
    _starting: "asyncio.Future[Any] | None" = None

    def endpoint(self) -> Endpoint:
        return Endpoint(self.query.route, self._ask, self.query.ends_with_caller)

    def start(self) -> "asyncio.Future[Any]":
        if self._starting is None:
            self._starting = asyncio.gather(self.engine.start(), self.gate.warm_up())
        return self._starting

    async def _ask(self, request: HttpRequest[Any]) -> Any:
        await asyncio.shield(self.start())
        return await self.query.handler(request)

    async def close(self) -> None:
        if self._starting is not None:
            await asyncio.wait({self._starting})  # what has not started yet cannot be closed
            if not self._starting.cancelled():
                self._starting.exception()  # whoever asked knows it
        await self.gate.close()
        await self.engine.close()


@asynccontextmanager
async def open_queries(
    calls: SampleTaskCalls, objects: MemoryObjects, settings: Settings, directory: Path
) -> AsyncIterator[SampleQueries]:
    metrics = QueryMetrics()
    engine, gate = EngineServer(spares=1), GateProcesses(1)
    exports = ResultExports(transfer=objects, bucket=LAYOUT.scratch_bucket, download_seconds=1)
    control = ControlPlane(SampleControl(calls))
    slots = QuerySlots(take_config(SlotLimits, settings, "query_"), metrics)
    running = directory / "running"
    running.mkdir(mode=0o700)
    service = QueryService(
        control=control,
        gate=gate,
        execution=QueryExecution(engine, take_config(EngineResources, settings, "query_")),
        files=QueryFiles(FileCache(directory / "cache", objects)),
        broker=TableBroker(lambda: ""),
        exports=exports,
        slots=slots,
        limits=take_config(QueryLimits, settings, "query_"),
        metrics=metrics,
        directory=running,
    )

    async def check_nothing() -> dict[str, str]:
        return {}

    batch = BatchQueryFront(control, gate, exports, slots, metrics)
    endpoints = QueryEndpoints(service, batch, metrics, check_nothing).endpoints()
    (query,) = (endpoint for endpoint in endpoints if endpoint.route is routes.QUERY_AS_TASK)
    queries = SampleQueries(engine, gate, query)
    try:
        yield queries
    finally:
        await control.close()
        await queries.close()
