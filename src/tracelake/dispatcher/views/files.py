"""Which files are a dataset: the pinned objects of every unit that counts, by the registry, never by a listing."""

from uuid import UUID

import asyncpg
import msgspec

from tracelake.db.transaction import Connection
from tracelake.wire.task_calls import DataFile, FilesReply, FileUnit

PAGE = 500
"""Units of one answer."""

_COLUMNS = "u.range_start, u.range_end, u.revision, m.objects"

_UNITS = f"""
    SELECT {_COLUMNS} FROM dataset_units u JOIN manifests m USING (manifest_id)
    WHERE u.dataset_uuid = $1 AND u.dataset_version = $2 AND u.range_start > $3 AND u.range_start <= $4
    ORDER BY u.range_start LIMIT $5"""  # noqa: S608 - constants only

# Units of a generation never overlap: of those that begin before the range, only the last can reach into it.
_BEFORE = f"""
    SELECT {_COLUMNS} FROM (
        SELECT * FROM dataset_units WHERE dataset_uuid = $1 AND dataset_version = $2 AND range_start <= $3
        ORDER BY range_start DESC LIMIT 1) u
    JOIN manifests m USING (manifest_id) WHERE u.range_end >= $3"""  # noqa: S608 - constants only

_WHOLE = f"""
    SELECT {_COLUMNS} FROM dataset_units u JOIN manifests m USING (manifest_id)
    WHERE u.dataset_uuid = $1 AND u.dataset_version = $2 AND u.unit = '*'"""  # noqa: S608 - constants only

_FIRST, _LAST = 0, 2**63 - 1


async def list_files(
    connection: Connection, generation: tuple[UUID, UUID], start: int | None, end: int | None, after: int | None
) -> FilesReply:
    """The units that have a part in the range, in its order; without one, all of them."""
    first = _FIRST if start is None else start
    last = _LAST if end is None else end
    rows: list[asyncpg.Record] = []
    if after is None:
        rows += await connection.fetch(_WHOLE, *generation)
        rows += await connection.fetch(_BEFORE, *generation, first)
    found = await connection.fetch(_UNITS, *generation, first if after is None else after, last, PAGE + 1)
    more = len(found) > PAGE
    rows += found[:PAGE]
    return FilesReply(units=[_unit(row) for row in rows], next=found[PAGE - 1]["range_start"] if more else None)


def _unit(row: asyncpg.Record) -> FileUnit:
    files = msgspec.json.decode(row["objects"], type=list[DataFile])
    return FileUnit(start=row["range_start"], end=row["range_end"], revision=row["revision"], files=files)
