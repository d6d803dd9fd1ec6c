"""Writes plans: every transaction that changes tasks ends here, with its routing, limits and wake-ups.

Locks are taken in one order everywhere: the org's routing lock (by whoever routes), tasks, generations, edges, limits,
queues.
"""

import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from uuid import UUID

from tracelake.db.transaction import Connection
from tracelake.dispatcher import audit
from tracelake.dispatcher.config import DispatcherConfig
from tracelake.dispatcher.engine import limits
from tracelake.dispatcher.engine.plan import NewTask, RoutedEvent, WritePlan, WriteResult
from tracelake.dispatcher.engine.pressure import gauge
from tracelake.dispatcher.engine.routing.directory import Reader
from tracelake.dispatcher.engine.routing.router import EventRouter, RoutingScope
from tracelake.dispatcher.engine.spans import Tracing
from tracelake.dispatcher.engine.tables import lineage_rows, progress_rows, task_rows


@dataclass(eq=False)
class Writer:
    router: EventRouter
    config: DispatcherConfig
    tracing: Tracing | None = None
    on_made: Callable[[UUID, int], None] = lambda _org_id, _tasks: None
    """Hears how many tasks were made for an org."""

    async def write(self, connection: Connection, plan: WritePlan) -> WriteResult:
        """Writes the plan; `plan.wakeups` holds afterwards whom this transaction wakes."""
        if self.tracing is not None:
            self.tracing.begin(plan)
        limits.hold_what_becomes_ready(plan.changes)
        scope = await self.router.lock(connection, plan)
        applied = await task_rows.apply(connection, plan)
        routing_since = time.monotonic()
        if applied.routed or scope.touched.units or any(edge.changed for edge in scope.edges.values()):
            tasks = await self.router.route(connection, scope, applied.routed)
            if tasks:
                applied.created_tasks += await task_rows.create(connection, tasks)
            applied.created_tasks += await self.settle_units(connection, scope)
        applied.freed_edges = any(edge.changed and edge.behind for edge in scope.edges.values())
        applied.freed_edges |= await self._settle(connection, plan, applied.created_tasks)
        if self.config.openlineage_url:
            await lineage_rows.record(connection, plan.changes)
        if plan.progress:
            await progress_rows.write_progress(connection, plan.progress)
        for entry in plan.audit:
            await audit.record(connection, *entry)
        if self.tracing is not None:
            await self.tracing.written(connection, plan, applied, scope, routing_since)
        return applied

    async def settle_units(self, connection: Connection, scope: RoutingScope) -> list[NewTask]:
        """Creates the tasks of touched units that are complete, without their places."""
        created_tasks: list[NewTask] = []
        async for tasks in self.router.settle(connection, scope):
            if tasks:
                created_tasks += await task_rows.create(connection, tasks)
        return created_tasks

    async def create_units(self, connection: Connection, plan: WritePlan, scope: RoutingScope) -> list[NewTask]:
        """The same with their places and wake-ups, for whoever writes no plan."""
        created_tasks = await self.settle_units(connection, scope)
        await self._settle(connection, plan, created_tasks)
        return created_tasks

    async def create(self, connection: Connection, plan: WritePlan, tasks: list[NewTask]) -> list[NewTask]:
        """Creates tasks with their places and wake-ups; returns those that did not exist."""
        created_tasks = await task_rows.create(connection, tasks) if tasks else []
        await self._settle(connection, plan, created_tasks)
        return created_tasks

    def shown(self, plan: WritePlan, events: Sequence[RoutedEvent], created: Sequence[NewTask], reader: Reader) -> None:
        """Notes for tracing that waiting events made these tasks of the reader."""
        if self.tracing is not None:
            self.tracing.shown(plan, events, created, reader)

    def committed(self, plan: WritePlan) -> None:
        """Sends the plan's spans. Called after the commit: nobody hears of what may be rolled back."""
        if self.tracing is not None:
            self.tracing.committed(plan)

    async def _settle(self, connection: Connection, plan: WritePlan, created_tasks: list[NewTask]) -> bool:
        """Hands out places, writes wake-ups (new tasks came with theirs), and counts the depths of queues.

        True if the pressure of a queue eased, so that what it stopped may go on.
        """
        for org_id, tasks in Counter(task.org_id for task in created_tasks).items():
            self.on_made(org_id, tasks)
        depths = _depths(plan, created_tasks)
        wakeups = [(change.after.task_id, change.wake) for change in plan.changes if change.wake is not None]
        new_keys = plan.waited_for.union(key for task in created_tasks for key in task.limit_keys)
        if new_keys or any(change.after.limit_keys for change in plan.changes):
            wakeups += await limits.settle(connection, plan.changes, new_keys, self.config.runtimes)
        if wakeups:
            await task_rows.wake(connection, wakeups)
        plan.wakeups += wakeups
        plan.wakeups += [(task.task_id, task.wake) for task in created_tasks if not task.limit_keys]
        depths = {node: delta for node, delta in depths.items() if delta}
        return await gauge.count(connection, depths) if depths else False


def _depths(plan: WritePlan, created_tasks: list[NewTask]) -> dict[UUID, int]:
    """Returns how many more tasks each counted queue has, or fewer, tasks held by a limit included."""
    depths: dict[UUID, int] = {}
    for task in created_tasks:
        if task.counted and task.node_id is not None:
            depths[task.node_id] = depths.get(task.node_id, 0) + 1
    for change in plan.changes:
        if change.after.counted and change.after.node_id is not None:
            delta = change.after.queued - change.before.queued
            depths[change.after.node_id] = depths.get(change.after.node_id, 0) + delta
    return depths
