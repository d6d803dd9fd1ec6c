"""Tables of buffered datasets in a plan: how they follow the document, or why they cannot.

A table changes when a version is registered, not when it is activated: it only ever grows, so versions before and
after bear it alike.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal
from uuid import UUID

import msgspec

from tracelake.catalogue.tables import plan_table
from tracelake.dispatcher.deploy.hashes import schema_hash, storage_of
from tracelake.dispatcher.deploy.outputs import DatasetRow
from tracelake.model.dag import Dag, Problem, Publish, Schema
from tracelake.wire.user import DatasetChange


@dataclass(frozen=True, slots=True)
class BufferedTable:
    schema: Schema
    on_conflict: Literal["update", "nothing"]


@dataclass(frozen=True, slots=True)
class TableChanges:
    rows: list[tuple[Any, ...]] = field(default_factory=list)
    """Name, schema, its hash and conflicts of each table that is new or changes."""
    texts: dict[str, list[str]] = field(default_factory=dict)
    problems: list[Problem] = field(default_factory=list)

    def shown(self, change: DatasetChange) -> DatasetChange:
        texts = self.texts.get(change.dataset)
        return change if not texts else msgspec.structs.replace(change, table=texts)


def plan_tables(dag: Dag, datasets: Mapping[str, DatasetRow], tables: Mapping[UUID, BufferedTable]) -> TableChanges:
    found = TableChanges()
    for publish in dag.publish:
        if storage_of(dag, publish) != "buffered" or publish.schema is None:
            continue
        row = datasets.get(publish.name)
        _plan(publish, publish.schema, None if row is None else tables.get(row.dataset_uuid), found)
    return found


def _plan(publish: Publish, schema: Schema, before: BufferedTable | None, found: TableChanges) -> None:
    plan = plan_table(None if before is None else before.schema, schema)
    refusals = list(plan.refusals)
    if before is not None and before.on_conflict != publish.on_conflict:
        refusals.append(
            f"`on_conflict` is {before.on_conflict} and cannot become {publish.on_conflict}: "
            "rows that lost are gone. Publish under another name instead."
        )
    found.problems.extend(
        Problem(code="table_change", message=text, line=1, column=1, path=f"publish.{publish.name}")
        for text in refusals
    )
    if plan.changes and not refusals:
        encoded = msgspec.json.encode(schema, order="deterministic").decode()
        found.rows.append((publish.name, encoded, schema_hash(schema), publish.on_conflict))
        found.texts[publish.name] = [change.text for change in plan.changes]
