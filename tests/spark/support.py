"""Running a Spark operator without a stack: a task made by hand, and objects in a directory."""

import shutil
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import SparkSession

from tracelake.catalogue import read_config
from tracelake.catalogue.context import OperatorContext, OperatorResult
from tracelake.model.locations import parse_uri
from tracelake.ports import ObjectMeta
from tracelake.spark.files import FileCache
from tracelake.spark.reader import Reader, Selection
from tracelake.spark.work import SparkOperator, SparkWork
from tracelake.wire.units import CursorRange, PayloadInput, StorageOut, TaskOutput, Unit

BUCKET = "s3://bucket-one/datasets/"


@dataclass(frozen=True, slots=True)
class DirectoryTransfer:
    """The FileTransfer port on a directory; it can be pickled, as the real one."""

    root: Path

    def path(self, uri: str) -> Path:
        parsed = parse_uri(uri)
        assert parsed is not None, uri
        return self.root.joinpath(parsed[0], parsed[1])

    def download(self, meta: ObjectMeta, path: Path) -> None:
        shutil.copyfile(self.path(meta.uri), path)

    def upload(self, path: Path, uri: str) -> ObjectMeta:
        target = self.path(uri)
        target.parent.mkdir(parents=True, exist_ok=True)
        aside = target.with_name(f".{target.name}.{uuid4().hex}")
        shutil.copyfile(path, aside)
        aside.replace(target)
        return ObjectMeta(uri, target.stat().st_size, f'"{target.stat().st_size}"')


@dataclass
class Bench:
    """Inputs are tables that a test puts here; outputs are read back as tables."""

    session: SparkSession
    root: Path
    transfer: DirectoryTransfer = field(init=False)
    inputs: list[tuple[str, list[ObjectMeta], Mapping[str, Any] | None]] = field(default_factory=list)
    outputs: list[str] = field(default_factory=list)
    cancel: threading.Event = field(default_factory=threading.Event)
    task_id: UUID = field(default_factory=uuid4)
    last: SparkWork | None = None

    def __post_init__(self) -> None:
        self.transfer = DirectoryTransfer(self.root / "objects")

    def add_input(self, name: str, *tables: pa.Table, where: Mapping[str, Any] | None = None) -> None:
        """A dataset of one file for each table."""
        files = []
        for number, table in enumerate(tables):
            path = self.root / f"{name}-{number}.parquet"
            pq.write_table(table, path)
            files.append(self.transfer.upload(path, f"{BUCKET}{name}/{uuid4()}/{number}.parquet"))
        self.inputs.append((name, files, where))

    def add_output(self, name: str) -> None:
        self.outputs.append(name)

    def run(
        self,
        operator: str,
        run: SparkOperator,
        config: Mapping[str, Any] | None = None,
        *,
        blocks: tuple[int, int] | None = None,
        cursor: tuple[int, int] | None = None,
        attempt: int = 1,
        secrets: Mapping[str, str] | None = None,
    ) -> OperatorResult:
        """Runs it on the range of blocks, or the cursor `(after, to]`."""
        self.last = self.work(operator, config or {}, _unit(blocks, cursor), attempt, secrets or {})
        return run(self.last)

    def work(
        self, operator: str, config: Mapping[str, Any], unit: Unit, attempt: int, secrets: Mapping[str, str]
    ) -> SparkWork:
        # A task without inputs of data is still made for a unit: its source's.
        named = self.inputs or [("ranges", [], None)]
        inputs = [
            PayloadInput(
                input_index=index,
                dataset_uuid=uuid4(),
                dataset_version=uuid4(),
                name=name,
                unit=unit,
                revision="",
                where=None if where is None else dict(where),
            )
            for index, (name, _, where) in enumerate(named)
        ]
        outputs = [
            TaskOutput(
                output_index=index,
                dataset_uuid=uuid4(),
                dataset_version=uuid4(),
                name=name,
                storage=StorageOut(kind="s3", write_prefix=f"{BUCKET}{name}/{self.task_id}/{attempt}/"),
            )
            for index, name in enumerate(self.outputs)
        ]
        context = OperatorContext(
            task_id=self.task_id,
            attempt=attempt,
            config=read_config(operator, dict(config)),
            inputs=inputs,
            outputs=outputs,
            progress=lambda _text: None,
            cancel=self.cancel,
            paused=threading.Event(),
            emit=lambda _events: None,
            files=lambda item: named[item.input_index][1],
            secrets=secrets,
        )
        reader = Reader(self.session, FileCache(self.root / "cache", self.transfer), self.root / "links", local=True)
        return SparkWork(
            context,
            self.session,
            self.transfer,
            lambda item, files: reader.read(item.name, files, Selection(*item.unit.blocks, item.where)),
        )

    def table(self, output_index: int = 0) -> pa.Table:
        """Everything that the last run wrote to the output."""
        return pa.concat_tables(pq.read_table(path) for path in self.files(output_index))

    def files(self, output_index: int = 0) -> list[Path]:
        assert self.last is not None
        return [self.transfer.path(file.meta.uri) for file in self.last.written[output_index].files]

    def names(self, output_index: int = 0) -> Sequence[str]:
        """Of all objects below the output's prefix, `_SUCCESS` included."""
        assert self.last is not None
        prefix = self.last.output(output_index).storage.write_prefix
        assert prefix is not None
        return sorted(path.name for path in self.transfer.path(prefix + "x").parent.iterdir())


def _unit(blocks: tuple[int, int] | None, cursor: tuple[int, int] | None) -> Unit:
    if cursor is not None:
        return Unit(cursor=CursorRange(after=cursor[0], to=cursor[1]))
    start, end = blocks or (0, 0)
    return Unit(partition_key=f"{start}-{end}", start=start, end=end)
