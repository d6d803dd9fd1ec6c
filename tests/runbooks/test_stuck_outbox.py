"""docs/runbooks/stuck-outbox.md: a queue that refuses, and a queue that is away."""

from collections.abc import Callable
from typing import Any

from tests.runbooks.page import follow
from tests.support.real_stack import RealStack
from tracelake.settings.home import write_private
from tracelake.stack import dumps

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


def dead_letter(stack: RealStack, queue: Callable[[str], list[Any]]) -> str:
    """A wake-up that a worker cannot read, of a task that it could do: it is taken twice, and then no more."""
    stack.shell("trace trigger boxes/head --range 20-29")
    (task_id,) = stack.tasks("boxes", "work")
    queue(
        f"""INSERT INTO messages (queue, key, body, published_at, visible_at)
            VALUES ('tasks.ecs_platform', '{task_id}', 'nonsense', now(), now())"""
    )
    stack.wait_until(lambda: len(queue("SELECT FROM dead_letters")) == 1, "the message to be given up")
    return task_id


def test_the_page(shared_stack: RealStack) -> None:
    stack = shared_stack
    owner = stack.root / "queue-owner.dsn"
    write_private(owner, dumps.with_database(stack.home.state_dsn_file.read_text().strip(), "queue"))

    def queue(statement: str) -> list[Any]:
        return list(stack.sql(statement, dsn_file=owner))

    def rows(status: str) -> int:
        return len(stack.sql("SELECT FROM outbox WHERE status = $1 AND queue = 'tasks.by_hand'", status))

    stack.deploy("boxes", DAG)
    dead_task = dead_letter(stack, queue)
    queue("ALTER TABLE messages ADD CONSTRAINT mistake CHECK (queue <> 'tasks.by_hand') NOT VALID")
    stack.shell("trace trigger boxes/head --range 0-9")
    stack.wait_until(lambda: rows("Failed") == 1, "the queue to refuse the wake-up")
    queue("ALTER TABLE messages RENAME TO messages_elsewhere")
    try:
        stack.shell("trace trigger boxes/head --range 10-19")
        stack.wait_until(lambda: rows("Pending") == 1, "the wake-up to wait")
        _, refused, waiting = stack.tasks("boxes", "work")
        assert stack.trace(f"why {refused}")["reasons"][0]["code"] == "wakeup_failed"
        assert stack.trace(f"why {waiting}")["reasons"][0]["code"] == "wakeup_pending"
        follow(
            stack,
            "stuck-outbox.md",
            words={
                "TASK_ID": refused,
                "DEAD_TASK_ID": lambda followed: followed.json("trace outbox dead")["letters"][0]["key"],
                "MESSAGE_ID": lambda followed: followed.json("trace outbox dead")["letters"][0]["message_id"],
            },
            fine={"trace status": (0, 1)},
            before={
                "tail": lambda: queue("ALTER TABLE messages_elsewhere RENAME TO messages"),
                "trace outbox requeue": lambda: queue("ALTER TABLE messages DROP CONSTRAINT mistake"),
            },
            after={"trace outbox requeue": lambda: stack.wait_until(lambda: rows("Failed") == 0, "the rows to go out")},
        )
    finally:
        queue("ALTER TABLE IF EXISTS messages_elsewhere RENAME TO messages")
        queue("ALTER TABLE messages DROP CONSTRAINT IF EXISTS mistake")
    assert queue("SELECT FROM dead_letters") == []
    assert "dead_letter_not_found" in stack.shell("trace outbox drop 1", fine=(1,))
    assert "or --all" in stack.shell("trace outbox drop", fine=(2,))
    assert stack.trace("outbox drop --all") == {"dropped": 0}
    stack.finish(dead_task, "Completed")
    held = "SELECT key FROM messages WHERE queue = 'tasks.by_hand'"
    stack.wait_until(lambda: {row["key"] for row in queue(held)} >= {refused, waiting}, "both wake-ups")
    assert stack.trace(f"why {refused}")["reasons"][0]["code"] == "ready"
    for task_id in (refused, waiting):
        stack.finish(task_id, "Completed")
