"""Merges staged rows into the table, in one transaction with the record of their batches."""

from collections.abc import Iterable, Sequence
from uuid import UUID

from tracelake.model.buffered import hidden_name, quoted, table_name
from tracelake.sink.changes import FORGET_CHANGES, NOTHING_SPECIAL, Change, as_ranges, find_changes, record_change
from tracelake.sink.outcomes import Commit, Loaded, OutdatedError
from tracelake.sink.table_lock import LockedTable, lock_table, use_commit_number
from tracelake.sink.units import plan_units
from tracelake.sink.visibility import VisibleRows
from tracelake.storage.data_connection import Run
from tracelake.wire.buffers import BufferBatch, BufferedDataset

COMMITS_DAYS = 30
"""How long the record of a batch is kept: far longer than its message and its artifact live."""
FORGOTTEN_AT_ONCE = 1000

_DONE = """
    SELECT publish_id::text, commit_seq FROM buffer_commits WHERE publish_id = ANY ($1::text[]::uuid[])"""
_SAME_COMMITS = """
    SELECT commit_seq, publish_id::text, dropped FROM buffer_commits
    WHERE dataset_uuid = $1::text::uuid AND commit_seq = ANY ($2::bigint[]) ORDER BY commit_seq, publish_id"""
_SIZE = "SELECT pg_total_relation_size($1::text::regclass) + pg_total_relation_size($2::text::regclass)"
_HAS_UNITS = "SELECT EXISTS (SELECT FROM buffer_parts WHERE dataset_uuid = $1::text::uuid)"
_RECORD = """
    INSERT INTO buffer_commits (publish_id, dataset_uuid, publish_seq, commit_seq, row_count, dropped)
    SELECT p.publish_id, $1::text::uuid, p.publish_seq, $2::bigint, p.row_count, p.dropped
    FROM unnest($3::text[]::uuid[], $4::bigint[], $5::bigint[], $6::bool[])
         AS p(publish_id, publish_seq, row_count, dropped)"""

# Several sinks may delete at once, so each skips the rows that another has locked.
_FORGET = """
    DELETE FROM buffer_commits WHERE publish_id IN (
        SELECT publish_id FROM buffer_commits WHERE committed_at < trace_now() - make_interval(days => $1::int)
        ORDER BY committed_at LIMIT $2::int FOR UPDATE SKIP LOCKED)
    RETURNING 1"""


def merge(run: Run, dataset: BufferedDataset, staging: str, loaded: Sequence[Loaded], *, sure: bool) -> list[Commit]:
    """Merge the batches that are not in the table yet; returns the commits of all of them."""
    key = str(dataset.dataset_uuid)
    table = lock_table(run, dataset.dataset_uuid)
    commit_seq = table.commit_seq
    if table.revision > dataset.revision and not sure:
        raise OutdatedError(dataset.name)
    done = _done(run, [item.batch for item in loaded])
    fresh = [item for item in loaded if item.batch.publish_id not in done]
    commits = []
    if fresh:
        change = _merge_rows(run, dataset, staging, fresh, table)
        record_change(run, dataset.dataset_uuid, commit_seq, change)
        batches = [item.batch for item in fresh]
        ids = [str(batch.publish_id) for batch in batches]
        numbers = [batch.publish_seq for batch in batches]
        dropped = [batch.dropped for batch in batches]
        run(_RECORD, key, commit_seq, ids, numbers, [item.rows for item in fresh], dropped)
        use_commit_number(run, dataset.dataset_uuid)
        tables = (table_name(dataset.dataset_uuid), hidden_name(dataset.dataset_uuid))
        ((table_bytes,),) = run(_SIZE, *map(quoted, tables))
        dropped_ids = frozenset(batch.publish_id for batch in batches if batch.dropped)
        published = tuple(batch.publish_id for batch in batches)
        commits.append(Commit(commit_seq, published, table_bytes, dropped_ids, change.hidden, change.gone))
    return commits + (_same_commits(run, dataset.dataset_uuid, done.values()) if done else [])


def _merge_rows(
    run: Run,
    dataset: BufferedDataset,
    staging: str,
    loaded: Sequence[Loaded],
    table: LockedTable,
) -> Change:
    """Merge staged rows; each key ends with its winner among all rows that count."""
    rows = VisibleRows(run, dataset, table.commit_seq)
    if unitless := [item for item in loaded if item.batch.unit is None and item.rows]:
        ((mixed,),) = run(_HAS_UNITS, str(dataset.dataset_uuid))
        rows.merge_unitless(staging, unitless, mixed=mixed)
    of_units = [(item, item.batch.unit) for item in loaded if item.batch.unit is not None]
    plan = plan_units(run, dataset.dataset_uuid, of_units, table.writers)
    if plan.replaced:
        rows.remove(plan.replaced)
    if plan.uncovered:
        rows.uncover(plan.uncovered)
    if new_rows := [item for item in plan.shown if item.rows]:
        rows.show(staging, new_rows)
    if hidden := [item for item in plan.hidden if item.rows]:
        rows.hide(staging, hidden)
    plan.record(run, dataset.dataset_uuid)
    rows.settle()
    # A batch that is known already may be one that the Dispatcher has not heard of.
    all_hidden = not unitless and len(plan.hidden) == len(of_units) and not plan.replaced
    return Change(hidden=all_hidden, gone=as_ranges(rows.gone_commits))


def find(run: Run, dataset: BufferedDataset, batches: Sequence[BufferBatch]) -> list[Commit]:
    """The commits of those batches that are in the table already, each with all of its batches."""
    done = _done(run, batches)
    return _same_commits(run, dataset.dataset_uuid, done.values()) if done else []


def forget(run: Run) -> bool:
    """Delete some records of old batches; returns whether there may be more. If such a batch is merged again, nothing
    changes: it is known as part of its unit, its unit has a newer one, or its rows are there or lost for good."""
    counts = [len(run(statement, COMMITS_DAYS, FORGOTTEN_AT_ONCE)) for statement in (_FORGET, FORGET_CHANGES)]
    return max(counts) == FORGOTTEN_AT_ONCE


def _done(run: Run, batches: Sequence[BufferBatch]) -> dict[UUID, int]:
    rows = run(_DONE, [str(batch.publish_id) for batch in batches])
    return {UUID(publish_id): commit_seq for publish_id, commit_seq in rows}


def _same_commits(run: Run, dataset_uuid: UUID, numbers: Iterable[int]) -> list[Commit]:
    commits: dict[int, list[UUID]] = {}
    dropped_ids: set[UUID] = set()
    listed = sorted(set(numbers))
    for number, publish_id, dropped in run(_SAME_COMMITS, str(dataset_uuid), listed):
        commits.setdefault(number, []).append(UUID(publish_id))
        if dropped:
            dropped_ids.add(UUID(publish_id))
    changes = find_changes(run, dataset_uuid, listed)
    return [
        Commit(number, tuple(ids), None, dropped_ids.intersection(ids), change.hidden, change.gone)
        for number, ids in commits.items()
        for change in [changes.get(number, NOTHING_SPECIAL)]
    ]
