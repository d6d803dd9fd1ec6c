"""The layout of the object store: where everything of a dataset and of an attempt lives."""

from dataclasses import dataclass
from uuid import UUID

from tracelake.model.job import Job, Output, Storage

MARKER_FAMILY = b'{"format":"trace-files-'
"""How a `_SUCCESS` begins that names the files of its output, as JSON. Any other `_SUCCESS` stands for all of them."""
MARKER_FORMAT = MARKER_FAMILY + b'2","files":'
"""The format that is written: with the SHA-256 of each file. Format 1, without, is still read."""


@dataclass(frozen=True, slots=True)
class Layout:
    """Where everything of a dataset and of an attempt lives."""

    dataset_bucket: str
    scratch_bucket: str

    def generation(self, dataset_uuid: UUID, dataset_version: UUID) -> str:
        return f"s3://{self.dataset_bucket}/datasets/{dataset_uuid}/{dataset_version}/"

    def dataset(self, dataset_uuid: UUID) -> list[str]:
        """Everything of a dataset: the files of all its generations, and what users' code wrote for them."""
        return [f"s3://{self.dataset_bucket}/datasets/{dataset_uuid}/", f"{self._staging}{dataset_uuid}/"]

    def staging(self, dataset_uuid: UUID, dataset_version: UUID) -> str:
        """Where users' code writes files of a generation. A commit copies them into the generation."""
        return f"{self._staging}{dataset_uuid}/{dataset_version}/"

    def write_prefix(self, job: Job, output: Output, task_id: UUID, attempt: int) -> str:
        place = self.staging if job.is_untrusted else self.generation
        return f"{place(output.dataset_uuid, output.dataset_version)}{task_id}/{attempt}/"

    def committed_prefix(self, write_prefix: str) -> str:
        """Where the files of an attempt are once they are committed: the prefix itself, unless it is in staging."""
        if not write_prefix.startswith(self._staging):
            return write_prefix
        return f"s3://{self.dataset_bucket}/datasets/{write_prefix.removeprefix(self._staging)}"

    @property
    def _staging(self) -> str:
        return f"s3://{self.dataset_bucket}/staging/"

    @property
    def buffers_of_tasks(self) -> str:
        return f"s3://{self.scratch_bucket}/buffers/"

    @property
    def scratch_of_tasks(self) -> str:
        return f"s3://{self.scratch_bucket}/scratch/"

    def buffers(self, task_id: UUID) -> str:
        """Batches of all attempts of a task."""
        return f"{self.buffers_of_tasks}{task_id}/"

    def buffer_prefix(self, task_id: UUID, attempt: int) -> str:
        return f"{self.buffers(task_id)}{attempt}/"

    def scratch(self, task_id: UUID) -> str:
        """Scratch files of all attempts of a task."""
        return f"{self.scratch_of_tasks}{task_id}/"

    def scratch_prefix(self, task_id: UUID, attempt: int) -> str:
        return f"{self.scratch(task_id)}{attempt}/"

    @staticmethod
    def table(dataset_uuid: UUID) -> str:
        """The location of a Postgres dataset: one live table for all generations."""
        return f"postgres_table:dataset_{dataset_uuid}"

    def location(self, job: Job, output: Output, task_id: UUID, attempt: int) -> str | None:
        """The registered address of an output, as `outputs[].location` must spell it."""
        match output.storage:
            case Storage.S3:
                return self.write_prefix(job, output, task_id, attempt)
            case Storage.POSTGRES:
                return self.table(output.dataset_uuid)
            case Storage.BUFFERED:
                return self.buffer_prefix(task_id, attempt)
            case Storage.NONE:
                return None
            case Storage.LIVE:
                raise AssertionError("an output of a live dataset is either files or a table")
