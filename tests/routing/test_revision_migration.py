"""Revisions that were marked in their text get their kind from what is recorded."""

import asyncio
from importlib.resources import files
from pathlib import Path
from uuid import uuid4

import asyncpg

from tests.support.postgres import TestCluster
from tracelake.db.migrate import migrate

BEFORE = 17


def test_marks_in_texts_become_kinds(cluster: TestCluster, tmp_path: Path) -> None:
    dsn = cluster.fresh("queue")  # any database; its tables go first
    asyncio.run(_check(dsn, tmp_path))
    asyncio.run(cluster.drop(dsn))


async def _check(dsn: str, directory: Path) -> None:
    for item in files("tracelake.db.state").joinpath("migrations").iterdir():
        if item.name.endswith(".sql") and int(item.name[:4]) <= BEFORE:
            (directory / item.name).write_text(item.read_text())
    connection = await asyncpg.connect(dsn)
    try:
        await connection.execute("DROP SCHEMA public CASCADE; CREATE SCHEMA public")
        await migrate(connection, directory)
        org, job, node = uuid4(), uuid4(), uuid4()
        await connection.execute("INSERT INTO orgs (org_id, name) VALUES ($1, 'acme')", org)
        await connection.execute(
            "INSERT INTO jobs (job_id, org_id, dag_name, name, runtime, operator, config, config_hash, "
            "definition_hash, lease_seconds) VALUES ($1, $2, 'd', 'n', 'r', 'noop', '{}', 'h', 'h', 120)",
            job,
            org,
        )
        await connection.execute(
            "INSERT INTO triggers (org_id, idempotency_key, request_hash, reply) VALUES ($1, 'mine', 'h', '{}')", org
        )
        for revision in ("t:mine", "t:theirs", "i:theirs", "0xbeef", ""):
            await connection.execute(
                "INSERT INTO tasks (task_id, org_id, job_id, status, ready_at, inputs, node_id, edge, unit_key, "
                "unit_start, unit_end, revision) "
                "VALUES ($1, $2, $3, 'Queued', trace_now(), '[{}]', $4, 0, 'c:5', 5, 5, $5)",
                uuid4(),
                org,
                job,
                node,
                revision,
            )
        await migrate(connection, files("tracelake.db.state").joinpath("migrations"))
        rows = await connection.fetch("SELECT revision, revision_kind FROM tasks")
        assert {(row["revision"], row["revision_kind"]) for row in rows} == {
            ("mine", "manual"),
            ("t:theirs", "event"),
            ("i:theirs", "event"),
            ("0xbeef", "event"),
            ("", "event"),
        }
    finally:
        await connection.close()
