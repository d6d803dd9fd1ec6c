"""Merges staged rows into the table, in one transaction with the record of their batches."""

from collections.abc import Iterable, Sequence
from uuid import UUID

from tracelake.model.buffered import quoted, table_name
from tracelake.rows.values import kind_of
from tracelake.sink.conflicts import best_first, wins
from tracelake.sink.ddl import names
from tracelake.sink.outcomes import Commit, Loaded, OutdatedError, Run
from tracelake.wire.buffers import BufferBatch, BufferedDataset

COMMITS_DAYS = 30
"""How long the record of a batch is kept: far longer than its message and its artifact live."""
FORGOTTEN_AT_ONCE = 1000

_LOCK = """
    SELECT next_commit, coalesce((definition->>'revision')::bigint, 0) FROM buffer_tables
    WHERE dataset_uuid = $1::text::uuid FOR UPDATE"""
_DONE = """
    SELECT publish_id::text, commit_seq FROM buffer_commits WHERE publish_id = ANY ($1::text[]::uuid[])"""
_SAME_COMMITS = """
    SELECT commit_seq, publish_id::text FROM buffer_commits
    WHERE dataset_uuid = $1::text::uuid AND commit_seq = ANY ($2::bigint[]) ORDER BY commit_seq, publish_id"""
_SIZE = "SELECT pg_total_relation_size($1::text::regclass)"
_NEXT = "UPDATE buffer_tables SET next_commit = next_commit + 1 WHERE dataset_uuid = $1::text::uuid"
_RECORD = """
    INSERT INTO buffer_commits (publish_id, dataset_uuid, publish_seq, commit_seq, row_count)
    SELECT p.publish_id, $1::text::uuid, p.publish_seq, $2::bigint, p.row_count
    FROM unnest($3::text[]::uuid[], $4::bigint[], $5::bigint[]) AS p(publish_id, publish_seq, row_count)"""

# Several sinks may delete at once, so each skips the rows that another has locked.
_FORGET = """
    DELETE FROM buffer_commits WHERE publish_id IN (
        SELECT publish_id FROM buffer_commits WHERE committed_at < trace_now() - make_interval(days => $1::int)
        ORDER BY committed_at LIMIT $2::int FOR UPDATE SKIP LOCKED)
    RETURNING 1"""


def merge(run: Run, dataset: BufferedDataset, staging: str, loaded: Sequence[Loaded], *, sure: bool) -> list[Commit]:
    """Merge the batches that are not in the table yet; returns the commits of all of them."""
    key = str(dataset.dataset_uuid)
    ((commit_seq, revision),) = run(_LOCK, key)
    if revision > dataset.revision and not sure:
        raise OutdatedError(dataset.name)
    done = _done(run, [item.batch for item in loaded])
    fresh = [item for item in loaded if item.batch.publish_id not in done]
    commits = []
    if fresh:
        batches = [item.batch for item in fresh]
        sequences = [batch.publish_seq for batch in batches]
        run(
            _statement(dataset, staging),
            commit_seq,
            sequences,
            [str(batch.org_id) for batch in batches],
            [str(batch.producer.task_id) for batch in batches],
        )
        ids = [str(batch.publish_id) for batch in batches]
        run(_RECORD, key, commit_seq, ids, sequences, [item.rows for item in fresh])
        run(_NEXT, key)
        ((table_bytes,),) = run(_SIZE, quoted(table_name(dataset.dataset_uuid)))
        commits.append(Commit(commit_seq, tuple(item.batch.publish_id for item in fresh), table_bytes))
    return commits + (_same_commits(run, dataset.dataset_uuid, done.values()) if done else [])


def find(run: Run, dataset: BufferedDataset, batches: Sequence[BufferBatch]) -> list[Commit]:
    """The commits of those batches that are in the table already, each with all of its batches."""
    done = _done(run, batches)
    return _same_commits(run, dataset.dataset_uuid, done.values()) if done else []


def forget(run: Run) -> bool:
    """Delete some records of old batches; returns whether there may be more. If such a batch is merged again, nothing
    changes: its rows are in the table with the same numbers, or were replaced by rows that win over them."""
    return len(run(_FORGET, COMMITS_DAYS, FORGOTTEN_AT_ONCE)) == FORGOTTEN_AT_ONCE


def _done(run: Run, batches: Sequence[BufferBatch]) -> dict[UUID, int]:
    rows = run(_DONE, [str(batch.publish_id) for batch in batches])
    return {UUID(publish_id): commit_seq for publish_id, commit_seq in rows}


def _same_commits(run: Run, dataset_uuid: UUID, numbers: Iterable[int]) -> list[Commit]:
    commits: dict[int, list[UUID]] = {}
    for number, publish_id in run(_SAME_COMMITS, str(dataset_uuid), sorted(set(numbers))):
        commits.setdefault(number, []).append(UUID(publish_id))
    return [Commit(number, tuple(ids)) for number, ids in commits.items()]


def _statement(dataset: BufferedDataset, staged: str) -> str:
    """The statement that moves rows from the staging table into the dataset's table.

    $1 is the commit; $2 to $4 are sequence, org and task of each batch to merge. Of the rows with one key the
    winner stays (`sink.conflicts`), in whatever order they arrive.
    """
    schema = dataset.schema
    table, key = quoted(table_name(dataset.dataset_uuid)), names(schema.unique)
    kinds = [kind_of(column) for column in schema.columns]
    declared = [quoted(kind.column.name) for kind in kinds]
    values = ", ".join(f"s.{name}{kind.cast}" for name, kind in zip(declared, kinds, strict=True))
    keys = ", ".join(f"s.{quoted(name)}" for name in schema.unique)
    replaced = [name for name in declared if name not in {quoted(part) for part in schema.unique}]
    hidden = ["_task_id", "_publish_seq", "_line", "_commit_seq"]
    changes = ", ".join(f"{name} = excluded.{name}" for name in [*replaced, *hidden])
    return f"""
        INSERT INTO {table} AS t (org_id, {", ".join(hidden)}, {", ".join(declared)})
        SELECT DISTINCT ON (p.org_id, {keys})
               p.org_id, p.task_id, s._publish_seq, s._line, $1::bigint, {values}
        FROM {staged} s
        JOIN unnest($2::bigint[], $3::text[]::uuid[], $4::text[]::uuid[]) AS p(publish_seq, org_id, task_id)
          ON p.publish_seq = s._publish_seq
        ORDER BY p.org_id, {keys}, {best_first(dataset, "s", staged=True)}
        ON CONFLICT (org_id, {key}) DO UPDATE SET {changes}
        WHERE {wins(dataset, "excluded", over="t")}"""  # noqa: S608 - quoted
