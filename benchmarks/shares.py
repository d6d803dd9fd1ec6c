"""Several orgs in one queue: how long tasks of org B wait for a slot while org A has a backlog there.

    python -m benchmarks.shares [--quick | --smoke]

The real stack with one worker process and its own settings. Tasks of org A take 250 ms each; org B makes four tasks at
once, which take none, and lets them end before the next four. First org A is idle. Then it queues 10,000 tasks (1,000
with `--quick`), and once they hold the worker's slots the same is read again; the backlog outlasts the readings. Times
are the database's: from the creation of a task to its claim. The last line is one JSON object of medians; `_spread`
beside one holds the quartiles.

- `idle_first_ms`, `idle_last_ms`: org A is idle; the first and the last of the four.
- `busy_first_ms`, `busy_last_ms`: the same while org A has its backlog. A worker keeps a slot for orgs that have none,
  so the first need not wait for a task of org A; the last waits for slots that come free.
- `busy_last_tasks`: what the last one waits more than with an idle A, in times of one task of A.
- `backlog`, `backlog_left`: tasks of org A in the queue when the busy readings began, and when they ended.
"""

import asyncio
import json
from typing import Any
from uuid import UUID

import asyncpg
import uvloop

from benchmarks.support.options import Scale, parse_scale, say
from benchmarks.support.routing_stack import RoutingStack
from benchmarks.support.stack import Clients
from benchmarks.support.stats import Series
from benchmarks.support.tenants_load import make_tasks
from tracelake.wire import routes
from tracelake.wire.platform import JobReply, JobRequest

BUSY, QUIET = "busy", "quiet"
TASK_SECONDS = 0.25
AT_ONCE = 4
CALL_TASKS = 500
DEADLINE_SECONDS = 120.0

_WAITS = """
    SELECT extract(epoch FROM claimed_at - created_at)::float8 * 1000 AS wait
    FROM tasks WHERE task_id = ANY($1) AND status = 'Completed' ORDER BY 1"""
_IN_STATE = "SELECT count(*) FROM tasks WHERE job_id = $1 AND status = $2"


class SharedQueue:
    def __init__(self, clients: Clients, database: "asyncpg.Connection[asyncpg.Record]") -> None:
        self._clients = clients
        self._database = database

    async def make_job(self, org: str, seconds: float) -> JobReply:
        config = {"seconds": seconds}
        request = JobRequest(org=org, dag="shares", name=org, runtime="ecs_platform", operator="sleep", config=config)
        return await self._clients.internal.call(routes.REGISTER_JOB, request)

    async def queue(self, job: JobReply, count: int) -> None:
        for first in range(0, count, CALL_TASKS):
            await make_tasks(self._clients, job, min(CALL_TASKS, count - first))

    async def count(self, job: JobReply, state: str) -> int:
        number: int = await self._database.fetchval(_IN_STATE, job.job_id, state)
        return number

    async def until_running(self, job: JobReply) -> None:
        """Until most slots of the worker are taken."""
        async with asyncio.timeout(DEADLINE_SECONDS):
            while await self.count(job, "Running") < AT_ONCE * 2:
                await asyncio.sleep(0.05)

    async def read(self, job: JobReply, readings: int) -> tuple[Series, Series]:
        """Milliseconds that the first and the last of a few tasks wait."""
        first, last = Series(), Series()
        for _ in range(readings):
            waits = await self._waits(await make_tasks(self._clients, job, AT_ONCE))
            first.values.append(waits[0])
            last.values.append(waits[-1])
        return first, last

    async def _waits(self, tasks: list[UUID]) -> list[float]:
        async with asyncio.timeout(DEADLINE_SECONDS):
            while True:
                rows = await self._database.fetch(_WAITS, tasks)
                if len(rows) == len(tasks):
                    return [row["wait"] for row in rows]
                await asyncio.sleep(0.02)


async def measure(stack: RoutingStack, scale: Scale) -> dict[str, Any]:
    backlog, readings = scale.pick((10_000, 40), (1_000, 15), (100, 1))
    clients = stack.clients()
    database = await asyncpg.connect(stack.state_dsn)
    shared = SharedQueue(clients, database)
    busy, quiet = await shared.make_job(BUSY, TASK_SECONDS), await shared.make_job(QUIET, 0)
    stack.start_worker()
    await shared.read(quiet, 1)  # the worker is there
    idle_first, idle_last = await shared.read(quiet, readings)
    say(f"org A idle: {idle_first.median:.1f} ms, {idle_last.median:.1f} ms")
    await shared.queue(busy, backlog)
    await shared.until_running(busy)
    queued = await shared.count(busy, "Queued")
    busy_first, busy_last = await shared.read(quiet, readings)
    left = await shared.count(busy, "Queued")
    say(f"org A with {queued:,} queued, {left:,} at the end: {busy_first.median:.1f} ms, {busy_last.median:.1f} ms")
    stack.stop_worker()
    await database.close()
    await clients.close()
    result: dict[str, Any] = {"benchmark": "shares", "readings": readings, "task_ms": TASK_SECONDS * 1000}
    for name, series in (
        ("idle_first_ms", idle_first),
        ("idle_last_ms", idle_last),
        ("busy_first_ms", busy_first),
        ("busy_last_ms", busy_last),
    ):
        result |= {name: round(series.median, 1), f"{name}_spread": series.spread}
    more = (busy_last.median - idle_last.median) / (TASK_SECONDS * 1000)
    return result | {"busy_last_tasks": round(more, 2), "backlog": queued, "backlog_left": left}


def main() -> None:
    scale = parse_scale(__doc__)
    with RoutingStack(()) as stack:
        result = uvloop.run(measure(stack, scale))
    print(json.dumps(result))


if __name__ == "__main__":
    main()
