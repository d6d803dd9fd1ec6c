"""A whole runner with its listener, between a stand-in for the Dispatcher and one for the object store.

The runner is the real one: listener with TLS, slots, bundle cache, sandboxes, proxy, log and final report. The stand-in
answers final reports on a listener with TLS, hands out bundles and takes logs. All of it is in this process, but for
the fork server and the sandboxes.
"""

import asyncio
import hashlib
import io
import ssl
import time
import zipfile
from base64 import urlsafe_b64encode
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from uuid import UUID, uuid4

import msgspec
from tests.support.configs import listener_limits

from tracelake.adapters.local_invoker import LocalInvoker
from tracelake.adapters.shared_secrets import SharedSecret
from tracelake.client import FileCredential, HttpClient, InternalClient
from tracelake.http.server import ListenerServer
from tracelake.processes.runner import runner_config
from tracelake.runner.assembly import RunnerApplication, RunnerPorts
from tracelake.runner.egress import Destinations
from tracelake.runner.function import INSIDE, Egress, FunctionRunner, StopSignal
from tracelake.runner.languages import FunctionPlan
from tracelake.runner.memory import MemoryLimiter
from tracelake.runner.outcome import RunResult
from tracelake.runner.output import RunOutput
from tracelake.runner.runtime_api import RuntimeApi
from tracelake.runner.upstream import UpstreamService
from tracelake.sandbox.server import SandboxServer
from tracelake.settings import Settings
from tracelake.stack import listeners
from tracelake.stack.tls import TlsFiles, ensure_tls
from tracelake.tokens.token_claims import S3Grant
from tracelake.wire.claims import BundleRef, Invocation, InvokingOrg, LogAddresses
from tracelake.wire.task_calls import CompleteRequest
from tracelake.wire.units import JobRef

_ORG = InvokingOrg(org_id=UUID(int=1), name="bench")
_GRANT = S3Grant(read_prefixes=(), write_prefixes=(), buffer_prefix="", scratch_prefix="")
_REPORTS = msgspec.json.Decoder(CompleteRequest)


class StandIn:
    """Answers what a runner asks of a Dispatcher and of an object store."""

    def __init__(self, tls: TlsFiles) -> None:
        self._tls = tls
        self._archives: dict[str, bytes] = {}
        self._reports: dict[UUID, asyncio.Future[CompleteRequest]] = {}
        self._servers: list[asyncio.Server] = []

    async def start(self) -> None:
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        context.load_cert_chain(self._tls.certificate, self._tls.key)
        for security in (context, None):
            self._servers.append(await asyncio.start_server(self._serve, "127.0.0.1", 0, ssl=security))
        ports = [server.sockets[0].getsockname()[1] for server in self._servers]
        self.task_url, self.object_url = f"https://127.0.0.1:{ports[0]}", f"http://127.0.0.1:{ports[1]}"

    def add_bundle(self, language: str, files: Mapping[str, bytes]) -> BundleRef:
        buffer = io.BytesIO()
        with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
            for name, content in files.items():
                entry = zipfile.ZipInfo(name)
                entry.external_attr = (0o100755 if name == "bootstrap" else 0o100644) << 16
                archive.writestr(entry, content)
        digest = hashlib.sha256(buffer.getvalue()).hexdigest()
        self._archives[f"/{digest}"] = buffer.getvalue()
        fields = {"bundle_id": uuid4(), "url": f"{self.object_url}/{digest}", "sha256": digest, "language": language}
        limits = {"size_bytes": len(buffer.getvalue()), "timeout_seconds": 60, "memory_mb": 256}
        return msgspec.convert(fields | limits | {"entrypoint": "main.handler"}, BundleRef)

    def expect_report(self, task_id: UUID) -> asyncio.Future[CompleteRequest]:
        return self._reports.setdefault(task_id, asyncio.get_running_loop().create_future())

    def close(self) -> None:
        for server in self._servers:
            server.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                first, *lines = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
                headers = dict(line.lower().split(": ", 1) for line in lines if ": " in line)
                body = await reader.readexactly(int(headers.get("content-length", "0")))
                method, target, _ = first.split(" ")
                reply = self._answer(method, target, body)
                writer.write(f"HTTP/1.1 200 OK\r\ncontent-length: {len(reply)}\r\n\r\n".encode() + reply)
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()

    def _answer(self, method: str, target: str, body: bytes) -> bytes:
        if method == "GET":
            return self._archives[target]
        if target == "/v1/task/complete":
            report = _REPORTS.decode(body)
            self._reports.pop(report.task_id).set_result(report)
            return b'{"status":"Completed"}'
        return b"{}"


