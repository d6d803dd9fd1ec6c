"""Writes a plan: every transaction that changes tasks ends here, so routing, limits and wake-ups are never left out.

Locks are taken in one order everywhere: the org's routing lock (by whoever routes), tasks, generations, edges, limits,
queues.
"""

import time
from collections import Counter
from collections.abc import Callable, Sequence
from uuid import UUID

from tracelake.db.transaction import Connection
from tracelake.dispatcher import audit
from tracelake.dispatcher.backpressure import gauge
from tracelake.dispatcher.config import DispatcherConfig
from tracelake.dispatcher.lifecycle import places, rows
from tracelake.dispatcher.lifecycle.plan import Applied, NewTask, Plan, RoutedEvent
from tracelake.dispatcher.routing.directory import Reader
from tracelake.dispatcher.routing.router import Router
from tracelake.dispatcher.tracing.spans import Tracing


class Writer:
    def __init__(
        self,
        router: Router,
        config: DispatcherConfig,
        tracing: Tracing | None = None,
        on_made: Callable[[UUID, int], None] = lambda _org_id, _tasks: None,
    ) -> None:
        """`on_made` hears how many tasks were made for an org."""
        self._on_made = on_made
        self._router = router
        self._tracing = tracing
        self._runtimes = config.runtimes

    async def write(self, connection: Connection, plan: Plan) -> Applied:
        """`plan.wakeups` holds afterwards whom this transaction wakes."""
        if self._tracing is not None:
            self._tracing.begin(plan)
        places.hold_what_becomes_ready(plan.changes)
        locked = await self._router.lock(connection, plan)
        applied = await rows.apply(connection, plan)
        routing_since = time.monotonic()
        if applied.routed or any(edge.changed for edge in locked.edges.values()):
            tasks = await self._router.route(connection, locked, applied.routed)
            if tasks:
                applied.made += await rows.create(connection, tasks)
        applied.freed_edges = any(edge.changed and edge.behind for edge in locked.edges.values())
        applied.freed_edges |= await self._settle(connection, plan, applied.made)
        for entry in plan.audit:
            await audit.record(connection, *entry)
        if self._tracing is not None:
            await self._tracing.written(connection, plan, applied, locked, routing_since)
        return applied

    async def create(self, connection: Connection, plan: Plan, tasks: list[NewTask]) -> list[NewTask]:
        """Tasks alone, with their places and wake-ups; answers those that were not there."""
        made = await rows.create(connection, tasks) if tasks else []
        await self._settle(connection, plan, made)
        return made

    def shown(self, plan: Plan, events: Sequence[RoutedEvent], made: Sequence[NewTask], reader: Reader) -> None:
        """Events that waited for this reader made these tasks."""
        if self._tracing is not None:
            self._tracing.shown(plan, events, made, reader)

    def committed(self, plan: Plan) -> None:
        """To be called once what was written is committed: only now may anybody hear of it."""
        if self._tracing is not None:
            self._tracing.committed(plan)

    async def _settle(self, connection: Connection, plan: Plan, made: list[NewTask]) -> bool:
        """Places for what is limited, wake-ups for what became ready (new tasks came with theirs), depths of queues.

        True if the pressure of a queue eased, so that what it stopped may go on.
        """
        for org_id, tasks in Counter(task.org_id for task in made).items():
            self._on_made(org_id, tasks)
        depths = _depths(plan, made)
        wakeups = [(change.after.task_id, change.wake) for change in plan.changes if change.wake is not None]
        new_keys = plan.waited_for.union(key for task in made for key in task.limit_keys)
        if new_keys or any(change.after.limit_keys for change in plan.changes):
            wakeups += await places.settle(connection, plan.changes, new_keys, self._runtimes)
        if wakeups:
            await rows.wake(connection, wakeups)
        plan.wakeups += wakeups
        plan.wakeups += [(task.task_id, task.wake) for task in made if not task.limit_keys]
        depths = {node: delta for node, delta in depths.items() if delta}
        return await gauge.count(connection, depths) if depths else False


def _depths(plan: Plan, made: list[NewTask]) -> dict[UUID, int]:
    """How many more tasks are in each queue that is counted, or fewer. One that is held by a limit is in it."""
    depths: dict[UUID, int] = {}
    for task in made:
        if task.counted and task.node_id is not None:
            depths[task.node_id] = depths.get(task.node_id, 0) + 1
    for change in plan.changes:
        if change.after.counted and change.after.node_id is not None:
            delta = change.after.queued - change.before.queued
            depths[change.after.node_id] = depths.get(change.after.node_id, 0) + delta
    return depths
