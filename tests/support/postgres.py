"""A real Postgres for tests: one cluster per session, a fresh migrated database per test.

The cluster runs without fsync and dies with the test process. A database is a file copy of a template that
was migrated once, so a fresh one costs tens of milliseconds.
"""

import asyncio
import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, TypeVar

import asyncpg

from tracelake.stack.machine import free_port
from tracelake.stack.postgres import DATA_DATABASES, STATE_DATABASES, DatabaseSpec, EmbeddedPostgres
from tracelake.stack.provision import grant_connect, migrate_dsn, provision

T = TypeVar("T")

# As in the product, but the roles may also reach the copies ("state_1", ...).
TEST_DATABASES = tuple(
    replace(spec, access=f'"/^{spec.name}(_[0-9]+)?$"') for spec in (*STATE_DATABASES, *DATA_DATABASES)
)


def run(coroutine: Coroutine[Any, Any, T]) -> T:
    return asyncio.run(coroutine)


WAIT_SECONDS = 180.0
"""How long a test waits for what must happen. Generous: only a failure takes that long, and CI machines can be slow."""


def wait_until(
    condition: Callable[[], bool],
    what: str,
    timeout: float = WAIT_SECONDS,
    *,
    interval: float = 0.02,
    report: Callable[[], str] | None = None,
) -> None:
    """Polls until the condition holds. A timeout is a failure that names what was awaited and adds the report."""
    deadline = time.monotonic() + timeout
    while not condition():
        if time.monotonic() > deadline:
            details = "" if report is None else f"\n{report()}"
            raise AssertionError(f"timed out after {timeout:g} s waiting for {what}{details}")
        time.sleep(interval)


def wait_ready(cluster: EmbeddedPostgres, process: "subprocess.Popen[bytes]", timeout: float = WAIT_SECONDS) -> None:
    def ready() -> bool:
        if process.poll() is not None:
            raise AssertionError(f"postgres ended with {process.returncode}: {cluster.log_file.read_text()}")
        return run(cluster.ready())

    wait_until(ready, f"postgres {cluster.name}", timeout)


def stop(process: "subprocess.Popen[bytes]") -> None:
    if process.poll() is None:
        process.send_signal(signal.SIGINT)
        try:
            process.wait(timeout=30)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait(timeout=30)


def make_cluster(root: Path, databases: tuple[DatabaseSpec, ...], name: str = "state") -> EmbeddedPostgres:
    return EmbeddedPostgres(
        name=name,
        data_dir=root / "cluster",
        socket_dir=root / "s",
        secrets_dir=root / "secrets",
        log_file=root / "postgres.log",
        port=free_port(),
        databases=databases,
        durable=False,
    )


def scratch_directory() -> Path:
    """Short enough for unix sockets whatever the name of the test is."""
    return Path(tempfile.mkdtemp(prefix="trace-test-"))


async def _sample_whole_tables(cluster: EmbeddedPostgres) -> None:
    """Makes ANALYZE read every row of a table of 150,000, so that plans do not depend on a random sample."""
    connection = await asyncpg.connect(cluster.superuser_dsn())
    try:
        await connection.execute("ALTER ROLE ALL SET default_statistics_target = 500")
    finally:
        await connection.close()


@dataclass
class TestCluster:
    """The session's cluster. `fresh` answers the owner's DSN of a new database made from a template."""

    __test__ = False

    root: Path
    cluster: EmbeddedPostgres
    process: "subprocess.Popen[bytes]"
    count: int = 0
    migrated: set[str] = field(default_factory=set)

    @classmethod
    def start(cls, *, durable: bool = False) -> "TestCluster":
        """`durable`: with fsync, for benchmarks."""
        root = scratch_directory()
        cluster = replace(make_cluster(root, TEST_DATABASES), durable=durable)
        process = None
        try:
            process = cluster.start()
            wait_ready(cluster, process)
            run(provision(cluster))
            run(_sample_whole_tables(cluster))
        except BaseException:
            if process is not None:
                stop(process)
            shutil.rmtree(root, ignore_errors=True)
            raise
        return cls(root, cluster, process)

    def stop(self) -> None:
        stop(self.process)
        shutil.rmtree(self.root, ignore_errors=True)

    def fresh(self, kind: Literal["state", "queue", "data"], *, role: str | None = None) -> str:
        return run(self.fresh_async(kind, role=role))

    async def fresh_async(self, kind: Literal["state", "queue", "data"], *, role: str | None = None) -> str:
        spec = next(spec for spec in TEST_DATABASES if spec.name == kind)
        if kind not in self.migrated:
            await migrate_dsn(self.cluster.dsn(spec.owner, kind), kind, users=spec.users)
            self.migrated.add(kind)
        self.count += 1
        copy = replace(spec, name=f"{kind}_{self.count}")
        conn = await asyncpg.connect(self.cluster.superuser_dsn())
        try:
            await conn.execute(
                f'CREATE DATABASE "{copy.name}" OWNER "{spec.owner}" TEMPLATE "{kind}" STRATEGY FILE_COPY'
            )
            await grant_connect(conn, copy)
        finally:
            await conn.close()
        return self.cluster.dsn(role or spec.owner, copy.name)

    def empty(self) -> str:
        """The owner's DSN of a new database with nothing in it."""

        async def create(name: str) -> None:
            conn = await asyncpg.connect(self.cluster.superuser_dsn())
            try:
                await conn.execute(f'CREATE DATABASE "{name}" OWNER trace_state')
            finally:
                await conn.close()

        self.count += 1
        run(create(f"state_{self.count}"))
        return self.cluster.dsn("trace_state", f"state_{self.count}")

    def user_dsn(self, owner_dsn: str, role: str) -> str:
        """The same database by another role."""
        database = owner_dsn.split("@/", 1)[1].split("?", 1)[0]
        return self.cluster.dsn(role, database)

    async def drop(self, dsn: str) -> None:
        """Give the disk back; whoever is still connected is thrown out."""
        database = dsn.split("@/", 1)[1].split("?", 1)[0]
        conn = await asyncpg.connect(self.cluster.superuser_dsn())
        try:
            await conn.execute(f'DROP DATABASE IF EXISTS "{database}" WITH (FORCE)')
        finally:
            await conn.close()


def pid_alive(pid: int) -> bool:
    """Whether the process still does anything; one that ended but was not yet collected does not."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except FileNotFoundError:
        return not Path("/proc/self/stat").exists()
