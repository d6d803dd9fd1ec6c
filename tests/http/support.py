"""Helpers of the HTTP tests: a claimed task with every kind of output, refusals that leave no trace, raw requests."""

import itertools
import socket
import ssl
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

import msgspec

from tests.support.dispatcher import DispatcherHarness, Reply, fence
from tracelake.dispatcher.http.credentials import Gatekeeper
from tracelake.errors import CATALOGUE
from tracelake.http.router import HttpRequest
from tracelake.stack.credentials import user_token as make_token

TABLES = (
    "orgs", "datasets", "dataset_versions", "jobs", "job_outputs", "tasks", "task_attempts", "events", "manifests",
    "dataset_units", "buffer_publishes", "outbox", "dag_versions", "dags", "activations", "nodes", "dag_version_jobs",
    "dataset_pointers", "edges", "dataset_runs", "dataset_keys", "unit_revisions", "invalidations", "limits",
    "triggers", "invalidation_work", "audit_log", "source_state", "webhooks", "webhook_deliveries",
    "spark_metrics",
)  # fmt: skip
NOWHERE = "00000000-0000-4000-8000-000000000000"
CAPABILITY, WORKER, SERVICE = "x-trace-task-capability", "x-trace-worker-token", "x-trace-service-token"

_counter = itertools.count()
_CONTENT = " UNION ALL ".join(
    f"SELECT '{table}', count(*), md5(coalesce(string_agg(t::text, E'\\n' ORDER BY t::text), '')) FROM {table} t"
    for table in TABLES
)
# What a body must never show: statements, file names, code, credentials, or the words of what lies below.
_LEAKS = (
    "select ",
    "insert ",
    "update ",
    "traceback",
    ".py",
    "asyncpg",
    "postgres:",
    "/objects",
    "/home",
    "/tmp",
    tempfile.gettempdir().lower(),
    "eyj",
)


def fresh(prefix: str = "org") -> str:
    return f"{prefix}_{next(_counter)}"


def user_token(
    harness: DispatcherHarness,
    *,
    org: str = "acme",
    subject: str = "admin",
    roles: Sequence[str] = ("admin",),
    dags: Sequence[str] | None = None,
) -> str:
    now = harness.sql("SELECT trace_now() AS now")[0]["now"]
    keys, rules = harness.credentials.user_keys, harness.config.user_tokens
    return make_token(keys, rules, subject=subject, org=org, roles=roles, now=now, dags=dags)


def content(harness: DispatcherHarness) -> list[tuple[Any, ...]]:
    """Every row of every table, as a checksum."""
    return [tuple(row) for row in harness.sql(_CONTENT)]


@dataclass(frozen=True)
class Claimed:
    """A running attempt of a job with one output of each storage."""

    harness: DispatcherHarness
    task_id: str
    job: Any
    lease: Any

    @property
    def token(self) -> str:
        token: str = self.lease["capability_token"]
        return token

    def output(self, storage: str) -> dict[str, Any]:
        """`dataset_uuid` and `dataset_version` of the output with that storage."""
        index = ("s3", "postgres", "buffered", "none").index(storage)
        return {key: self.job["outputs"][index][key] for key in ("dataset_uuid", "dataset_version")}

    def where(self, storage: str) -> Any:
        index = ("s3", "postgres", "buffered", "none").index(storage)
        return self.lease["task"]["outputs"][index]["storage"]

    def body(self, **fields: Any) -> dict[str, Any]:
        return fence(self.task_id, self.lease, **fields)

    def call(self, call: str, **fields: Any) -> Reply:
        return self.harness.task(call, self.token, self.body(**fields))

    def put(self, uri: str, data: bytes = b"{}\n") -> None:
        self.harness.run(self.harness.objects.put(uri, data))

    def publication(self, **fields: Any) -> dict[str, Any]:
        """A publication of the s3 output. The files are not written by this."""
        bucket, _, prefix = self.where("s3")["write_prefix"].removeprefix("s3://").partition("/")
        ref = {"scheme": "s3", "bucket": bucket, "prefix": prefix, "glob": "*.parquet"}
        return self.output("s3") | {"storage_ref": ref} | fields

    def write_files(self) -> None:
        prefix = self.where("s3")["write_prefix"]
        self.put(prefix + "blocks_0_9.parquet", b"PAR1")
        self.put(prefix + "_SUCCESS", b"")


