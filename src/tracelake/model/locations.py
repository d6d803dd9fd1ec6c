"""Addresses in the object store: the canonical prefix form and the layout of what a task may touch.

A prefix is a directory. Anything that is not canonical is rejected, never repaired: two spellings of one place
are how a check and the thing it guards come to disagree.
"""

import re
import unicodedata
from dataclasses import dataclass
from uuid import UUID

from tracelake.model.job import Output, Storage

_BUCKET = re.compile(r"[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]")
_MAX_KEY_BYTES = 1024  # as in S3
MARKER_FAMILY = b'{"format":"trace-files-'
"""How a `_SUCCESS` begins that names the files of its output, as JSON. Any other `_SUCCESS` stands for all of them."""
MARKER_FORMAT = MARKER_FAMILY + b'2","files":'
"""The format that is written: with the SHA-256 of each file. Format 1, without, is still read."""
_FORBIDDEN = re.compile(r"[*?\\%\x00-\x1f\x7f-\x9f]")


def parse_uri(uri: str) -> tuple[str, str] | None:
    """`(bucket, key)` of a canonical `s3://bucket/key` address, or None."""
    if not uri.startswith("s3://") or _FORBIDDEN.search(uri) or not unicodedata.is_normalized("NFC", uri):
        return None
    bucket, slash, key = uri[5:].partition("/")
    if not slash or not _BUCKET.fullmatch(bucket):
        return None
    try:
        if len(key.encode()) > _MAX_KEY_BYTES:
            return None
    except UnicodeEncodeError:
        return None
    segments = key.removesuffix("/").split("/")
    if any(segment in ("", ".", "..") for segment in segments):
        return None
    return bucket, key


def is_canonical_prefix(prefix: str) -> bool:
    return prefix.endswith("/") and parse_uri(prefix) is not None


def lies_under(uri: str, prefix: str) -> bool:
    """Whether a canonical object address lies below a canonical prefix."""
    return uri.startswith(prefix) and not uri.endswith("/") and parse_uri(uri) is not None


@dataclass(frozen=True, slots=True)
class Layout:
    """Where everything of a dataset and of an attempt lives."""

    dataset_bucket: str
    scratch_bucket: str

    def generation(self, dataset_uuid: UUID, dataset_version: UUID) -> str:
        return f"s3://{self.dataset_bucket}/datasets/{dataset_uuid}/{dataset_version}/"

    def write_prefix(self, dataset_uuid: UUID, dataset_version: UUID, task_id: UUID, attempt: int) -> str:
        return f"{self.generation(dataset_uuid, dataset_version)}{task_id}/{attempt}/"

    def buffers(self, task_id: UUID) -> str:
        """Batches of all attempts of a task."""
        return f"s3://{self.scratch_bucket}/buffers/{task_id}/"

    def buffer_prefix(self, task_id: UUID, attempt: int) -> str:
        return f"{self.buffers(task_id)}{attempt}/"

    def scratch(self, task_id: UUID) -> str:
        """Scratch files of all attempts of a task."""
        return f"s3://{self.scratch_bucket}/scratch/{task_id}/"

    def scratch_prefix(self, task_id: UUID, attempt: int) -> str:
        return f"{self.scratch(task_id)}{attempt}/"

    @staticmethod
    def table(dataset_uuid: UUID) -> str:
        """The location of a Postgres dataset: one live table for all generations."""
        return f"postgres_table:dataset_{dataset_uuid}"

    def location(self, storage: Storage, output: Output, task_id: UUID, attempt: int) -> str | None:
        """The registered address of an output, as `outputs[].location` must spell it."""
        match storage:
            case Storage.S3:
                return self.write_prefix(output.dataset_uuid, output.dataset_version, task_id, attempt)
            case Storage.POSTGRES:
                return self.table(output.dataset_uuid)
            case Storage.BUFFERED:
                return self.buffer_prefix(task_id, attempt)
            case Storage.NONE:
                return None
