"""A runner with its listener beside a real Dispatcher, and bundles that a local server hands out."""

import hashlib
import io
import threading
import zipfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import msgspec

from tests.conformance.invoker_suite import Started, claimed
from tests.support.configs import listener_limits
from tests.support.dispatcher import DispatcherHarness
from tracelake.adapters.local_invoker import LocalInvoker
from tracelake.client import FileCredential, HttpClient, InternalClient
from tracelake.http.server import ListenerServer
from tracelake.processes.runner import runner_config
from tracelake.runner.assembly import RunnerApplication, RunnerPorts
from tracelake.runner.egress import Destinations
from tracelake.runner.function import INSIDE, FunctionRunner
from tracelake.runner.memory import MemoryLimiter
from tracelake.runner.self_test import check_isolation
from tracelake.runner.upstream import UpstreamService
from tracelake.sandbox.server import SandboxServer
from tracelake.settings import Settings
from tracelake.stack import listeners
from tracelake.wire.claims import BundleRef, Invocation, InvokingOrg

ORG = UUID("01890000-0000-7000-8000-00000000000a")
SETTINGS: dict[str, Any] = {"runner_heartbeat_seconds": 0.2, "runner_wait_seconds": 2}


class BundleStore:
    """Serves archives by their SHA-256, as presigned addresses do."""

    def __init__(self) -> None:
        self.archives: dict[str, bytes] = {}
        store = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                body = store.archives.get(self.path.strip("/"))
                self.send_response(200 if body is not None else 404)
                self.send_header("content-length", str(len(body or b"")))
                self.end_headers()
                self.wfile.write(body or b"")

            def log_message(self, *arguments: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def add(self, files: Mapping[str, str | bytes], language: str = "python", **fields: Any) -> BundleRef:
        buffer = io.BytesIO()
        with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
            for name, content in files.items():
                entry = zipfile.ZipInfo(name)
                entry.external_attr = (0o100755 if name == "bootstrap" else 0o100644) << 16
                archive.writestr(entry, content)
        data = buffer.getvalue()
        digest = hashlib.sha256(data).hexdigest()
        self.archives[digest] = data
        values: dict[str, Any] = {
            "bundle_id": uuid4(),
            "url": f"http://127.0.0.1:{self._server.server_port}/{digest}",
            "sha256": digest,
            "size_bytes": len(data),
            "language": language,
            "entrypoint": "main.handler",
            "timeout_seconds": 30,
            "memory_mb": 128,
        }
        return BundleRef(**(values | fields))

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


@dataclass
class RunnerHarness:
    """One runner that serves its listener, in the event loop of the Dispatcher's harness."""

    dispatcher: DispatcherHarness
    store: BundleStore
    sandboxes: SandboxServer = field(default_factory=lambda: SandboxServer(INSIDE, spares=1))
    application: RunnerApplication = field(init=False)
    invoker: LocalInvoker = field(init=False)

    async def open(self, directory: Path) -> None:
        self.directory = directory
        harness = self.dispatcher
        settings = Settings.load({"home": harness.home} | SETTINGS, environ={})
        functions = FunctionRunner(self.sandboxes, MemoryLimiter.choose())
        problem = await check_isolation(self.sandboxes, functions)
        sockets = listeners.bind(settings, names=listeners.RUNNER_LISTENERS)
        task_url = listeners.url(harness.sockets["task"], "127.0.0.1")
        self._http = HttpClient(task_url, harness.tls.ca)
        self.application = RunnerApplication(
            RunnerPorts(
                functions=functions,
                tasks=self._http,
                destinations=Destinations(
                    tasks=UpstreamService(task_url, str(harness.tls.ca)), queries=None, objects=None
                ),
                directory=directory,
                service_secret=harness.credentials.service,
                problem=problem,
            ),
            runner_config(settings),
        )
        self._server = ListenerServer(
            self.application.app,
            sockets["runner"],
            certificate=harness.tls.certificate,
            private_key=harness.tls.key,
            limits=listener_limits(),
        )
        await self._server.start()
        self.url = listeners.url(sockets["runner"], "127.0.0.1")
        credential = FileCredential(harness.credentials.service.token_file)
        client = InternalClient(HttpClient(self.url, harness.tls.ca), service=credential)
        self.invoker = LocalInvoker(task_url, harness.tls.ca, client)

    async def close(self) -> None:
        await self.invoker.close()
        await self._server.stop()
        await self.application.close()
        await self._http.close()
        await self.sandboxes.close()

    def invocation(self, bundle: BundleRef | None) -> Started:
        started = claimed(self.dispatcher, "udf")
        org = InvokingOrg(org_id=ORG, name="acme")
        invocation = msgspec.structs.replace(started.invocation, bundle=bundle, org=org)
        return Started(self.dispatcher, invocation)

    def run(self, source: str, **fields: Any) -> Started:
        """Invokes a Python function and waits for its end."""
        started = self.invocation(self.store.add({"main.py": source}, **fields))
        self.dispatcher.run(self.invoke(started.invocation))
        self.dispatcher.run(self.application.service.settle())
        return started

    async def invoke(self, invocation: Invocation) -> None:
        await self.invoker.invoke(invocation)

    def samples(self) -> Callable[..., float]:
        """Adds up the samples of a name that have these labels."""
        families = list(self.application.metrics.registry.collect())

        def add_up(name: str, **labels: str) -> float:
            samples = [sample for family in families for sample in family.samples if sample.name == name]
            return sum(sample.value for sample in samples if labels.items() <= sample.labels.items())

        return add_up

    def endings(self) -> dict[str, float]:
        """Runs by ending."""
        (family,) = self.application.metrics.runs.collect()
        return {sample.labels["ending"]: sample.value for sample in family.samples if sample.name.endswith("_total")}


@contextmanager
def running(dispatcher: DispatcherHarness, directory: Path) -> Iterator[RunnerHarness]:
    runner = RunnerHarness(dispatcher, BundleStore())
    dispatcher.run(runner.open(directory))
    try:
        yield runner
    finally:
        dispatcher.run(runner.close())
        runner.store.close()
