"""docs/runbooks/dead-letters.md: no sink, Postgres data away, a schema that is too narrow, a batch that is wrong."""

import asyncio
import json
import os
import signal
from collections.abc import Callable
from typing import Any

from tests.runbooks.page import Followed, follow
from tests.support.real_stack import RealStack
from tracelake.adapters.s3.access import read_access
from tracelake.adapters.s3.object_store import S3ObjectStore

DAG = """\
name: letters
defaults: {{ runtime: by_hand }}
jobs:
  - {{ name: head, activation: source, source: {{ kind: manual }} }}
  - name: write
    activation: reactive
    operator: noop
    execution_strategy: PerPartition
    inputs: [{{ from: {{ job: head }} }}]
publish:
  notes:
    from: [{{ job: write }}]
    storage: postgres
    write_mode: buffered
    schema:
      columns:
        - {{ name: key, type: int64, nullable: false }}
{more}
      unique: [key]
"""


def write(stack: RealStack, task_id: str, *rows: dict[str, Any]) -> None:
    """A batch of each row."""
    claimed = stack.claim(task_id)
    store = S3ObjectStore(read_access(stack.home.object_store_file))
    for number, row in enumerate(rows):
        uri = f"{claimed['task']['outputs'][0]['storage']['buffer_prefix']}{number}.jsonl"
        asyncio.run(store.put(uri, json.dumps(row).encode() + b"\n"))
        status, reply = stack.say("buffer-publish", task_id, claimed, batch_uri=uri, dedupe_scope="notes")
        assert status == 200, reply
    assert stack.say("complete", task_id, claimed, status="Completed")[0] == 200


def test_the_page(shared_stack: RealStack) -> None:
    stack = shared_stack
    worker = stack.parts()["worker"]["pid"]

    def data(statement: str) -> list[Any]:
        return list(stack.sql(statement, dsn_file=stack.home.data_dsn_file))

    def keys() -> list[int]:
        return [row["key"] for row in data("SELECT key FROM org_default.notes ORDER BY key")]

    def log() -> str:
        return "".join(path.read_text() for path in (stack.home.root / "logs").glob("worker*.log"))

    def go_on() -> None:
        os.kill(worker, signal.SIGCONT)
        stack.wait_until(
            lambda: "Postgres data does not take it" in log(), "the worker's sink to say what it waits for"
        )

    def mend() -> None:
        data("ALTER TABLE buffer_tables_elsewhere RENAME TO buffer_tables")
        stack.wait_until(
            lambda: len(stack.sql("SELECT FROM buffer_publishes WHERE dead_at IS NOT NULL")) == 2, "the letters"
        )

    def letter(word: str) -> Callable[[Followed], str]:
        def find(followed: Followed) -> str:
            letters = followed.json("trace dlq list")["letters"]
            (found,) = [item["publish_id"] for item in letters if word in item["excerpt"]]
            return str(found)

        return find

    def write_anew() -> None:
        write(stack, stack.await_tasks("letters", "write", "queued", 1)[-1], {"key": 3})
        stack.wait_until(lambda: 3 in keys(), "what was written anew")

    os.kill(worker, signal.SIGSTOP)  # as if no worker had a sink
    try:
        data("ALTER TABLE buffer_tables RENAME TO buffer_tables_elsewhere")
        stack.deploy("letters", DAG.format(more=""))
        stack.shell("trace trigger letters/head --range 0-9")
        (task_id,) = stack.tasks("letters", "write")
        write(stack, task_id, {"key": 1}, {"key": 2, "memo": "x"})
        stack.shell("trace trigger letters/head --range 10-19")
        (task_id,) = {*stack.tasks("letters", "write")} - {task_id}
        write(stack, task_id, {"key": "wrong"})
        # A stack has no clock that tests move.
        stack.sql("UPDATE sinks_seen SET at = at - interval '5 minutes'")
        followed = follow(
            stack,
            "dead-letters.md",
            words={
                "DATASET": "notes",
                "BATCH": letter("memo"),
                "WRITER_ID": lambda followed: followed.json("trace dlq show")["task_id"],
                "FILE": "letters.yaml",
                "DAG": "letters",
                "JOB": "write",
                "START": "10",
                "END": "19",
                "WRONG_BATCH": letter("wrong"),
            },
            before={
                "trace deploy FILE --plan": lambda: (stack.files / "letters.yaml").write_text(
                    DAG.format(more="        - { name: memo, type: text }")
                ),
            },
            after={
                "trace sink": go_on,
                "tail": mend,
                "trace dlq replay": lambda: stack.wait_until(lambda: keys() == [1, 2], "the replayed batch"),
                "trace trigger": write_anew,
            },
        )
    finally:
        os.kill(worker, signal.SIGCONT)
        data("ALTER TABLE IF EXISTS buffer_tables_elsewhere RENAME TO buffer_tables")
    listed, no_sink, *_ = followed.printed
    assert "3 wait" in listed
    assert "no sink has" in no_sink
    assert any("Postgres data does not take it" in text for text in followed.printed)
    assert any("add the column `memo` (text)" in text for text in followed.printed)
    assert keys() == [1, 2, 3]
    assert "There are no dead letters." in followed.printed[-1]
    assert "dead_letters" not in {item["code"] for item in stack.trace("why notes")["reasons"]}
