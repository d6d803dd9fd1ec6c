"""Reading a config may take long (a query is checked): the worker keeps its leases meanwhile."""

import asyncio
import threading
from typing import Any

import pytest

from tests.worker.conftest import Bench
from tests.worker.fake_dispatcher import until
from tracelake import catalogue
from tracelake.worker import wrapper


def test_heartbeats_go_on_while_a_config_is_read(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    entered, go_on = threading.Event(), threading.Event()
    from_catalogue = catalogue.read_config

    def read_slowly(operator: str, config: dict[str, Any]) -> Any:
        if operator == "sleep":
            entered.set()
            assert go_on.wait(20), "the event loop was blocked: nobody could go on"
        return from_catalogue(operator, config)

    monkeypatch.setattr(wrapper, "read_config", read_slowly)

    async def main() -> None:
        task, neighbour = bench.dispatcher.add("sleep", {"seconds": 0}), bench.dispatcher.add()
        async with bench.working():
            await bench.wake(task)
            await until(entered.is_set, "the config being read")
            await bench.wake(neighbour)
            await until(lambda: neighbour.status == "Completed", "the neighbour")
            beats = task.heartbeats
            await until(lambda: task.heartbeats > beats, "a heartbeat of the attempt")
            go_on.set()
            await bench.until_empty()
        assert task.status == "Completed"

    asyncio.run(main())
