"""The local invoker keeps the port's promises, and waits for a Dispatcher that is away."""

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conformance.invoker_suite import InvokerSuite, claimed
from tests.support.dispatcher import DispatcherHarness
from tracelake.adapters.local_invoker import LocalInvoker
from tracelake.client import DispatcherUnavailableError, TaskClient
from tracelake.ports import Invoker
from tracelake.wire.task_calls import CompleteReply, CompleteRequest


@pytest.fixture
def harness(state_dsn: str, queue_dsn: str, tmp_path: Path) -> Iterator[DispatcherHarness]:
    running = DispatcherHarness.start(state_dsn, queue_dsn, tmp_path)
    try:
        yield running
    finally:
        running.stop()


@pytest.fixture
def invoker(harness: DispatcherHarness) -> Invoker:
    return harness.dispatcher.ports.invoker


class TestLocalInvoker(InvokerSuite):
    def test_it_says_what_is_missing(self, harness: DispatcherHarness, invoker: Invoker) -> None:
        item = claimed(harness, "udf")
        with pytest.raises(Exception, match="this stack has no runner"):
            harness.run(invoker.invoke(item.invocation))

    def test_a_dispatcher_that_is_away_is_told_later(
        self, harness: DispatcherHarness, invoker: Invoker, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        item = claimed(harness)
        complete, away = TaskClient.complete, [DispatcherUnavailableError("away") for _ in range(3)]

        async def sometimes(client: TaskClient, token: str, request: CompleteRequest) -> CompleteReply:
            if away:
                raise away.pop()
            return await complete(client, token, request)

        async def invoked() -> None:
            await invoker.invoke(item.invocation)
            assert isinstance(invoker, LocalInvoker)
            await asyncio.gather(*invoker._running)

        monkeypatch.setattr(TaskClient, "complete", sometimes)
        harness.run(invoked())
        assert item.status == "Completed"
