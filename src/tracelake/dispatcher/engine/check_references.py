"""What the checks of an attempt read besides its own rows, decided when it is claimed.

These datasets are inputs in all respects but one: no event of theirs makes a task. The token of the attempt grants
them, and their files are pinned to the moment of the claim.
"""

from collections.abc import Mapping, Sequence
from uuid import UUID

from tracelake.db.transaction import Connection
from tracelake.dispatcher.job_definitions import Definitions
from tracelake.model.dag import CheckKind, OutputCheck, ReadMode
from tracelake.model.job import Job, Storage
from tracelake.wire.units import CursorRange, ReadScope, TaskInput, Unit

FIRST_INDEX = 1000
"""Of references: no job has as many inputs."""
_LAST_COMMIT = 2**63 - 1

# While a version is built, its jobs compare with what is built beside them.
_TARGETS = """
    SELECT d.name, d.dataset_uuid, d.storage, coalesce(b.dataset_version, d.current_version) AS dataset_version
    FROM datasets d
    LEFT JOIN LATERAL (
        SELECT o.dataset_version FROM dag_version_jobs v JOIN job_outputs o USING (job_id)
        WHERE v.dag_version_id = $3 AND o.dataset_uuid = d.dataset_uuid LIMIT 1) b ON true
    WHERE d.org_id = $1 AND d.name = ANY($2)"""


def row_checks(checks: Sequence[OutputCheck]) -> list[OutputCheck]:
    return [check for check in checks if check.kind.is_of_rows]


async def find_references(
    connection: Connection, definitions: Definitions, jobs: Mapping[UUID, Job], units: Mapping[UUID, Unit]
) -> dict[UUID, list[TaskInput]]:
    """By task. `units` are those that the tasks are for; `load_current_jobs` has been called for the jobs."""
    references: dict[UUID, list[TaskInput]] = {}
    for task_id, job in jobs.items():
        checks = row_checks(definitions.current_checks(job))
        names = {check.dataset for check in checks if check.kind is CheckKind.RELATIONSHIP}
        own = {check.output_index for check in checks if check.scope == "dataset"}
        if not names and not own:
            continue
        building = definitions.current_job(job).building_version
        rows = await connection.fetch(_TARGETS, job.org_id, list(names), building) if names else []
        targets = [
            (row["name"], row["dataset_uuid"], row["dataset_version"], Storage(row["storage"]))
            for row in sorted(rows, key=lambda row: row["name"])
        ]
        targets += [
            (output.dataset.name, output.dataset_uuid, output.dataset_version, output.dataset.storage)
            for output in job.outputs
            if output.output_index in own
        ]
        await definitions.load_datasets(connection, (target[1] for target in targets))
        everything = Unit(cursor=CursorRange(after=-1, to=_LAST_COMMIT))
        references[task_id] = [
            TaskInput(
                input_index=FIRST_INDEX + place,
                dataset_uuid=dataset_uuid,
                dataset_version=dataset_version,
                name=name,
                unit=everything if storage is Storage.BUFFERED else units.get(task_id, everything),
                scope=ReadScope(mode=ReadMode.ALL),
            )
            for place, (name, dataset_uuid, dataset_version, storage) in enumerate(targets)
        ]
    return references
