"""What each alert is about, caused for real on a Dispatcher.

A situation stops twice: after its beginning, when all is well, and after what a quiet time is like. What comes after
that is the trouble. An alert must be silent over the quiet time, and fire over the trouble.
"""

import asyncio
import errno
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, TypeAlias

import asyncpg

from tests.monitoring.promql import Scrape
from tests.monitoring.real_follower import BLOCKS, FOLLOWER, follow_served_chain
from tests.routing.support import Flow
from tests.sink.flow import BufferFlow
from tests.sources.webhook_support import Hook
from tests.support import dags
from tests.support.dispatcher import DispatcherHarness, fence
from tracelake.client.errors import DispatcherUnavailableError
from tracelake.dispatcher.http.health import HealthChecks
from tracelake.ports import ObjectMeta, QueueRejectedError
from tracelake.query.metrics import QueryMetrics
from tracelake.runner.metrics import RunnerMetrics
from tracelake.runner.outcome import RunEnding, RunResult
from tracelake.settings.home import Home
from tracelake.stack.renewal import CredentialRenewal, read_renewal
from tracelake.storage.file_cache import FileCache
from tracelake.wire.sources import FireRequest

Trouble: TypeAlias = Iterator[None]

PIPE = """
name: d
defaults: {runtime: ecs_platform}
jobs:
  - {name: src, activation: source, source: {kind: manual}}
  - {name: step, activation: reactive, operator: noop, inputs: [{from: {job: src}}]}
  - {name: slow, activation: reactive, operator: noop, inputs: [{from: {job: step}}], max_queue_depth: 10}
"""
PLAIN = """
name: d
defaults: {runtime: ecs_platform}
jobs:
  - {name: src, activation: source, source: {kind: manual}}
  - {name: work, activation: reactive, operator: noop, inputs: [{from: {job: src}}]}
"""
CHECKED = """
name: d
defaults: {runtime: ecs_platform}
jobs:
  - {name: src, activation: source, source: {kind: manual}}
  - {name: work, activation: reactive, operator: decode_logs, inputs: [{from: {job: src}}],
     checks: [{freshness: {max_age: 2h}}]}
"""
HEAD = """
name: d
jobs:
  - name: head
    activation: source
    source: {kind: always_on}
    runtime: ecs_platform
    operator: ticker
    config: {seconds: 12}
"""
CRON = """
name: d
jobs:
  - {name: tick, activation: source, source: {kind: cron, schedule: "* * * * *"}}
"""


@dataclass
class Stage:
    """A Dispatcher, and an org of this situation's own."""

    harness: DispatcherHarness
    org: str = dags.ORG
    queries: QueryMetrics = field(default_factory=QueryMetrics)
    """Of a Query Service beside it."""
    functions: RunnerMetrics = field(default_factory=RunnerMetrics)
    """Of a runner beside it."""

    @property
    def flow(self) -> Flow:
        return Flow(self.harness, self.org)

    def buffers(self) -> BufferFlow:
        """A buffered dataset with writers, and no sink."""
        return BufferFlow(self.harness, "postgresql://nowhere", self.org)

    def scrape(self) -> Scrape:
        """As Prometheus does it: a page, and whether there was one."""
        self.harness.run(self.harness.dispatcher.gauges.run_once())
        return self.page()

    def page(self) -> Scrape:
        target = 'up{instance="a",job="trace"}'
        try:
            body = self.harness.call("internal", "GET", "/metrics").body
        except DispatcherUnavailableError:
            return Scrape(f"{target} 0\n")
        pages = f"{self.queries.render().decode()}{self.functions.render().decode()}".splitlines(keepends=True)
        own = [line for line in pages if "trace_quer" in line or "trace_function" in line]
        return Scrape(f"{body.decode()}{''.join(own)}{target} 1\n")

    def round(self, name: str) -> None:
        """One turn of a loop, with what its timer counts."""
        loop = next(loop for loop in self.harness.dispatcher.loops if loop.name == name)
        self.harness.run(loop._round())

    def bare_task(self) -> str:
        """Of a job that no DAG made."""
        return self.harness.make_task(self.harness.make_job(org=self.org)["job_id"])

    def head(self) -> str:
        """The run of an always_on source."""
        self.flow.deploy(HEAD)
        self.harness.run(self.harness.dispatcher.monitor.run_once())
        (run,) = self.flow.tasks("head")
        return str(run["task_id"])

    def fill(self, number: int) -> None:
        """So many ready tasks in the limited queue of PIPE."""
        for cursor in range(1, number + 1):
            self.flow.trigger("d", "src", cursor=cursor)
        self.flow.run_all("step")


