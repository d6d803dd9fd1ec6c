"""What the loop and the view of sources ask grows with neither events nor deliveries nor finished tasks."""

import pytest

from tests.sources.webhook_support import Hook
from tests.support.dags import output
from tests.support.dispatcher import DispatcherHarness
from tracelake.dispatcher.sources import delivery_retention
from tracelake.dispatcher.views import sources

ROWS = 20_000
STATEMENTS = {
    "old deliveries": (delivery_retention._OLD, 5),
    "forget": (delivery_retention._FORGET, 2),
    "the view": (sources._SOURCES, 1),
}


@pytest.fixture
def large(harness: DispatcherHarness) -> DispatcherHarness:
    hook = Hook(harness, org="acme").deploy()
    hook.sent()
    harness.sql(
        """INSERT INTO webhook_deliveries (node_id, delivery_id, number, body_hash, content_type, body)
           SELECT node_id, 'd' || n, n + 1, 'h', 'text/plain', '' FROM webhook_deliveries, generate_series(1, $1) n""",
        ROWS,
    )
    harness.sql(
        """INSERT INTO events (org_id, producer, dataset_uuid, dataset_version, unit, cursor, state, routed_seq)
           SELECT org_id, 'webhook:d' || n, $1, $2, 'c:' || n + 1, n + 1, 'Routed', nextval('events_routed_seq')
           FROM datasets, generate_series(1, $3) n WHERE dataset_uuid = $1""",
        *output(harness, "alerts", "hook", org="acme"),
        ROWS,
    )
    harness.sql(
        """INSERT INTO tasks (task_id, org_id, job_id, status, attempt, max_attempts, outcome, lease_token, finished_at,
                              inputs, node_id, edge, unit_key, unit_start, unit_end)
           SELECT gen_random_uuid(), org_id, job_id, 'Completed', 1, 3, 'Completed', gen_random_uuid(), trace_now(),
                  '[]', node_id, edge, 'c:' || n + 1, n + 1, n + 1
           FROM tasks, generate_series(1, $1) n WHERE unit_key = 'c:1'""",
        ROWS,
    )
    harness.sql("ANALYZE")
    return harness


def test_no_statement_scans_a_large_table(large: DispatcherHarness) -> None:
    for name, (statement, arguments) in STATEMENTS.items():
        given = ", ".join(["NULL"] * arguments)

        async def explain(statement: str = statement, given: str = given) -> str:
            async with large.dispatcher.ports.store.connection() as connection:
                await connection.execute(f"PREPARE wanted AS {statement}")
                rows = await connection.fetch(f"EXPLAIN EXECUTE wanted ({given})")
                await connection.execute("DEALLOCATE wanted")
            return "\n".join(row[0] for row in rows)

        plan = large.run(explain())
        for table in ("webhook_deliveries", "events", "tasks"):
            assert f"Seq Scan on {table}" not in plan, (name, plan)
