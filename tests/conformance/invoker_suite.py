"""Every promise of the Invoker port. Each adapter subclasses `InvokerSuite` and provides a `harness` that uses it."""

import asyncio
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import pytest

from tests.support.dispatcher import DispatcherHarness
from tests.support.postgres import wait_until
from tracelake.ports import InvokeError, Invoker
from tracelake.wire.claims import Invocation


@dataclass
class Started:
    """A claimed task of a `lambda` job, as an invocation."""

    harness: DispatcherHarness
    invocation: Invocation
    fence: dict[str, Any] = field(init=False)

    def __post_init__(self) -> None:
        given = self.invocation
        self.fence = {
            "task_id": str(given.task_id),
            "attempt": given.attempt,
            "lease_token": str(given.lease_token),
        }

    @property
    def status(self) -> str:
        status: str = self.harness.row(str(self.invocation.task_id))["status"]
        return status


def claimed(harness: DispatcherHarness, operator: str = "noop") -> Started:
    job = harness.make_job(runtime="lambda", operator=operator, outputs=[{"name": "out"}])
    inputs = [
        {"input_index": 0, "unit": {"cursor": {"after": 3, "to": 8}}}
        | {key: job["outputs"][0][key] for key in ("dataset_uuid", "dataset_version")}
    ]
    task_id = harness.make_task(job["job_id"], inputs=inputs)
    lease = harness.claim(task_id).body
    payload = lease.pop("task")
    given = {**payload, **{key: lease[key] for key in ("lease_token", "lease_expires_at", "capability_token")}}
    return Started(harness, msgspec.convert(given | {"bundle_url": None}, Invocation, strict=False))


class InvokerSuite:
    def test_a_taken_attempt_speaks_for_itself(self, harness: DispatcherHarness, invoker: Invoker) -> None:
        started = [claimed(harness) for _ in range(5)]

        async def all_at_once() -> None:
            await asyncio.gather(*(invoker.invoke(item.invocation) for item in started))

        harness.run(all_at_once())
        for item in started:
            wait_until(lambda item=item: item.status == "Completed", "the final word")  # type: ignore[misc]
        assert [row["cursor"] for row in harness.sql("SELECT cursor FROM events")] == [8] * 5

    def test_the_same_attempt_twice_ends_once(self, harness: DispatcherHarness, invoker: Invoker) -> None:
        item = claimed(harness)
        for _ in range(2):
            harness.run(invoker.invoke(item.invocation))
        wait_until(lambda: item.status == "Completed", "the final word")
        harness.run(invoker.close())
        assert len(harness.sql("SELECT FROM events")) == 1
        assert harness.row(str(item.invocation.task_id))["attempt"] == 1

    def test_it_says_nothing_itself_about_what_it_refused(self, harness: DispatcherHarness, invoker: Invoker) -> None:
        item = claimed(harness, "unheard_of")
        with pytest.raises(InvokeError) as refused:
            harness.run(invoker.invoke(item.invocation))
        assert str(refused.value)
        secrets = (item.invocation.capability_token, str(item.invocation.lease_token))
        assert not any(secret in str(refused.value) for secret in secrets)
        assert item.status == "Running"

    def test_an_attempt_that_is_not_current_changes_nothing(self, harness: DispatcherHarness, invoker: Invoker) -> None:
        item = claimed(harness)
        final = item.fence | {"status": "Failed", "retryable": False}
        assert harness.task("complete", item.invocation.capability_token, final).status == 200
        harness.run(invoker.invoke(item.invocation))
        harness.run(invoker.close())
        assert item.status == "Failed"

    def test_a_token_that_nobody_accepts_harms_nobody(self, harness: DispatcherHarness, invoker: Invoker) -> None:
        item = claimed(harness)
        for token in ("", "not a token", "a\r\nb: c", item.invocation.capability_token[:-8]):
            harness.run(invoker.invoke(msgspec.structs.replace(item.invocation, capability_token=token)))
        good = claimed(harness)
        harness.run(invoker.invoke(good.invocation))
        wait_until(lambda: good.status == "Completed", "the final word")
        assert item.status == "Running"

    def test_a_lease_that_is_over_is_not_its_business(self, harness: DispatcherHarness, invoker: Invoker) -> None:
        item = claimed(harness)
        past = datetime.now(UTC) - timedelta(hours=1)
        harness.run(invoker.invoke(msgspec.structs.replace(item.invocation, lease_expires_at=past)))
        wait_until(lambda: item.status == "Completed", "a late reply, which is taken")

    def test_a_closed_invoker_takes_nothing(self, harness: DispatcherHarness, invoker: Invoker) -> None:
        item = claimed(harness)
        harness.run(invoker.close())
        harness.run(invoker.close())
        with pytest.raises(InvokeError):
            harness.run(invoker.invoke(item.invocation))
        assert item.status == "Running"
