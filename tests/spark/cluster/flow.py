"""The four data operators one after another, from a chain to a summary, wherever Spark is; and what they wrote."""

import asyncio
import json
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from tests.spark.cluster.driver import Input, Task
from tracelake.adapters.s3.access import S3Access
from tracelake.adapters.s3.object_store import S3ObjectStore
from tracelake.adapters.s3.transfer import S3Transfer
from tracelake.catalogue.context import OperatorResult
from tracelake.ports import ObjectMeta
from tracelake.spark.testing import plain_name

BLOCKS = (0, 199)
CHAIN_ID = 1337001
TOKENS = """
SELECT t.block_number, t.token, count(*) AS transfers, sum(CAST(b.gas_used AS DECIMAL(38, 0))) AS gas
FROM transfers t JOIN blocks b ON b.block_number = t.block_number
GROUP BY t.block_number, t.token
"""


@dataclass
class Flow:
    """`run` is how a task is run where this flow is."""

    run: Callable[[Task], OperatorResult]
    access: S3Access
    results: dict[str, OperatorResult] = field(default_factory=dict)
    written: dict[str, list[ObjectMeta]] = field(default_factory=dict)
    """By dataset; `_SUCCESS` is looked for and left out."""

    def all(self) -> "Flow":
        self.do(
            Task("evm_ingest", {"chain_id": CHAIN_ID, "chunk_blocks": 50}, BLOCKS, ["blocks", "transactions", "logs"])
        )
        self.do(Task("decode_logs", {}, BLOCKS, ["transfers", "left"], [self.input("logs")]))
        chain = [self.input(name) for name in ("blocks", "transactions", "logs")]
        # Ten blocks more than there are: something is found.
        self.do(Task("integrity_check", {"fail_on": "never"}, (BLOCKS[0], BLOCKS[1] + 10), ["findings"], chain))
        flows = [self.input("transfers"), self.input("blocks")]
        config = {"query": TOKENS, "order_by": ["block_number", "token"], "files": 3}
        self.do(Task("spark_sql", config, BLOCKS, ["flows"], flows))
        return self

    def input(self, name: str, **where: object) -> Input:
        return Input(name, self.written[name], where or None)

    def do(self, task: Task, *, repeated: int = 0) -> OperatorResult:
        """`repeated`: files that lie there because a Spark task was tried again; they are not of the output."""
        result = self.run(task)
        for index, name in enumerate(task.outputs):
            prefix, objects = task.prefix(index), S3ObjectStore(self.access)
            found = asyncio.run(objects.list(prefix))
            marker = asyncio.run(objects.get(f"{prefix}_SUCCESS"))
            assert marker is not None
            named = {file["name"] for file in json.loads(marker)["files"]}
            self.written[name] = [meta for meta in found if meta.uri.removeprefix(prefix) in named]
            assert len(self.written[name]) == len(named)
            assert len(found) == len(named) + 1 + repeated, "nothing else is there"
        self.results[task.outputs[0]] = result
        return result

    def tables(self) -> dict[str, dict[str, pa.Table]]:
        """Every row of every file, by dataset and name of the file."""
        return {dataset: dict(self.files(dataset)) for dataset in self.written}

    def files(self, dataset: str) -> Iterator[tuple[str, pa.Table]]:
        with tempfile.TemporaryDirectory() as directory:
            for meta in self.written[dataset]:
                path = Path(directory, meta.uri.rpartition("/")[2])
                S3Transfer(self.access).download(meta, path)
                yield plain_name(path), pq.read_table(path)
