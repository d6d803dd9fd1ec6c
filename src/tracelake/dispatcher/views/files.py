"""Which files are a dataset: the pinned objects of every unit that counts, by the registry, never by a listing."""

from collections.abc import Sequence
from datetime import datetime
from uuid import UUID

import asyncpg
import msgspec

from tracelake.db.transaction import Connection
from tracelake.dispatcher.read_pins import LivePin
from tracelake.dispatcher.removed_names import find_removed_dataset
from tracelake.dispatcher.views.shared import REPORTED_ROWS
from tracelake.errors import TraceError
from tracelake.model.dag import Schema
from tracelake.model.job import Storage
from tracelake.wire.direct import DirectTable
from tracelake.wire.platform import DatasetFilesReply, DatasetFilesRequest, FilesPage
from tracelake.wire.task_calls import DataFile, FilesReply, FileUnit, TableColumn

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

# Manifests are kept as long as their generation, so what was current at a time can be told later. Commits to one come
# one after another (each holds its lock), so their times are in the order in which they became visible.
_UNITS_AS_OF = """
    SELECT u.range_start, u.range_end, m.revision, m.objects
    FROM dataset_units u CROSS JOIN LATERAL (
        SELECT revision, objects FROM manifests m
        WHERE m.dataset_uuid = u.dataset_uuid AND m.dataset_version = u.dataset_version AND m.unit = u.unit
          AND m.created_at <= $6 AND m.revision IS NOT NULL
        ORDER BY m.revision DESC LIMIT 1) m
    WHERE u.dataset_uuid = $1 AND u.dataset_version = $2 AND u.range_start > $3 AND u.range_start <= $4
    ORDER BY u.range_start LIMIT $5"""

_WHOLE_AS_OF = """
    SELECT NULL::bigint AS range_start, NULL::bigint AS range_end, revision, objects FROM manifests
    WHERE dataset_uuid = $1 AND dataset_version = $2 AND unit = '*' AND created_at <= $3 AND revision IS NOT NULL
    ORDER BY revision DESC LIMIT 1"""

_ROWS = f"""
    SELECT CASE WHEN count(r.rows) = cardinality($3::text[]) THEN coalesce(sum(r.rows), 0)::bigint END
    FROM unnest($3::text[], $4::bigint[]) AS u(unit, revision)
    JOIN manifests m ON m.dataset_uuid = $1 AND m.dataset_version = $2 AND m.unit = u.unit AND m.revision = u.revision
    JOIN tasks t USING (task_id)
    CROSS JOIN LATERAL {REPORTED_ROWS} r"""  # noqa: S608 - constants only

_START_BEFORE = """
    SELECT max(range_start) FROM dataset_units
    WHERE dataset_uuid = $1 AND dataset_version = $2 AND range_start <= $3"""

_NEWEST = "SELECT max(created_at) FROM manifests WHERE dataset_uuid = $1 AND dataset_version = $2"

_BOUNDARY = "SELECT boundary FROM live_boundaries WHERE dataset_uuid = $1 AND dataset_version = $2"

_HAS_UNITS = "SELECT EXISTS (SELECT FROM dataset_units WHERE dataset_uuid = $1 AND dataset_version = $2)"

_BY_UUID = "SELECT dataset_uuid, name, current_version, storage FROM datasets WHERE dataset_uuid = $1"

_BY_NAME = """
    SELECT d.dataset_uuid, d.name, d.current_version, d.storage
    FROM datasets d JOIN orgs o USING (org_id) WHERE o.name = $1 AND d.name = $2 AND d.removed_at IS NULL"""

_ORG = "SELECT org_id FROM orgs WHERE name = $1"

_IS_GENERATION = """
    SELECT EXISTS (SELECT FROM dataset_versions
                   WHERE dataset_uuid = $1 AND dataset_version = $2 AND removed_at IS NULL)"""

_SCHEMA = "SELECT schema FROM dataset_versions WHERE dataset_uuid = $1 AND dataset_version = $2"

# What a job of the DAG that publishes it declares: all versions that have this very job declare the same columns, since
# they are part of what the job is. Nothing for jobs of other DAGs.
_DECLARED = """
    SELECT p.publish->'schema' FROM (
        SELECT v.org_id, v.document FROM dag_version_jobs j JOIN dag_versions v USING (dag_version_id)
        WHERE j.job_id = $1 LIMIT 1) v
    JOIN datasets d ON d.dataset_uuid = $2 AND d.org_id = v.org_id
    CROSS JOIN LATERAL json_array_elements(v.document->'publish') AS p(publish)
    WHERE p.publish->>'name' = d.name AND p.publish->>'storage' IN ('postgres', 'live')"""

_FIRST, _LAST = 0, 2**63 - 1


