"""A Dispatcher in a process of its own, with all its loops, under many events; and a worker that takes its wake-ups.

The Dispatcher of the harness, on the same databases, is there for what a person does and for looking at the tables; its
loops do not run. So whatever is drained and published, the process did it.
"""

import asyncio
import time
from collections.abc import Coroutine
from pathlib import Path
from typing import Any, TypeVar
from uuid import UUID

from tests.faults.crash_driver import CrashDriver
from tests.routing.support import Flow
from tests.support.dispatcher import DispatcherHarness, fence

T = TypeVar("T")
QUEUE = "tasks.ecs_platform"
AT_ONCE = 256
PATIENCE = 240.0


class Storm:
    def __init__(self, harness: DispatcherHarness) -> None:
        self.harness = harness
        self.peak_kb = 0
        self.kills = 0
        self.woken: dict[str, None] = {}
        """Keys of the wake-ups that came, in the order of their first coming."""
        self.others: set[str] = set()
        """Tasks that are not the worker's business."""

    # The process

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        return self.harness.run(work, PATIENCE + 60)

    def start(self) -> None:
        self.run(self._start())

    def stop(self) -> None:
        self.run(self.driver.__aexit__())

    async def _start(self) -> None:
        self.driver = CrashDriver(self.harness.home, self.harness.state_dsn, self.harness.queue_dsn)
        self.driver.environment["TRACE_TEST_CLOCK"] = "true"
        await self.driver.__aenter__()

    def kill(self) -> None:
        """SIGKILL; what keeps it running starts the next one."""

        async def killed() -> None:
            await self._measure()
            before = self.driver.crashes
            self.driver._serving.clear()
            self.driver._kill()
            await asyncio.wait_for(self.driver._serving.wait(), 30)
            assert self.driver.crashes == before + 1

        self.run(killed())
        self.kills += 1

    def measure(self) -> int:
        """The peak of the process's memory so far, in kB."""
        return self.run(self._measure())

    async def _measure(self) -> int:
        await asyncio.wait_for(self.driver._serving.wait(), 30)
        status = Path(f"/proc/{self.driver.pid}/status").read_text()
        peak = next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmHWM"))
        self.peak_kb = max(self.peak_kb, peak)
        return self.peak_kb

    # Calls of the process

    def say(self, task_id: UUID, lease: Any, events: list[dict[str, Any]]) -> None:
        body = fence(str(task_id), lease, events=events)
        reply = self.run(self.driver.task("events", lease["capability_token"], body))
        assert len(reply["events"]) == len(events)

    def user(self, path: str, token: str) -> Any:
        return self.run(self.driver.call("public", f"/v1{path}", {}, {"authorization": f"Bearer {token}"}))

    def receive(self, wanted: int, *, complete: int = 0) -> int:
        """Take wake-ups until there were so many in all; work off at most `complete` of them. Answers how many."""
        return self.run(self._receive(wanted, complete))

    async def _receive(self, wanted: int, complete: int) -> int:
        done = 0
        deadline = time.monotonic() + PATIENCE
        while len(self.woken) < wanted or done < complete:
            assert time.monotonic() < deadline, f"{len(self.woken)} of {wanted} wake-ups came"
            deliveries = await self.driver.queue.receive(QUEUE, AT_ONCE, 60.0, 1.0)
            if not deliveries:
                continue
            await self.driver.queue.ack(deliveries)
            # After a kill the same wake-up may come twice at once.
            keys = dict.fromkeys(item.key for item in deliveries)
            fresh = [key for key in keys if key not in self.woken and key not in self.others]
            self.woken.update(dict.fromkeys(fresh))
            if done < complete:
                done += await self._pass_on(fresh[: complete - done])
        return done

    async def _pass_on(self, keys: list[str]) -> int:
        """What `noop` does, in two calls; what is not to be had is left."""
        if not keys:
            return 0
        claims = [{"task_id": key, "worker_id": "w", "claim_id": f"c-{key}"} for key in keys]
        answers = (await self.driver.worker("/internal/task-claim-batch", {"claims": claims}))["answers"]
        calls = []
        for key, answer in zip(keys, answers, strict=True):
            lease = answer["body"]
            if lease["status"] != "Claimed":
                continue
            said = {"cursor": lease["task"]["inputs"][0]["unit"]["cursor"]["to"]}
            names = ("dataset_uuid", "dataset_version")
            events = [{name: out[name] for name in names} | said for out in lease["task"]["outputs"]]
            body = fence(key, lease, status="Completed", events=events)
            calls.append(("complete", lease["capability_token"], body))
        await self.driver.batch(calls)
        return len(calls)


def hold_run(flow: Flow) -> tuple[UUID, Any]:
    """The run of the org's one always_on source, claimed."""
    flow.harness.run(flow.harness.dispatcher.monitor.run_once())
    (row,) = flow.harness.sql(
        "SELECT t.task_id FROM tasks t JOIN orgs o USING (org_id) WHERE o.name = $1 AND t.unit_key = 'run'", flow.org
    )
    return row["task_id"], flow.claim(row["task_id"])
