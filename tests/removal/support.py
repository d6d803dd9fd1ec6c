"""Removing DAGs in tests: the calls, and a look for everything that a purge must not leave behind."""

import asyncio
from dataclasses import dataclass
from typing import Any

import asyncpg

from tests.routing.support import Flow
from tests.support.dispatcher import DispatcherHarness
from tracelake.wire.removal import RemovalReply

_IDS = """
    SELECT dataset_uuid::text AS id FROM datasets WHERE dag_name = $1 AND org_id = $2
    UNION SELECT v.dataset_version::text FROM dataset_versions v JOIN datasets d USING (dataset_uuid)
        WHERE d.dag_name = $1 AND d.org_id = $2
    UNION SELECT node_id::text FROM nodes WHERE dag_name = $1 AND org_id = $2
    UNION SELECT job_id::text FROM jobs WHERE dag_name = $1 AND org_id = $2 AND node_id IS NOT NULL
    UNION SELECT dag_version_id::text FROM dag_versions WHERE dag_name = $1 AND org_id = $2
    UNION SELECT t.task_id::text FROM tasks t JOIN jobs j USING (job_id)
        WHERE j.dag_name = $1 AND j.org_id = $2 AND j.node_id IS NOT NULL
    UNION SELECT p.publish_id::text FROM buffer_publishes p JOIN tasks t USING (task_id) JOIN jobs j USING (job_id)
        WHERE j.dag_name = $1 AND j.org_id = $2"""

_TABLES = """
    SELECT table_name::text FROM information_schema.tables
    WHERE table_schema = 'public' AND table_type = 'BASE TABLE' ORDER BY 1"""

KEPT_TABLES = {"audit_log", "webhook_floors", "triggers", "query_audit", "schema_migrations"}
"""History that says what was, by rules of its own."""


@dataclass(frozen=True)
class Removal:
    """The removals of one org."""

    flow: Flow

    def _call(self, verb: str, dag: str) -> RemovalReply:
        removals = self.flow.harness.dispatcher.removals
        reply: RemovalReply = self.flow.harness.run(getattr(removals, verb)(self.flow.actor, dag))
        return reply

    def remove(self, dag: str) -> RemovalReply:
        return self._call("remove", dag)

    def restore(self, dag: str) -> RemovalReply:
        return self._call("restore", dag)

    def purge(self, dag: str) -> RemovalReply:
        return self._call("purge", dag)

    def delete_all(self) -> None:
        """Rounds of the loops that delete, until they find nothing."""
        dispatcher = self.flow.harness.dispatcher
        for run_once in (dispatcher.retention.removed_dags.run_once, dispatcher.retention.run_once):
            while self.flow.harness.run(run_once()):
                pass

    def ids(self, dag: str) -> list[str]:
        """Everything that is the DAG's own, to be looked for when it is gone."""
        org_id = self.flow.actor.org_id
        return [row["id"] for row in self.flow.harness.sql(_IDS, dag, org_id)]

    def leftovers(self, ids: list[str]) -> dict[str, int]:
        """Rows of state and queue, and objects, that still name one of these ids."""
        harness = self.flow.harness
        left = asyncio.run(_search(harness.state_dsn, ids)) | asyncio.run(_search(harness.queue_dsn, ids))
        for place in (
            "trace-datasets/datasets",
            "trace-datasets/staging",
            "trace-scratch/buffers",
            "trace-scratch/scratch",
        ):
            uris = [meta.uri for meta in harness.run(harness.objects.list(f"s3://{place}/"))]
            if found := [uri for uri in uris if any(one in uri for one in ids)]:
                left[place] = len(found)
        return left

    def names(self, dag: str) -> dict[str, int]:
        """Rows of state that have the DAG's name."""
        columns = """SELECT table_name::text FROM information_schema.columns
                     WHERE table_schema = 'public' AND column_name = 'dag_name'"""
        tables = [row["table_name"] for row in self.flow.harness.sql(columns)]
        counts = {
            table: self.flow.harness.sql(
                f"SELECT count(*) AS n FROM {table} WHERE dag_name = $1 AND org_id = $2", dag, self.flow.actor.org_id
            )[0]["n"]
            for table in tables
            if table not in KEPT_TABLES
        }
        return {table: number for table, number in counts.items() if number}


_COLUMNS = """
    SELECT c.table_name::text, c.column_name::text FROM information_schema.columns c
    JOIN information_schema.tables t USING (table_schema, table_name)
    WHERE c.table_schema = 'public' AND t.table_type = 'BASE TABLE' AND c.column_name = ANY($1) AND c.data_type = 'uuid'
    ORDER BY 1, 2"""

_PARENTS = {
    "dataset_uuid": "datasets",
    "node_id": "nodes",
    "job_id": "jobs",
    "task_id": "tasks",
    "dag_version_id": "dag_versions",
}

_OUTLIVING = {("removed_tables", "dataset_uuid"), ("check_results", "task_id"), ("run_logs", "task_id")}
"""Columns that may name what is gone: notes of what is to be deleted, and history with a retention of its own."""


def find_orphans(harness: DispatcherHarness) -> dict[str, int]:
    """Rows of any table whose dataset, node, job, task, version or DAG does not exist."""
    orphans = {}
    for row in harness.sql(_COLUMNS, list(_PARENTS)):
        table, column = row["table_name"], row["column_name"]
        if table == _PARENTS[column] or (table, column) in _OUTLIVING:
            continue
        count = f"""SELECT count(*) AS n FROM {table} x WHERE x.{column} IS NOT NULL
                    AND NOT EXISTS (SELECT FROM {_PARENTS[column]} p WHERE p.{column} = x.{column})"""
        if number := harness.sql(count)[0]["n"]:
            orphans[f"{table}.{column}"] = number
    for table in ("datasets", "nodes", "dag_versions", "activations", "webhooks"):
        count = f"""SELECT count(*) AS n FROM {table} x WHERE x.dag_name IS NOT NULL AND NOT EXISTS (
                        SELECT FROM dags d WHERE d.org_id = x.org_id AND d.dag_name = x.dag_name)"""
        if number := harness.sql(count)[0]["n"]:
            orphans[f"{table}.dag_name"] = number
    return orphans


async def _search(dsn: str, ids: list[str]) -> dict[str, int]:
    """Rows of all tables whose text contains one of the ids."""
    connection: asyncpg.Connection[Any] = await asyncpg.connect(dsn)
    try:
        left = {}
        for row in await connection.fetch(_TABLES):
            table = row["table_name"]
            if table in KEPT_TABLES:
                continue
            number = await connection.fetchval(
                f"SELECT count(*) FROM {table} x WHERE EXISTS (SELECT FROM unnest($1::text[]) AS i(id) "
                "WHERE position(i.id IN x::text) > 0)",
                ids,
            )
            if number:
                left[table] = number
        return left
    finally:
        await connection.close()
