"""Running a Spark operator without a stack: tables in, tables out, objects in a directory.

    with local_session(tmp_path / "spark") as session:
        trial = Trial(session, tmp_path)
        trial.add_input("transfers", pa.table({"block_number": [1, 1, 2], ...}))
        trial.add_output("counts")
        trial.run("rows_per_block", run, {"least": 2}, blocks=(0, 9))
        assert trial.table().to_pylist() == [...]

Config, reading and writing are the real ones: the config is checked as it is at deploy, inputs are read from Parquet
files with the unit's range and `where`, and outputs are the files that a worker would upload.
"""

import re
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias
from uuid import UUID, uuid4

import pyarrow as pa
import pyarrow.parquet as pq

from tracelake.catalogue import read_config
from tracelake.catalogue.context import OperatorContext, OperatorResult
from tracelake.ports import ObjectMeta, SecretValues
from tracelake.spark.directory_transfer import DirectoryTransfer as DirectoryTransfer
from tracelake.spark.reader import Reader, Selection
from tracelake.spark.session import SharedSession, SparkConfig
from tracelake.spark.work import SparkOperator, SparkWork
from tracelake.storage.file_cache import FileCache
from tracelake.wire.units import CursorRange, PayloadInput, ReadScope, StorageOut, TaskOutput, Unit

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

BUCKET = "s3://bucket-one/datasets/"
Given: TypeAlias = tuple[str, list[ObjectMeta], Mapping[str, Any] | None]
"""An input: its name, its files, its `where`."""


@contextmanager
def local_session(scratch: Path, *, cores: int = 2, java_options: tuple[str, ...] = ()) -> "Iterator[SparkSession]":
    """A session as a worker has it. Starting one takes longer than most tests: share it."""
    shared = SharedSession(
        SparkConfig(scratch, master=f"local[{cores}]", memory="1g", log_level="error", java_options=java_options)
    )
    try:
        yield shared.get()
    finally:
        shared.close()


@dataclass
class Trial:
    """Inputs are tables that a test puts here; outputs are read back as tables."""

    session: "SparkSession"
    root: Path
    transfer: DirectoryTransfer = field(init=False)
    inputs: list[Given] = field(default_factory=list)
    scopes: dict[int, ReadScope] = field(default_factory=dict)
    """By input: how much of it is read, where that is not just the unit."""
    outputs: list[str] = field(default_factory=list)
    cancel: threading.Event = field(default_factory=threading.Event)
    """Set it, and the operator is told to stop."""
    progress_texts: list[str] = field(default_factory=list)
    """What the operator said of its progress."""
    task_id: UUID = field(default_factory=uuid4)
    attempts: int = 0
    last: SparkWork | None = None
    """Of the last run."""

    def __post_init__(self) -> None:
        self.transfer = DirectoryTransfer(self.root / "objects")

    def add_input(
        self,
        name: str,
        *tables: pa.Table,
        where: Mapping[str, Any] | None = None,
        scope: ReadScope | None = None,
    ) -> None:
        """A dataset of one file for each table. `scope`: how much of it is read, if that is not just the unit."""
        if scope is not None:
            self.scopes[len(self.inputs)] = scope
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
        attempt: int | None = None,
        secrets: Mapping[str, str] | None = None,
    ) -> OperatorResult:
        """Runs it on the range of blocks, or the cursor `(after, to]`; as the next attempt, unless one is given."""
        self.attempts = attempt or self.attempts + 1
        self.last = self.work(operator, config or {}, make_unit(blocks, cursor), self.attempts, secrets or {})
        return run(self.last)

    def work(
        self, operator: str, config: Mapping[str, Any], unit: Unit, attempt: int, secrets: Mapping[str, str]
    ) -> SparkWork:
        """What the operator is given."""
        prefixes = {name: f"{BUCKET}{name}/{self.task_id}/{attempt}/" for name in self.outputs}
        context = make_context(
            operator,
            config,
            unit,
            self.inputs,
            prefixes,
            task_id=self.task_id,
            attempt=attempt,
            secrets=secrets,
            cancel=self.cancel,
            progress=self.progress_texts.append,
            scopes=self.scopes,
        )
        reader = Reader(self.session, FileCache(self.root / "cache", self.transfer), self.root / "links", local=True)
        return SparkWork(
            context,
            self.session,
            self.transfer,
            lambda session, item, files, live: replace(reader, session=session).read(
                item.name, files, Selection.of(item), live
            ),
            open_files=lambda item, files, live: reader.open(item.name, files, Selection.of(item), live),
        )

    def table(self, output_index: int = 0) -> pa.Table:
        """Everything that the last run wrote to the output."""
        return pa.concat_tables(pq.read_table(path) for path in self.files(output_index))

    def files(self, output_index: int = 0) -> list[Path]:
        assert self.last is not None
        return [self.transfer.path(file.meta.uri) for file in self.last.written[output_index].files]

    def names(self, output_index: int = 0) -> Sequence[str]:
        """Of all objects below the output's prefix, `_SUCCESS` included, as `plain_name` has them."""
        assert self.last is not None
        prefix = self.last.output(output_index).storage.write_prefix
        assert prefix is not None
        return sorted(plain_name(path) for path in self.transfer.path(prefix + "x").parent.iterdir())


def plain_name(path: Path) -> str:
    """Of a file, without the part of its name that no other writer has."""
    return re.sub(r"\.[0-9a-f]{16}\.parquet$", ".parquet", path.name)


def make_unit(blocks: tuple[int, int] | None, cursor: tuple[int, int] | None = None) -> Unit:
    if cursor is not None:
        return Unit(cursor=CursorRange(after=cursor[0], to=cursor[1]))
    start, end = blocks or (0, 0)
    return Unit(partition_key=f"{start}-{end}", start=start, end=end)


def make_context(
    operator: str,
    config: Mapping[str, Any],
    unit: Unit,
    inputs: Sequence[Given],
    outputs: Mapping[str, str],
    *,
    task_id: UUID | None = None,
    attempt: int = 1,
    secrets: Mapping[str, str] | None = None,
    cancel: threading.Event | None = None,
    progress: Callable[[str], None] = lambda _text: None,
    scopes: Mapping[int, ReadScope] | None = None,
) -> OperatorContext:
    """A task made by hand; `outputs`: by name, the prefix that each is written to."""
    # A task without inputs of data is still made for a unit: its source's.
    named_inputs = inputs or [("ranges", [], None)]
    return OperatorContext(
        task_id=task_id or uuid4(),
        attempt=attempt,
        config=read_config(operator, dict(config)),
        inputs=[
            PayloadInput(
                input_index=index,
                dataset_uuid=uuid4(),
                dataset_version=uuid4(),
                name=name,
                unit=unit,
                revision="",
                where=None if where is None else dict(where),
                scope=(scopes or {}).get(index),
            )
            for index, (name, _, where) in enumerate(named_inputs)
        ],
        outputs=[
            TaskOutput(
                output_index=index,
                dataset_uuid=uuid4(),
                dataset_version=uuid4(),
                name=name,
                storage=StorageOut(kind="s3", write_prefix=prefix),
            )
            for index, (name, prefix) in enumerate(outputs.items())
        ],
        progress=progress,
        cancel=cancel or threading.Event(),
        paused=threading.Event(),
        emit=lambda _events: None,
        files=lambda item: named_inputs[item.input_index][1],
        secrets=SecretValues(secrets),
    )
