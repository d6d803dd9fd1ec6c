"""How many rows the tables have, and how large they are: of sinks and of direct writes alike.

Counting a large table would cost more than the number is worth. Small tables are counted; of others Postgres has an
estimate, which its vacuum keeps.
"""

from uuid import UUID

from tracelake.model.buffered import quoted, table_name
from tracelake.storage.data_connection import Run
from tracelake.wire.buffers import TableSize

SMALL_BYTES = 2**20
"""Tables up to this size are counted."""

# As the planner does it: rows per page as they were at the last vacuum, and the pages that there are now.
_SIZES = """
    SELECT t.dataset_uuid::text, s.bytes, pg_total_relation_size(c.oid),
           CASE WHEN c.reltuples >= 0 AND c.relpages > 0
                THEN (c.reltuples::float8 / c.relpages * s.bytes / current_setting('block_size')::int)::bigint END
    FROM buffer_tables t JOIN pg_class c ON c.oid = to_regclass(format('%I', 'dataset_' || t.dataset_uuid))
    CROSS JOIN LATERAL (SELECT pg_relation_size(c.oid) AS bytes) s ORDER BY t.dataset_uuid LIMIT $1::int"""


def measure_tables(run: Run, at_most: int) -> list[TableSize]:
    sizes = []
    for key, bytes_of_rows, total_bytes, estimate in run(_SIZES, at_most):
        dataset_uuid, rows = UUID(key), estimate
        if bytes_of_rows <= SMALL_BYTES:
            ((rows,),) = run(f"SELECT count(*) FROM {quoted(table_name(dataset_uuid))}")  # noqa: S608 - quoted
        if rows is not None:
            sizes.append(TableSize(dataset_uuid=dataset_uuid, rows=rows, bytes=total_bytes))
    return sizes