def dispatcher_down(stage: Stage) -> Trouble:
    yield
    yield
    servers = stage.harness._servers

    async def stop() -> None:
        await asyncio.gather(*(server.stop() for server in servers))
        servers.clear()
        for client in stage.harness.clients.values():
            await client.close()

    stage.harness.run(stop())


def loop_fails(stage: Stage) -> Trouble:
    yield
    stage.round("relay")
    yield
    stage.bare_task()
    with _replaced(stage.harness.dispatcher.relay, "queue", None):
        for _ in range(11):
            stage.round("relay")
    stage.round("relay")


def loop_stands(stage: Stage) -> Trouble:
    yield
    for loop in stage.harness.dispatcher.loops:
        stage.round(loop.name)
    yield


def internal_errors(stage: Stage) -> Trouble:
    async def broken(_self: HealthChecks) -> dict[str, str]:
        raise RuntimeError("broken")

    yield
    stage.harness.call("internal", "GET", "/readyz")
    yield
    with _replaced(HealthChecks, "check", broken):
        assert stage.harness.call("internal", "GET", "/readyz").status == 500


def slow_calls(stage: Stage) -> Trouble:
    yield
    stage.harness.dispatcher.metrics.complete_seconds.observe(0.2)
    yield
    stage.harness.dispatcher.metrics.complete_seconds.observe(4.0)


def credentials_refused(stage: Stage) -> Trouble:
    yield
    stage.harness.call("internal", "GET", "/internal/sources", headers={"x-trace-service-token": "old"})
    yield
    for _ in range(101):
        stage.harness.call("internal", "GET", "/internal/sources", headers={"x-trace-service-token": "old"})


def outbox_failed(stage: Stage) -> Trouble:
    async def reject(_messages: Any) -> None:
        raise QueueRejectedError("no")

    yield
    stage.bare_task()
    yield
    with _replaced(stage.harness.dispatcher.ports.queue, "publish", reject):
        for _ in range(stage.harness.config.outbox_max_tries):
            stage.harness.advance(3600)
            stage.harness.relay()


def outbox_stuck(stage: Stage) -> Trouble:
    stage.harness.relay()
    yield
    stage.bare_task()
    yield
    stage.harness.advance(31)


def dead_letters(stage: Stage) -> Trouble:
    stage.bare_task()
    stage.harness.relay()
    yield
    yield
    _queue_sql(
        stage,
        """INSERT INTO dead_letters SELECT message_id, queue, key, body, published_at, 5, now(), 'received too often'
           FROM messages LIMIT 1""",
    )


def wake_ups_lost(stage: Stage) -> Trouble:
    stage.bare_task()
    stage.harness.relay()
    yield
    yield
    _queue_sql(stage, "DELETE FROM messages")
    stage.harness.advance(2 * stage.harness.config.reconcile_grace_seconds)
    stage.harness.run(stage.harness.dispatcher.reconciler.run_once())


def source_dead(stage: Stage) -> Trouble:
    run = stage.head()
    lease = stage.flow.claim(run)
    yield
    yield
    stage.flow.complete(run, lease, status="Failed", error_message="no", retryable=False)


def source_restarts(stage: Stage) -> Trouble:
    run = stage.head()
    lease = stage.flow.claim(run)
    yield
    yield
    for _ in range(5):
        stage.flow.complete(run, lease, status="Failed", error_message="no")
        stage.harness.advance(1000)
        stage.harness.requeue_due()
        lease = stage.flow.claim(run)


