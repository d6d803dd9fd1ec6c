"""The task payload: what claim, fetch and invoke hand out."""

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any
from uuid import UUID

import msgspec

from tracelake.dispatcher.tracing.context import traceparent_of_attempt
from tracelake.model.dag import OutputCheck
from tracelake.model.job import Job, Output, Storage
from tracelake.model.locations import Layout
from tracelake.model.task import Task
from tracelake.wire.units import JobRef, PayloadInput, StorageOut, TaskInput, TaskOutput, TaskPayload


def build_payload(
    task: Task,
    job: Job,
    inputs: list[TaskInput],
    layout: Layout,
    names: Callable[[UUID], str],
    config: str | None = None,
    checks: Sequence[OutputCheck] = (),
    references: Sequence[TaskInput] = (),
) -> TaskPayload:
    """`names` gives the registered name of a dataset. `config` is the task's own, instead of its job's."""
    return TaskPayload(
        task_id=task.task_id,
        attempt=task.attempt,
        job=JobRef(dag_name=job.dag_name, name=job.name),
        operator=job.operator,
        config=_config(job.config) if config is None else msgspec.json.decode(config),
        inputs=[name_input(item, names(item.dataset_uuid)) for item in inputs],
        outputs=[_output(output, task, job, layout) for output in job.outputs],
        checks=list(checks),
        references=[name_input(item, names(item.dataset_uuid)) for item in references],
        traceparent=traceparent_of_attempt(task.traceparent, task.task_id, task.attempt),
    )


@lru_cache(maxsize=1024)
def _config(config: bytes) -> dict[str, Any]:
    decoded: dict[str, Any] = msgspec.json.decode(config)
    return decoded


def name_input(item: TaskInput, name: str) -> PayloadInput:
    """The input with the registered name of its dataset."""
    return PayloadInput(
        input_index=item.input_index,
        dataset_uuid=item.dataset_uuid,
        dataset_version=item.dataset_version,
        name=name,
        unit=item.unit,
        revision=item.revision,
        where=item.where,
        scope=item.scope,
    )


def _output(output: Output, task: Task, job: Job, layout: Layout) -> TaskOutput:
    kind = output.storage
    where = layout.location(job, output, task.task_id, task.attempt)
    return TaskOutput(
        output_index=output.output_index,
        dataset_uuid=output.dataset_uuid,
        dataset_version=output.dataset_version,
        name=output.dataset.name,
        storage=StorageOut(
            kind=kind.value,
            write_prefix=where if kind is Storage.S3 else None,
            location=where if kind is Storage.POSTGRES else None,
            buffer_prefix=where if kind is Storage.BUFFERED else None,
            live=kind is Storage.S3 and output.dataset.storage is Storage.LIVE,
        ),
    )
