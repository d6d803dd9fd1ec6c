"""Contributions to a table: all batches that one attempt wrote for one unit.

A contribution is complete when all of its batches are loaded. The newest complete one of a unit is what the unit
consists of; older ones go. Their order is that of `publish_seq`: the Dispatcher numbers the batches of a re-run when it
releases them, after those of every task that was released before.
"""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias
from uuid import UUID

from tracelake.sink.outcomes import Loaded
from tracelake.storage.data_connection import Run
from tracelake.wire.buffers import BatchUnit

WriterUnit: TypeAlias = tuple[UUID, str]
"""A node that writes the table, and a unit of it."""

_PARTS = """
    SELECT p.node_id::text, p.unit, p.publish_seq, p.task_id::text, p.attempt, p.complete
    FROM (SELECT DISTINCT * FROM unnest($2::text[]::uuid[], $3::text[])) AS u(node_id, unit)
    JOIN buffer_parts p ON p.dataset_uuid = $1::text::uuid AND p.node_id = u.node_id AND p.unit = u.unit"""
_ADD = """
    INSERT INTO buffer_parts (dataset_uuid, publish_seq, node_id, unit, task_id, attempt, complete)
    SELECT $1::text::uuid, u.publish_seq, u.node_id, u.unit, u.task_id, u.attempt, u.complete
    FROM unnest($2::bigint[], $3::text[]::uuid[], $4::text[], $5::text[]::uuid[], $6::int[], $7::bool[])
         AS u(publish_seq, node_id, unit, task_id, attempt, complete)"""
_COMPLETE = """
    UPDATE buffer_parts SET complete = true
    WHERE dataset_uuid = $1::text::uuid AND publish_seq = ANY ($2::bigint[])"""
_REMOVE = "DELETE FROM buffer_parts WHERE dataset_uuid = $1::text::uuid AND publish_seq = ANY ($2::bigint[])"


@dataclass(slots=True)
class _Contribution:
    complete: bool = False
    loaded: set[int] = field(default_factory=set)
    """Numbers of its batches that were loaded before."""
    new: list[Loaded] = field(default_factory=list)
    expected: int | None = None

    @property
    def place(self) -> int:
        return max([*self.loaded, *(item.batch.publish_seq for item in self.new)])

    @property
    def completes(self) -> bool:
        return not self.complete and len(self.loaded) + len(self.new) == self.expected


@dataclass(slots=True)
class UnitPlan:
    """What becomes of the rows of some batches, and of those that they complete or replace."""

    shown: list[Loaded] = field(default_factory=list)
    """Staged rows that compete for their keys."""
    hidden: list[Loaded] = field(default_factory=list)
    """Staged rows that wait: for the rest of their unit, or for their writer to be active."""
    uncovered: list[int] = field(default_factory=list)
    """Batches that were loaded before, whose rows compete from now on."""
    replaced: list[int] = field(default_factory=list)
    """Batches whose rows go."""
    completed: list[int] = field(default_factory=list)
    """Batches that were loaded before, of contributions that are complete now."""
    added: list[tuple[Any, ...]] = field(default_factory=list)
    """New rows of `buffer_parts`, without the dataset."""

    def record(self, run: Run, dataset_uuid: UUID) -> None:
        key = str(dataset_uuid)
        if self.replaced:
            run(_REMOVE, key, self.replaced)
        if self.completed:
            run(_COMPLETE, key, self.completed)
        if self.added:
            run(_ADD, key, *map(list, zip(*self.added, strict=True)))


def plan_units(
    run: Run, dataset_uuid: UUID, loaded: Sequence[tuple[Loaded, BatchUnit]], writers: Collection[UUID] | None
) -> UnitPlan:
    """Plans batches that have a unit. The caller holds the lock of the table. `writers`: None if all are active."""
    plan = UnitPlan()
    if not loaded:
        return plan
    units: dict[WriterUnit, dict[tuple[UUID, int], _Contribution]] = {}
    for node_id, unit, publish_seq, task_id, attempt, complete in run(
        _PARTS, str(dataset_uuid), [str(unit.node_id) for _, unit in loaded], [unit.unit for _, unit in loaded]
    ):
        earlier = _contribution(units, (UUID(node_id), unit), (UUID(task_id), attempt))
        earlier.loaded.add(publish_seq)
        earlier.complete = complete
    for item, unit in loaded:
        producer = item.batch.producer
        contribution = _contribution(units, (unit.node_id, unit.unit), (producer.task_id, producer.attempt))
        contribution.expected = unit.batches
        # One that is known by its number was delivered again after its commit was forgotten.
        if item.batch.publish_seq not in contribution.loaded:
            contribution.new.append(item)
    for writer_unit, contributions in units.items():
        active = writers is None or writer_unit[0] in writers
        _plan_unit(plan, writer_unit, contributions, active=active)
    return plan


def _contribution(
    units: dict[WriterUnit, dict[tuple[UUID, int], _Contribution]], unit: WriterUnit, attempt: tuple[UUID, int]
) -> _Contribution:
    return units.setdefault(unit, {}).setdefault(attempt, _Contribution())


def _plan_unit(
    plan: UnitPlan, unit: WriterUnit, contributions: dict[tuple[UUID, int], _Contribution], *, active: bool
) -> None:
    places = [item.place for item in contributions.values() if item.complete or item.completes]
    newest = max(places, default=0)
    for attempt, item in contributions.items():
        if item.place < newest:
            plan.replaced += item.loaded  # what is new of it never gets into the table
        elif item.completes:
            plan.completed += item.loaded
            if active:
                plan.shown += item.new
                plan.uncovered += item.loaded
            else:
                plan.hidden += item.new
            plan.added += _parts(unit, attempt, item.new, complete=True)
        else:
            plan.hidden += item.new
            plan.added += _parts(unit, attempt, item.new, complete=False)


def _parts(
    unit: WriterUnit, attempt: tuple[UUID, int], loaded: Iterable[Loaded], *, complete: bool
) -> list[tuple[Any, ...]]:
    (node_id, name), (task_id, number) = unit, attempt
    return [(item.batch.publish_seq, str(node_id), name, str(task_id), number, complete) for item in loaded]