def source_silent(stage: Stage) -> Trouble:
    run = stage.head()
    lease = stage.flow.claim(run)
    yield
    stage.flow.say(run, lease, stage.flow.event("d", "head", cursor=1))
    yield
    stage.harness.advance(1000)


def reorganisation_too_deep(stage: Stage) -> Trouble:
    """An attempt that finds it fails long before its first heartbeat is due."""
    stage.flow.deploy(FOLLOWER)
    stage.harness.run(stage.harness.dispatcher.monitor.run_once())
    with follow_served_chain(stage.harness) as follower:
        yield

        def is_at_head(signal: str) -> bool:
            return signal == "heartbeat" and follower.newest == BLOCKS - 1

        follower.run(is_at_head, heartbeat_seconds=0.05)
        yield
        follower.chain.reorganise(20)
        follower.run(lambda signal: signal == "final", heartbeat_seconds=3600)


def source_starves(stage: Stage) -> Trouble:
    stage.flow.deploy(PLAIN.replace("name: d", "name: e", 1))
    yield
    yield
    stage.head()


def scheduler_away(stage: Stage) -> Trouble:
    stage.flow.deploy(CRON)
    yield
    stage.harness.run(stage.harness.dispatcher.cron.list())
    yield


def cron_late(stage: Stage) -> Trouble:
    stage.flow.deploy(CRON)
    job_id = dags.job_id(stage.harness, "d", "tick", org=stage.org)

    def fire(late: int) -> None:
        now = stage.harness.sql("SELECT date_trunc('second', trace_now()) AS now")[0]["now"]
        request = FireRequest(slot=now - timedelta(seconds=late))
        stage.harness.run(stage.harness.dispatcher.cron.fire(job_id, request))

    yield
    fire(2)
    yield
    fire(600)


def webhook_refused(stage: Stage) -> Trouble:
    hook = Hook(stage.harness, org=stage.org).deploy()
    hook.send(secrets=["wrong"])  # so that the code is known before the quiet time
    yield
    for delivery in ("one", "two", "three"):
        hook.sent(delivery=delivery)
    yield
    hook.sent(delivery="four")
    for _ in range(3):
        assert hook.send(secrets=["wrong"]).code == "signature_invalid"


def source_paused_long(stage: Stage) -> Trouble:
    stage.flow.deploy(PLAIN)
    pauses = stage.harness.dispatcher.pauses
    yield
    stage.harness.run(pauses.pause(stage.flow.actor, "d", "src"))
    yield
    stage.harness.advance(2 * 86400)


def queue_tripped(stage: Stage) -> Trouble:
    stage.flow.deploy(PIPE)
    yield
    stage.fill(9)
    yield
    stage.fill(11)
    stage.harness.run(stage.harness.dispatcher.pressure.run_once())


def queue_nearly_full(stage: Stage) -> Trouble:
    stage.flow.deploy(PIPE)
    yield
    stage.fill(7)
    yield
    stage.fill(9)


def input_held(stage: Stage) -> Trouble:
    stage.flow.deploy(PLAIN)
    yield
    stage.flow.trigger("d", "src", cursor=1)
    yield
    stage.flow.fail(stage.flow.tasks("work")[0]["task_id"])


def work_not_taken(stage: Stage) -> Trouble:
    stage.flow.deploy(PLAIN)
    yield
    stage.flow.trigger("d", "src", cursor=1)
    yield
    stage.harness.advance(1000)


def events_pile_up(stage: Stage) -> Trouble:
    stage.flow.deploy(PIPE)
    flow = stage.flow
    flow.trigger("d", "src", cursor=0)
    (task,) = flow.tasks("step")
    lease = flow.claim(task["task_id"])
    yield
    flow.say(task["task_id"], lease, *(flow.event("d", "step", cursor=cursor) for cursor in range(10)))
    yield
    flow.say(task["task_id"], lease, *(flow.event("d", "step", cursor=cursor) for cursor in range(10, 700)))
    assert flow.drain() == 0


