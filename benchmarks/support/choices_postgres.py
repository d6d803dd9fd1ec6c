"""An embedded cluster as the product runs it (fsync on): how long it takes to make, start, and start again."""

import asyncio
import os
import platform
import shutil
import signal
import subprocess
import tempfile
import time
from pathlib import Path
from types import TracebackType

import asyncpg

from tracelake.stack.machine import free_port
from tracelake.stack.postgres import STATE_DATABASES, EmbeddedPostgres
from tracelake.stack.provision import migrate_dsn, provision


class Cluster:
    """A durable cluster in a scratch directory that is removed at the end."""

    def __init__(self) -> None:
        self._root = Path(tempfile.mkdtemp(prefix="trace-bench-"))
        self.postgres = EmbeddedPostgres(
            name="state",
            data_dir=self._root / "cluster",
            socket_dir=self._root / "s",
            secrets_dir=self._root / "secrets",
            log_file=self._root / "postgres.log",
            port=free_port(),
            databases=STATE_DATABASES,
        )
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> "Cluster":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()
        shutil.rmtree(self._root, ignore_errors=True)

    async def start(self) -> float:
        """Seconds from the call to the first accepted connection. What a killed server left is cleared too."""
        started = time.perf_counter()
        self._process = self.postgres.start()
        while not await self.postgres.ready():
            if self._process.poll() is not None:
                raise RuntimeError(f"postgres ended: {self.postgres.log_file.read_text()[-2000:]}")
            await asyncio.sleep(0.005)
        return time.perf_counter() - started

    def stop(self) -> None:
        self._end(signal.SIGINT)

    def kill(self) -> None:
        self._end(signal.SIGKILL)

    def _end(self, number: signal.Signals) -> None:
        if self._process is not None:
            self._process.send_signal(number)
            self._process.wait(60)
            self._process = None

    async def migrated(self) -> str:
        """The DSN of its state database, with roles and tables."""
        await provision(self.postgres)
        dsn = self.postgres.dsn("trace_state", "state")
        await migrate_dsn(dsn, "state")
        return dsn


async def life() -> dict[str, float]:
    """One cluster from nothing to recovery, in seconds."""
    with Cluster() as cluster:
        started = time.perf_counter()
        cluster.postgres.prepare()
        seconds = {"initdb": time.perf_counter() - started, "first_start": await cluster.start()}
        dsn = await cluster.migrated()
        cluster.stop()
        seconds["restart"] = await cluster.start()
        # Something to recover: commits that no checkpoint has seen, and sessions that are still open.
        connections = [await asyncpg.connect(dsn) for _ in range(8)]
        for number in range(200):
            await connections[number % 8].execute("INSERT INTO orgs VALUES (gen_random_uuid(), $1)", f"org_{number}")
        cluster.kill()
        seconds["start_after_kill"] = await cluster.start()
        for connection in connections:
            connection.terminate()
        check = await asyncpg.connect(dsn)
        assert await check.fetchval("SELECT count(*) FROM orgs") == 200, "a commit was lost"
        await check.close()
        return seconds


def machine() -> str:
    """What the figures were taken on, without naming it."""
    version = ".".join(platform.python_version_tuple()[:2])
    return f"{len(os.sched_getaffinity(0))} cores, {os.uname().machine}, Python {version}"