class RecordingRunner(FunctionRunner):
    """Remembers how the latest runs ended."""

    def __init__(self, sandboxes: SandboxServer, limiter: MemoryLimiter) -> None:
        super().__init__(sandboxes, limiter)
        self.results: list[RunResult] = []

    async def run(
        self,
        plan: FunctionPlan,
        api: RuntimeApi,
        egress: Egress,
        stop: StopSignal,
        secrets: Sequence[str] = (),
        output: RunOutput | None = None,
    ) -> RunResult:
        result = await super().run(plan, api, egress, stop, secrets, output)
        self.results.append(result)
        return result


class BenchRunner:
    """One runner with so many spares."""

    def __init__(self, stand_in: StandIn, home: Path, limiter: MemoryLimiter, tls: TlsFiles, *, spares: int) -> None:
        self.stand_in = stand_in
        self.sandboxes = SandboxServer(INSIDE, spares=spares)
        self.functions = RecordingRunner(self.sandboxes, limiter)
        self._home = home
        self._tls = tls

    async def start(self) -> None:
        await self.sandboxes.start()
        settings = Settings.load({"home": self._home}, environ={})
        secret = SharedSecret.ensure(self._home / "keys", "service")
        self._http = HttpClient(self.stand_in.task_url, self._tls.ca)
        tasks = UpstreamService(self.stand_in.task_url, str(self._tls.ca))
        self._application = RunnerApplication(
            RunnerPorts(
                functions=self.functions,
                tasks=self._http,
                destinations=Destinations(tasks=tasks, queries=None, objects=None),
                directory=self._home / "runner",
                service_secret=secret,
            ),
            runner_config(settings),
        )
        sockets = listeners.bind(settings, names=listeners.RUNNER_LISTENERS)
        self._server = ListenerServer(
            self._application.app,
            sockets["runner"],
            certificate=self._tls.certificate,
            private_key=self._tls.key,
            limits=listener_limits(),
        )
        await self._server.start()
        client = HttpClient(listeners.url(sockets["runner"], "127.0.0.1"), self._tls.ca)
        internal = InternalClient(client, service=FileCredential(secret.token_file))
        self._invoker = LocalInvoker(self.stand_in.task_url, self._tls.ca, internal)

    async def invoke(self, bundle: BundleRef) -> None:
        """From the Dispatcher's call to the arrival of the final report."""
        invocation = make_invocation(bundle, self.stand_in.object_url)
        report = self.stand_in.expect_report(invocation.task_id)
        await self._invoker.invoke(invocation)
        assert (await report).status == "Completed", await report

    @property
    def cpu_seconds(self) -> float:
        """Of this process, of the fork server, and of the sandboxes that have ended, with their monitors."""
        assert self.sandboxes.pid is not None
        server = time.clock_gettime((~self.sandboxes.pid << 3) | 2)  # the clock of that process
        return time.process_time() + server + sum(result.cpu_seconds for result in self.functions.results)

    async def close(self) -> None:
        await self._invoker.close()
        await self._server.stop()
        await self._application.close()
        await self._http.close()
        await self.sandboxes.close()


def make_invocation(bundle: BundleRef, object_url: str) -> Invocation:
    task_id = uuid4()
    claims = urlsafe_b64encode(msgspec.json.encode({"s3": _GRANT})).decode().rstrip("=")
    return Invocation(
        task_id=task_id,
        attempt=1,
        job=JobRef(dag_name="bench", name="function"),
        operator="udf",
        config={},
        inputs=[],
        outputs=[],
        lease_token=uuid4(),
        lease_expires_at=datetime.now(UTC) + timedelta(minutes=5),
        capability_token=f"e30.{claims}.c2ln",
        bundle_url=bundle.url,
        bundle=bundle,
        org=_ORG,
        log=LogAddresses(
            running_url=f"{object_url}/{task_id}/running?signature=a",
            final_url=f"{object_url}/{task_id}/final?signature=b",
        ),
    )


def make_tls(home: Path) -> TlsFiles:
    return ensure_tls(home / "tls", "127.0.0.1")
