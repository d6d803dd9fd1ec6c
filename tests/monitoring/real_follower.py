"""A worker that follows a served chain into tables in memory, for a Dispatcher of a test."""

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from tests.follower.memory_store import MemoryTables
from tests.follower.source import ClosedStore
from tests.spark.evm.support import CHAIN_ID
from tests.support.chain import ServedChain, serve_chain
from tests.support.configs import worker_config
from tests.support.dispatcher import DispatcherHarness
from tracelake.catalogue.context import OperatorContext, OperatorResult
from tracelake.client.credentials import FileCredential
from tracelake.client.internal import InternalClient
from tracelake.client.task import TaskClient
from tracelake.model.backoff import Backoff
from tracelake.worker import Worker
from tracelake.worker.block_follower import follow_blocks
from tracelake.worker.operators import Operator

BLOCKS = 40
FOLLOWER = f"""
name: d
jobs:
  - name: head
    activation: source
    source: {{kind: always_on}}
    runtime: ecs_platform
    operator: block_follower
    config: {{chain_id: {CHAIN_ID}, start: 0, tables: [blocks], max_reorg_depth: 5,
              poll_min_seconds: 0.05, poll_max_seconds: 0.05}}
publish:
  heads: {{from: {{job: head}}, storage: postgres}}
"""


class RealFollower:
    """Runs of its worker; each claims the next attempt."""

    def __init__(self, harness: DispatcherHarness, chain: ServedChain) -> None:
        self.chain = chain
        self._harness = harness
        self._tables = MemoryTables()

    def run(self, ends: Callable[[str], bool], *, heartbeat_seconds: float) -> None:
        """Until a signal of the worker after which `ends` holds."""
        self._harness.requeue_due()
        self._harness.relay()
        self._harness.run(self._work(ends, heartbeat_seconds))

    async def _work(self, ends: Callable[[str], bool], heartbeat_seconds: float) -> None:
        harness, stop = self._harness, asyncio.Event()
        worker = Worker(
            worker_config(
                worker_id="w",
                queues=("tasks.ecs_platform",),
                slots=1,
                backoff=Backoff(0.01, 0.1),
                heartbeat_seconds=heartbeat_seconds,
            ),
            queue=harness.dispatcher.ports.queue,
            claims=InternalClient(
                harness.clients["internal"], worker=FileCredential(harness.credentials.worker.token_file)
            ),
            tasks=TaskClient(harness.clients["task"]),
            operators={"block_follower": Operator(self._follow)},
            on_signal=lambda name, _task_id: stop.set() if ends(name) else None,
        )
        async with asyncio.timeout(50):
            await worker.run(stop)

    def _follow(self, context: OperatorContext) -> OperatorResult:
        return follow_blocks(context, lambda _context, _outputs: ClosedStore(self._tables, context.attempt))

    @property
    def newest(self) -> int:
        return max(self._tables.links, default=-1)


@contextmanager
def follow_served_chain(harness: DispatcherHarness) -> Iterator[RealFollower]:
    with serve_chain(BLOCKS) as chain, pytest.MonkeyPatch.context() as patch:
        patch.setenv("TRACE_RPC_DEFAULT", chain.url)
        yield RealFollower(harness, chain)
