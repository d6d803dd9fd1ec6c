"""Which writers' rows a table shows. A cutover or a rollback changes them: one transaction swaps all rows.

A writer is a node: a job with everything that its rows depend on. While a version is built, its nodes fill the table's
second table; what they wrote becomes visible when the Dispatcher declares them active. The rows of the nodes before are
hidden in the same transaction and stay, so that a rollback brings them back, until their version is retired.
"""

from uuid import UUID

from tracelake.sink.changes import Change, as_ranges, record_change
from tracelake.sink.table_lock import lock_table, use_commit_number
from tracelake.sink.visibility import VisibleRows
from tracelake.storage.data_connection import Run
from tracelake.wire.buffers import BufferedDataset

_NODES = "SELECT DISTINCT node_id::text FROM buffer_parts WHERE dataset_uuid = $1::text::uuid"
_SET = "UPDATE buffer_tables SET writers = $2::text[]::uuid[] WHERE dataset_uuid = $1::text::uuid"


def switch_writers(run: Run, dataset: BufferedDataset) -> bool:
    """Show the rows of the declared writers; returns whether others were shown before.

    A sink with an older declaration changes nothing. A table whose last writer is gone keeps its rows.
    """
    key = str(dataset.dataset_uuid)
    table = lock_table(run, dataset.dataset_uuid)
    if table.revision > dataset.revision or not dataset.writers:
        return False
    with_rows = {UUID(node_id) for (node_id,) in run(_NODES, key)}
    # A table from before writers were declared shows the rows of all.
    before = with_rows if table.writers is None else table.writers
    after = set(dataset.writers) | (before if dataset.on_change == "keep" else set())
    rows = VisibleRows(run, dataset, table.commit_seq)
    if retired := sorted(with_rows.intersection(dataset.retired) - after - before):
        rows.delete(retired)
    if before == after and table.writers is not None:
        return False
    run(_SET, key, sorted(map(str, after)))
    leaving, arriving = sorted(with_rows & before - after), sorted(with_rows & after - before)
    if leaving:
        rows.withdraw(leaving)
    if arriving:
        rows.admit(arriving)
    rows.settle()
    if leaving or arriving:
        record_change(
            run, dataset.dataset_uuid, table.commit_seq, Change(gone=as_ranges(rows.gone_commits)), unannounced=True
        )
        use_commit_number(run, dataset.dataset_uuid)
    return bool(leaving or arriving)
