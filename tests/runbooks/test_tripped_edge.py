"""docs/runbooks/tripped-edge.md: a full queue that nobody works on."""

from typing import Any

from tests.runbooks.page import follow
from tests.support.real_stack import RealStack

DAG = """\
name: full
jobs:
  - name: head
    activation: source
    source: {{ kind: manual }}
  - name: work
    activation: reactive
    runtime: spare
    operator: noop
    execution_strategy: PerPartition
    max_queue_depth: {depth}
    inputs: [{{ from: {{ job: head }} }}]
"""


def test_the_page(shared_stack: RealStack) -> None:
    stack = shared_stack

    def pressure() -> Any:
        return stack.sql("SELECT max_depth, level FROM pressure JOIN nodes USING (node_id) WHERE dag_name = 'full'")[0]

    stack.deploy("full", DAG.format(depth=2))
    for start in (0, 10, 20, 30):
        stack.shell(f"trace trigger full/head --range {start}-{start + 9}")
    assert pressure()["level"] == 2
    assert len(stack.tasks("full", "work")) < 4, "the rest waits before the full queue"

    followed = follow(
        stack,
        "tripped-edge.md",
        words={
            "DAG": "full",
            "SOURCE": "head",
            "JOB": "work",
            "BACKFILL": "head",
            "RUNTIME": "spare",
            "FILE": "full.yaml",
        },
        before={"trace deploy FILE --plan": lambda: (stack.files / "full.yaml").write_text(DAG.format(depth=50))},
        after={"trace resume": lambda: stack.await_tasks("full", "work", "completed", 4)},
    )
    assert followed.json("trace why full/work")["reasons"][0]["code"] == "up_to_date"
    assert "full" in followed.printed[0]
    assert pressure()["max_depth"] == 50
    stack.wait_until(lambda: pressure()["level"] == 0, "the pressure to be gone")
