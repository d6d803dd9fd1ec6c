"""Documents are read in processes that are limited, replaced, and shared by orgs in turns."""

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.dag.support import GOOD, HEAD, SURROUNDINGS, TICK
from tests.support.dispatcher import DispatcherHarness
from tracelake.adapters.document_processes import DocumentProcesses
from tracelake.dag import DagInvalidError, Surroundings, TypedDag, canonical, document_hash, read_dag, read_typed_dag
from tracelake.dispatcher.audit import Actor
from tracelake.errors import TraceError
from tracelake.model.dag import Problem

FULL = Path(__file__).parent.parent / "dag" / "full.yaml"


def run(work: Callable[[DocumentProcesses], Coroutine[Any, Any, None]], **options: Any) -> None:
    async def main() -> None:
        reader = DocumentProcesses(options.pop("processes", 1), **{"seconds": 20.0, **options})
        try:
            await work(reader)
        finally:
            await reader.close()

    asyncio.run(main())


def children() -> set[int]:
    """Of this process, which are alive. Threads and processes may end while they are looked at."""
    pids: set[int] = set()
    for task in Path("/proc/self/task").iterdir():
        with suppress(OSError):
            pids |= {int(word) for word in (task / "children").read_text().split()}
    return {pid for pid in pids if b"tracelake.dag.child" in _command_line(pid)}


def _command_line(pid: int) -> list[bytes]:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except OSError:
        return []


def test_what_comes_back_is_what_reading_here_gives() -> None:
    text = FULL.read_bytes()

    async def work(reader: DocumentProcesses) -> None:
        ours, theirs = read_typed_dag(text, SURROUNDINGS), await reader.read(text, SURROUNDINGS)
        assert theirs == ours
        assert (canonical(theirs.dag), document_hash(theirs.dag)) == (canonical(ours.dag), document_hash(ours.dag))
        with pytest.raises(DagInvalidError) as refused:
            await reader.read(b"name: d\njobs: 7\n", SURROUNDINGS)
        with pytest.raises(DagInvalidError) as here:
            read_dag(b"name: d\njobs: 7\n", SURROUNDINGS)
        assert refused.value.problems == here.value.problems
        moved = await reader.locate(text, [Problem(code="x", message="m", line=1, column=1, path="jobs[1].name")])
        assert moved[0].line > 1
        await reader.check_config("sleep", {"seconds": 1})
        with pytest.raises(TraceError) as invalid:
            await reader.check_config("sleep", {"second": 1})
        assert (invalid.value.code, invalid.value.details["field"]) == ("job_invalid", "config")

    run(work)


def test_processes_start_when_they_are_needed_and_stay() -> None:
    async def work(reader: DocumentProcesses) -> None:
        before = children()
        await reader.read(GOOD.encode(), SURROUNDINGS)
        first = children() - before
        await reader.read(GOOD.encode(), SURROUNDINGS)
        assert len(first) == 1
        assert children() - before == first

    run(work, processes=2)


def test_a_process_that_died_is_replaced() -> None:
    async def work(reader: DocumentProcesses) -> None:
        before = children()
        await reader.read(GOOD.encode(), SURROUNDINGS)
        (pid,) = children() - before
        os.kill(pid, signal.SIGKILL)
        assert (await reader.read(GOOD.encode(), SURROUNDINGS)).dag.name == "d"
        assert pid not in children()

    run(work)


def test_what_costs_too_much_is_refused_and_the_next_document_is_read() -> None:
    # 20,000 characters each, and over a second of work even on a fast machine.
    query = "SELECT " + ", ".join(f"abs(a + {number}) AS c{number}" for number in range(450)) + " FROM raw_blocks"
    jobs = "".join(
        f"- {{name: j{number}, activation: reactive, runtime: ecs_platform, operator: spark_sql,"
        f' config: {{query: "{query} LIMIT {number}"}}, inputs: [{{from: {{dataset: raw_blocks}}}}]}}\n'
        for number in range(45)
    )

    async def work(reader: DocumentProcesses) -> None:
        with pytest.raises(TraceError) as costly:
            await reader.read((HEAD + TICK + jobs).encode(), SURROUNDINGS)
        assert costly.value.code == "document_too_costly"
        assert (await reader.read(GOOD.encode(), SURROUNDINGS)).dag.name == "d"

    run(work, seconds=0.5)