def make_job(harness: DispatcherHarness, org: str | None = None, **fields: Any) -> Any:
    outputs = [{"name": f"{kind}_set", "storage": kind} for kind in ("s3", "postgres", "buffered", "none")]
    return harness.make_job(org=org or fresh(), **({"outputs": outputs} | fields))


def claimed(harness: DispatcherHarness, job: Any = None, **fields: Any) -> Claimed:
    job = job or make_job(harness)
    task_id = harness.make_task(job["job_id"], **fields)
    lease = harness.claim(task_id).body
    assert lease["status"] == "Claimed", lease
    return Claimed(harness, task_id, job, lease)


class Refusals:
    """Checks that a call is refused, says why, leaks nothing, and changes no row of any table."""

    def __init__(self, harness: DispatcherHarness) -> None:
        self.harness = harness

    def __enter__(self) -> "Refusals":
        self._before = content(self.harness)
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            assert content(self.harness) == self._before

    def check(self, reply: Reply, status: int, code: str, field: str | None = None) -> Any:
        assert (reply.status, reply.code) == (status, code), reply
        assert CATALOGUE[code].status == status
        error = reply.body["error"]
        assert set(reply.body) == {"error"}
        assert set(error) == {"code", "message", "details"}
        if field is not None:
            assert error["details"].get("field") == field, error
        check_leaks(reply.body)
        return error


def check_leaks(body: Any) -> None:
    text = msgspec.json.encode(body).decode().lower()
    assert not [leak for leak in _LEAKS if leak in text], text


def raw_request(
    harness: DispatcherHarness, listener: str, head: str, body: bytes = b"", *, hang_up: bool = False
) -> tuple[int, bytes]:
    """Send exactly these bytes; answers `(status, body)`, or `(0, b"")` when the connection ends without a reply."""
    try:
        return _exchange(harness, listener, head.replace("\n", "\r\n").encode("latin-1") + b"\r\n\r\n" + body, hang_up)
    except (ConnectionError, ssl.SSLError):
        return 0, b""


def _exchange(harness: DispatcherHarness, listener: str, data: bytes, hang_up: bool) -> tuple[int, bytes]:
    client = harness.clients[listener]
    context = ssl.create_default_context(cafile=str(harness.tls.ca))
    with (
        socket.create_connection((client._host, client._port), timeout=30) as plain,
        context.wrap_socket(plain, server_hostname=client._host) as tls,
    ):
        tls.sendall(data)
        if hang_up:
            return 0, b""
        answer = b""
        while b"\r\n\r\n" not in answer and (chunk := tls.recv(65536)):
            answer += chunk
        if not answer:
            return 0, b""
        top, _, rest = answer.partition(b"\r\n\r\n")
        length = next(
            int(line.split(b":")[1]) for line in top.split(b"\r\n") if line.lower().startswith(b"content-length:")
        )
        while len(rest) < length and (chunk := tls.recv(65536)):
            rest += chunk
        return int(top.split(b" ")[1]), rest


def raw_reply(harness: DispatcherHarness, listener: str, head: str, body: bytes = b"") -> Reply:
    status, data = raw_request(harness, listener, head, body)
    return Reply(status, msgspec.json.decode(data))


def head_of(method: str, path: str, headers: Mapping[str, str]) -> str:
    lines = [f"{method} {quote(path, safe='/?=&%')} HTTP/1.1", "host: localhost"]
    return "\n".join([*lines, *(f"{name}: {value}" for name, value in headers.items())])


class OpenGate(Gatekeeper):
    """Admits everybody."""

    def __init__(self) -> None:
        pass

    async def admit(self, request: HttpRequest[Any], header: Callable[[str], str | None]) -> None:
        pass