def build_stands(stage: Stage) -> Trouble:
    stage.flow.deploy(PLAIN)
    stage.flow.trigger("d", "src", cursor=1)
    stage.flow.run_all("work")
    yield
    stage.flow.deploy(PLAIN.replace("operator: noop,", "operator: sleep, config: {seconds: 1},"))
    yield
    stage.harness.advance(2 * 86400)


def leases_run_out(stage: Stage) -> Trouble:
    stage.harness.reap()
    job = stage.harness.make_job(org=stage.org)["job_id"]
    tasks = [stage.harness.make_task(job) for _ in range(21)]
    yield
    for task in tasks:
        stage.flow.claim(task)
    yield
    stage.harness.advance(3600)
    assert stage.harness.reap() >= 21


def fenced_calls(stage: Stage) -> Trouble:
    """A worker that was thought dead, and whose task another one has by now."""
    task = stage.bare_task()
    lease = stage.flow.claim(task)
    stage.harness.reap()
    stage.harness.advance(150)
    assert stage.harness.reap()
    stage.harness.advance(60)
    assert stage.harness.requeue_due()
    stage.flow.claim(task)

    def speak() -> None:
        reply = stage.harness.task("heartbeat", lease["capability_token"], fence(task, lease))
        assert reply.status == 409, reply

    speak()
    yield
    speak()
    yield
    for _ in range(51):
        speak()


def batches_refused(stage: Stage) -> Trouble:
    flow = stage.buffers()
    yield
    flow.publish([{"key": 1}])
    yield
    flow.reject(flow.publish([{"key": "x"}])["publish_id"])


def batches_wait(stage: Stage) -> Trouble:
    flow = stage.buffers()
    yield
    flow.publish([{"key": 1}])
    yield
    stage.harness.advance(1000)


def sink_away(stage: Stage) -> Trouble:
    flow = stage.buffers()
    yield
    flow.publish([{"key": 1}])
    stage.harness.service("GET", "/internal/buffers")
    yield
    stage.harness.advance(150)


def dataset_late(stage: Stage) -> Trouble:
    flow = Flow(stage.harness)
    yield
    flow.deploy(CHECKED)
    yield
    stage.harness.advance(7_300)


def renewal_fails(stage: Stage) -> Trouble:
    home = Home(stage.harness.home)
    home.run.mkdir()
    renewal = CredentialRenewal(home, _refuse_to_write, on_failure=lambda _: None)
    metrics = stage.harness.dispatcher.metrics
    metrics.renewal_failures.set_function(lambda: read_renewal(home.renewal_file).failures)
    yield
    yield
    for _ in range(3):
        asyncio.run(renewal.run_once())


def _refuse_to_write() -> None:
    raise OSError(errno.ENOSPC, "No space left on device")


def certificate_expires(stage: Stage) -> Trouble:
    left = stage.harness.dispatcher.metrics.certificate_left
    yield
    left.set(timedelta(days=30).total_seconds())
    yield
    left.set(timedelta(days=13).total_seconds())


def queries_wait(stage: Stage) -> Trouble:
    yield
    with stage.queries.waiting("engine"):
        pass
    yield
    stage.queries.waiting_queries.labels("engine").inc()


def queries_refused(stage: Stage) -> Trouble:
    refused = stage.queries.queries.labels("user", "rate_limited")
    refused.inc()
    yield
    refused.inc()
    yield
    refused.inc(50)


def query_cache_churns(stage: Stage) -> Trouble:
    """Ten files of a kilobyte, and room for one of them."""
    stage.queries.cache_limit_bytes.set(1500)
    with TemporaryDirectory() as scratch:
        cache = FileCache(Path(scratch) / "cache", FixedTransfer(), 1500, stage.queries)
        yield
        cache.link([ObjectMeta("s3://a/0", 1000, "e", None)], Path(scratch) / "query")
        yield
        files = [ObjectMeta(f"s3://a/{number}", 1000, "e", None) for number in range(10)]
        cache.link(files, Path(scratch) / "query")


