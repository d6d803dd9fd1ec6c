"""docs/runbooks/stuck-outbox.md: a queue that refuses, and a queue that is away."""

from tests.runbooks.page import follow
from tests.runbooks.stack import RealStack
from tests.support.postgres import wait_until
from tracelake.processes import dumps
from tracelake.processes.home import write_private

DAG = """\
name: boxes
jobs:
  - name: head
    activation: source
    source: { kind: manual }
  - name: work
    activation: reactive
    runtime: by_hand
    operator: noop
    execution_strategy: PerPartition
    inputs: [{ from: { job: head } }]
"""


def test_the_page(shared_stack: RealStack) -> None:
    stack = shared_stack
    owner = stack.root / "queue-owner.dsn"
    write_private(owner, dumps.with_database(stack.home.state_dsn_file.read_text().strip(), "queue"))

    def queue(statement: str) -> list[object]:
        return list(stack.sql(statement, dsn_file=owner))

    def rows(status: str) -> int:
        return len(stack.sql("SELECT FROM outbox WHERE status = $1 AND queue = 'tasks.by_hand'", status))

    stack.deploy("boxes", DAG)
    queue("ALTER TABLE messages ADD CONSTRAINT mistake CHECK (queue <> 'tasks.by_hand') NOT VALID")
    stack.shell("trace trigger boxes/head --range 0-9")
    wait_until(lambda: rows("Failed") == 1, "the queue to refuse the wake-up")
    queue("ALTER TABLE messages RENAME TO messages_elsewhere")
    try:
        stack.shell("trace trigger boxes/head --range 10-19")
        wait_until(lambda: rows("Pending") == 1, "the wake-up to wait")
        refused, waiting = stack.tasks("boxes", "work")
        assert stack.trace(f"why {refused}")["reasons"][0]["code"] == "wakeup_failed"
        assert stack.trace(f"why {waiting}")["reasons"][0]["code"] == "wakeup_pending"
        follow(
            stack,
            "stuck-outbox.md",
            words={"TASK_ID": refused},
            fine={"trace status": (0, 1)},
            before={
                "tail": lambda: queue("ALTER TABLE messages_elsewhere RENAME TO messages"),
                "trace outbox requeue": lambda: queue("ALTER TABLE messages DROP CONSTRAINT mistake"),
            },
            after={"trace outbox requeue": lambda: wait_until(lambda: rows("Failed") == 0, "the rows to go out")},
        )
    finally:
        queue("ALTER TABLE IF EXISTS messages_elsewhere RENAME TO messages")
        queue("ALTER TABLE messages DROP CONSTRAINT IF EXISTS mistake")
    held = "SELECT key FROM messages WHERE queue = 'tasks.by_hand'"
    wait_until(lambda: {row["key"] for row in queue(held)} >= {refused, waiting}, "both wake-ups")  # type: ignore[index]
    assert stack.trace(f"why {refused}")["reasons"][0]["code"] == "ready"
    for task_id in (refused, waiting):
        stack.finish(task_id, "Completed")
