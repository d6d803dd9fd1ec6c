"""Which runs of sources may follow a reorganisation of final blocks (`sources/repair.py`)."""

from collections.abc import Mapping
from uuid import UUID

import msgspec

from tracelake.catalogue.block_follower import RepairPermission
from tracelake.db.transaction import Connection
from tracelake.model.job import Job

_PERMITTED = """
    SELECT node_id, repair_from, (extract(epoch FROM repair_at) * 1000000)::bigint AS permit_id,
           extract(epoch FROM repair_at + interval '1 day' - trace_now())::float8 AS seconds
    FROM source_state
    WHERE node_id = ANY($1) AND repair_at > trace_now() - interval '1 day'"""


async def load_repairs(connection: Connection, jobs: Mapping[UUID, Job]) -> dict[UUID, str]:
    """The configs of tasks of sources that may repair something now, by task."""
    nodes = [job.node_id for job in jobs.values() if job.node_id is not None]
    rows = await connection.fetch(_PERMITTED, nodes) if nodes else []
    permissions = {
        row["node_id"]: RepairPermission(
            permit_id=row["permit_id"], seconds=row["seconds"], from_block=row["repair_from"]
        )
        for row in rows
    }
    return {
        task_id: msgspec.json.encode({**msgspec.json.decode(job.config), "repair": permissions[job.node_id]}).decode()
        for task_id, job in jobs.items()
        if job.node_id in permissions
    }
