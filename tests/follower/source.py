"""The operator on nodes over HTTP and on tables in memory, step by step."""

import threading
import time
from collections.abc import Callable, Sequence
from typing import Any
from uuid import UUID

import msgspec
import pytest

from tests.follower.memory_store import MemoryStore, MemoryTables
from tests.follower.support import OUTPUTS
from tests.spark.evm.support import CHAIN_ID, expected
from tests.support.chain import ServedChain
from tracelake.catalogue import read_config
from tracelake.catalogue.block_follower import BlockFollowerConfig
from tracelake.catalogue.context import CanceledError, OperatorContext
from tracelake.spark.evm.tables import schema_of
from tracelake.wire.head_progress import HeadProgress
from tracelake.wire.units import EventIn, TaskOutput
from tracelake.worker.block_follower import ClosableStore, follow_blocks

TABLES = tuple(OUTPUTS)


def use(monkeypatch: pytest.MonkeyPatch, *chains: ServedChain) -> None:
    monkeypatch.setenv("TRACE_RPC_DEFAULT", ",".join(chain.url for chain in chains))


class Steps(threading.Event):
    """A cancel flag that does not wait: each wait is the moment for the next step, and after the last one it is set."""

    def __init__(self, *steps: Callable[[], None]) -> None:
        super().__init__()
        self._steps = list(steps)
        self.waits: list[float] = []
        self.ready: Callable[[], bool] = lambda: True

    def clock(self) -> float:
        return sum(self.waits)

    def wait(self, timeout: float | None = None) -> bool:
        assert timeout is not None
        self.waits.append(timeout)
        assert len(self.waits) < 500, "it waits for what does not come"
        if not self.ready():
            return False
        if not self._steps:
            self.set()
        else:
            self._steps.pop(0)()
        return self.is_set()


def never_ready() -> Steps:
    cancel = Steps()
    cancel.ready = lambda: False
    return cancel


class Source:
    """The operator on tables in memory."""

    def __init__(self, **config: Any) -> None:
        read = read_config("block_follower", {"chain_id": CHAIN_ID, "start": 0, **config})
        assert isinstance(read, BlockFollowerConfig)
        self.config = read
        self.tables = MemoryTables()
        self.events: list[EventIn] = []
        self.progress: list[str] = []
        self.paused = threading.Event()
        self.attempt = 0
        self.reports: list[HeadProgress] = []
        self.fault: Callable[[str], None] = lambda _point: None

    def report(self, progress: HeadProgress) -> None:
        self.reports.append(progress)

    @property
    def outputs(self) -> list[TaskOutput]:
        """In the order of the config's tables."""
        return [
            msgspec.structs.replace(OUTPUTS[table], output_index=index)
            for index, table in enumerate(self.config.tables)
        ]

    def run(self, cancel: threading.Event) -> None:
        self.attempt += 1
        context = OperatorContext(
            task_id=UUID(int=1),
            attempt=self.attempt,
            config=self.config,
            inputs=[],
            outputs=self.outputs,
            progress=self.progress.append,
            cancel=cancel,
            paused=self.paused,
            emit=self._emit,
            files=lambda _item: [],
            report=self.report,
        )
        follow_blocks(context, self._open, cancel.clock if isinstance(cancel, Steps) else time.monotonic)

    def run_until_stopped(self, cancel: threading.Event) -> None:
        with pytest.raises(CanceledError):
            self.run(cancel)

    def _open(self, context: OperatorContext, outputs: object) -> ClosableStore:
        return ClosedStore(self.tables, context.attempt, lambda point: self.fault(point))

    def _emit(self, events: Sequence[EventIn]) -> None:
        self.events += [event for event in events if event.dataset_uuid == OUTPUTS["blocks"].dataset_uuid]

    @property
    def newest(self) -> int:
        return max(self.tables.links, default=-1)

    def is_stored(self, number: int, block_hash: str) -> bool:
        link = self.tables.links.get(number)
        return link is not None and link.hash == block_hash

    def rows(self, table: str) -> list[dict[str, Any]]:
        by_block = self.tables.rows[table]
        names = schema_of(table, self.config.optional_columns(table)).names  # type: ignore[arg-type]
        return [dict(zip(names, row, strict=True)) for number in sorted(by_block) for row in by_block[number]]


class ClosedStore(MemoryStore):
    def close(self) -> None:
        pass


def assert_rows(source: Source, chain: ServedChain, last: int) -> None:
    wanted = expected([chain.block(number) for number in range(last + 1)])
    for table in TABLES:
        assert source.rows(table) == wanted[table]
