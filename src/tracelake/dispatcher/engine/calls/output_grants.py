"""Finds the output that a call names among the outputs of the task's job."""

from uuid import UUID

from tracelake.errors import TraceError
from tracelake.model.job import Job, Output


def output_for(job: Job, dataset_uuid: UUID | None, name: str | None, dataset_version: UUID | None) -> Output:
    """Returns the output that the given names agree on; a foreign dataset or version is 403, a contradiction 422."""
    output = _find(job, dataset_uuid, name)
    if output is None:
        raise TraceError("dataset_forbidden", field="dataset_uuid" if dataset_uuid else "dedupe_scope")
    if dataset_uuid is not None and name is not None and output.dataset.name != name:
        raise TraceError("body_invalid", "dataset_uuid and dedupe_scope name different datasets.", field="dedupe_scope")
    if dataset_version not in (None, output.dataset_version):
        raise TraceError(
            "dataset_forbidden", "The task writes another version of this dataset.", field="dataset_version"
        )
    return output


def _find(job: Job, dataset_uuid: UUID | None, name: str | None) -> Output | None:
    if dataset_uuid is not None:
        return job.by_dataset.get(dataset_uuid)
    return next((output for output in job.outputs if output.dataset.name == name), None)
