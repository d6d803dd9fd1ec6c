"""The possible outcomes of committing batches, and the errors of Postgres data."""

from collections.abc import Callable, Set
from dataclasses import dataclass
from typing import Any, TypeAlias
from uuid import UUID

from tracelake.rows.reader import BadBatchError
from tracelake.wire.buffers import BufferBatch

Run: TypeAlias = Callable[..., list[tuple[Any, ...]]]
"""Runs a statement with its parameters in the open transaction; returns its rows."""


class StoreAwayError(Exception):
    """Postgres data cannot do it now; retry later. `lasting` if an operator has to intervene first."""

    def __init__(self, text: str, *, lasting: bool = False) -> None:
        super().__init__(text)
        self.lasting = lasting


class StagingLostError(Exception):
    """The staged rows are lost: Postgres empties unlogged tables after a crash."""


class OutdatedError(Exception):
    """The table has a newer schema than the one of the caller."""


class RefusedRowsError(Exception):
    """Postgres refuses rows that passed the reader; the text is that of Postgres and contains no statement."""


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


@dataclass(frozen=True, slots=True)
class CommitResult:
    """The commits of some batches, and the refusals of the others."""

    commits: list[Commit]
    refusals: list[Refusal]

    def __add__(self, other: "CommitResult") -> "CommitResult":
        return CommitResult(self.commits + other.commits, self.refusals + other.refusals)