async def list_files(
    connection: Connection,
    generation: tuple[UUID, UUID],
    start: int | None,
    end: int | None,
    after: int | None,
    as_of: datetime | None = None,
) -> FilesReply:
    """Lists the units that have a part in the range, in its order; without a range, all of them.

    Needs a connection that sees one moment (REPEATABLE READ). Later pages, which name the time of the first, are of
    that moment, whatever was committed meanwhile; a page that names none is of now.
    """
    last = _LAST if end is None else end
    if as_of is not None:
        begin = await _start_before(connection, generation, start) - 1 if after is None else after
        units, following = await _list_as_of(connection, generation, last, begin, as_of)
        if after is None:
            units = [unit for unit in units if start is None or unit.end is None or unit.end >= start]
            units[:0] = [_unit(row) for row in await connection.fetch(_WHOLE_AS_OF, *generation, as_of)]
        return FilesReply(units=units, next=following, as_of=as_of if following is not None else None)
    first = _FIRST if start is None else start
    rows: list[asyncpg.Record] = []
    if after is None:
        rows += await connection.fetch(_WHOLE, *generation)
        rows += await connection.fetch(_BEFORE, *generation, first)
    unit_rows = await connection.fetch(_UNITS, *generation, first if after is None else after, last, PAGE + 1)
    rows += unit_rows[:PAGE]
    units = [_unit(row) for row in rows]
    if len(unit_rows) <= PAGE:
        return FilesReply(units=units)
    newest = await connection.fetchval(_NEWEST, *generation)
    return FilesReply(units=units, next=unit_rows[PAGE - 1]["range_start"], as_of=newest)


async def list_live_files(
    connection: Connection,
    generation: tuple[UUID, UUID],
    start: int | None,
    end: int | None,
    after: int | None,
    pin: LivePin,
) -> FilesReply:
    """Lists the files of a live dataset that end at or below the boundary. Units above it were committed before one
    that is missing below them; their rows are read from the table."""
    last = _LAST if end is None else end
    if pin.boundary is not None:
        last = min(last, pin.boundary)
    if (start or 0) > last:
        return FilesReply(units=[])
    return await list_files(connection, generation, start, last, after, pin.as_of)


async def read_boundary(connection: Connection, generation: tuple[UUID, UUID]) -> int | None:
    """Where the files of a live dataset end; None for every other one, and for one whose table has no row yet."""
    boundary: int | None = await connection.fetchval(_BOUNDARY, *generation)
    return boundary


async def list_columns(
    connection: Connection, generation: tuple[UUID, UUID], reader: UUID | None = None
) -> list[TableColumn]:
    """Lists the columns of a generation that is a table; none for one that no document made: it has no table.

    A job of the same DAG (`reader`) gets what its own version declares, however the table has grown since: it goes on
    writing what it wrote before. Everybody else gets what is declared now.
    """
    schema = None if reader is None else await connection.fetchval(_DECLARED, reader, generation[0])
    if schema is None:
        schema = await connection.fetchval(_SCHEMA, *generation)
    columns = () if schema is None else msgspec.json.decode(schema, type=Schema).columns
    return msgspec.convert(columns, list[TableColumn], from_attributes=True)


async def read_schema(connection: Connection, dataset_uuid: UUID) -> Schema | None:
    """Reads the schema of a table as sinks keep it; None for a dataset that no document made."""
    schema = await connection.fetchval("SELECT schema FROM buffered_tables WHERE dataset_uuid = $1", dataset_uuid)
    return None if schema is None else msgspec.json.decode(schema, type=Schema)


_DIRECT = """
    SELECT t.dataset_uuid, t.org_id, o.name AS org, d.name, t.schema,
           (extract(epoch FROM t.changed_at) * 1000000)::bigint AS revision, b.boundary
    FROM direct_tables t JOIN datasets d USING (dataset_uuid) JOIN orgs o ON o.org_id = t.org_id
    LEFT JOIN live_boundaries b ON b.dataset_uuid = d.dataset_uuid AND b.dataset_version = d.current_version
    WHERE t.dataset_uuid = $1"""


async def read_direct_table(connection: Connection, dataset_uuid: UUID) -> DirectTable | None:
    """Reads how a table is kept that tasks write directly; None if the dataset has none."""
    row = await connection.fetchrow(_DIRECT, dataset_uuid)
    if row is None:
        return None
    fields = dict(row) | {"schema": msgspec.json.decode(row["schema"], type=Schema)}
    return DirectTable(**fields)


