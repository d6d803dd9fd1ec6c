"""What is kept of positions of a live dataset when their rows have left its table."""

from collections.abc import Mapping
from uuid import UUID

from tracelake.storage.data_connection import Run

_STORE = """
    INSERT INTO table_marks (dataset_uuid, position, mark)
    SELECT $1::text::uuid, u.position, decode(u.mark, 'hex')
    FROM unnest($2::bigint[], $3::text[]) AS u(position, mark)
    ON CONFLICT (dataset_uuid, position) DO UPDATE SET mark = excluded.mark"""
_MARK = "SELECT mark FROM table_marks WHERE dataset_uuid = $1::text::uuid AND position = $2::bigint"
_READ = "SELECT position, mark FROM table_marks WHERE dataset_uuid = $1::text::uuid"


def store_marks(run: Run, dataset_uuid: UUID, marks: Mapping[int, bytes]) -> None:
    if marks:
        run(_STORE, str(dataset_uuid), list(marks), [mark.hex() for mark in marks.values()])


def read_marks(run: Run, dataset_uuid: UUID) -> dict[int, bytes]:
    return {int(position): bytes(mark) for position, mark in run(_READ, str(dataset_uuid))}


def read_mark(run: Run, dataset_uuid: UUID, position: int) -> bytes | None:
    rows = run(_MARK, str(dataset_uuid), position)
    return bytes(rows[0][0]) if rows else None
