"""docs/runbooks/dispatcher.md: a Dispatcher that stands still, work that nobody takes, a lease that ran out."""

import os
import re
import signal

from tests.runbooks.page import Followed, follow
from tests.support.real_stack import RealStack

DAG = """\
name: late
jobs:
  - name: head
    activation: source
    source: { kind: manual }
  - name: work
    activation: reactive
    runtime: spare
    operator: noop
    execution_strategy: PerPartition
    inputs: [{ from: { job: head } }]
  - name: lost
    activation: reactive
    runtime: by_hand
    operator: noop
    execution_strategy: PerPartition
    heartbeat_timeout_seconds: 2
    inputs: [{ from: { job: head } }]
"""


def test_the_page(shared_stack: RealStack) -> None:
    stack = shared_stack
    stack.deploy("late", DAG)
    stack.shell("trace trigger late/head --range 0-9")
    (waiting,) = stack.tasks("late", "work")
    (lost,) = stack.tasks("late", "lost")
    stack.claim(lost)  # by a worker of which nobody hears again
    log = stack.home.log_file("dispatcher")
    stack.wait_until(
        lambda: any("lease ran out" in line and lost in line for line in log.read_text().splitlines()),
        "the lease to run out",
    )
    hung = stack.parts()["dispatcher"]["pid"]
    os.kill(hung, signal.SIGSTOP)

    def learn_dispatcher(followed: Followed) -> str:
        found = re.search(r"kill -KILL (\d+)", followed.printed[0])
        assert found, followed.printed[0]
        return found[1]

    def running_again() -> bool:
        part = stack.parts()["dispatcher"]
        return bool(part["state"] == "running" and part["pid"] != hung)

    followed = follow(
        stack,
        "dispatcher.md",
        words={
            "DISPATCHER_PID": learn_dispatcher,
            "TASK_ID": waiting,
            "LATE_TASK_ID": lost,
            "RUNTIME": "spare",
        },
        # The first `trace status` is of a Dispatcher that stands still.
        fine={"trace status": (0, 1)},
        after={
            "kill -KILL": lambda: stack.wait_until(running_again, "another Dispatcher"),
            "trace worker": lambda: stack.await_tasks("late", "work", "completed", 1),
        },
    )
    assert "the Dispatcher does not answer (public, task, internal)" in followed.printed[0]
    assert "running  killed by SIGKILL, " in followed.printed[-2]
    assert "Ready." in followed.printed[-2]
    assert "Completed" in followed.printed[-1]
    (named,) = [text for line, text in zip(followed.lines, followed.printed, strict=True) if "lease ran out" in line]
    assert lost in named
    stack.wait_until(lambda: len(stack.tasks("late", "lost", "queued")) == 1, "the next attempt to be ready")
    stack.finish(lost, "Completed")
