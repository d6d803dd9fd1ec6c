"""What may become of batches on their way into a table, and the errors of Postgres data."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias
from uuid import UUID

from tracelake.rows.reader import BadBatchError
from tracelake.wire.buffers import BufferBatch

Run: TypeAlias = Callable[..., list[tuple[Any, ...]]]
"""Runs a statement with its parameters in the transaction that is open."""


class StoreAwayError(Exception):
    """Postgres data does not take it now: the same again later. `lasting` if a person has to do something first."""

    def __init__(self, text: str, *, lasting: bool = False) -> None:
        super().__init__(text)
        self.lasting = lasting


class StagingLostError(Exception):
    """What was staged is not there any more: Postgres empties such tables when it comes up after a crash."""


class OutdatedError(Exception):
    """The table has followed a newer schema than the one that is at hand."""


class RefusedRowsError(Exception):
    """Postgres refuses what passed the reader; the text is its own and names no statement."""


@dataclass(frozen=True, slots=True)
class Refusal:
    """A batch that cannot be taken."""

    batch: BufferBatch
    error: BadBatchError


@dataclass(frozen=True, slots=True)
class Loaded:
    """A batch whose rows are in a staging table."""

    batch: BufferBatch
    rows: int


@dataclass(frozen=True, slots=True)
class Commit:
    """Batches that became visible together."""

    commit_seq: int
    publish_ids: tuple[UUID, ...]
    table_bytes: int | None = None
    """What the table takes with this commit; unknown of one that was made before."""


@dataclass(frozen=True, slots=True)
class CommitResult:
    """The commits by which some batches are in the table now, and the refusals of the others."""

    commits: list[Commit]
    refusals: list[Refusal]

    def __add__(self, other: "CommitResult") -> "CommitResult":
        return CommitResult(self.commits + other.commits, self.refusals + other.refusals)
