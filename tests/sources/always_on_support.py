"""An always_on source as tests drive it: its run, the worker that holds it, and what people see of it."""

from typing import Any
from uuid import UUID

from tests.deploy.support import Text
from tests.http.support import user_token
from tests.support.dags import deploy, output
from tests.support.dispatcher import DispatcherHarness, Reply, fence

FIRST_WAIT, LONGEST_WAIT = 45, 600


def feed(name: str = "d", *, seconds: float = 10, ticks: int | None = None, **fields: Any) -> Text:
    """head (a ticker that runs for ever) -> a."""
    config: dict[str, Any] = {"seconds": seconds} | ({} if ticks is None else {"ticks": ticks})
    how = {"runtime": "ecs_platform", "operator": "ticker", "config": config, "source": {"kind": "always_on"}}
    return Text(name).source("head", **how, **fields).job("a", "head")


def monitor(harness: DispatcherHarness) -> int:
    return harness.run(harness.dispatcher.monitor.run_once())


def runs(harness: DispatcherHarness) -> list[Any]:
    return harness.sql("SELECT * FROM tasks WHERE unit_key = 'run' ORDER BY created_at, task_id")


def only_run(harness: DispatcherHarness) -> Any:
    (found,) = runs(harness)
    return found


class Attempt:
    """A worker that holds the run."""

    def __init__(self, harness: DispatcherHarness, task_id: UUID) -> None:
        self.harness = harness
        self.task_id = str(task_id)
        claimed = harness.claim(self.task_id)
        assert claimed.body["status"] == "Claimed", claimed
        self.lease = claimed.body
        self.token: str = claimed.body["capability_token"]

    def call(self, name: str, **fields: Any) -> Reply:
        return self.harness.task(name, self.token, fence(self.task_id, self.lease, **fields))

    def beat(self) -> Any:
        reply = self.call("heartbeat")
        assert reply.status == 200, reply
        self.token = reply.body.get("capability_token", self.token)
        return reply.body

    def live(self, seconds: int) -> None:
        for _ in range(0, seconds, 100):
            self.harness.advance(100)
            self.beat()

    def tick(self, cursor: int) -> None:
        dataset_uuid, dataset_version = output(self.harness, "d", "head")
        event = {"dataset_uuid": str(dataset_uuid), "dataset_version": str(dataset_version), "cursor": cursor}
        reply = self.call("events", events=[event])
        assert reply.status == 200, reply

    def end(self, status: str = "Failed", **fields: Any) -> None:
        reply = self.call("complete", status=status, **fields)
        assert reply.status == 200, reply


def started(harness: DispatcherHarness, text: Text | None = None) -> Attempt:
    deploy(harness, str(text or feed()))
    assert monitor(harness) == 1
    return Attempt(harness, only_run(harness)["task_id"])


def again(harness: DispatcherHarness) -> Attempt:
    """The next attempt, once its time has come."""
    harness.advance(LONGEST_WAIT)
    assert harness.requeue_due() == 1
    return Attempt(harness, only_run(harness)["task_id"])


def wait_of(harness: DispatcherHarness) -> float:
    row = harness.sql(
        "SELECT extract(epoch FROM next_retry_at - trace_now())::float8 AS wait FROM tasks WHERE unit_key = 'run'"
    )[0]
    found: float = row["wait"]
    return found


def user(harness: DispatcherHarness, method: str, path: str) -> Reply:
    headers = {"authorization": f"Bearer {user_token(harness, subject='ann')}"}
    return harness.call("public", method, path, None, headers)


def sources(harness: DispatcherHarness) -> dict[str, Any]:
    reply = user(harness, "GET", "/v1/sources")
    assert reply.status == 200, reply
    return {f"{row['dag']}/{row['job']}": row for row in reply.body["sources"]}


def head(harness: DispatcherHarness) -> Any:
    return sources(harness)["d/head"]


def without() -> Text:
    return Text("d").source("other").job("a", "other")


def pause(harness: DispatcherHarness, word: str = "pause", path: str = "d/jobs/head") -> Reply:
    return user(harness, "POST", f"/v1/dags/{path}/{word}")