def egress_refused(stage: Stage) -> Trouble:
    def run(refused: int) -> None:
        result = RunResult(ending=RunEnding.COMPLETED, seconds=1.0)
        stage.functions.count_run(stage.org, "bundle", "python", result, {"host": refused})

    run(1)
    yield
    run(3)
    yield
    run(500)


def functions_killed(stage: Stage) -> Trouble:
    def run(ending: RunEnding, count: int) -> None:
        for _ in range(count):
            stage.functions.count_run(stage.org, "bundle", "python", RunResult(ending=ending, seconds=1.0), {})

    run(RunEnding.MEMORY, 1)
    yield
    run(RunEnding.MEMORY, 1)
    run(RunEnding.FENCED, 100)
    run(RunEnding.ERROR, 100)
    yield
    run(RunEnding.MEMORY, 100)


def bundle_changed(stage: Stage) -> Trouble:
    yield
    yield
    stage.functions.changed_bundles.inc()


class FixedTransfer:
    """A store that has every object."""

    def upload(self, path: Path, uri: str) -> ObjectMeta:
        raise NotImplementedError

    def download(self, meta: ObjectMeta, path: Path) -> None:
        path.write_bytes(b"x" * meta.size)


SITUATIONS: dict[str, Callable[[Stage], Trouble]] = {
    "TraceDispatcherDown": dispatcher_down,
    "TraceLoopFails": loop_fails,
    "TraceLoopStands": loop_stands,
    "TraceInternalErrors": internal_errors,
    "TraceSlowCalls": slow_calls,
    "TraceCredentialsRefused": credentials_refused,
    "TraceCredentialRenewalFails": renewal_fails,
    "TraceCertificateExpires": certificate_expires,
    "TraceOutboxFailed": outbox_failed,
    "TraceOutboxStuck": outbox_stuck,
    "TraceDeadLetters": dead_letters,
    "TraceWakeUpsLost": wake_ups_lost,
    "TraceSourceDead": source_dead,
    "TraceSourceRestarts": source_restarts,
    "TraceSourceSilent": source_silent,
    "TraceReorganisationTooDeep": reorganisation_too_deep,
    "TraceSourceStarves": source_starves,
    "TraceSchedulerAway": scheduler_away,
    "TraceCronLate": cron_late,
    "TraceWebhookRefused": webhook_refused,
    "TraceSourcePausedLong": source_paused_long,
    "TraceBatchesRefused": batches_refused,
    "TraceBatchesWait": batches_wait,
    "TraceSinkAway": sink_away,
    "TraceQueueTripped": queue_tripped,
    "TraceQueueNearlyFull": queue_nearly_full,
    "TraceInputHeld": input_held,
    "TraceDatasetLate": dataset_late,
    "TraceTasksFail": input_held,
    "TraceWorkNotTaken": work_not_taken,
    "TraceEventsPileUp": events_pile_up,
    "TraceBuildStands": build_stands,
    "TraceLeasesRunOut": leases_run_out,
    "TraceFencedCalls": fenced_calls,
    "TraceQueriesWait": queries_wait,
    "TraceQueriesRefused": queries_refused,
    "TraceQueryCacheChurns": query_cache_churns,
    "TraceFunctionEgressRefused": egress_refused,
    "TraceFunctionsKilled": functions_killed,
    "TraceBundleChanged": bundle_changed,
}


class _replaced:
    """An attribute that is another one for a while."""

    def __init__(self, owner: Any, name: str, value: Any) -> None:
        self.owner, self.name, self.value = owner, name, value

    def __enter__(self) -> None:
        self.before = getattr(self.owner, self.name)
        setattr(self.owner, self.name, self.value)

    def __exit__(self, *_: object) -> None:
        setattr(self.owner, self.name, self.before)


def _queue_sql(stage: Stage, statement: str) -> None:
    async def execute() -> None:
        connection = await asyncpg.connect(stage.harness.queue_dsn)
        try:
            await connection.execute(statement)
        finally:
            await connection.close()

    stage.harness.run(execute())
