"""No metric is there for nothing: over the whole registry, each is seen to change."""

import re
import select
import socket
from collections.abc import Callable
from contextlib import ExitStack
from datetime import UTC, datetime
from uuid import UUID, uuid4

from tests.monitoring.promql import Scrape
from tests.monitoring.situations import PIPE, SITUATIONS, Stage
from tests.routing.support import block
from tests.sources.webhook_support import Hook
from tests.support import dags
from tests.support.configs import dispatcher_config, listener_limits
from tests.support.dispatcher import DispatcherHarness
from tests.support.postgres import WAIT_SECONDS
from tracelake.dispatcher.engine.catch_up.invalidation_drain import PAGE
from tracelake.dispatcher.engine.routing.invalidations import AT_ONCE
from tracelake.dispatcher.job_definitions import Definitions
from tracelake.dispatcher.metrics import Metrics
from tracelake.dispatcher.openlineage.sender import LineageSender
from tracelake.dispatcher.tracing.context import Span, TraceContext
from tracelake.dispatcher.tracing.exporter import OtlpSink
from tracelake.http.rates import RateLimiter

CONSTANT = {"trace_build_info"}


def moved(before: Scrape, now: Scrape, name: str) -> bool:
    return before.family(name) != now.family(name)


def test_every_metric_moves(harness: DispatcherHarness) -> None:
    first = Stage(harness).scrape()
    seen: set[str] = set()
    names = {family.name for family in Metrics().registry.collect()}

    def look(stage: Stage) -> None:
        now = stage.scrape()
        seen.update(name for name in names - seen if moved(first, now, name))

    for name, situation in SITUATIONS.items():
        if name == "TraceDispatcherDown":
            continue
        stage = Stage(harness, org=re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name).lower())
        for _ in situation(stage):
            look(stage)
        look(stage)
    for number, more in enumerate(MORE):
        stage = Stage(harness, org=f"more_{number}")
        more(stage)
        look(stage)
    never = {name for name in names - seen if not name.startswith("process_")}
    assert never == CONSTANT, "nobody has seen these move"


def drained(stage: Stage) -> None:
    """A full queue, worked off: what waited is drained. Its producers are stopped meanwhile."""
    flow = stage.flow
    flow.deploy(PIPE.replace("max_queue_depth: 10", "max_queue_depth: 2, max_queue_age: 5m"))
    stage.fill(2)
    flow.trigger("d", "src", cursor=9)
    stage.harness.run(stage.harness.dispatcher.pressure.run_once())
    stage.scrape()
    flow.run_all("slow")
    assert flow.drain()


def invalidated(stage: Stage) -> None:
    """So much at once that it is gone through page by page."""
    flow = stage.flow
    flow.deploy(
        """
        name: d
        defaults: {runtime: ecs_platform}
        jobs:
          - {name: src, activation: source, source: {kind: manual}}
          - {name: step, activation: reactive, operator: noop, inputs: [{from: {job: src}}]}
          - {name: each, activation: reactive, operator: noop, inputs: [{from: {job: step}}]}"""
    )
    flow.trigger("d", "src", cursor=1)
    generation = dags.output(stage.harness, "d", "step", org=stage.org)
    many = 10 * (AT_ONCE + PAGE)
    stage.harness.sql("INSERT INTO dataset_runs VALUES ($1, $2, 10, 0, 0, $3)", *generation, many - 1)
    (task,) = flow.tasks("step")
    lease = flow.claim(task["task_id"])
    wrong = {"start": 0, "end": many - 1, "reason": "reorg"}
    flow.say(task["task_id"], lease, flow.event("d", "step", **block(50, 59), invalidates=wrong))


def invoked(stage: Stage) -> None:
    """A task that the Dispatcher runs itself."""
    job = stage.harness.make_job(org=stage.org, runtime="dispatcher", operator="range_splitter", config={"size": 10})
    stage.harness.make_task(job["job_id"])
    stage.harness.invoke()


def hurried(stage: Stage) -> None:
    """A sender that is too fast."""
    hook = Hook(stage.harness, org=stage.org).deploy()
    stage.harness.dispatcher.deliveries._rates = RateLimiter(1, 1, monotonic=lambda: 0.0)
    assert [hook.send(delivery=delivery).status for delivery in ("one", "two")] == [200, 429]


def swept(stage: Stage) -> None:
    """A cutover that has left something to do."""
    stage.flow.deploy(PIPE)
    stage.harness.sql("UPDATE nodes SET uncounted = true WHERE org_id = $1", stage.flow.actor.org_id)


def untold(stage: Stage) -> None:
    """A span that finds no room in the queue to the collector."""
    sink = OtlpSink("http://127.0.0.1:9", stage.harness.dispatcher.metrics.spans_dropped.inc, queue=0)
    now = datetime.now(UTC)
    sink.take(Span("a span", TraceContext(1, 1), None, now), now)
    stage.harness.run(sink.close())


def unheard(stage: Stage) -> None:
    """An event for a receiver of lineage that is away, and one of a task that is gone."""
    dispatcher = stage.harness.dispatcher
    config = dispatcher_config(openlineage_url="http://127.0.0.1:9")
    sender = LineageSender(dispatcher.ports.store, Definitions(), config, dispatcher.metrics)
    for task in (stage.bare_task(), uuid4()):
        stage.harness.sql(
            "INSERT INTO lineage_events (task_id, attempt, event_type, event_time)"
            " VALUES ($1, 1, 'START', trace_now() - interval '1 hour')",
            UUID(str(task)),
        )
    stage.harness.run(sender.run_once())


def published(stage: Stage) -> None:
    """A batch of a task that still runs."""
    flow = stage.buffers()
    flow.publish_by(*flow.attempt("left"), [{"key": 1}])


def crowded(stage: Stage) -> None:
    """An address that opens one connection more than it may have loses its oldest one, and no other."""
    where = stage.harness.sockets["task"].getsockname()
    closed = stage.harness.dispatcher.metrics.connections_closed.labels("task", "address")
    before = closed._value.get()
    with ExitStack() as stack:
        connections = [
            # Of an address that has no connections yet.
            stack.enter_context(socket.create_connection(where, 30, source_address=("127.0.0.2", 0)))
            for _ in range(listener_limits().address_connections + 1)
        ]
        readable, _, _ = select.select(connections, [], [], WAIT_SECONDS)
        assert readable == connections[:1]
        assert connections[0].recv(1) == b""
        assert closed._value.get() == before + 1


MORE: tuple[Callable[[Stage], None], ...] = (
    *(drained, invalidated, invoked, hurried, swept, untold, unheard, published, crowded),
)
