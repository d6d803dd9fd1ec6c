"""The operators of feeds in a worker. They need no Spark: a process of each task's own writes its files.

The worker holds the credentials, and never takes apart what a server or a sender wrote: it starts the process, and
uploads what comes out of it.
"""

import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import IO
from uuid import uuid4

import msgspec

from tracelake.catalogue.context import Batch, NonRetryableError, OperatorContext, OperatorResult
from tracelake.catalogue.http_fetch import HttpFetchConfig
from tracelake.feeds.fetching import FeedUnit
from tracelake.feeds.files import FilePiece
from tracelake.feeds.hosts import FeedHosts
from tracelake.feeds.launch import run_process
from tracelake.feeds.places import FeedPlaces
from tracelake.feeds.process.messages import FeedDelivery, FeedOutput, FeedTask
from tracelake.model.dag import OutputCheck
from tracelake.ports import FileTransfer, ObjectMeta
from tracelake.spark.outputs import TaskOutputs
from tracelake.spark.signed import upload_first
from tracelake.spark.writer import Written, WrittenFile
from tracelake.wire.task_calls import CheckReport
from tracelake.worker.operators import Operator

_START_SECONDS = 60.0
"""On a busy machine a process needs that long until it reads its task, and to write its files at the end."""
_COPY_BYTES = 2**20
_DELIVERY_SECONDS = 300.0
FEEDS = ("http_fetch", "webhook_rows")


@dataclass(slots=True)
class FeedWork(TaskOutputs):
    context: OperatorContext
    transfer: FileTransfer
    written: dict[int, Written] = field(default_factory=dict)
    handed_over: dict[int, Written] = field(default_factory=dict)
    times: tuple[int, int] | None = None


@dataclass(frozen=True, slots=True)
class FeedOperators:
    transfer: FileTransfer
    hosts: Callable[[str], FeedHosts]
    """What the feeds of an org may call."""
    places: FeedPlaces
    memory_bytes: int = 2**30
    """Of one process."""

    def operators(self) -> dict[str, Operator]:
        return {name: Operator(partial(self._run, name)) for name in FEEDS}

    def _run(self, name: str, context: OperatorContext) -> OperatorResult:
        if not context.inputs:
            raise NonRetryableError(f"{name} works on the unit of an input, and the task has none")
        work = FeedWork(context, self.transfer)
        config = context.config
        is_fetch = isinstance(config, HttpFetchConfig)
        seconds = config.total_seconds if isinstance(config, HttpFetchConfig) else _DELIVERY_SECONDS
        deliveries = [] if is_fetch else _deliveries(context)
        if deliveries:
            moments = [int(item.received_at.timestamp()) for item in deliveries]
            work.times = (min(moments), max(moments))
        checks = [check for check in context.checks if check.kind.is_of_rows]
        with ExitStack() as stack:
            stack.enter_context(self.places.take(context.org, context.cancel))
            files = [
                stack.enter_context(tempfile.TemporaryFile(prefix="trace-feed-")) for _ in range(len(context.outputs))
            ]
            task = FeedTask(
                operator=name,
                config=msgspec.to_builtins(config),
                unit=_unit(work),
                outputs=[_output(work, index, file) for index, file in enumerate(files)],
                hosts=self.hosts(context.org),
                secrets=_secrets(context),
                deliveries=deliveries,
                memory_bytes=self.memory_bytes,
                checks=checks,
            )
            done = run_process(
                task,
                network=is_fetch,
                seconds=seconds + _START_SECONDS,
                cancel=context.cancel,
                progress=context.progress,
                log_fields={"task_id": str(context.task_id), "attempt": context.attempt, "operator": name},
            )
            if len(done.outputs) != len(files):
                raise ValueError("the process of a feed reports other outputs than it was given")
            if _keys(done.checks) != _keys(checks):
                raise ValueError("the process of a feed reports other checks than it was given")
            if any(not report.passed and report.severity == "error" for report in done.checks):
                return OperatorResult(checks=done.checks)  # nothing of it is uploaded
            for index, (file, pieces) in enumerate(zip(files, done.outputs, strict=True)):
                _take(work, index, file, pieces)
        context.progress(done.text)
        return replace(work.result(), checks=done.checks)


def _keys(checks: Sequence[OutputCheck | CheckReport]) -> list[tuple[int, str, str, str]]:
    return sorted((check.output_index, check.name, check.kind.value, check.severity) for check in checks)


def _deliveries(context: OperatorContext) -> list[FeedDelivery]:
    return [
        FeedDelivery(number=item.number, delivery_id=item.delivery_id, received_at=item.received_at, body=item.body)
        for item in context.deliveries(context.inputs[0])
    ]


def _secrets(context: OperatorContext) -> dict[str, str]:
    """Those that the config uses, and no others."""
    names = context.config.secret_names()
    missing = [name for name in names if name not in context.secrets]
    if missing:
        raise NonRetryableError(f"the config uses the secret {missing[0]}, which the job does not list in `secrets`")
    return {name: context.secrets[name] for name in names}


def _unit(work: FeedWork) -> FeedUnit:
    start, end = work.unit.blocks
    return FeedUnit(start=start, end=end, partition_key=work.unit.partition_key)


def _output(work: FeedWork, index: int, file: IO[bytes]) -> FeedOutput:
    output = work.output(index)
    if output.storage.kind == "buffered":
        schema = work.context.schema(output)
        return FeedOutput(descriptor=file.fileno(), kind="lines", schema=schema, dataset=output.name)
    if output.storage.kind != "s3":
        raise NonRetryableError(f"output {index} is neither files nor a buffered dataset")
    start, _ = work.unit.blocks
    if start is None:
        raise NonRetryableError(
            f"the unit {work.unit.partition_key} is not a range, so it cannot be files: publish a buffered dataset"
        )
    return FeedOutput(descriptor=file.fileno(), kind="parquet")


def _take(work: FeedWork, index: int, file: IO[bytes], pieces: list[FilePiece]) -> None:
    """Uploads what the process wrote; batches are published once all of them are there."""
    output = work.output(index)
    prefix = output.storage.buffer_prefix
    if output.storage.kind == "s3":
        target = work.target(index)
        path = Path(f"/proc/self/fd/{file.fileno()}")
        (piece,) = pieces
        work.seal_output(index, [WrittenFile(target.upload(path, *work.blocks), piece.rows)], None)
        return
    assert prefix is not None
    batches = []
    place = 0
    for piece in pieces:
        work.stop_if_canceled()
        with _cut(file, place, piece.size) as path:
            meta: ObjectMeta = upload_first(work.transfer, path, [f"{prefix}{uuid4().hex}.jsonl"])
        place += piece.size
        batches.append(WrittenFile(meta, piece.rows))
    for batch in batches:
        work.stop_if_canceled()
        work.context.publish(Batch(output, batch.meta.uri, batch.rows, batch.meta.sha256))
    work.handed_over[index] = Written(batches)


@contextmanager
def _cut(file: IO[bytes], place: int, size: int) -> Iterator[Path]:
    """A part of the file as a file."""
    with tempfile.TemporaryFile(prefix="trace-batch-") as part:
        file.seek(place)
        remaining = size
        while remaining and (data := file.read(min(remaining, _COPY_BYTES))):
            part.write(data)
            remaining -= len(data)
        if remaining:
            raise ValueError("the process of a feed reports more than it wrote")
        part.flush()
        yield Path(f"/proc/self/fd/{part.fileno()}")
