"""An attempt of a job whose units are hours."""

from datetime import UTC, datetime
from uuid import UUID

from tracelake.dispatcher.openlineage.run_events import AttemptNote
from tracelake.model.dag import UnitGrid
from tracelake.model.job import Job
from tracelake.wire.units import Unit

_HOUR = int(datetime(2026, 3, 3, 13, tzinfo=UTC).timestamp())
_ID = UUID("01890000-0000-7000-8000-000000000001")

HOURLY_JOB = Job(
    job_id=_ID,
    org_id=_ID,
    dag_name="flows",
    name="hourly",
    runtime="ecs_platform",
    operator="spark_sql",
    config=b"{}",
    config_hash="",
    lease_seconds=60,
    timeout_seconds=None,
    max_attempts=3,
    outputs=(),
    org="acme",
    units=UnitGrid(by="time", grain="hour"),
)


def note() -> AttemptNote:
    unit = Unit(partition_key=f"{_HOUR}-{_HOUR + 3599}", start=_HOUR, end=_HOUR + 3599)
    return AttemptNote(_ID, 1, "START", datetime(2026, 3, 3, 15, tzinfo=UTC), None, (), unit)
