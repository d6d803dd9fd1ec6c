"""A DAG with a webhook, and senders that sign."""

import asyncio
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from tests.http.support import fresh, user_token
from tests.support import dags
from tests.support.configs import dispatcher_config
from tests.support.dispatcher import DispatcherHarness, Reply
from tests.support.postgres import TestCluster
from tracelake.client.http import HttpReply
from tracelake.dispatcher.config import DispatcherConfig
from tracelake.dispatcher.public_ids import PublicIds
from tracelake.wire.webhooks import signature_header

BODY = b'{"price": 7}'

_DAG = """\
name: {dag}
jobs:
  - name: {job}
    activation: source
    outputs: {outputs}
    source: {source}
  - name: work
    activation: reactive
    runtime: ecs_platform
    operator: noop
    inputs: [{{ from: {{ job: {job} }} }}]
"""


def dag_text(path: str, **fields: Any) -> str:
    source = f"{{ kind: webhook, webhook_path: {path} }}"
    return _DAG.format(**({"dag": "alerts", "job": "hook", "outputs": 1, "source": source} | fields))


UNLIMITED = dispatcher_config(
    user_rate_per_second=10**6, user_rate_burst=10**6, webhook_rate_per_second=10**6, webhook_rate_burst=10**6
)


@contextmanager
def running(
    cluster: TestCluster, home: Path, config: DispatcherConfig = UNLIMITED, dispatchers: int = 1
) -> Iterator[list[DispatcherHarness]]:
    """Dispatchers on the same databases, with a clock that can be moved."""
    dsns = cluster.fresh("state"), cluster.fresh("queue", role="trace_queue")
    started = [DispatcherHarness.start(*dsns, home, config) for _ in range(dispatchers)]
    started[0].use_movable_clock()
    try:
        yield started
    finally:
        for harness in started:
            harness.stop()
        for dsn in dsns:
            asyncio.run(cluster.drop(dsn))


@dataclass
class Hook:
    """The webhook of `alerts/hook` of an org of its own."""

    harness: DispatcherHarness
    org: str = field(default_factory=fresh)
    path: str = ""
    dag: str = "alerts"
    job: str = "hook"
    outputs: int = 1

    def __post_init__(self) -> None:
        self.path = self.path or f"{self.org}/prices-1".replace("_", "-")

    def text(self, **fields: Any) -> str:
        return dag_text(self.path, **({"dag": self.dag, "job": self.job, "outputs": self.outputs} | fields))

    def deploy(self, **fields: Any) -> "Hook":
        dags.deploy(self.harness, self.text(**fields), self.org)
        return self

    @property
    def where(self) -> str:
        return f"/v1/webhooks/{self.path}"

    def user(self, method: str, path: str, role: str = "admin") -> Reply:
        token = user_token(self.harness, org=self.org, roles=[role])
        head = {"authorization": f"Bearer {token}"}
        return self.harness.call("public", method, f"/v1/dags/{self.dag}/jobs/{self.job}{path}", None, head)

    def secret(self) -> str:
        reply = self.user("GET", "/webhook")
        assert reply.status == 200, reply
        secret: str = reply.body["secret"]
        return secret

    def quiet_secret(self) -> str:
        """The same, without the look that is audited."""
        row = next(row for row in self.rows("SELECT * FROM webhooks") if row["path"] == self.path)
        return self.harness.credentials.webhooks.secret(row["org_id"], self.dag, self.job, row["rotation"])

    def now(self) -> int:
        now = self.harness.sql("SELECT trace_now() AS now")[0]["now"]
        return int(now.timestamp())

    def head(
        self, body: bytes = BODY, delivery: str = "one", secrets: Sequence[str] = (), ahead: int = 0
    ) -> dict[str, str]:
        signature = signature_header(secrets or [self.secret()], self.now() + ahead, delivery, body)
        return {"x-trace-delivery": delivery, "x-trace-signature": signature}

    def send(self, body: bytes = BODY, delivery: str = "one", **signing: Any) -> Reply:
        return self.harness.call("public", "POST", self.where, body, self.head(body, delivery, **signing))

    def sent(self, body: bytes = BODY, delivery: str = "one", **signing: Any) -> Any:
        reply = self.send(body, delivery, **signing)
        assert reply.status == 200, reply
        return reply.body

    def raw(self, path: str, role: str = "writer") -> HttpReply:
        """The reply with its headers."""
        token = user_token(self.harness, org=self.org, roles=[role])
        head = [("authorization", f"Bearer {token}")]
        path = f"/v1/dags/{self.dag}/jobs/{self.job}{path}"
        return self.harness.run(self.harness.clients["public"].request("GET", path, headers=head))

    # What is in the tables

    def rows(self, query: str) -> list[dict[str, Any]]:
        found = self.harness.sql(f"{query} WHERE org_id = (SELECT org_id FROM orgs WHERE name = $1)", self.org)
        return [dict(row) for row in found]

    def events(self) -> list[dict[str, Any]]:
        return sorted(self.rows("SELECT * FROM events"), key=lambda row: row["event_id"])

    def event_ids(self) -> list[int]:
        """As the org sees them."""
        org_id = self.harness.sql("SELECT org_id FROM orgs WHERE name = $1", self.org)[0]["org_id"]
        ids = self.harness.run(PublicIds(self.harness.dispatcher.ports.store).of(org_id))
        return [ids.events.seal(event["event_id"]) for event in self.events()]

    def tasks(self) -> list[Any]:
        return [msgspec.json.decode(row["unit"]) for row in self.rows("SELECT * FROM tasks")]

    def deliveries(self) -> list[dict[str, Any]]:
        return self.rows("SELECT w.* FROM webhook_deliveries w JOIN nodes USING (node_id)")

    def audit(self) -> list[tuple[str, str]]:
        rows = sorted(self.rows("SELECT * FROM audit_log"), key=lambda row: row["audit_id"])
        return [(row["action"], row["target"]) for row in rows if row["action"].startswith("webhook.")]


def send_together(harnesses: list[DispatcherHarness], hook: Hook, sent: list[tuple[str, bytes]]) -> list[Reply]:
    """All at once, to the Dispatchers in turn; whoever is told to repeat it does."""
    secret, now = hook.secret(), hook.now()

    async def send(harness: DispatcherHarness, delivery: str, body: bytes) -> Reply:
        signature = signature_header([secret], now, delivery, body)
        head = {"x-trace-delivery": delivery, "x-trace-signature": signature}
        while True:
            reply = await harness.call_async("public", "POST", hook.where, body, head)
            if reply.status != 503:
                return reply

    # Each has an event loop of its own.
    calls = [(harnesses[index % len(harnesses)], *item) for index, item in enumerate(sent)]
    waiting = [asyncio.run_coroutine_threadsafe(send(*call), call[0].background.loop) for call in calls]
    return [future.result(60) for future in waiting]
