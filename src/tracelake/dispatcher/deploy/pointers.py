"""Which generations are current: the pointers of datasets, and the events of a generation that is current again."""

from collections.abc import Collection, Mapping
from uuid import UUID

import asyncpg

from tracelake.db.transaction import Connection
from tracelake.dispatcher.deploy.outputs import Generation
from tracelake.dispatcher.engine.routing import coverage
from tracelake.dispatcher.engine.routing.coverage import Presence
from tracelake.dispatcher.records import columns
from tracelake.model.dag import Dag
from tracelake.model.job import Storage
from tracelake.model.task import RevisionKind

_HAS_WAITING = """
    SELECT EXISTS (SELECT FROM events WHERE state = 'NotCurrent'
        AND (dataset_uuid, dataset_version) IN (SELECT * FROM unnest($1::uuid[], $2::uuid[])))"""

# What was said while nobody was meant to hear it is heard now, in the order in which it was said.
_RELEASE = """
    UPDATE events e SET state = 'Routed', routed_seq = nextval('events_routed_seq')
    FROM (SELECT event_id FROM events
          WHERE state = 'NotCurrent'
            AND (dataset_uuid, dataset_version) IN (SELECT * FROM unnest($1::uuid[], $2::uuid[]))
          ORDER BY event_id) AS kept
    WHERE e.event_id = kept.event_id AND e.state = 'NotCurrent'
      AND (e.dataset_uuid, e.dataset_version) IN (SELECT * FROM unnest($1::uuid[], $2::uuid[]))
    RETURNING e.dataset_uuid, e.dataset_version, e.unit, e.partition_key, e.range_start, e.range_end,
              e.effective_revision, e.routed_seq, e.revision_kind,
              (SELECT storage FROM datasets d WHERE d.dataset_uuid = e.dataset_uuid) AS storage"""

_MOVE = """
    WITH wanted AS (
        SELECT * FROM unnest($1::uuid[], $2::uuid[], $3::text[], $4::bool[])
            AS w(dataset_uuid, dataset_version, name, published)),
    told AS (
        INSERT INTO dataset_pointers (dataset_uuid, dataset_version, activation_id)
        SELECT w.dataset_uuid, w.dataset_version, $5::bigint FROM wanted w JOIN datasets d USING (dataset_uuid)
        WHERE d.current_version <> w.dataset_version
           OR NOT EXISTS (SELECT FROM dataset_pointers p WHERE p.dataset_uuid = w.dataset_uuid))
    UPDATE datasets d
    SET current_version = w.dataset_version, published = w.published, name = CASE
        WHEN w.name IS NULL OR EXISTS (SELECT FROM datasets o WHERE o.org_id = d.org_id AND o.name = w.name) THEN d.name
        ELSE w.name END
    FROM wanted w WHERE d.dataset_uuid = w.dataset_uuid"""

# Who may write what the DAG owns, as its active version says.
_WRITERS = """
    UPDATE datasets d SET writers = coalesce(u.writers, '{}')
    FROM datasets o LEFT JOIN (
        SELECT name, array_agg(writer) AS writers FROM unnest($3::text[], $4::text[]) AS w(name, writer)
        GROUP BY name) u ON u.name = o.name
    WHERE o.org_id = $1 AND o.dag_name = $2 AND d.dataset_uuid = o.dataset_uuid
      AND d.writers IS DISTINCT FROM coalesce(u.writers, '{}')"""

_UNSTAGE = (
    "UPDATE datasets SET staged_version = NULL WHERE org_id = $1 AND dag_name = $2 AND staged_version IS NOT NULL"
)

_STAGE = """
    UPDATE datasets d SET staged_version = w.dataset_version
    FROM unnest($1::uuid[], $2::uuid[]) AS w(dataset_uuid, dataset_version)
    WHERE d.dataset_uuid = w.dataset_uuid AND d.current_version <> w.dataset_version"""


async def release_events(connection: Connection, generations: Collection[Generation]) -> None:
    """Routes the events that were kept for these generations. It locks generations, so edges are locked after it."""
    keys = sorted(generations)
    datasets, versions = columns(keys, 2)
    if not await connection.fetchval(_HAS_WAITING, datasets, versions):
        return
    await coverage.lock_generations(connection, keys)
    released = await connection.fetch(_RELEASE, datasets, versions)
    await coverage.record(connection, [_presence(row) for row in released if row["partition_key"] is not None])


def _presence(row: asyncpg.Record) -> Presence:
    return Presence(
        (row["dataset_uuid"], row["dataset_version"]),
        row["unit"],
        row["range_start"],
        row["range_end"],
        row["effective_revision"],
        usual="1" if Storage(row["storage"]).has_files else "",
        routed_seq=row["routed_seq"],
        kind=RevisionKind(row["revision_kind"]),
    )


async def move_pointers(
    connection: Connection, generations: Mapping[Generation, tuple[str | None, bool]], activation_id: int
) -> None:
    """Makes each generation the current one of its dataset. `(name, published)`: with a name where it changes."""
    rows = [(*generation, *naming) for generation, naming in generations.items()]
    await connection.execute(_MOVE, *columns(rows, 4), activation_id)


async def set_writers(connection: Connection, org_id: UUID, document: Dag) -> None:
    grants = [(publish.name, dag) for publish in document.publish for dag in publish.writers]
    await connection.execute(_WRITERS, org_id, document.name, *columns(grants, 2))


async def stage_pointers(
    connection: Connection, org_id: UUID, dag: str, generations: Collection[Generation] = ()
) -> None:
    """Marks these generations, and no others of the DAG, as being built."""
    await connection.execute(_UNSTAGE, org_id, dag)
    if generations:
        await connection.execute(_STAGE, *columns(generations))
