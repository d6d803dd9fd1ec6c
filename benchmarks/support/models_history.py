"""A long history of units and windows, stored by SQL as the calls of tasks would have stored it.

Rows of the first unit, which went through all calls, are the template: its tasks, manifests, pointers and events are
repeated for the units behind it. All of them have the files of the first.
"""

from dataclasses import dataclass
from typing import TypeAlias
from uuid import UUID

import asyncpg

Database: TypeAlias = "asyncpg.Connection[asyncpg.Record]"

_GENERATIONS = """
    SELECT p.name, v.dataset_uuid, v.dataset_version, v.node_id
    FROM datasets p JOIN dataset_versions v ON v.dataset_uuid = p.dataset_uuid AND v.dataset_version = p.current_version
    WHERE p.name LIKE $1 || '\\_%'"""

_TEMPLATE = """
    CREATE TEMP TABLE template_{kind} AS SELECT * FROM {table} t
    WHERE t.dataset_uuid = '{uuid}' AND t.dataset_version = '{version}' {where}"""

# Of the first unit: where the unit n begins and ends, and what it is called.
_PLACES = """
    CREATE TEMP TABLE places AS
    SELECT n, uuidv7() AS task_id, uuidv7() AS manifest_id, f.first + n * f.size AS unit_start,
           f.first + (n + 1) * f.size - 1 AS unit_end,
           (f.first + n * f.size) || '-' || (f.first + (n + 1) * f.size - 1) AS key
    FROM generate_series(1, {count}) AS n CROSS JOIN (
        SELECT range_start AS first, range_end - range_start + 1 AS size FROM dataset_units
        WHERE dataset_uuid = '{uuid}' AND dataset_version = '{version}' AND range_start IS NOT NULL
        ORDER BY range_start LIMIT 1) AS f"""

_TASKS = """
    INSERT INTO tasks SELECT r.*
    FROM places p CROSS JOIN (SELECT * FROM tasks WHERE task_id = (SELECT task_id FROM template_manifest)) t
    CROSS JOIN LATERAL jsonb_populate_record(NULL::tasks, to_jsonb(t) || jsonb_build_object(
        'task_id', p.task_id, 'lease_token', uuidv4()) || CASE WHEN t.node_id IS NULL THEN '{{}}'
        ELSE jsonb_build_object('unit_key', 'p:' || p.key, 'unit_start', p.unit_start, 'unit_end', p.unit_end) END) r"""

_MANIFESTS = """
    INSERT INTO manifests SELECT r.*
    FROM places p CROSS JOIN template_manifest t
    CROSS JOIN LATERAL jsonb_populate_record(NULL::manifests, to_jsonb(t) || jsonb_build_object(
        'manifest_id', p.manifest_id, 'task_id', p.task_id, 'unit', 'p:' || p.key,
        'time_min', t.time_min + p.n * {seconds}, 'time_max', t.time_max + p.n * {seconds})) r"""

_POINTERS = """
    INSERT INTO dataset_units SELECT r.*
    FROM places p CROSS JOIN template_unit t
    CROSS JOIN LATERAL jsonb_populate_record(NULL::dataset_units, to_jsonb(t) || jsonb_build_object(
        'manifest_id', p.manifest_id, 'unit', 'p:' || p.key, 'range_start', p.unit_start, 'range_end', p.unit_end,
        'time_min', t.time_min + p.n * {seconds}, 'time_max', t.time_max + p.n * {seconds})) r"""

_EVENTS = """
    INSERT INTO events OVERRIDING SYSTEM VALUE SELECT r.*
    FROM places p CROSS JOIN template_event t
    CROSS JOIN LATERAL jsonb_populate_record(NULL::events, to_jsonb(t) || jsonb_build_object(
        'event_id', nextval(pg_get_serial_sequence('events', 'event_id')), 'producer', p.task_id, 'unit', 'p:' || p.key,
        'partition_key', p.key, 'range_start', p.unit_start, 'range_end', p.unit_end,
        'routed_seq', nextval('events_routed_seq'))) r"""

# All units adjoin: one run.
_RUN = """
    UPDATE dataset_runs r SET range_end = (SELECT max(unit_end) FROM places)
    WHERE r.dataset_uuid = '{uuid}' AND r.dataset_version = '{version}'"""

_LATER_WINDOWS = "DELETE FROM pending_units"


@dataclass(frozen=True, slots=True)
class StoredDataset:
    name: str
    dataset_uuid: UUID
    dataset_version: UUID


async def store_history(state: Database, dag: str, *, units: int, units_per_day: int) -> None:
    """Repeats what is stored of the first unit and the first day of every dataset of the DAG."""
    for row in await state.fetch(_GENERATIONS, dag):
        dataset = StoredDataset(row["name"], row["dataset_uuid"], row["dataset_version"])
        if dataset.name == f"{dag}_transfers":
            await _repeat(state, dataset, units - 1, 86_400 // units_per_day)
        else:
            await _repeat(state, dataset, units // units_per_day - 1, 86_400)
    await state.execute(_LATER_WINDOWS)
    await state.execute("VACUUM ANALYZE", timeout=600)


async def _repeat(state: Database, dataset: StoredDataset, count: int, seconds: int) -> None:
    place = {"uuid": dataset.dataset_uuid, "version": dataset.dataset_version}
    manifest = "AND t.revision = 1 AND t.unit LIKE 'p:%' ORDER BY t.created_at LIMIT 1"
    unit = "AND t.range_start IS NOT NULL ORDER BY t.range_start LIMIT 1"
    event = "AND t.state = 'Routed' ORDER BY t.event_id LIMIT 1"
    async with state.transaction():
        await state.execute(_TEMPLATE.format(kind="manifest", table="manifests", where=manifest, **place))
        await state.execute(_TEMPLATE.format(kind="unit", table="dataset_units", where=unit, **place))
        await state.execute(_TEMPLATE.format(kind="event", table="events", where=event, **place))
        await state.execute(_PLACES.format(count=count, **place))
        for statement in (_TASKS, _MANIFESTS, _POINTERS, _EVENTS):
            await state.execute(statement.format(seconds=seconds), timeout=600)
        await state.execute(_RUN.format(**place))
        for table in ("template_manifest", "template_unit", "template_event", "places"):
            await state.execute(f"DROP TABLE {table}")
