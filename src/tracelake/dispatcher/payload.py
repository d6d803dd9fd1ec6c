"""The task payload: what claim, fetch and invoke hand out."""

from functools import lru_cache
from typing import Any

import msgspec

from tracelake.model.job import Job, Output, Storage
from tracelake.model.locations import Layout
from tracelake.model.task import Task
from tracelake.wire.units import JobRef, StorageOut, TaskInput, TaskOutput, TaskPayload


def build_payload(task: Task, job: Job, inputs: list[TaskInput], layout: Layout) -> TaskPayload:
    return TaskPayload(
        task_id=task.task_id,
        attempt=task.attempt,
        job=JobRef(dag_name=job.dag_name, name=job.name),
        operator=job.operator,
        config=_config(job.config),
        inputs=inputs,
        outputs=[_output(output, task, layout) for output in job.outputs],
    )


@lru_cache(maxsize=1024)
def _config(config: bytes) -> dict[str, Any]:
    decoded: dict[str, Any] = msgspec.json.decode(config)
    return decoded


def _output(output: Output, task: Task, layout: Layout) -> TaskOutput:
    kind = output.dataset.storage
    where = layout.location(kind, output, task.task_id, task.attempt)
    return TaskOutput(
        output_index=output.output_index,
        dataset_uuid=output.dataset_uuid,
        dataset_version=output.dataset_version,
        storage=StorageOut(
            kind=kind.value,
            write_prefix=where if kind is Storage.S3 else None,
            location=where if kind is Storage.POSTGRES else None,
            buffer_prefix=where if kind is Storage.BUFFERED else None,
        ),
    )
