"""Publications: which pointer moves a completion may make.

What is recorded is read under a lock on the generation (`load`), the rest is pure (`PublicationRegistry.publish`), so
that several completions in one transaction see each other's moves.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeAlias
from uuid import UUID

import msgspec

from tracelake.db.transaction import Connection
from tracelake.dispatcher.engine.plan import Generation, Publication, unit_of
from tracelake.dispatcher.records import columns
from tracelake.errors import TraceError
from tracelake.model.ids import new_id
from tracelake.model.job import Job, Storage
from tracelake.model.task import RevisionKind, Task
from tracelake.ports import ObjectMeta
from tracelake.wire.task_calls import DatasetPublished
from tracelake.wire.units import Unit

WHOLE = "*"
"""The unit of a publication without a range: all of the generation."""

# NO KEY: rows that refer to a generation (events above all) need not wait, and two completions that publish to one
# and speak of the other cannot wait for each other.
_LOCK_GENERATIONS = """
    SELECT dataset_uuid, dataset_version, config_hash FROM dataset_versions
    WHERE (dataset_uuid, dataset_version) IN (SELECT * FROM unnest($1::uuid[], $2::uuid[]))
    ORDER BY dataset_uuid, dataset_version FOR NO KEY UPDATE"""

# Units of a generation never overlap, so the one with the largest start up to the range's end decides.
_NEAREST_UNITS = """
    SELECT u.dataset_uuid, u.dataset_version, u.unit, u.range_start, u.range_end, u.revision
    FROM unnest($1::uuid[], $2::uuid[], $3::bigint[], $4::bigint[])
         AS q(dataset_uuid, dataset_version, range_start, range_end)
    CROSS JOIN LATERAL (
        SELECT * FROM dataset_units d
        WHERE d.dataset_uuid = q.dataset_uuid AND d.dataset_version = q.dataset_version AND d.range_start <= q.range_end
        ORDER BY d.range_start DESC LIMIT 1) u
    WHERE u.range_end >= q.range_start
    UNION
    SELECT d.dataset_uuid, d.dataset_version, d.unit, d.range_start, d.range_end, d.revision
    FROM dataset_units d
    WHERE d.unit = '*' AND (d.dataset_uuid, d.dataset_version) IN (SELECT * FROM unnest($1::uuid[], $2::uuid[]))"""


@dataclass(frozen=True, slots=True)
class PublicationRequest:
    """A publication with the objects that were listed before the transaction."""

    body: DatasetPublished
    prefix: str
    objects: tuple[ObjectMeta, ...]

    @property
    def generation(self) -> Generation:
        return (self.body.dataset_uuid, self.body.dataset_version)

    @property
    def unit(self) -> str:
        body = self.body
        return WHOLE if body.range_start is None else f"p:{body.range_start}-{body.range_end}"


@dataclass(frozen=True, slots=True)
class _CommittedUnit:
    unit: str
    range_start: int | None
    range_end: int | None
    revision: int


class PublicationRegistry:
    """The recorded units that the publications of one transaction touch."""

    def __init__(self) -> None:
        self._config_hashes: dict[Generation, str | None] = {}
        self._units: dict[Generation, list[_CommittedUnit]] = {}

    def publish(
        self, request: PublicationRequest, task: Task, made_for: Unit | None, job: Job, *, outdated: bool = False
    ) -> Publication:
        """Returns the commit, or raises 422. Nothing is kept unless the whole call is accepted (see `accept`)."""
        body = request.body
        output = job.by_dataset[body.dataset_uuid]
        is_live = output.dataset.storage is Storage.LIVE
        # A live dataset has several writers, which agree in what its rows are and in nothing else.
        config_hash = Storage.LIVE.value if is_live else body.config_hash or job.config_hash
        if body.table_start is not None and not is_live:
            raise _conflict("Only files of a live dataset hold rows of its table.")
        recorded = self._config_hashes.get(request.generation)
        if recorded not in (None, config_hash):
            raise TraceError(
                "publication_conflict",
                "This dataset version was published with another config_hash.",
                field="datasets_published.config_hash",
                recorded=recorded,
            )
        if made_for is not None and made_for.start is not None and not _is_made_for(made_for, body):
            raise _conflict("The task was created for another range.")
        revision: int | None = 1
        for unit in self._units.get(request.generation, []):
            if unit.unit == request.unit:
                if not _is_made_for(made_for, body) and body.range_start is not None:
                    raise _conflict("Only a task that was created for exactly this range can replace it.")
                # Rows of a table never take the place of files that were read since.
                revision = unit.revision + 1 if body.table_start is None else None
            elif WHOLE in (unit.unit, request.unit) or _overlap(unit, body):
                raise _conflict(_cuts_across(unit, body, output.dataset.name))
        return Publication(
            manifest_id=new_id(),
            org_id=task.org_id,
            dataset_uuid=body.dataset_uuid,
            dataset_version=body.dataset_version,
            unit=request.unit,
            range_start=body.range_start,
            range_end=body.range_end,
            revision=None if outdated else revision,
            task_id=task.task_id,
            attempt=task.attempt,
            prefix=request.prefix,
            objects=request.objects,
            config_hash=config_hash,
            cursor_unit=_cursor_unit(made_for, body),
            revision_kind=_announced_kind(task),
            times=_times(body, job),
            table_start=body.table_start,
            is_live=is_live,
        )

    def accept(self, publication: Publication) -> None:
        generation = (publication.dataset_uuid, publication.dataset_version)
        self._config_hashes[generation] = publication.config_hash
        if publication.revision is None:
            return
        units = self._units.setdefault(generation, [])
        units[:] = [unit for unit in units if unit.unit != publication.unit]
        units.append(
            _CommittedUnit(publication.unit, publication.range_start, publication.range_end, publication.revision)
        )

    def record(self, generation: Generation, config_hash: str | None) -> None:
        self._config_hashes[generation] = config_hash

    def record_unit(self, generation: Generation, unit: _CommittedUnit) -> None:
        units = self._units.setdefault(generation, [])
        if unit not in units:
            units.append(unit)


WaitingEvent: TypeAlias = tuple[UUID, str]
"""dataset_uuid and unit of an event that an attempt has announced, and that waits for the commit of its unit."""

_WAITING_EVENTS = """
    SELECT e.producer::uuid AS task_id, e.dataset_uuid, e.unit
    FROM unnest($1::text[], $2::int[]) AS u(producer, attempt) JOIN events e USING (producer, attempt)
    WHERE e.state = 'AwaitsCommit'"""


async def load_waiting_events(connection: Connection, attempts: Mapping[UUID, int]) -> dict[UUID, list[WaitingEvent]]:
    """Reads, by task, the events that these attempts announced before their commit."""
    waiting: dict[UUID, list[WaitingEvent]] = {}
    tasks = [str(task_id) for task_id in attempts]
    for row in await connection.fetch(_WAITING_EVENTS, tasks, list(attempts.values())):
        waiting.setdefault(row["task_id"], []).append((row["dataset_uuid"], row["unit"]))
    return waiting


async def load(connection: Connection, requests: list[PublicationRequest]) -> PublicationRegistry:
    registry = PublicationRegistry()
    if not requests:
        return registry
    datasets, versions = columns(request.generation for request in requests)
    for row in await connection.fetch(_LOCK_GENERATIONS, datasets, versions):
        registry.record((row["dataset_uuid"], row["dataset_version"]), row["config_hash"])
    # A publication of the whole generation meets any unit: ask for the widest range there is.
    starts = [0 if request.body.range_start is None else request.body.range_start for request in requests]
    ends = [2**63 - 1 if request.body.range_end is None else request.body.range_end for request in requests]
    for row in await connection.fetch(_NEAREST_UNITS, datasets, versions, starts, ends):
        unit = _CommittedUnit(row["unit"], row["range_start"], row["range_end"], row["revision"])
        registry.record_unit((row["dataset_uuid"], row["dataset_version"]), unit)
    return registry


def _is_made_for(unit: Unit | None, body: DatasetPublished) -> bool:
    """A cursor unit is known by its key; its range is what the cursor passed."""
    return unit is not None and unit.blocks == (body.range_start, body.range_end)


def _cursor_unit(unit: Unit | None, body: DatasetPublished) -> str | None:
    return unit_of(unit.cursor.to, None) if unit is not None and unit.cursor and _is_made_for(unit, body) else None


def _times(body: DatasetPublished, job: Job) -> tuple[int, int] | None:
    """The times of a unit: what its writer says, or the window itself where units are windows of time."""
    if job.units is not None and job.units.by == "time" and body.range_start is not None and body.range_end is not None:
        return body.range_start, body.range_end
    if body.time_min is None or body.time_max is None:
        return None
    return body.time_min, body.time_max


def _announced_kind(task: Task) -> RevisionKind:
    """The kind of a commit's revision: manual for a manual run, an event's otherwise."""
    return RevisionKind.MANUAL if task.revision_kind is RevisionKind.MANUAL else RevisionKind.EVENT


def _overlap(unit: _CommittedUnit, body: DatasetPublished) -> bool:
    if unit.range_start is None or unit.range_end is None or body.range_start is None or body.range_end is None:
        return True
    return unit.range_start <= body.range_end and body.range_start <= unit.range_end


def _cuts_across(unit: _CommittedUnit, body: DatasetPublished, dataset: str) -> str:
    blocks = "All blocks" if body.range_start is None else f"Blocks {body.range_start}-{body.range_end}"
    whole = unit.range_start is None
    existing_unit = (
        f"the unit that is all of {dataset}" if whole else f"the unit {unit.range_start}-{unit.range_end} of {dataset}"
    )
    trigger = _what_to_trigger(unit, body)
    return (
        f"{blocks} overlap {existing_unit}; units of a dataset do not overlap: "
        f"{trigger}make the dataset anew with `reset_outputs: true`."
    )


def _what_to_trigger(unit: _CommittedUnit, body: DatasetPublished) -> str:
    if unit.range_start is None or unit.range_end is None or body.range_start is None or body.range_end is None:
        return ""
    if unit.range_start > body.range_start:
        return "trigger only the ranges that are missing, or "  # there may be other units before it
    if unit.range_end < body.range_end:
        return f"trigger the missing range ({unit.range_end + 1}-{body.range_end}), or "
    return f"trigger the whole unit ({unit.range_start}-{unit.range_end}), or "


def _conflict(message: str) -> TraceError:
    return TraceError("publication_conflict", message, field="datasets_published")


def decode_unit(unit: str | None) -> Unit | None:
    return None if unit is None else msgspec.json.decode(unit, type=Unit)
