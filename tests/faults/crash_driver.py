"""The other side of `crashing_dispatcher`: keeps it running, with callers that repeat a call until it is answered."""

import asyncio
import os
import signal
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import msgspec

from tracelake.adapters.postgres_queue import PostgresQueue
from tracelake.client.errors import DispatcherUnavailableError
from tracelake.client.http import HttpClient
from tracelake.ports import QueueUnavailableError
from tracelake.settings import Settings
from tracelake.settings.home import Home
from tracelake.stack import listeners
from tracelake.stack.credentials import LiteCredentials
from tracelake.stack.tls import ensure_tls

ROOT = Path(__file__).resolve().parents[2]
PATIENCE = 30.0


class CrashDriver:
    """One home, one set of listening sockets, and whichever Dispatcher process serves them now."""

    def __init__(self, home: Path, state_dsn: str, queue_dsn: str) -> None:
        Home(home).make()
        self.home = home
        settings = Settings.load({"home": home}, environ={})
        tls = ensure_tls(home / "tls", *settings.bind_hosts)
        self.credentials = LiteCredentials.ensure(home / "keys")
        self.sockets = listeners.bind(settings)
        self.environment = {
            "PATH": os.environ["PATH"],
            "PYTHONPATH": os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]),
            "TRACE_HOME": str(home),
            "TRACE_STATE_DSN": state_dsn,
            "TRACE_QUEUE_DSN": queue_dsn,
            "TRACE_S3_ENDPOINT": "http://127.0.0.1:1",
            "TRACE_RETRY_SECONDS": "0.05",
            "TRACE_RETRY_MIN_SECONDS": "0.05",
            "TRACE_RETRY_MAX_SECONDS": "0.1",
            "TRACE_RELAY_POLL_SECONDS": "0.1",
            listeners.VARIABLE: listeners.to_variable(self.sockets),
        }
        self.clients = {
            name: HttpClient(listeners.url(sock, settings.bind_host_of(name)), tls.ca)
            for name, sock in self.sockets.items()
        }
        self.queue = PostgresQueue(queue_dsn, poll_seconds=0.1)
        self.pid: int | None = None
        self.crashes = 0
        self.woken: Counter[str] = Counter()
        self._serving = asyncio.Event()
        self._failpoint = "never 0"

    async def __aenter__(self) -> "CrashDriver":
        self._process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "tests.faults.crashing_dispatcher",
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=(self.home / "dispatcher.log").open("ab"),
            env=self.environment,
            cwd=ROOT,
            pass_fds=[sock.fileno() for sock in self.sockets.values()],
        )
        self._keeper = asyncio.create_task(self._keep_running())
        return self

    async def __aexit__(self, *_: object) -> None:
        self._keeper.cancel()
        await asyncio.gather(self._keeper, return_exceptions=True)
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._kill()
        await asyncio.wait_for(self._process.wait(), 20)
        for client in self.clients.values():
            await client.close()
        await self.queue.close()
        for sock in self.sockets.values():
            sock.close()

    async def arm(self, point: str, number: int) -> None:
        """Kill what runs; what comes next dies at the given point."""
        await asyncio.wait_for(self._serving.wait(), PATIENCE)
        self._failpoint = f"{point} {number}"
        self._serving.clear()
        self._kill()
        await asyncio.wait_for(self._serving.wait(), PATIENCE)
        self.crashes = 0
        (self.home / "reached").write_text("")

    def reached(self) -> Counter[str]:
        return Counter((self.home / "reached").read_text().splitlines())

    def _kill(self) -> None:
        if self.pid is not None:
            os.kill(self.pid, signal.SIGKILL)
            self.pid = None

    async def _keep_running(self) -> None:
        """A supervisor: a failpoint is good for one life, the next one is an honest one."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        while True:
            self._process.stdin.write(f"{self._failpoint}\n".encode())
            self._failpoint = "never 0"
            started = (await self._process.stdout.readline()).split()
            assert started[:1] == [b"started"], started
            self.pid = int(started[1])
            self._serving.set()
            ended = await self._process.stdout.readline()
            assert ended == b"ended\n", ended
            self.pid = None
            self.crashes += 1

    async def call(self, listener: str, path: str, body: Any, headers: dict[str, str] | None = None) -> Any:
        """The answer to a call that is repeated until there is one; every call here may be."""
        data = msgspec.json.encode(body)
        deadline = time.monotonic() + PATIENCE
        while time.monotonic() < deadline:
            try:
                reply = await self.clients[listener].request(
                    "POST", path, body=data, headers=list((headers or {}).items()), timeout=10.0
                )
            except DispatcherUnavailableError:
                await asyncio.sleep(0.02)
                continue
            if reply.status != 503:
                assert reply.status == 200, (path, reply)
                return msgspec.json.decode(reply.body)
            await asyncio.sleep(0.02)
        raise AssertionError(f"no answer to {path}")

    async def service(self, path: str, body: Any) -> Any:
        token = self.credentials.service.token_file.read_text().strip()
        return await self.call("internal", path, body, {"x-trace-service-token": token})

    async def worker(self, path: str, body: Any) -> Any:
        token = self.credentials.worker.token_file.read_text().strip()
        return await self.call("internal", path, body, {"x-trace-worker-token": token})

    async def task(self, name: str, token: str, body: Any) -> Any:
        return await self.call("task", f"/v1/task/{name}", body, {"x-trace-task-capability": token})

    async def batch(self, calls: list[tuple[str, str, Any]]) -> list[Any]:
        """Like a wrapper: only the items without an answer are repeated."""
        answers: dict[int, Any] = {}
        deadline = time.monotonic() + PATIENCE
        while len(answers) < len(calls):
            assert time.monotonic() < deadline, "batch items without an answer"
            open_items = [index for index in range(len(calls)) if index not in answers]
            body = [
                {"call": calls[index][0], "capability_token": calls[index][1], "body": calls[index][2]}
                for index in open_items
            ]
            header = {"x-trace-task-capability": body[0]["capability_token"]}
            reply = await self.call("task", "/v1/task/batch", {"calls": body}, header)
            for index, answer in zip(open_items, reply["answers"], strict=True):
                if answer["status"] != 503:
                    assert answer["status"] == 200, answer
                    answers[index] = answer["body"]
        return [answers[index] for index in range(len(calls))]

    async def until_woken(self, queue: str, keys: list[str], times: int = 1) -> None:
        """Receive and acknowledge until each of these keys has been delivered that often."""
        deadline = time.monotonic() + PATIENCE
        while any(self.woken[key] < times for key in keys):
            assert time.monotonic() < deadline, f"no wake-up for {[key for key in keys if self.woken[key] < times]}"
            try:
                deliveries = await self.queue.receive(queue, 50, 30.0, 1.0)
                await self.queue.ack(deliveries)
            except QueueUnavailableError:
                continue
            self.woken.update(delivery.key for delivery in deliveries)
