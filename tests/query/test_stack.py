"""`trace up` with its Query Service: commands, the Python client, and a service that is killed."""

import json

import pyarrow as pa
import pytest

from tests.support.real_stack import SHORT_TIMES, RealStack
from tracelake.client import query

pytestmark = pytest.mark.system

BUFFERED = """
name: notes
jobs:
  - {name: src, activation: source, source: {kind: manual}}
  - name: write
    activation: reactive
    runtime: by_hand
    operator: noop
    execution_strategy: PerPartition
    inputs: [{from: {job: src}}]
publish:
  notes:
    from: [{job: write}]
    storage: postgres
    write_mode: buffered
    schema:
      columns:
        - {name: key, type: int64, nullable: false}
        - {name: amount, type: uint256}
      unique: [key]
"""


def test_queries_of_a_stack() -> None:
    settings = {**SHORT_TIMES, "query_service": "true", "workers": "0"}
    with RealStack(settings=settings).running() as stack:
        assert stack.stack.query_url is not None
        assert stack.stack.query_task_url is not None
        document = stack.files / "notes.yaml"
        document.write_text(BUFFERED)
        stack.shell(f"trace deploy {document}")
        reply = json.loads(stack.shell("trace query 'SELECT count(*) AS n, max(amount) AS most FROM notes' --json"))
        assert reply["rows"] == [[0, None]]
        assert [dataset["name"] for dataset in reply["datasets"]] == ["notes"]
        shown = stack.shell("trace query 'SELECT 42 AS answer, 0.5::DECIMAL(4,2) AS half'").splitlines()
        assert [line.split() for line in shown[:3]] == [["answer", "half"], ["integer", "decimal(4,2)"], ["42", "0.50"]]
        stack.shell(f"trace query 'SELECT * FROM range(20000)' --output {stack.files / 'all.parquet'}")
        refused = stack.shell("trace query 'SELECT * FROM note' 2>&1", fine=(1,))
        assert "query_unknown_relation" in refused
        assert "notes" in refused

        token_file = stack.home.keys / "admin.jwt"
        table = query("SELECT $a + 1 AS b", {"a": 2**70}, home=stack.home.root, token_file=token_file)
        assert isinstance(table, pa.Table)
        assert table.column("b").to_pylist() == [str(2**70 + 1)]
        large = query("SELECT i FROM range(15000) t(i)", home=stack.home.root, token_file=token_file)
        assert large.num_rows == 15_000, "what the reply does not have was downloaded"

        outcomes = stack.shell("trace audit --queries")
        assert "query_unknown_relation" in outcomes

        before = stack.kill_part("query")
        stack.wait_until(lambda: stack.parts()["query"]["pid"] not in (None, before), "the service runs again")
        assert json.loads(stack.shell("trace query 'SELECT 1' --json"))["rows"] == [[1]]
