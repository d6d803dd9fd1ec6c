"""The edges of a version: made, staged, activated, parked. All under the org's exclusive routing lock.

An edge keeps its place for ever. While it is parked, `position` says how far it has seen its generation, and what comes
meanwhile waits in `events` at no cost; when it is active again it goes on from there.
"""

from collections.abc import Collection, Sequence
from typing import NamedTuple
from uuid import UUID

from tracelake.db.transaction import Connection
from tracelake.dispatcher.deploy.outputs import Generation
from tracelake.dispatcher.records import columns

_NEWEST = "(SELECT last_value FROM events_routed_seq)"

_LOCK = """
    SELECT FROM edges e JOIN nodes n USING (node_id)
    WHERE e.node_id = ANY($1) OR (e.dataset_uuid = ANY($2) AND e.phase <> 'Parked' AND n.dag_name <> $3)
    ORDER BY e.node_id, e.input_index FOR UPDATE OF e"""

# A generation that is still being built has no history of its own to wait for; any other is read up to now.
_ARRIVE = f"""
    INSERT INTO edges AS e (node_id, input_index, org_id, job_id, dataset_uuid, dataset_version, filter, phase,
                            position, drain_until)
    SELECT u.node_id, u.input_index, $1, u.job_id, u.dataset_uuid, u.dataset_version, u.filter::json, $2, 0,
           CASE WHEN $2 = 'Staged' AND NOT u.in_build THEN {_NEWEST} END
    FROM unnest($3::uuid[], $4::int[], $5::uuid[], $6::uuid[], $7::uuid[], $8::text[], $9::bool[])
         AS u(node_id, input_index, job_id, dataset_uuid, dataset_version, filter, in_build)
    ON CONFLICT (node_id, input_index) DO UPDATE SET
        job_id = excluded.job_id, phase = excluded.phase, drain_until = excluded.drain_until,
        dataset_version = excluded.dataset_version,
        pinned_seq = CASE WHEN e.dataset_version <> excluded.dataset_version THEN {_NEWEST} ELSE e.pinned_seq END,
        position = CASE WHEN e.dataset_version <> excluded.dataset_version THEN 0 ELSE e.position END"""  # noqa: S608

# Nothing lies behind them: they hear events as they come, from the first one on.
_GO_LIVE = """
    UPDATE edges e SET position = NULL
    WHERE e.node_id = ANY($1) AND e.phase <> 'Parked' AND e.position IS NOT NULL AND e.failed_units = 0
      AND e.drain_until IS NULL AND NOT EXISTS (
        SELECT FROM events v WHERE v.dataset_uuid = e.dataset_uuid AND v.dataset_version = e.dataset_version
          AND v.routed_seq > e.position)"""

_STAY = """
    UPDATE edges e SET job_id = u.job_id FROM unnest($1::uuid[], $2::uuid[]) AS u(node_id, job_id)
    WHERE e.node_id = u.node_id AND e.job_id <> u.job_id"""

_PARK = f"""
    UPDATE edges SET phase = 'Parked', position = coalesce(position, {_NEWEST}), drain_until = NULL
    WHERE node_id = ANY($1) AND phase <> 'Parked'"""  # noqa: S608 - constants only

# Readers in other DAGs follow the dataset. They see all of the new generation; a unit that they made stays as it is.
_FOLLOW = f"""
    UPDATE edges e SET dataset_version = m.dataset_version, position = 0, pinned_seq = {_NEWEST},
        drain_until = CASE WHEN e.phase = 'Staged' THEN {_NEWEST} END
    FROM nodes n, unnest($1::uuid[], $2::uuid[]) AS m(dataset_uuid, dataset_version)
    WHERE n.node_id = e.node_id AND n.dag_name <> $3 AND e.phase <> 'Parked'
      AND e.dataset_uuid = m.dataset_uuid AND e.dataset_version <> m.dataset_version
    RETURNING e.node_id, e.dataset_uuid"""  # noqa: S608


class StoredEdge(NamedTuple):
    """A row of `edges`, with its columns in the order of `_ARRIVE`."""

    node_id: UUID
    input_index: int
    job_id: UUID
    dataset_uuid: UUID
    dataset_version: UUID
    where: str | None
    in_build: bool
    """What it reads is being built together with it."""


async def lock(connection: Connection, nodes: Collection[UUID], datasets: Collection[UUID], dag: str) -> None:
    """Locks the edges of the nodes, and those of other DAGs that read the datasets."""
    await connection.execute(_LOCK, list(nodes), list(datasets), dag)


async def arrive(connection: Connection, org_id: UUID, phase: str, rows: Sequence[StoredEdge]) -> None:
    """Adds edges in the phase `Staged` or `Active`; an edge that existed goes on where it stopped."""
    if rows:
        await connection.execute(_ARRIVE, org_id, phase, *columns(rows))


async def go_live(connection: Connection, nodes: Collection[UUID]) -> None:
    await connection.execute(_GO_LIVE, list(nodes))


async def stay(connection: Connection, jobs: Collection[tuple[UUID, UUID]]) -> None:
    """Gives nodes that go on, by `(node_id, job_id)`, their new job: their next tasks have its limits."""
    await connection.execute(_STAY, *columns(jobs, 2))


async def park(connection: Connection, nodes: Collection[UUID]) -> None:
    await connection.execute(_PARK, list(nodes))


async def follow(connection: Connection, generations: Collection[Generation], dag: str) -> list[tuple[UUID, UUID]]:
    """Points readers in other DAGs to these generations; returns `(node_id, dataset_uuid)` of those that changed."""
    rows = await connection.fetch(_FOLLOW, *columns(generations, 2), dag)
    return [(row["node_id"], row["dataset_uuid"]) for row in rows]
