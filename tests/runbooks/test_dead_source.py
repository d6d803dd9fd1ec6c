"""docs/runbooks/dead-source.md: a dead and a silent always_on source, a scheduler that is away, a refused webhook."""

import hashlib
import hmac
import json
import os
import re
import signal
import time
from typing import Any

from tests.runbooks.page import Followed, follow
from tests.support.real_stack import ROOT, RealStack

DAG = """\
name: srcs
jobs:
  - name: head
    activation: source
    source: { kind: always_on }
    runtime: by_hand
    operator: noop
    heartbeat_timeout_seconds: 600
  - name: minutes
    activation: source
    source: { kind: cron, schedule: "* * * * *", catch_up: all }
  - name: prices
    activation: source
    source: { kind: webhook, webhook_path: srcs/prices }
"""


def deliver(stack: RealStack, path: str, secret: str, delivery: str) -> int:
    now, body = int(time.time()), b'{"cursor": 7}'
    signed = hmac.new(secret.encode(), f"{now}.{delivery}.".encode() + body, hashlib.sha256).hexdigest()
    headers = {"X-Trace-Delivery": delivery, "X-Trace-Signature": f"t={now},v1={signed}"}
    return stack.call(stack.stack.public_url, f"/v1/webhooks/{path}", body, headers)[0]


def source(stack: RealStack, job: str) -> Any:
    return next(row for row in stack.trace("sources")["sources"] if (row["dag"], row["job"]) == ("srcs", job))


def test_the_page(shared_stack: RealStack) -> None:
    stack = shared_stack
    scheduler = stack.parts()["scheduler"]["pid"]
    os.kill(scheduler, signal.SIGSTOP)  # before there is a slot: one that it fires leaves nothing to make up for
    stack.deploy("srcs", DAG)
    stack.wait_until(lambda: "task_id" in source(stack, "head"), "the run to be made")
    run = source(stack, "head")["task_id"]
    stack.finish(run, "Failed", error_message="the node is gone", retryable=False)
    assert source(stack, "head")["state"] == "dead"
    # As if the scheduler had stood still for some minutes.
    stack.sql("UPDATE activations SET cutover_at = cutover_at - interval '4 minutes' WHERE dag_name = 'srcs'")
    stack.sql("UPDATE orgs SET routing_epoch = routing_epoch + 1")

    attempts: list[Any] = []

    def stop_it() -> None:
        assert stack.say("complete", run, attempts[-1], status="Canceled")[0] == 200

    def learn_run(followed: Followed) -> str:
        rows = followed.json("trace sources")["sources"]
        task_id: str = next(row["task_id"] for row in rows if row["state"] == "dead")
        return task_id

    def learn_scheduler(followed: Followed) -> str:
        parts = followed.json("trace status")["parts"]
        return str(next(part["pid"] for part in parts if part["name"] == "scheduler"))

    followed = follow(
        stack,
        "dead-source.md",
        words={
            "DAG": "srcs",
            "JOB": "head",
            "WEBHOOK": "prices",
            "PAUSED": "prices",
            "TASK_ID": learn_run,
            "SCHEDULER_PID": learn_scheduler,
        },
        before={"trace audit": lambda: stack.shell("trace pause srcs/prices")},
        after={
            "trace retry": lambda: attempts.append(stack.claim(run)),
            "trace cancel": stop_it,
            "kill -KILL": lambda: stack.wait_until(
                lambda: (
                    stack.parts()["scheduler"]["state"] == "running" and stack.parts()["scheduler"]["pid"] != scheduler
                ),
                "another scheduler",
            ),
        },
    )
    assert "the node is gone" in followed.printed[1]
    assert stack.claim(run)["attempt"] == 3
    assert source(stack, "head")["state"] == "running"
    slots = "SELECT FROM events WHERE producer LIKE 'cron:%'"
    stack.wait_until(lambda: len(stack.sql(slots)) >= 4, "the missed slots")
    hook = followed.json("trace webhook")
    assert deliver(stack, hook["path"], "another secret", "d-1") == 401
    assert deliver(stack, hook["path"], hook["secret"], "d-1") == 200
    found = re.search(r"```python\n(import hashlib.*?)```", (ROOT / "docs/sources.md").read_text(), re.DOTALL)
    assert found, "the example of docs/sources.md"
    example: dict[str, Any] = {}
    exec(found[1], example)  # our own page
    answer = json.loads(example["deliver"](hook["url"], hook["secret"], b'{"cursor": 8}', hook["ca_file"]))
    assert len(answer["event_ids"]) == 1
