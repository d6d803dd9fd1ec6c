"""docs/runbooks/poisoned-input.md: a unit that holds its edge, a task that kills its worker, a wrong source."""

from tests.runbooks.page import follow
from tests.support.real_stack import RealStack

DAG = """\
name: bad
defaults:
  runtime: by_hand
  max_attempts: 1
  heartbeat_timeout_seconds: 600
jobs:
  - { name: head, activation: source, source: { kind: manual } }
  - { name: asks, activation: source, source: { kind: manual } }
  - { name: feed, activation: source, source: { kind: manual } }
  - { name: prices, activation: reactive, operator: noop, inputs: [{ from: { job: head } }] }
  - { name: bomb, activation: reactive, operator: noop, inputs: [{ from: { job: asks } }] }
  - name: blocks
    activation: reactive
    operator: noop
    execution_strategy: PerPartition
    inputs: [{ from: { job: feed } }]
"""


def test_the_page(shared_stack: RealStack) -> None:
    stack = shared_stack
    stack.deploy("bad", DAG)
    stack.shell("trace trigger bad/head --cursor 10")
    (poison,) = stack.tasks("bad", "prices")
    stack.finish(poison, "Failed", error_message="no such block", retryable=False)
    stack.shell("trace trigger bad/head --cursor 20")
    assert len(stack.tasks("bad", "prices")) == 1, "what comes after it waits"
    stack.shell("trace trigger bad/asks --cursor 5")
    (killer,) = stack.tasks("bad", "bomb")
    attempt = stack.claim(killer)
    stack.shell("trace trigger bad/feed --range 0-9")

    def one(job: str, status: str) -> str:
        (task_id,) = stack.tasks("bad", job, status)
        return task_id

    followed = follow(
        stack,
        "poisoned-input.md",
        words={
            "DAG": "bad",
            "JOB": "prices",
            "TASK_ID": lambda followed: followed.json("trace tasks --job bad/prices")["tasks"][0]["task_id"],
            "KILLER": "bomb",
            "KILLER_ID": lambda followed: followed.json("trace tasks --job bad/bomb")["tasks"][0]["task_id"],
            "SOURCE": "feed",
            "READER": "blocks",
            "READER_ID": lambda followed: followed.json("trace tasks --job bad/blocks")["tasks"][0]["task_id"],
            "START": "0",
            "END": "9",
        },
        after={"trace retry": lambda: stack.finish(poison, "Failed", error_message="still", retryable=False)},
    )
    assert any("held" in text for text in followed.printed)
    assert any("no such block" in text for text in followed.printed)

    stack.wait_until(lambda: len(stack.tasks("bad", "prices", "queued")) == 1, "what waited behind the skipped unit")
    stack.finish(one("prices", "queued"), "Completed")
    assert stack.sql("SELECT skipped_at FROM tasks WHERE task_id = $1", poison)[0]["skipped_at"]

    assert stack.say("heartbeat", killer, attempt)[1]["cancel"]
    stack.say("complete", killer, attempt, status="Failed", error_message="died", retryable=True)
    assert one("bomb", "canceled") == killer, "it is not tried again"
    again = one("blocks", "queued")
    assert again != one("blocks", "canceled")
    stack.finish(again, "Completed")
