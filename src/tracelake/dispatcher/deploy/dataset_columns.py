"""Keeps the columns that a document was read with, for each generation of its outputs."""

from collections.abc import Sequence
from uuid import UUID

import msgspec

from tracelake.dag.reader import OutputColumns
from tracelake.db.transaction import Connection
from tracelake.dispatcher.records import columns

# The columns of a buffered dataset are those of its table, which follows the active version.
_RECORD = """
    UPDATE dataset_versions g SET columns = u.columns::json
    FROM unnest($2::text[], $3::int[], $4::text[]) AS u(job_name, output_index, columns)
    JOIN dag_version_jobs v ON v.dag_version_id = $1 AND v.job_name = u.job_name
    JOIN job_outputs o ON o.job_id = v.job_id AND o.output_index = u.output_index
    JOIN datasets d ON d.dataset_uuid = o.dataset_uuid AND d.storage <> 'buffered'
    WHERE g.dataset_uuid = o.dataset_uuid AND g.dataset_version = o.dataset_version
      AND g.columns::text IS DISTINCT FROM u.columns"""


async def record_columns(connection: Connection, dag_version_id: UUID, outputs: Sequence[OutputColumns]) -> None:
    """Record the columns of a registered version; also for generations that were deployed before they were recorded.

    Versions with the same generation compute the same rows, so it does not matter which of them comes last."""
    rows = [(item.output.job, item.output.output_index, msgspec.json.encode(item.columns).decode()) for item in outputs]
    if rows:
        await connection.execute(_RECORD, dag_version_id, *columns(rows))