async def list_dataset_files(connection: Connection, body: DatasetFilesRequest) -> DatasetFilesReply:
    """Lists files for services, of any org. Needs a connection that sees one moment (REPEATABLE READ).

    Later pages are of the generation and the time of the first, whatever was committed or cut over meanwhile.
    """
    name, storage, generation = await _find_generation(connection, body)
    dataset_uuid, dataset_version = generation
    if storage in (Storage.BUFFERED, Storage.POSTGRES):
        columns = await list_columns(connection, generation)
        if storage == Storage.POSTGRES and not columns:
            raise _without_rows(name)
        return DatasetFilesReply(dataset_uuid=dataset_uuid, dataset_version=dataset_version, units=[], columns=columns)
    if storage == Storage.LIVE:
        return await _list_live(connection, body, generation)
    if body.page is not None:
        last = _LAST if body.end is None else body.end
        units, after = await _list_as_of(connection, generation, last, body.page.after, body.page.as_of)
        as_of: datetime | None = body.page.as_of
    else:
        page = await list_files(connection, generation, body.start, body.end, None)
        units, after, as_of = page.units, page.next, page.as_of
        if not units and not await connection.fetchval(_HAS_UNITS, *generation):
            raise TraceError("dataset_not_committed")
    more = None
    if after is not None and as_of is not None:
        more = FilesPage(dataset_version=dataset_version, after=after, as_of=as_of)
    rows = await _count_rows(connection, generation, units) if body.count_rows else None
    return DatasetFilesReply(
        dataset_uuid=dataset_uuid, dataset_version=dataset_version, units=units, next=more, rows=rows
    )


async def _count_rows(connection: Connection, generation: tuple[UUID, UUID], units: Sequence[FileUnit]) -> int | None:
    names = ["*" if unit.start is None else f"p:{unit.start}-{unit.end}" for unit in units]
    rows: int | None = await connection.fetchval(_ROWS, *generation, names, [unit.revision for unit in units])
    return rows


async def _list_live(
    connection: Connection, body: DatasetFilesRequest, generation: tuple[UUID, UUID]
) -> DatasetFilesReply:
    if body.page is None:
        boundary = await read_boundary(connection, generation)
        pin = LivePin(await connection.fetchval(_NEWEST, *generation), boundary)
    else:
        pin = LivePin(body.page.as_of, body.page.boundary)
    after = None if body.page is None else body.page.after
    files = FilesReply(units=[])
    if pin.as_of is not None:
        files = await list_live_files(connection, generation, body.start, body.end, after, pin)
    more = None
    if files.next is not None and pin.as_of is not None:
        more = FilesPage(dataset_version=generation[1], after=files.next, as_of=pin.as_of, boundary=pin.boundary)
    return DatasetFilesReply(
        dataset_uuid=generation[0],
        dataset_version=generation[1],
        units=files.units,
        next=more,
        columns=await list_columns(connection, generation),
        live=True,
        boundary=pin.boundary,
    )


async def _find_generation(connection: Connection, body: DatasetFilesRequest) -> tuple[str, str, tuple[UUID, UUID]]:
    """Returns the name of the dataset, its storage, and the requested generation."""
    if body.dataset_uuid is not None:
        dataset = await connection.fetchrow(_BY_UUID, body.dataset_uuid)
    else:
        dataset = await connection.fetchrow(_BY_NAME, body.org, body.name)
    if dataset is None:
        raise await _missing(connection, body)
    if dataset["storage"] == Storage.NONE:
        raise _without_rows(dataset["name"])
    requested_version = body.page.dataset_version if body.page else body.dataset_version
    generation = (dataset["dataset_uuid"], requested_version or dataset["current_version"])
    if requested_version is not None and not await connection.fetchval(_IS_GENERATION, *generation):
        raise TraceError("dataset_not_found", "The dataset has no such generation.", field="dataset_version")
    return dataset["name"], dataset["storage"], generation


async def _missing(connection: Connection, body: DatasetFilesRequest) -> TraceError:
    """A name may be of a dataset that was removed."""
    removed_error = None
    if body.name is not None:
        org_id = await connection.fetchval(_ORG, body.org)
        removed_error = await find_removed_dataset(connection, org_id, body.name)
    return removed_error or TraceError("dataset_not_found")


def _without_rows(name: str) -> TraceError:
    return TraceError("dataset_without_rows", f"{name} publishes events only and holds no rows.")


async def _start_before(connection: Connection, generation: tuple[UUID, UUID], start: int | None) -> int:
    """Where the last unit begins that begins at this block or before; all others begin later."""
    if start is None:
        return _FIRST
    begin: int | None = await connection.fetchval(_START_BEFORE, *generation, start)
    return start if begin is None else begin


async def _list_as_of(
    connection: Connection, generation: tuple[UUID, UUID], last: int, after: int, as_of: datetime
) -> tuple[list[FileUnit], int | None]:
    # One more, to know whether there is another page.
    rows = await connection.fetch(_UNITS_AS_OF, *generation, after, last, PAGE + 1, as_of)
    return [_unit(row) for row in rows[:PAGE]], rows[PAGE - 1]["range_start"] if len(rows) > PAGE else None


def _unit(row: asyncpg.Record) -> FileUnit:
    files = msgspec.json.decode(row["objects"], type=list[DataFile])
    return FileUnit(start=row["range_start"], end=row["range_end"], revision=row["revision"], files=files)
