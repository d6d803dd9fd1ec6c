"""The lock of a table: whoever commits batches or changes the visible writers holds it until its commit."""

from dataclasses import dataclass
from uuid import UUID

from tracelake.storage.data_connection import Run

_LOCK = """
    SELECT next_commit, coalesce((definition->>'revision')::bigint, 0), writers::text[] FROM buffer_tables
    WHERE dataset_uuid = $1::text::uuid FOR UPDATE"""
_NEXT = "UPDATE buffer_tables SET next_commit = next_commit + 1 WHERE dataset_uuid = $1::text::uuid"


@dataclass(frozen=True, slots=True)
class LockedTable:
    commit_seq: int
    """The number of the next commit."""
    revision: int
    """Of the declaration that the table has."""
    writers: frozenset[UUID] | None
    """The nodes whose rows are visible; None: all."""


def lock_table(run: Run, dataset_uuid: UUID) -> LockedTable:
    ((commit_seq, revision, writers),) = run(_LOCK, str(dataset_uuid))
    return LockedTable(commit_seq, revision, None if writers is None else frozenset(map(UUID, writers)))


def use_commit_number(run: Run, dataset_uuid: UUID) -> None:
    run(_NEXT, str(dataset_uuid))
