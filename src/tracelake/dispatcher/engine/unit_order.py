"""Out-of-order completions: a task is outdated once a task of its unit with newer inputs has completed.

Tasks of one unit (node, edge and key) run side by side: re-runs, invalidations, new revisions. Of each, `input_order`
says how new its inputs are. Once one of them has completed, whatever an older one completes or announces is recorded
and goes no further: no pointer moves, no event is routed, no batch is released to the sinks.

Whoever asks has locked the open tasks of the unit first (`task_rows.lock`), so that two of them never pass each other.
"""

from collections.abc import Iterable
from typing import TypeAlias
from uuid import UUID

from tracelake.db.transaction import Connection
from tracelake.dispatcher.predicates import is_open
from tracelake.model.task import Task

UnitId: TypeAlias = tuple[UUID, int, str]
Order: TypeAlias = tuple[int, ...]

# Two branches: an index finds NULL only where it is asked for by name.
_SIBLINGS = """
    FROM tasks a CROSS JOIN LATERAL (
        SELECT s.task_id, s.input_order, s.status FROM tasks s
        WHERE s.node_id = a.node_id AND s.edge = a.edge AND s.unit_end = a.unit_end AND s.unit_key = a.unit_key
        UNION ALL
        SELECT s.task_id, s.input_order, s.status FROM tasks s
        WHERE a.unit_end IS NULL AND s.node_id = a.node_id AND s.edge = a.edge AND s.unit_end IS NULL
          AND s.unit_key = a.unit_key) s
    WHERE a.task_id = ANY($1) AND a.node_id IS NOT NULL"""

OPEN_SIBLINGS = f"SELECT s.task_id, a.task_id AS speaker {_SIBLINGS} AND {is_open('s')}"
"""The open tasks of the units of these tasks, themselves included."""

_COMPLETED = f"""
    SELECT a.task_id, max(s.input_order) AS newest {_SIBLINGS} AND s.status = 'Completed'
    GROUP BY a.task_id"""


class UnitOrder:
    """The newest inputs of each unit that the tasks of one transaction are for. Decisions see each other's."""

    def __init__(self) -> None:
        self._completed: dict[UnitId, Order] = {}

    def is_outdated(self, task: Task) -> bool:
        unit = unit_id(task)
        return unit is not None and self._completed.get(unit, ()) > task.input_order

    def has_completed(self, task: Task) -> bool:
        """Whether a task of the same unit has completed before."""
        return unit_id(task) in self._completed

    def record_completed(self, task: Task, order: Order) -> None:
        unit = unit_id(task)
        if unit is not None:
            self._completed[unit] = max(order, self._completed.get(unit, ()))


def unit_id(task: Task) -> UnitId | None:
    if task.node_id is None or task.edge is None or task.unit_key is None:
        return None
    return task.node_id, task.edge, task.unit_key


async def load(connection: Connection, speakers: Iterable[Task]) -> UnitOrder:
    """Reads the order for tasks that complete or announce something."""
    order = UnitOrder()
    tasks = {task.task_id: task for task in speakers if unit_id(task) is not None}
    if tasks:
        for row in await connection.fetch(_COMPLETED, list(tasks)):
            order.record_completed(tasks[row["task_id"]], tuple(row["newest"] or ()))
    return order
