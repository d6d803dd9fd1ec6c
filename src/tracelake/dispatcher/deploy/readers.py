"""What a cutover computes in other DAGs: the jobs that read what it moves, and what is made from their outputs.

A job with windows computes all of them again, and whatever reads its output follows. Of a job that takes the units of
its inputs, units that it has in the same revision stay as they are: they are stale until `trace rebuild`.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from uuid import UUID

import msgspec

from tracelake.db.transaction import Connection
from tracelake.dispatcher.deploy.outputs import Generation
from tracelake.dispatcher.deploy.rebuilds import UnitEstimate, UnitExtent
from tracelake.model.dag import Dag, Input, JobDocument, Strategy
from tracelake.wire.dags import ReaderRebuild

MOST_READERS = 1_000
"""Jobs that are looked at."""

_READERS = f"""
    WITH RECURSIVE reached AS (
        SELECT e.node_id, e.job_id FROM edges e JOIN nodes n USING (node_id)
        WHERE e.org_id = $1 AND e.phase <> 'Parked' AND n.dag_name <> $2 AND e.dataset_uuid = ANY($3)
        UNION
        SELECT e.node_id, e.job_id FROM reached r JOIN job_outputs o USING (job_id)
        JOIN edges e ON e.dataset_uuid = o.dataset_uuid AND e.dataset_version = o.dataset_version
        JOIN nodes n ON n.node_id = e.node_id
        WHERE e.phase <> 'Parked' AND n.dag_name <> $2)
    SELECT j.dag_name AS dag, j.name, j.document, o.dataset_uuid, o.dataset_version,
           ARRAY(SELECT e.dataset_uuid FROM edges e WHERE e.node_id = r.node_id ORDER BY e.input_index) AS inputs,
           ARRAY(SELECT e.dataset_version FROM edges e WHERE e.node_id = r.node_id ORDER BY e.input_index) AS versions,
           ARRAY(SELECT p.dataset_uuid FROM job_outputs p WHERE p.job_id = r.job_id) AS outputs
    FROM (SELECT * FROM reached LIMIT {MOST_READERS}) r JOIN jobs j USING (job_id)
    LEFT JOIN job_outputs o ON o.job_id = r.job_id AND o.output_index = 0
    ORDER BY j.dag_name, j.name"""  # noqa: S608 - constants only


@dataclass(frozen=True, slots=True)
class ReaderJob:
    """A job of another DAG that reads a dataset of the DAG, or what is made from one."""

    dag: str
    document: JobDocument
    inputs: tuple[Generation, ...]
    outputs: frozenset[UUID]
    generation: Generation | None
    """Of its first output."""

    @property
    def name(self) -> str:
        return f"{self.dag}/{self.document.name}"

    @property
    def has_windows(self) -> bool:
        return self.document.execution_strategy is Strategy.PER_WINDOW


async def load_readers(
    connection: Connection, org_id: UUID | None, dag: str, datasets: Collection[UUID]
) -> list[ReaderJob]:
    """The jobs of other DAGs downstream of these datasets."""
    rows = await connection.fetch(_READERS, org_id, dag, list(datasets)) if datasets else []
    return [
        ReaderJob(
            row["dag"],
            msgspec.json.decode(row["document"], type=JobDocument),
            tuple(zip(row["inputs"], row["versions"], strict=True)),
            frozenset(row["outputs"]),
            None if row["dataset_uuid"] is None else (row["dataset_uuid"], row["dataset_version"]),
        )
        for row in rows
    ]


def estimate_readers(
    readers: Sequence[ReaderJob], moved: Collection[UUID], extents: Mapping[Generation, UnitExtent]
) -> list[ReaderRebuild]:
    """How much the readers compute once these datasets are of another generation."""
    computing, stale = _follow(readers, moved)
    rows = []
    for names, is_stale in ((computing, False), (stale, True)):
        readers_of_kind = [reader for reader in readers if reader.name in names]
        estimate = UnitEstimate(
            Dag(name="", jobs=tuple(map(_beside_others, readers_of_kind)), publish=()),
            frozenset(names),
            frozenset(),
            {(reader.name, 0): reader.generation for reader in readers_of_kind if reader.generation is not None},
            {str(uuid): (uuid, version) for reader in readers_of_kind for uuid, version in reader.inputs},
            extents,
        )
        for item in estimate.rebuilds():
            dag, _, job = item.job.partition("/")
            rows.append(
                ReaderRebuild(
                    dag=dag,
                    job=job,
                    units=item.units,
                    more=item.more,
                    about=item.about,
                    unknown=item.unknown,
                    stale=is_stale,
                )
            )
    return sorted(rows, key=lambda row: (row.dag, row.job))


def _follow(readers: Sequence[ReaderJob], moved: Collection[UUID]) -> tuple[set[str], set[str]]:
    """The readers that compute, and those whose units become stale."""
    computing: dict[str, ReaderJob] = {}
    changed = set(moved)  # readers by windows follow these, and all readers what was computed
    computed: set[UUID] = set()
    waiting = True
    while waiting:
        waiting = False
        for reader in readers:
            datasets = {uuid for uuid, _ in reader.inputs}
            follows = (reader.has_windows and datasets & changed) or datasets & computed
            if follows and reader.name not in computing:
                computing[reader.name] = reader
                changed |= reader.outputs
                computed |= reader.outputs
                waiting = True
    return set(computing), {
        reader.name
        for reader in readers
        if reader.name not in computing and any(uuid in moved for uuid, _ in reader.inputs)
    }


def _beside_others(reader: ReaderJob) -> JobDocument:
    """The job as it stands beside jobs of several DAGs: with the name of its DAG, and inputs by their datasets."""
    inputs: list[Input] = [
        msgspec.structs.replace(item, output=None, dataset=str(uuid))
        for item, (uuid, _) in zip(reader.document.inputs, reader.inputs, strict=False)
    ]
    return msgspec.structs.replace(reader.document, name=reader.name, inputs=tuple(inputs))
