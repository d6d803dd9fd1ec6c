"""The possible outcomes of committing batches, and the errors on the way."""

from collections.abc import Set
from dataclasses import dataclass
from typing import TypeAlias
from uuid import UUID

from tracelake.rows.reader import BadBatchError
from tracelake.wire.buffers import BufferBatch

CommitRange: TypeAlias = tuple[int, int]
"""The first and the last of some commits."""


class StagingLostError(Exception):
    """The staged rows are lost: Postgres empties unlogged tables after a crash."""


class OutdatedError(Exception):
    """The table has a newer schema than the one of the caller."""


@dataclass(frozen=True, slots=True)
class Refusal:
    """A batch that cannot be committed, and why."""

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
    """The size of the table after this commit; None for a commit made earlier."""
    dropped: Set[UUID] = frozenset()
    """Batches that a user dropped: they are done, and their rows are not in the table."""
    hidden: bool = False
    """Nothing of it is visible yet, and nothing went."""
    gone: tuple[CommitRange, ...] = ()
    """Earlier commits whose rows went with this one."""


@dataclass(frozen=True, slots=True)
class CommitResult:
    """The commits of some batches, and the refusals of the others."""

    commits: list[Commit]
    refusals: list[Refusal]

    def __add__(self, other: "CommitResult") -> "CommitResult":
        return CommitResult(self.commits + other.commits, self.refusals + other.refusals)
