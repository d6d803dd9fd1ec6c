"""The Python text of the CHECK constraints says what real Postgres does, row by row."""

import asyncio
import re
from collections.abc import Iterator
from datetime import timedelta
from functools import cache
from importlib.resources import files
from uuid import UUID

import asyncpg
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec.structs import asdict, replace

from tests.model.constraints import CONSTRAINTS, broken
from tests.model.walk import START, fresh, lease_of, reachable
from tests.support.postgres import TestCluster
from tracelake.model.task import Outcome, Status, Task

COLUMNS = [name for name in asdict(fresh(1)) if name not in ("org_id", "job_id")]
INSERT = f"""
    INSERT INTO tasks (org_id, job_id, inputs, {", ".join(COLUMNS)})
    VALUES ($1, $2, '[]', {", ".join(f"${index + 3}" for index in range(len(COLUMNS)))})"""


class Writer:
    """Asks Postgres about one row at a time; nothing is kept."""

    def __init__(self, dsn: str) -> None:
        self.loop = asyncio.new_event_loop()
        self.connection: asyncpg.Connection[asyncpg.Record] = self.loop.run_until_complete(self._open(dsn))

    async def _open(self, dsn: str) -> "asyncpg.Connection[asyncpg.Record]":
        connection = await asyncpg.connect(dsn)
        await connection.execute(
            """INSERT INTO orgs VALUES ('00000000-0000-0000-0000-000000000002', 'acme');
               INSERT INTO jobs (job_id, org_id, dag_name, name, runtime, operator, config, config_hash,
                                 definition_hash, lease_seconds)
               VALUES ('00000000-0000-0000-0000-000000000003', '00000000-0000-0000-0000-000000000002', 'd', 'n', 'r',
                       'noop', '{}', 'h', 'h', 120)"""
        )
        return connection

    def refusal(self, task: Task) -> str | None:
        return self.loop.run_until_complete(self._refusal(task))

    async def _refusal(self, task: Task) -> str | None:
        transaction = self.connection.transaction()
        await transaction.start()
        try:
            await self.connection.execute(INSERT, task.org_id, task.job_id, *(getattr(task, name) for name in COLUMNS))
        except asyncpg.CheckViolationError as error:
            return error.constraint_name
        finally:
            await transaction.rollback()
        return None

    def close(self) -> None:
        self.loop.run_until_complete(self.connection.close())
        self.loop.close()


@pytest.fixture(scope="module")
def writer(cluster: TestCluster) -> Iterator[Writer]:
    dsn = cluster.fresh("state")
    running = Writer(dsn)
    yield running
    running.close()
    asyncio.run(cluster.drop(dsn))


def test_every_constraint_of_the_table_is_said_in_python() -> None:
    text = files("tracelake.db.state").joinpath("migrations/0001_control_plane.sql").read_text()
    table = text.split("CREATE TABLE tasks (")[1].split(") WITH (")[0]
    first = re.findall(r"CONSTRAINT (\w+)", table)
    named = set(first)
    migrations = list(files("tracelake.db.state").joinpath("migrations").iterdir())
    for migration in sorted(migrations, key=lambda item: item.name):
        for change in migration.read_text().split("ALTER TABLE tasks")[1:] if migration.name.endswith(".sql") else ():
            named -= set(re.findall(r"DROP CONSTRAINT (\w+)", change.split(";")[0]))
            named |= set(re.findall(r"ADD CONSTRAINT (\w+)", change.split(";")[0]))
    # What a task is for never changes, and no transition touches it.
    named -= {"routed_is_whole", "unit_range_whole"}
    assert named == {name for name in CONSTRAINTS if not name.startswith("tasks_")}
    # The four checks beside their columns: two lists of words, which the types hold, and two ranges.
    assert table.count("CHECK") == len(first) + 4


@pytest.mark.parametrize("max_attempts", [1, 2, None])
@pytest.mark.parametrize("timeout", [None, 200])
def test_postgres_takes_every_reachable_snapshot(writer: Writer, max_attempts: int | None, timeout: int | None) -> None:
    for task in reachable(max_attempts, timeout=timeout):
        assert writer.refusal(task) is None, task


TIMES = st.sampled_from([None, START, START + timedelta(seconds=60)])
ANY_TASK = st.builds(
    Task,
    task_id=st.just(UUID(int=1)),
    org_id=st.just(UUID(int=2)),
    job_id=st.just(UUID(int=3)),
    status=st.sampled_from(Status),
    attempt=st.integers(-1, 3),
    max_attempts=st.sampled_from([None, 0, 1, 2]),
    held=st.booleans(),
    cancel_requested=st.booleans(),
    outcome=st.sampled_from([None, *Outcome]),
    lease_token=st.sampled_from([None, lease_of(1)]),
    lease_expires_at=TIMES,
    deadline_at=TIMES,
    ready_at=TIMES,
    next_retry_at=TIMES,
    finished_at=TIMES,
    forgiven=st.integers(-1, 2),
)
ONE_FIELD = st.sampled_from(
    [
        *({"status": status} for status in Status),
        *({"outcome": outcome} for outcome in (None, *Outcome)),
        *({"attempt": attempt} for attempt in (-1, 0, 1, 3)),
        *({name: flag} for name in ("held", "cancel_requested") for flag in (True, False)),
        *({"max_attempts": most} for most in (None, 0, 1)),
        *({"forgiven": forgiven} for forgiven in (-1, 0, 5)),
        *({"lease_token": token} for token in (None, lease_of(1))),
        *(
            {name: moment}
            for name in ("lease_expires_at", "deadline_at", "ready_at", "next_retry_at", "finished_at")
            for moment in (None, START - timedelta(days=1), START + timedelta(days=9))
        ),
    ]
)


@cache
def snapshots() -> list[Task]:
    """Of what is reachable; looked for when a test needs them, since every process of a run imports this module."""
    return [task for most in (1, 2, None) for task in reachable(most, timeout=200)]


ALMOST_POSSIBLE = st.deferred(
    lambda: st.builds(lambda task, change: replace(task, **change), st.sampled_from(snapshots()), ONE_FIELD)
)
"""Reachable but for one field: where one constraint alone must say no."""

_hypothesis = settings(
    max_examples=400, derandomize=True, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)


@_hypothesis
@given(task=st.one_of(ALMOST_POSSIBLE, ANY_TASK))
def test_postgres_and_python_refuse_the_same_rows(writer: Writer, task: Task) -> None:
    refused, reasons = writer.refusal(task), broken(task)
    assert (refused is None) == (not reasons), (refused, reasons, task)
    if refused is not None:
        assert refused in reasons
