"""What commits did besides adding rows: rows that went, writers that changed, or nothing that anybody sees.

Readers follow a table commit by commit, so they are told which earlier commits lost rows. The table records it with the
commit, since a commit may be reported again by another sink.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from uuid import UUID

import msgspec

from tracelake.sink.outcomes import CommitRange
from tracelake.storage.data_connection import Run

MAX_RANGES = 50
"""Rows that went from more commits than that are reported as one range over all of them."""

_RECORD = """
    INSERT INTO buffer_changes (dataset_uuid, commit_seq, hidden, gone, unannounced)
    VALUES ($1::text::uuid, $2::bigint, $3::bool, $4::text::json, $5::bool)"""
_FIND = """
    SELECT commit_seq, hidden, gone::text FROM buffer_changes
    WHERE dataset_uuid = $1::text::uuid AND commit_seq = ANY ($2::bigint[])"""
_UNANNOUNCED = """
    SELECT commit_seq, hidden, gone::text FROM buffer_changes
    WHERE dataset_uuid = $1::text::uuid AND unannounced ORDER BY commit_seq"""
_ANNOUNCED = """
    UPDATE buffer_changes SET unannounced = false
    WHERE dataset_uuid = $1::text::uuid AND commit_seq = ANY ($2::bigint[])"""
FORGET_CHANGES = """
    DELETE FROM buffer_changes WHERE ctid = ANY (ARRAY(
        SELECT ctid FROM buffer_changes
        WHERE committed_at < trace_now() - make_interval(days => $1::int) AND NOT unannounced
        ORDER BY committed_at LIMIT $2::int FOR UPDATE SKIP LOCKED))
    RETURNING 1"""

_ranges_decoder = msgspec.json.Decoder(tuple[CommitRange, ...])


@dataclass(frozen=True, slots=True)
class Change:
    hidden: bool = False
    """No row became visible, and none went."""
    gone: tuple[CommitRange, ...] = ()
    """Earlier commits whose rows went."""


NOTHING_SPECIAL = Change()


def record_change(run: Run, dataset_uuid: UUID, commit_seq: int, change: Change, *, unannounced: bool = False) -> None:
    if unannounced or change != NOTHING_SPECIAL:
        ranges = msgspec.json.encode(change.gone).decode()
        run(_RECORD, str(dataset_uuid), commit_seq, change.hidden, ranges, unannounced)


def find_changes(run: Run, dataset_uuid: UUID, commits: Sequence[int]) -> Mapping[int, Change]:
    return _changes(run(_FIND, str(dataset_uuid), commits))


def find_unannounced(run: Run, dataset_uuid: UUID) -> Mapping[int, Change]:
    """Changes of writers that the Dispatcher may not know: the sink that made them may have died."""
    return _changes(run(_UNANNOUNCED, str(dataset_uuid)))


def mark_announced(run: Run, dataset_uuid: UUID, commits: Sequence[int]) -> None:
    run(_ANNOUNCED, str(dataset_uuid), commits)


def _changes(rows: Iterable[tuple[int, bool, str]]) -> dict[int, Change]:
    return {number: Change(hidden, _ranges_decoder.decode(ranges)) for number, hidden, ranges in rows}


def as_ranges(numbers: Collection[int]) -> tuple[CommitRange, ...]:
    """The numbers as ranges, in order; one range over all of them if there are too many."""
    ranges: list[CommitRange] = []
    for number in sorted(numbers):
        if ranges and ranges[-1][1] == number - 1:
            ranges[-1] = (ranges[-1][0], number)
        else:
            ranges.append((number, number))
    if len(ranges) > MAX_RANGES:
        return ((ranges[0][0], ranges[-1][1]),)
    return tuple(ranges)
