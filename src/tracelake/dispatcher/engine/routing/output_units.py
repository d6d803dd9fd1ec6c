"""Committed units of the files that a task would write. Units of a dataset do not overlap, so a task of a range that
cuts across them could compute its rows, and never commit them."""

from tracelake.db.transaction import Connection
from tracelake.dispatcher.engine.plan import NewTask
from tracelake.errors import TraceError

_SHOWN = 5

# Units of a generation do not overlap: the last one that begins before the range may reach into it, and all that begin
# within it do.
_OVERLAPPING = """
    SELECT d.name, u.range_start, u.range_end
    FROM job_outputs o JOIN datasets d ON d.dataset_uuid = o.dataset_uuid AND d.storage = 's3'
    CROSS JOIN LATERAL (
        (SELECT range_start, range_end FROM dataset_units u
         WHERE u.dataset_uuid = o.dataset_uuid AND u.dataset_version = o.dataset_version AND u.range_start < $2
         ORDER BY u.range_start DESC LIMIT 1)
        UNION ALL
        (SELECT range_start, range_end FROM dataset_units u
         WHERE u.dataset_uuid = o.dataset_uuid AND u.dataset_version = o.dataset_version
           AND u.range_start >= $2 AND u.range_start <= $3
         ORDER BY u.range_start LIMIT $4)) u
    WHERE o.job_id = $1 AND u.range_end >= $2 AND (u.range_start, u.range_end) <> ($2, $3)
    ORDER BY d.name, u.range_start LIMIT $4"""


async def check_output_units(connection: Connection, task: NewTask) -> None:
    """Refuses a task whose range overlaps committed units of other bounds, and names them."""
    if task.unit_start is None or task.unit_end is None or (task.unit_key or "").startswith("c:"):
        return
    rows = await connection.fetch(_OVERLAPPING, task.job_id, task.unit_start, task.unit_end, _SHOWN + 1)
    if not rows:
        return
    name = rows[0]["name"]
    units = [f"{row['range_start']}-{row['range_end']}" for row in rows if row["name"] == name]
    more = ", ..." if len(units) > _SHOWN else ""
    text = (
        f"Units of {name} do not overlap, and {task.unit_start}-{task.unit_end} overlaps {', '.join(units[:_SHOWN])}"
        f"{more}: trigger one of these instead."
    )
    raise TraceError("trigger_invalid", text, field="range", dataset=name, units=units[:_SHOWN])
