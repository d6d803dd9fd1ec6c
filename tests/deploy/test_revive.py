"""A cutover brings tasks back by a statement of its own; it does what the model says."""

import asyncio
from typing import Any
from uuid import UUID

import asyncpg
from msgspec.structs import asdict, replace

from tests.model.walk import LEASE, reachable
from tracelake.dispatcher.deploy.tasks import _REVIVE
from tracelake.model import lifecycle
from tracelake.model.ids import new_id
from tracelake.model.task import Status, Task

ORG, JOB = UUID(int=2), UUID(int=3)


def canceled() -> list[Task]:
    found = [task for limit in (1, 2, None) for task in reachable(limit, timeout=200)]
    return [replace(task, task_id=new_id()) for task in found if task.status is Status.CANCELED]


def test_the_statement_and_the_model_say_the_same(state_dsn: str) -> None:
    tasks = canceled()
    assert {task.max_attempts == task.attempt for task in tasks} == {True, False}

    async def revived() -> dict[UUID, asyncpg.Record]:
        connection = await asyncpg.connect(state_dsn)
        try:
            await connection.execute("INSERT INTO orgs VALUES ($1, 'acme')", ORG)
            await connection.execute(
                """INSERT INTO jobs (job_id, org_id, dag_name, name, runtime, operator, config, config_hash,
                                     definition_hash, lease_seconds)
                   VALUES ($1, $2, 'd', 'n', 'r', 'o', '{}', '', '', $3)""",
                JOB,
                ORG,
                LEASE,
            )
            for task in tasks:
                fields: dict[str, Any] = asdict(task) | {"limit_keys": None}
                marks = ", ".join(f"${index + 1}" for index in range(len(fields)))
                names = ", ".join(fields)
                await connection.execute(
                    f"INSERT INTO tasks ({names}, inputs, superseded) VALUES ({marks}, '[]', 'Dropped')",
                    *fields.values(),
                )
            await connection.execute(_REVIVE, [task.task_id for task in tasks])
            return {row["task_id"]: row for row in await connection.fetch("SELECT * FROM tasks")}
        finally:
            await connection.close()

    rows = asyncio.run(revived())
    for task in tasks:
        row = rows[task.task_id]
        wanted = asdict(lifecycle.revive(task, row["ready_at"])) | {"limit_keys": None, "input_order": []}
        assert {name: row[name] for name in wanted} == wanted
        assert row["superseded"] is None
