"""Who has metrics by name: the sources that count, and the jobs with a queue threshold.

Remembered for each org until its pointers move, so that a look costs a row for each org, however many jobs there are.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from typing import TypeAlias
from uuid import UUID

import asyncpg

from tracelake.dag.slots import ScheduleSlots
from tracelake.db.transaction import Connection
from tracelake.dispatcher.predicates import has_threshold
from tracelake.dispatcher.sources.cron import COUNTS_SINCE

Name: TypeAlias = tuple[str, str, str]
"""org, dag, job."""

_CHANGED = f"""
    WITH changed AS (
        SELECT o.org_id, o.name, o.routing_epoch FROM orgs o
        LEFT JOIN unnest($1::uuid[], $2::bigint[]) AS known(org_id, epoch) USING (org_id)
        WHERE o.routing_epoch IS DISTINCT FROM known.epoch)
    SELECT c.org_id, c.name AS org, c.routing_epoch, j.dag_name, j.name, j.job_id, j.node_id,
           j.document #>> '{{source,kind}}' AS kind, j.document #>> '{{source,schedule}}' AS schedule,
           coalesce(j.document #>> '{{source,time_zone}}', 'UTC') AS time_zone,
           coalesce(j.document #>> '{{source,catch_up}}', 'last') <> 'none' AS owes,
           CASE WHEN j.document #>> '{{source,kind}}' = 'cron' THEN {COUNTS_SINCE} END AS since,
           p.node_id IS NOT NULL AS limited,
           coalesce(v.dag_version_id = d.active_version, false) AS active
    FROM changed c
    LEFT JOIN dags d ON d.org_id = c.org_id
    LEFT JOIN dag_version_jobs v ON v.dag_version_id IN (d.active_version, d.building_version)
    LEFT JOIN jobs j ON j.job_id = v.job_id
    LEFT JOIN pressure p ON p.node_id = j.node_id AND {has_threshold("p")}"""  # noqa: S608 - constants only


@dataclass(frozen=True, slots=True)
class SourceLabels:
    name: Name
    node_id: UUID
    job_id: UUID
    kind: str
    slots: ScheduleSlots | None
    """Of a cron source."""
    owed_since: datetime | None
    """Of a cron source that makes up for what it missed: from when on it has counted with this schedule."""


@dataclass(frozen=True, slots=True)
class _Org:
    epoch: int
    sources: tuple[SourceLabels, ...]
    queues: dict[UUID, tuple[str, str, str, str]]


class Named:
    def __init__(self) -> None:
        self._orgs: dict[UUID, _Org] = {}

    @property
    def sources(self) -> list[SourceLabels]:
        return [source for org in self._orgs.values() for source in org.sources]

    @property
    def queues(self) -> dict[UUID, tuple[str, str, str, str]]:
        """By node: org, dag, job, and `active` or `building`. A queue that both versions have is the active one's."""
        return {node: labels for org in self._orgs.values() for node, labels in org.queues.items()}

    async def look(self, connection: Connection) -> None:
        epochs = [org.epoch for org in self._orgs.values()]
        rows = await connection.fetch(_CHANGED, list(self._orgs), epochs)
        changed: dict[UUID, list[asyncpg.Record]] = {}
        for row in rows:
            changed.setdefault(row["org_id"], []).append(row)
        self._orgs |= {org_id: _org(record) for org_id, record in changed.items()}


def _org(rows: list[asyncpg.Record]) -> _Org:
    jobs = [row for row in rows if row["node_id"] is not None]
    return _Org(rows[0]["routing_epoch"], tuple(_sources(jobs)), _queues(jobs))


def _sources(rows: Iterable[asyncpg.Record]) -> list[SourceLabels]:
    return [
        SourceLabels(
            _name(row),
            row["node_id"],
            row["job_id"],
            row["kind"],
            _slots(row),
            owed_since=row["since"] if row["owes"] else None,
        )
        for row in rows
        if row["active"] and row["kind"] is not None
    ]


def _queues(rows: Iterable[asyncpg.Record]) -> dict[UUID, tuple[str, str, str, str]]:
    queues: dict[UUID, tuple[str, str, str, str]] = {}
    for row in sorted(rows, key=lambda row: bool(row["active"])):
        if row["limited"]:
            queues[row["node_id"]] = (*_name(row), "active" if row["active"] else "building")
    return queues


def _slots(row: asyncpg.Record) -> ScheduleSlots | None:
    return None if row["schedule"] is None else ScheduleSlots.of(row["schedule"], row["time_zone"])


def _name(row: asyncpg.Record) -> Name:
    return row["org"], row["dag_name"], row["name"]
