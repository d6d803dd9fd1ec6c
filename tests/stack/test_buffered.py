"""A buffered dataset on a whole stack: batches of two jobs, a sink that is killed, a bad batch that is mended."""

import asyncio
import json
from collections.abc import Iterator
from typing import Any

import asyncpg
import pyarrow.parquet as pq
import pytest

from tests.support.real_stack import SHORT_TIMES, RealStack
from tracelake.adapters.s3.access import read_access
from tracelake.adapters.s3.object_store import S3ObjectStore

DAG = """\
name: transfers
defaults: {{ runtime: by_hand }}
jobs:
  - {{ name: head, activation: source, source: {{ kind: manual }} }}
  - {{ name: left, activation: reactive, operator: noop, execution_strategy: PerPartition, inputs: [{{ from: {{ job: head }} }}] }}
  - {{ name: right, activation: reactive, operator: noop, execution_strategy: PerPartition, inputs: [{{ from: {{ job: head }} }}] }}
  - {{ name: reader, activation: reactive, operator: noop, inputs: [{{ from: {{ dataset: large }} }}] }}
publish:
  large:
    from: [{{ job: left }}, {{ job: right }}]
    storage: postgres
    write_mode: buffered
    schema:
      columns:
        - {{ name: key, type: int64, nullable: false }}
        - {{ name: value, type: uint256 }}
{more}
      unique: [key]
"""  # noqa: E501 - a document


READER = """\
name: totals
jobs:
  - name: odd
    activation: reactive
    operator: spark_sql
    runtime: ecs_platform
    inputs: [{ from: { dataset: large }, where: { key: [1, 3] } }]
    config: { query: "SELECT key, value, memo, ${to} AS upto FROM large" }
publish:
  odd: { from: { job: odd }, storage: s3 }
"""


class BufferStack(RealStack):
    def __init__(self) -> None:
        super().__init__(settings=SHORT_TIMES | {"queue_max_receives": "10", "sink_poll_seconds": "0.2"})

    def publish(self, job: str, rows: list[dict[str, Any]]) -> str:
        task_id = self.tasks("transfers", job, "queued")[0]
        claimed = self.claim(task_id)
        uri = claimed["task"]["outputs"][0]["storage"]["buffer_prefix"] + "batch.jsonl"
        data = b"".join(json.dumps(row).encode() + b"\n" for row in rows)
        store = S3ObjectStore(read_access(self.home.object_store_file))
        asyncio.run(store.put(uri, data))
        status, reply = self.say("buffer-publish", task_id, claimed, batch_uri=uri, dedupe_scope="large")
        assert status == 200, reply
        assert self.say("complete", task_id, claimed, status="Completed")[0] == 200
        publish_id: str = reply["publish_id"]
        return publish_id

    def rows(self, columns: str = "key, value::text") -> list[tuple[Any, ...]]:
        async def read() -> list[tuple[Any, ...]]:
            connection = await asyncpg.connect(self.home.data_dsn_file.read_text().strip())
            try:
                return [
                    tuple(row)
                    for row in await connection.fetch(f"SELECT {columns} FROM org_default.large ORDER BY key")
                ]
            except asyncpg.UndefinedTableError:
                return []
            finally:
                await connection.close()

        return asyncio.run(read())


@pytest.fixture
def stack() -> Iterator[BufferStack]:
    stack = BufferStack()
    with stack.running():
        yield stack


def test_two_writers_one_table(stack: BufferStack) -> None:
    stack.deploy("transfers", DAG.format(more=""))
    for number in range(4):
        stack.shell(f"trace trigger transfers/head --range {number}-{number}")
    stack.wait_until(lambda: len(stack.tasks("transfers", "left", "queued")) == 4, "tasks of the writers")
    stack.publish("left", [{"key": 1, "value": 1}, {"key": 2, "value": 2**256 - 1}])
    stack.wait_until(lambda: len(stack.rows()) == 2, "the first rows")
    stack.kill_part("worker")
    stack.publish("right", [{"key": 2, "value": 3}, {"key": 3, "value": 4}])
    bad = stack.publish("left", [{"key": 1, "value": 5, "memo": "x"}])
    stack.publish("right", [{"key": 1, "value": 6}])
    stack.wait_until(lambda: stack.rows() == [(1, "6"), (2, "3"), (3, "4")], "the rows of both")
    stack.wait_until(lambda: stack.trace("dlq list")["total"] == 1, "the dead letter")
    (letter,) = stack.trace("dlq list")["letters"]
    assert (letter["publish_id"], letter["line"]) == (bad, 1)
    assert "memo: is not a column of the schema" in stack.shell(f"trace dlq show {bad}")

    (stack.files / "transfers.yaml").write_text(DAG.format(more="        - { name: memo, type: text }"))
    assert "add the column `memo` (text)" in stack.shell("trace deploy transfers.yaml --plan")
    stack.shell("trace deploy transfers.yaml --no-wait")
    stack.shell(f"trace dlq replay {bad}")
    stack.wait_until(lambda: not stack.trace("dlq list")["letters"], "the dead letter to be gone")
    stack.wait_until(
        lambda: not stack.sql("SELECT FROM buffer_publishes WHERE committed_at IS NULL"),
        "every batch to be in the table",
    )
    # The batch with the bad line was published before the last one: its row has lost, and its column is there.
    assert stack.rows("key, value::text, memo") == [(1, "6", None), (2, "3", None), (3, "4", None)]
    commits = stack.sql("SELECT count(DISTINCT commit_seq) AS number FROM buffer_publishes")
    assert commits[0]["number"] >= 2
    assert stack.tasks("transfers", "reader"), "who reads the table is told"
    read_by_people(stack)
    read_by_spark(stack)
    logs = (stack.home.root / "logs").glob("worker*.log")
    assert not any("Traceback" in path.read_text() for path in logs)


def read_by_people(stack: BufferStack) -> None:
    """The newest rows first."""
    assert stack.trace("read large --head 1") == [{"key": 1, "value": "6", "memo": None}]
    assert {row["key"]: row["value"] for row in stack.trace("read large --columns key,value")} == {
        1: "6",
        2: "3",
        3: "4",
    }
    assert "there is no column none; there are key, value, memo" in stack.shell(
        "trace read large --columns none", fine=(1,)
    )
    assert "has no block ranges: leave out --range" in stack.shell("trace read large --range 0-9", fine=(1,))
    assert "3 rows in large.parquet" in stack.shell("trace read large --output large.parquet")
    rows = pq.read_table(stack.files / "large.parquet").sort_by("key").to_pylist()
    assert [(row["key"], row["value"]) for row in rows] == [(1, "6"), (2, "3"), (3, "4")]


def read_by_spark(stack: BufferStack) -> None:
    """A job that comes later reads what is there, every row in the unit of its commit."""
    stack.deploy("totals", READER)
    stack.wait_until(lambda: bool(stack.tasks("totals", "odd")), "tasks of the reader")
    stack.wait_until(
        lambda: stack.tasks("totals", "odd") == stack.tasks("totals", "odd", "completed"), "all of them to be done"
    )
    found = stack.trace("read odd")
    assert sorted((row["key"], row["value"], row["memo"]) for row in found) == [(1, "6", None), (3, "4", None)]
    commits = stack.sql("SELECT max(commit_seq) AS last FROM buffer_publishes")
    assert max(row["upto"] for row in found) <= commits[0]["last"]
