"""Tables of buffered datasets in a plan: how they follow the document, or why they cannot.

A table changes when a version is registered, not when it is activated: it only ever grows, so versions before and
after bear it alike.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal
from uuid import UUID

import msgspec

from tracelake.catalogue.tables import TableRefusal, plan_table
from tracelake.dispatcher.deploy.hashes import Address, schema_hash, storage_of
from tracelake.dispatcher.deploy.outputs import DatasetRow, Generation
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

    def shown(self, change: DatasetChange, left: Mapping[str, str]) -> DatasetChange:
        """With what becomes of its table. `left` are rows of writers that are not what they were."""
        texts = [*self.texts.get(change.dataset, ())]
        if change.dataset in left:
            texts.append(left[change.dataset])
        return change if not texts else msgspec.structs.replace(change, table=texts)


def plan_tables(dag: Dag, datasets: Mapping[str, DatasetRow], tables: Mapping[UUID, BufferedTable]) -> TableChanges:
    found = TableChanges()
    for publish in dag.publish:
        if storage_of(dag, publish) != "buffered" or publish.schema is None:
            continue
        row = datasets.get(publish.name)
        _plan(publish, publish.schema, None if row is None else tables.get(row.dataset_uuid), found)
    return found


def rows_left(dag: Dag, before: Mapping[Address, tuple[str, Generation]], changed: Collection[str]) -> dict[str, str]:
    """By dataset: whose rows stay in the table although nobody makes them any more.

    `before` are the outputs of the active version, `changed` are jobs that make other rows from now on. A table is one
    for all of them, and what comes replaces rows of the same key alone."""
    writers = {
        publish.name: {(source.job, source.output_index) for source in publish.sources}
        for publish in dag.publish
        if storage_of(dag, publish) == "buffered"
    }
    jobs: dict[str, set[str]] = {}
    for address, (name, _) in before.items():
        if name in writers and (address[0] in changed or address not in writers[name]):
            jobs.setdefault(name, set()).add(address[0])
    return {
        name: f"keep its rows: what {' and '.join(f'`{job}`' for job in sorted(found))} no longer "
        f"{'makes' if len(found) == 1 else 'make'} stays"
        for name, found in jobs.items()
    }


def _plan(publish: Publish, schema: Schema, before: BufferedTable | None, found: TableChanges) -> None:
    plan = plan_table(None if before is None else before.schema, schema)
    refusals = [TableRefusal(item.text, f"schema.{item.where}") for item in plan.refusals]
    if before is not None and before.on_conflict != publish.on_conflict:
        text = (
            f"`on_conflict` is {before.on_conflict} and cannot become {publish.on_conflict}: "
            "rows that lost are gone. Publish under another name instead."
        )
        refusals.append(TableRefusal(text, "on_conflict"))
    found.problems.extend(
        Problem(code="table_change", message=item.text, line=1, column=1, path=f"publish.{publish.name}.{item.where}")
        for item in refusals
    )
    if plan.changes and not refusals:
        encoded = msgspec.json.encode(schema, order="deterministic").decode()
        found.rows.append((publish.name, encoded, schema_hash(schema), publish.on_conflict))
        found.texts[publish.name] = [change.text for change in plan.changes]
