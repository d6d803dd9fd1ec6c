"""A real HTTP server whose answers a test writes byte by byte, and feeds that are run against it."""

import socket
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias
from uuid import uuid4

import pyarrow as pa
import pyarrow.parquet as pq

from tracelake.catalogue import read_config
from tracelake.catalogue.context import Batch, OperatorContext, OperatorResult, StoredDelivery
from tracelake.feeds.hosts import FeedHosts
from tracelake.feeds.places import FeedPlaces
from tracelake.model.dag import OutputCheck, Schema
from tracelake.ports import SecretValues
from tracelake.spark.directory_transfer import DirectoryTransfer
from tracelake.spark.testing import make_unit
from tracelake.wire.units import PayloadInput, StorageOut, TaskOutput, Unit
from tracelake.worker.feeds import FeedOperators

WAIT_SECONDS = 30.0


@dataclass(frozen=True)
class HttpCall:
    """What the server was asked."""

    method: str
    target: str
    headers: Mapping[str, str]
    body: bytes


Answer: TypeAlias = "bytes | Callable[[socket.socket], None]"


def reply(
    body: bytes | str = b"", status: int = 200, headers: Mapping[str, str] | None = None, length: int | None = None
) -> bytes:
    data = body.encode() if isinstance(body, str) else body
    lines = [f"HTTP/1.1 {status} Reason", f"content-length: {len(data) if length is None else length}"]
    lines += [f"{name}: {value}" for name, value in (headers or {}).items()]
    return ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1") + data


@dataclass
class FeedServer:
    """Answers by path: the next of its list, and the last one for ever."""

    answers: dict[str, list[Answer]] = field(default_factory=dict)
    calls: list[HttpCall] = field(default_factory=list)
    port: int = 0
    stopped: threading.Event = field(default_factory=threading.Event)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def on(self, path: str, *answers: Answer) -> None:
        self.answers[path] = list(answers)

    def serve(self, connection: socket.socket) -> None:
        with connection:
            connection.settimeout(WAIT_SECONDS)
            call = _read_call(connection)
            if call is None:
                return
            self.calls.append(call)
            path = call.target.partition("?")[0]
            waiting = self.answers.get(call.target) or self.answers.get(path) or [reply(b"", 404)]
            answer = waiting.pop(0) if len(waiting) > 1 else waiting[0]
            try:
                if callable(answer):
                    answer(connection)
                else:
                    connection.sendall(answer)
            except OSError:
                pass  # the client has gone

    @contextmanager
    def running(self) -> Iterator["FeedServer"]:
        with socket.create_server(("127.0.0.1", 0)) as listener:
            self.port = listener.getsockname()[1]
            listener.settimeout(0.1)

            def accept() -> None:
                while not self.stopped.is_set():
                    try:
                        connection, _ = listener.accept()
                    except TimeoutError:
                        continue
                    threading.Thread(target=self.serve, args=(connection,), daemon=True).start()

            thread = threading.Thread(target=accept, daemon=True)
            thread.start()
            try:
                yield self
            finally:
                self.stopped.set()
                thread.join()


def _read_call(connection: socket.socket) -> HttpCall | None:
    file = connection.makefile("rb")
    first = file.readline().decode("latin-1").split()
    if len(first) != 3:
        return None
    headers: dict[str, str] = {}
    while (line := file.readline().decode("latin-1").strip()) != "":
        name, _, value = line.partition(":")
        headers[name.lower()] = value.strip()
    return HttpCall(first[0], first[1], headers, file.read(int(headers.get("content-length", 0))))


@dataclass
class FeedTrial:
    """Runs a feed as a worker does, with a real process, and reads its outputs back."""

    root: Path
    hosts: FeedHosts
    schemas: Sequence[Schema | None] = (None,)
    """By output: of a buffered dataset; None: files."""
    deliveries: Sequence[StoredDelivery] = ()
    published: list[Batch] = field(default_factory=list)
    progress_texts: list[str] = field(default_factory=list)
    cancel: threading.Event = field(default_factory=threading.Event)
    result: OperatorResult | None = None
    memory_bytes: int = 2**30
    checks: Sequence[OutputCheck] = ()

    def __post_init__(self) -> None:
        self.transfer = DirectoryTransfer(self.root / "objects")

    def run(
        self,
        operator: str,
        config: Mapping[str, Any],
        *,
        unit: Unit | None = None,
        secrets: Mapping[str, str] | None = None,
        org: str = "acme",
    ) -> OperatorResult:
        task_id = uuid4()
        outputs = []
        for index, schema in enumerate(self.schemas):
            prefix = f"s3://bucket-one/datasets/{task_id}/{index}/"
            storage = StorageOut(kind="s3", write_prefix=prefix)
            if schema is not None:
                storage = StorageOut(kind="buffered", buffer_prefix=prefix)
            ids = {"dataset_uuid": uuid4(), "dataset_version": uuid4()}
            outputs.append(TaskOutput(output_index=index, name=f"out{index}", storage=storage, **ids))
        item = PayloadInput(
            input_index=0,
            dataset_uuid=uuid4(),
            dataset_version=uuid4(),
            name="ranges",
            unit=unit or make_unit((0, 9)),
            revision="",
            where=None,
        )
        context = OperatorContext(
            task_id=task_id,
            attempt=1,
            config=read_config(operator, dict(config)),
            inputs=[item],
            outputs=outputs,
            progress=self.progress_texts.append,
            cancel=self.cancel,
            paused=threading.Event(),
            emit=lambda _events: None,
            files=lambda _item: [],
            publish=self.published.append,
            schema=lambda output: self.schemas[output.output_index],
            deliveries=lambda _item: list(self.deliveries),
            secrets=SecretValues(secrets),
            org=org,
            checks=self.checks,
        )
        operators = FeedOperators(self.transfer, lambda _org: self.hosts, FeedPlaces(2), self.memory_bytes)
        self.outputs = outputs
        self.result = operators.operators()[operator].run(context)
        return self.result

    def table(self, index: int = 0) -> pa.Table:
        prefix = self.outputs[index].storage.write_prefix
        assert prefix is not None
        directory = self.transfer.path(prefix + "x").parent
        return pa.concat_tables(pq.read_table(path) for path in sorted(directory.glob("*.parquet")))

    def lines(self, index: int = 0) -> bytes:
        uuid = self.outputs[index].dataset_uuid
        batches = [batch for batch in self.published if batch.output.dataset_uuid == uuid]
        return b"".join(self.transfer.path(batch.uri).read_bytes() for batch in batches)
