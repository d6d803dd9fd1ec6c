"""A person at a terminal: the home that leads to a real Query Service, and `trace query` as a process."""

import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import msgspec
import pytest

from tests.http.support import fresh, user_token
from tests.query.support import ServiceHarness
from tests.routing.support import Flow
from tests.support.dispatcher import DispatcherHarness
from tests.support.postgres import TestCluster
from tests.support.terminal import TerminalSession
from tracelake.client.stack import LocalStack, ObjectStoreAddress
from tracelake.stack import listeners


@dataclass
class Person:
    """Somebody of an org, and the home that leads to the service."""

    service: ServiceHarness
    flow: Flow
    home: Path

    @property
    def environment(self) -> dict[str, str]:
        kept = {
            name: value for name, value in os.environ.items() if not name.startswith(("TRACE_", "COLUMNS", "LINES"))
        }
        state = {"XDG_STATE_HOME": str(self.home / "state"), "TERM": "xterm-256color"}
        return kept | state | {"TRACE_HOME": str(self.home)}

    def command(self, *arguments: str) -> list[str]:
        return [sys.executable, "-P", "-m", "tracelake", "query", *arguments]

    def open(self, *arguments: str, columns: int = 80, **variables: str) -> TerminalSession:
        return TerminalSession(self.command(*arguments), self.environment | variables, columns=columns)

    def run(self, *arguments: str, stdin: str = "") -> "subprocess.CompletedProcess[str]":
        return subprocess.run(
            self.command(*arguments),
            env=self.environment,
            input=stdin,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )

    @property
    def running_queries(self) -> float:
        """Those of anybody; reading the catalog is none."""
        metric = next(iter(self.service.application.metrics.running_queries.collect()))
        return metric.samples[0].value

    def outcomes(self) -> list[str]:
        return [entry["outcome"] for entry in self.service.audits(self.flow.org)]


@contextmanager
def person_of(
    harness: DispatcherHarness, cluster: TestCluster, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Person]:
    """Of a new org, which has no datasets yet."""
    store = _serve_objects(harness.home / "objects")
    store_url = f"http://127.0.0.1:{store.server_port}"
    service = ServiceHarness.start(
        harness, tmp_path_factory.mktemp("query"), cluster.fresh("data"), store_url=store_url
    )
    flow = Flow(harness, fresh("asking"))
    home = tmp_path_factory.mktemp("home")
    (home / "token").write_text(user_token(harness, org=flow.org, subject="ann", roles=["reader"]))
    url = listeners.url(harness.sockets["public"], "127.0.0.1")
    stack = LocalStack(
        pid=os.getpid(),
        home=str(home),
        public_url=url,
        task_url=url,
        internal_url=url,
        ca_file=str(harness.tls.ca),
        worker_token_file="",
        service_token_file="",
        admin_token_file=str(home / "token"),
        queue_dsn_file="",
        data_dsn_file="",
        object_store=ObjectStoreAddress(endpoint=None, region="", buckets={}),
        query_url=service.urls["query"],
    )
    (home / "stack.json").write_bytes(msgspec.json.encode(stack))
    try:
        yield Person(service, flow, home)
    finally:
        service.stop()
        store.shutdown()
        store.server_close()


def _serve_objects(directory: Path) -> ThreadingHTTPServer:
    """Opens signed addresses, whatever their signature."""

    class Handler(SimpleHTTPRequestHandler):
        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Handler, directory=str(directory)))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return server
