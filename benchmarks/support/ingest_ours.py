"""Our side of the comparison: the operator evm_ingest in a warm session, its files in a directory of this machine."""

import threading
import time
from pathlib import Path
from typing import Any
from uuid import uuid4

from pyspark.sql import SparkSession

from tracelake.catalogue import read_config
from tracelake.catalogue.context import OperatorContext
from tracelake.spark.directory_transfer import DirectoryTransfer
from tracelake.spark.operators import evm_ingest
from tracelake.spark.work import SparkWork
from tracelake.wire.units import PayloadInput, StorageOut, TaskOutput, Unit

TABLES = ("blocks", "transactions", "logs")
CHUNK, BATCH = 500, 100


class Ours:
    def __init__(
        self, session: SparkSession, *, chain_id: int, blocks: int, chunk_blocks: int = CHUNK, batch_size: int = BATCH
    ) -> None:
        self._session = session
        self._config = read_config(
            "evm_ingest", {"chain_id": chain_id, "chunk_blocks": chunk_blocks, "batch_size": batch_size}
        )
        self._unit = Unit(partition_key=f"0-{blocks - 1}", start=0, end=blocks - 1)

    def run(self, directory: Path) -> float:
        """Seconds that the operator took to write all three tables below the directory."""
        work = SparkWork(self._context(), self._session, DirectoryTransfer(directory), _reads_nothing)
        began = time.perf_counter()
        evm_ingest.run(work)
        return time.perf_counter() - began

    def _context(self) -> OperatorContext:
        read = PayloadInput(
            input_index=0,
            dataset_uuid=uuid4(),
            dataset_version=uuid4(),
            name="ranges",
            unit=self._unit,
            revision="",
            where=None,
        )
        outputs = [
            TaskOutput(
                output_index=index,
                dataset_uuid=uuid4(),
                dataset_version=uuid4(),
                name=table,
                storage=StorageOut(kind="s3", write_prefix=f"s3://local/{table}/"),
            )
            for index, table in enumerate(TABLES)
        ]
        return OperatorContext(
            task_id=uuid4(),
            attempt=1,
            config=self._config,
            inputs=[read],
            outputs=outputs,
            progress=lambda _text: None,
            cancel=threading.Event(),
            paused=threading.Event(),
            emit=lambda _events: None,
            files=lambda _item: [],
        )


def _reads_nothing(*_asked: object) -> Any:
    raise AssertionError("the input's rows are not read")
