"""How old datasets are: by their newest commit, and by the newest block that they have.

The time of a block is what commits record of their units, for windows of time. Nothing is newer than the commit that
brought it: a window that is not over yet has its end as its time, and counts as new as the newest commit.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

from tracelake.db.transaction import Connection
from tracelake.dispatcher.records import columns
from tracelake.dispatcher.views.words import span
from tracelake.model.dag import AgeOf, OutputCheck

# Of the generation `g`. The newest event that was passed on: of files with their commit, of a table with the commit of
# its rows. Times come from workers: they are bounded before they become a timestamp.
NEWEST_TIMES = """
    LEFT JOIN LATERAL (
        SELECT v.created_at AS committed_at FROM events v
        WHERE v.dataset_uuid = g.dataset_uuid AND v.dataset_version = g.dataset_version AND v.routed_seq IS NOT NULL
        ORDER BY v.routed_seq DESC LIMIT 1) newest_commit ON true
    LEFT JOIN LATERAL (
        SELECT to_timestamp(least(y.time_max, extract(epoch FROM coalesce(committed_at, trace_now())))::float8)
               AS data_at
        FROM (SELECT max(time_max) AS time_max FROM readable_units x
              WHERE x.dataset_uuid = g.dataset_uuid AND x.dataset_version = g.dataset_version) y
        WHERE y.time_max IS NOT NULL) newest_block ON true"""

_TIMES = f"""
    SELECT g.dataset_uuid, g.dataset_version, committed_at, data_at, g.created_at, trace_now() AS now
    FROM unnest($1::uuid[], $2::uuid[]) AS k(dataset_uuid, dataset_version)
    JOIN dataset_versions g USING (dataset_uuid, dataset_version) {NEWEST_TIMES}"""  # noqa: S608 - constants only


@dataclass(frozen=True, slots=True, kw_only=True)
class DatasetAge:
    """Of one generation. One without any commit, or without the time of any block, is as old as itself."""

    now: datetime
    created_at: datetime
    committed_at: datetime | None
    data_at: datetime | None

    def newest(self, age_of: AgeOf) -> datetime | None:
        return self.data_at if age_of == "data" else self.committed_at

    def seconds(self, age_of: AgeOf) -> int:
        return max(0, int((self.now - (self.newest(age_of) or self.created_at)).total_seconds()))

    def explain(self, check: OutputCheck) -> str:
        """Why the check fails; empty if it does not."""
        assert check.max_age_seconds is not None
        age = self.seconds(check.age_of)
        if age <= check.max_age_seconds:
            return ""
        expected = f"expected at most {span(check.max_age_seconds)}"
        commit = f"the newest commit is {span(self.seconds('commit'))} old"
        if self.committed_at is None:
            return f"nothing was committed for {span(age)}, {expected}"
        if check.age_of == "commit":
            return f"{commit}, {expected}"
        if self.data_at is None:
            return f"no unit has the time of a block, {expected}; {commit}: use `of: commit`"
        return f"the newest block is {span(age)} old, {expected}; {commit}"


async def read_ages(
    connection: Connection, generations: Sequence[tuple[UUID, UUID]]
) -> dict[tuple[UUID, UUID], DatasetAge]:
    rows = await connection.fetch(_TIMES, *columns(list(set(generations)), 2)) if generations else []
    return {
        (row["dataset_uuid"], row["dataset_version"]): DatasetAge(
            now=row["now"], created_at=row["created_at"], committed_at=row["committed_at"], data_at=row["data_at"]
        )
        for row in rows
    }
