"""A lane that is stuck shows in `/healthz`, which the supervisor asks, and in `/readyz`."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from tests.support.configs import dispatcher_config
from tests.support.dispatcher import DispatcherHarness
from tracelake.stack import listeners, probe


def test_a_stuck_lane_fails_the_liveness_check(
    state_dsn: str, queue_dsn: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    harness = DispatcherHarness.start(
        state_dsn, queue_dsn, tmp_path, dispatcher_config(group_commit_stall_seconds=0.01)
    )
    release = asyncio.Event()
    try:
        task_id = harness.make_task(harness.make_job()["job_id"])
        group = harness.dispatcher.group
        commit = group._commit
        entered = asyncio.Event()

        async def stuck(calls: Any, *, patient: bool) -> Any:
            entered.set()
            await release.wait()
            return await commit(calls, patient=patient)

        internal = listeners.url(harness.sockets["internal"], "127.0.0.1")

        async def scenario() -> None:
            monkeypatch.setattr(group, "_commit", stuck)
            body = {"task_id": task_id, "worker_id": "w"}
            worker = {"x-trace-worker-token": harness.worker_token}
            claim = asyncio.ensure_future(harness.call_async("internal", "POST", "/internal/task-claim", body, worker))
            await entered.wait()
            async with asyncio.timeout(30):
                while await asyncio.to_thread(probe.alive, internal, harness.tls.ca):
                    await asyncio.sleep(0.005)
            health = await harness.call_async("internal", "GET", "/healthz")
            assert (health.status, health.body["checks"]) == (503, {"lifecycle": "stalled"})
            ready = await harness.call_async("internal", "GET", "/readyz")
            assert (ready.status, ready.body["checks"]["lifecycle"]) == (503, "stalled")
            assert ready.body["checks"]["state"] == "ok"
            release.set()
            assert (await claim).body["status"] == "Claimed"
            assert await asyncio.to_thread(probe.alive, internal, harness.tls.ca)
            assert (await harness.call_async("internal", "GET", "/readyz")).status == 200

        harness.run(scenario())
    finally:
        harness.background.loop.call_soon_threadsafe(release.set)
        harness.stop()