def test_too_little_memory_is_an_answer_and_no_crash() -> None:
    aliases = "".join(f"x{number}: &x{number} [{'a, ' * 900}a]\n" for number in range(100))

    async def work(reader: DocumentProcesses) -> None:
        with pytest.raises((TraceError, DagInvalidError)) as refused:
            await reader.read(("name: d\n" + aliases).encode(), SURROUNDINGS)
        if isinstance(refused.value, TraceError):
            assert refused.value.code in ("document_too_costly", "document_reader_unavailable")

    run(work, memory_bytes=160 * 1024**2)


class GatedDocuments:
    """Reads when it is told to; and counts."""

    def __init__(self) -> None:
        self.open = asyncio.Event()
        self.reading = 0

    async def read(self, text: bytes, surroundings: Surroundings) -> TypedDag:
        self.reading += 1
        if b"slow" in text:
            await self.open.wait()
        return read_typed_dag(text, surroundings)


@asynccontextmanager
async def gated(harness: DispatcherHarness) -> AsyncIterator[GatedDocuments]:
    """In front of the reader that the Dispatcher has."""
    reader, documents = harness.dispatcher.documents, GatedDocuments()
    kept, reader._reader = reader._reader, documents  # type: ignore[assignment]
    try:
        yield documents
    finally:
        documents.open.set()
        reader._reader = kept


def test_a_dispatcher_deploys_through_processes(harness: DispatcherHarness) -> None:
    async def work() -> None:
        shared = harness.dispatcher.documents
        reader = DocumentProcesses(1, seconds=20.0)
        kept, shared._reader = shared._reader, reader
        who = Actor(subject="s", org="by_processes", org_id=None)
        deploy = partial(harness.dispatcher.deployments.deploy, who, "d", activate=True)
        try:
            assert (await deploy(GOOD.encode(), dry_run=True)).plan.dag == "d"
            assert (await deploy(GOOD.encode(), dry_run=False)).state == "Active"
            with pytest.raises(TraceError) as refused:
                await deploy(GOOD.replace("noop", "nope").encode(), dry_run=True)
            assert refused.value.code == "dag_invalid"
        finally:
            shared._reader = kept
            await reader.close()

    harness.run(work())


def test_one_org_waits_for_itself_and_is_refused_beyond_its_queue(harness: DispatcherHarness) -> None:
    slow = GOOD.replace("name: d", "name: slow_one", 1).encode()

    async def work() -> None:
        loop = asyncio.get_running_loop()
        async with gated(harness) as documents:

            def plan(org: str, text: bytes, name: str) -> "asyncio.Task[Any]":
                who = Actor(subject="s", org=org, org_id=None)
                return loop.create_task(
                    harness.dispatcher.deployments.deploy(who, name, text, dry_run=True, activate=True)
                )

            queue = harness.config.document_queue
            greedy = [plan("greedy", slow, "slow_one") for _ in range(queue + 3)]
            async with asyncio.timeout(30):
                while sum(task.done() for task in greedy) < 2:
                    await asyncio.sleep(0.005)
            other = await plan("modest", GOOD.encode(), "d")
            assert other.plan.dag == "d"
            done = {task for task in greedy if task.done()}
            refusals = [task.exception() for task in done]
            assert len(refusals) == 2
            for refusal in refusals:
                assert isinstance(refusal, TraceError)
                assert (refusal.code, refusal.status) == ("rate_limited", 429)
                assert refusal.details["retry_after_seconds"] >= 1
            assert documents.reading == 2
            documents.open.set()
            await asyncio.gather(*(task for task in greedy if task not in done))

    harness.run(work())
