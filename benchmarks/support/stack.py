"""The real stack for a benchmark: `trace up` in a scratch home, fsync and synchronous_commit on, TLS on."""

import asyncio
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import asyncpg

from tracelake.adapters.postgres_queue import PostgresQueue
from tracelake.client.credentials import FileCredential
from tracelake.client.http import HttpClient
from tracelake.client.internal import InternalClient
from tracelake.client.task import TaskClient
from tracelake.stack.machine import wrap


@dataclass
class Clients:
    """What one wrapper process holds."""

    internal: InternalClient
    task: TaskClient
    queue: PostgresQueue

    async def close(self) -> None:
        await self.internal.close()
        await self.task.close()
        await self.queue.close()


def _environment() -> dict[str, str]:
    """Nothing of the person's own settings: a benchmark must not reach a database that is not its own."""
    return {name: value for name, value in os.environ.items() if not name.startswith("TRACE_")}


class BenchStack:
    query_service = False
    workers = False

    def __init__(self, **settings: str) -> None:
        self._settings = settings
        self.home = Path(tempfile.mkdtemp(prefix="trace-bench-"))
        self._process: subprocess.Popen[str] | None = None
        self.info: dict[str, Any] = {}

    @classmethod
    def attached(cls, home: Path, info: dict[str, Any]) -> Self:
        """One that another process runs."""
        stack = cls.__new__(cls)
        stack._settings, stack._process = {}, None
        stack.home, stack.info = home, info
        return stack

    def __enter__(self) -> Self:
        self._process = subprocess.Popen(
            wrap(
                [
                    sys.executable,
                    "-m",
                    "tracelake",
                    "up",
                    "--home",
                    str(self.home),
                    *(() if self.workers else ("--no-workers",)),
                    "--json",
                    f"--set=query_service={str(self.query_service).lower()}",
                    "--set=runner=false",
                ],
                death_signal=signal.SIGTERM,
            ),
            env=_environment() | self._settings,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError("the stack did not start; see its messages above")
        self.info = json.loads(line)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._process is not None:
            self._process.send_signal(signal.SIGTERM)
            self._process.wait(60)
        shutil.rmtree(self.home, ignore_errors=True)

    @property
    def state_dsn(self) -> str:
        return (self.home / "secrets" / "state.dsn").read_text().strip()

    @property
    def queue_dsn(self) -> str:
        return (self.home / "secrets" / "queue.dsn").read_text().strip()

    def clients(self, *, internal_url: str | None = None, task_url: str | None = None) -> Clients:
        """Acks and receives are durable here, as everything else: synchronous_commit is on for all eight steps."""
        ca = self.info["ca_file"]
        internal = HttpClient(internal_url or self.info["internal_url"], ca, max_connections=128)
        return Clients(
            internal=InternalClient(
                internal,
                worker=FileCredential(Path(self.info["worker_token_file"])),
                service=FileCredential(Path(self.info["service_token_file"])),
            ),
            task=TaskClient(HttpClient(task_url or self.info["task_url"], ca, max_connections=128)),
            queue=PostgresQueue(self.queue_dsn, durable_acks=True),
        )

    async def committed(self) -> int:
        """Transactions committed in the state database, once the idle sessions have reported theirs."""
        await asyncio.sleep(11)  # PGSTAT_IDLE_INTERVAL is 10 s; this is waiting for statistics, not for work
        connection = await asyncpg.connect(self.state_dsn)
        try:
            count: int = await connection.fetchval(
                "SELECT xact_commit FROM pg_stat_database WHERE datname = current_database()"
            )
            return count
        finally:
            await connection.close()


class SecondDispatcher:
    """Another Dispatcher on the same databases with other settings, on ports of its own."""

    def __init__(self, stack: BenchStack, **settings: str) -> None:
        self._stack = stack
        self._settings = settings
        self._process: subprocess.Popen[bytes] | None = None
        self.internal_url = ""
        self.task_url = ""

    async def start(self) -> None:
        from tracelake.settings import Settings
        from tracelake.stack import listeners

        settings = Settings.load({"home": self._stack.home}, environ={})
        sockets = listeners.bind(settings)
        self.internal_url = listeners.url(sockets["internal"], settings.bind_host_of("internal"))
        self.task_url = listeners.url(sockets["task"], settings.bind_host_of("task"))
        descriptors = tuple(sock.fileno() for sock in sockets.values())
        for descriptor in descriptors:
            os.set_inheritable(descriptor, True)
        log = (self._stack.home / "logs" / "second.log").open("ab")
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tracelake", "dispatcher", "--home", str(self._stack.home)],
            env=_environment() | self._settings | {listeners.VARIABLE: listeners.to_variable(sockets)},
            pass_fds=descriptors,
            stderr=log,
        )
        log.close()
        for sock in sockets.values():
            sock.close()
        client = HttpClient(self.internal_url, self._stack.info["ca_file"], timeout=60)
        reply = await client.request("GET", "/readyz")
        assert reply.status == 200
        await client.close()

    def stop(self) -> None:
        if self._process is not None:
            self._process.terminate()
            self._process.wait(30)
