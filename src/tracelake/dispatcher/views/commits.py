"""Commits of buffered datasets: the batches that came into a table with each of them, and the tasks that wrote them."""

from collections.abc import Sequence
from dataclasses import dataclass
from uuid import UUID

from tracelake.db.transaction import Connection
from tracelake.dispatcher.records import to_struct
from tracelake.dispatcher.views.shared import to_unit
from tracelake.wire.datasets import CommitBatch

FIRST = 10
"""Batches that are shown of a commit."""

_BATCHES = f"""
    SELECT c.dataset_uuid, c.commit_seq, c.batches, b.publish_id, b.task_id, b.attempt, b.record_count,
           j.dag_name AS dag, j.name AS job, t.unit
    FROM (SELECT k.dataset_uuid, k.commit_seq, (
              SELECT count(*) FROM buffer_publishes n
              WHERE n.dataset_uuid = k.dataset_uuid AND n.commit_seq = k.commit_seq AND n.dropped_at IS NULL) AS batches
          FROM unnest($1::uuid[], $2::bigint[]) AS k(dataset_uuid, commit_seq)) c
    CROSS JOIN LATERAL (
        SELECT p.publish_id, p.publish_seq, p.task_id, p.attempt, p.record_count FROM buffer_publishes p
        WHERE p.dataset_uuid = c.dataset_uuid AND p.commit_seq = c.commit_seq AND p.org_id = $3 AND p.dropped_at IS NULL
        ORDER BY p.publish_seq LIMIT {FIRST}) b
    JOIN tasks t ON t.task_id = b.task_id JOIN jobs j ON j.job_id = t.job_id
    ORDER BY b.publish_seq"""  # noqa: S608 - constants only


@dataclass(frozen=True, slots=True)
class CommitBatches:
    first: list[CommitBatch]
    count: int


def is_commit(producer: str, cursor: int | None) -> bool:
    """Returns whether an event announces a commit: by its producer, and by its number."""
    return cursor is not None and producer.startswith("publish:")


async def read_commits(
    connection: Connection, org_id: UUID, commits: Sequence[tuple[UUID, int]]
) -> dict[tuple[UUID, int | None], CommitBatches]:
    """Reads the batches of commits, by dataset and number; no query for none."""
    if not commits:
        return {}
    keys = sorted(set(commits))
    rows = await connection.fetch(_BATCHES, [uuid for uuid, _ in keys], [number for _, number in keys], org_id)
    batches_by_commit: dict[tuple[UUID, int | None], CommitBatches] = {}
    for row in rows:
        key = (row["dataset_uuid"], row["commit_seq"])
        batches_by_commit.setdefault(key, CommitBatches([], row["batches"])).first.append(
            to_struct(CommitBatch, row, unit=to_unit(row["unit"]))
        )
    return batches_by_commit
