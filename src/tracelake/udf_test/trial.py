"""One run of a function against samples: the archive is checked and unpacked, the sandbox is the runner's, and the way
out leads to parts of the platform in this process."""

import asyncio
import hashlib
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

from tracelake.errors import TraceError
from tracelake.http.app import ListenerApp
from tracelake.http.router import Router
from tracelake.query.metrics import QueryMetrics
from tracelake.runner.bundles import BundleRejected, remove_tree, unpack
from tracelake.runner.egress import Destinations
from tracelake.runner.exchange import SandboxReply, SandboxRequest
from tracelake.runner.function import INSIDE, CountRefusal, Egress, FunctionRunner, StopSignal
from tracelake.runner.memory import MemoryLimiter
from tracelake.runner.preparation import make_egress, make_runtime_api, plan_function
from tracelake.runner.self_test import check_isolation
from tracelake.sandbox.server import SandboxServer
from tracelake.settings import Settings
from tracelake.settings.configs import archive_limits
from tracelake.udf_test.local_upstream import ListenerUpstream, RefusedRequest, describe_refusal
from tracelake.udf_test.memory_objects import MemoryObjects
from tracelake.udf_test.object_requests import ObjectUpstream
from tracelake.udf_test.sample_queries import open_queries
from tracelake.udf_test.sample_task import SampleEvent, SampleTask, make_task
from tracelake.udf_test.samples import SampleTable, UdfTestError, read_sample
from tracelake.udf_test.task_calls import SampleTaskCalls, sample_uri
from tracelake.udf_test.verdict import TrialReport, make_report
from tracelake.wire.claims import BundleLanguage, BundleRef
from tracelake.wire.contract import Listener

_MOST_NOTED = 100
_REFUSED = "egress_refused"


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialRequest:
    archive: bytes
    language: BundleLanguage
    entrypoint: str | None
    samples: Mapping[str, Path]
    event: SampleEvent = field(default_factory=SampleEvent)
    timeout_seconds: int
    memory_mb: int


class RefusalNotes:
    """Requests that were refused, equal ones once with their number."""

    def __init__(self) -> None:
        self.counts: Counter[RefusedRequest] = Counter()
        self.by_reason = CountRefusal()
        """As the way out counts them."""

    def note(self, request: RefusedRequest) -> None:
        if request in self.counts or len(self.counts) < _MOST_NOTED:
            self.counts[request] += 1

    def watch(self, egress: Egress) -> Egress:
        """The same way out; what it refuses is noted with its address."""

        async def handle(request: SandboxRequest) -> SandboxReply:
            reply = await egress.handler(request)
            if reply.status >= 400 and reply.stream is None:
                self.note(describe_refusal(request.method, request.target[:500], reply.status, reply.body))
            return reply

        return Egress(handler=handle, count_refusal=egress.count_refusal)

    def finish(self) -> dict[RefusedRequest, int]:
        """All of them; those that never became a request have no address."""
        with_address = Counter[str]()
        for request, number in self.counts.items():
            if request.code == _REFUSED:
                with_address[request.message.rpartition(": ")[2]] += number
        without_address = Counter(self.by_reason.reasons) - with_address
        return dict(self.counts) | {
            RefusedRequest(method="", target="", status=400, code="request_refused", message=reason): number
            for reason, number in without_address.items()
        }


async def run_trial(request: TrialRequest) -> TrialReport:
    """Raises UdfTestError for what cannot be used, and `sandbox_unavailable` if this machine isolates no functions."""
    directory = Path(tempfile.mkdtemp(prefix="trace-udf-test-"))
    try:
        settings = Settings.load({"home": directory / "home"}, environ={})  # the defaults of a stack
        samples = {name: read_sample(name, file, directory) for name, file in request.samples.items()}
        task = make_task(request.event, samples, request.timeout_seconds)
        bundle = directory / "bundle"
        try:
            unpack(request.archive, archive_limits(settings), bundle)
        except BundleRejected as refusal:
            raise UdfTestError(f"{refusal}: correct the archive.") from None
        return await _run(request, settings, directory, bundle, samples, task)
    finally:
        remove_tree(directory)


async def _run(
    request: TrialRequest,
    settings: Settings,
    directory: Path,
    bundle: Path,
    samples: dict[str, SampleTable],
    task: SampleTask,
) -> TrialReport:
    objects = MemoryObjects()
    for item in task.invocation.inputs:
        objects.add_file(sample_uri(item.dataset_uuid, item.dataset_version), samples[item.name].path)
    calls = SampleTaskCalls(task=task, samples=samples, objects=objects, artifact_max_bytes=settings.artifact_max_bytes)
    notes = RefusalNotes()
    async with AsyncExitStack() as stack:
        queries = await stack.enter_async_context(open_queries(calls, objects, settings, directory))
        starting = queries.start() if samples else None
        functions = await stack.enter_async_context(_open_functions())
        if starting is not None:
            await starting
        app = ListenerApp(
            Listener.TASK.value,
            Router([*calls.endpoints(), queries.endpoint()]),
            calls,
            QueryMetrics(),
            body_max_bytes=settings.body_max_bytes,
            batch_body_max_bytes=settings.body_max_bytes,
            webhook_max_bytes=settings.body_max_bytes,
            anonymous_body_bytes=settings.http_anonymous_body_bytes,
        )
        listener = ListenerUpstream(app=app, note_refusal=notes.note)
        store = ObjectUpstream(objects=objects, keys=calls.keys, note_refusal=notes.note)
        destinations = Destinations(tasks=listener, queries=listener, objects=store)
        ref = BundleRef(
            bundle_id=task.invocation.task_id,
            url="",
            sha256=hashlib.sha256(request.archive).hexdigest(),
            size_bytes=len(request.archive),
            language=request.language,
            entrypoint=request.entrypoint,
            timeout_seconds=request.timeout_seconds,
            memory_mb=request.memory_mb,
        )
        started_at = time.time()
        result = await functions.run(
            plan_function(task.invocation, ref, bundle, settings.runner_scratch_bytes),
            make_runtime_api(task.invocation, request.timeout_seconds),
            notes.watch(make_egress(task.invocation, task.claims.s3, destinations, notes.by_reason)),
            StopSignal(),
            calls.secrets,
        )
    return make_report(result, calls, notes.finish(), started_at)


@asynccontextmanager
async def _open_functions() -> AsyncIterator[FunctionRunner]:
    """Raises `sandbox_unavailable` with the reason if this machine does not isolate functions."""
    sandboxes = SandboxServer(INSIDE, spares=1)
    functions = FunctionRunner(sandboxes, MemoryLimiter.choose())
    try:
        problem = await check_isolation(sandboxes, functions)
        if problem is not None:
            raise TraceError("sandbox_unavailable", problem)
        yield functions
    finally:
        await asyncio.shield(sandboxes.close())
