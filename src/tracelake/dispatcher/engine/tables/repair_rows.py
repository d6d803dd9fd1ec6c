"""Which runs of sources may follow a reorganisation of final blocks (`sources/repair.py`)."""

from collections.abc import Mapping
from uuid import UUID

import msgspec

from tracelake.db.transaction import Connection
from tracelake.model.job import Job

_PERMITTED = """
    SELECT node_id, repair_from FROM source_state
    WHERE node_id = ANY($1) AND repair_from IS NOT NULL AND repair_at > trace_now() - interval '1 day'"""


async def load_repairs(connection: Connection, jobs: Mapping[UUID, Job]) -> dict[UUID, str]:
    """The configs of tasks of sources that may repair something now, by task."""
    nodes = [job.node_id for job in jobs.values() if job.node_id is not None]
    rows = await connection.fetch(_PERMITTED, nodes) if nodes else []
    blocks = {row["node_id"]: row["repair_from"] for row in rows}
    return {
        task_id: msgspec.json.encode({**msgspec.json.decode(job.config), "repair_from": blocks[job.node_id]}).decode()
        for task_id, job in jobs.items()
        if job.node_id in blocks
    }
