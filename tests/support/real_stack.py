"""A real stack for tests: `trace up` as a process, commands against it, and the calls of workers and senders.

A timeout of `RealStack.wait_until` describes the stack: its parts, its unfinished tasks, the last lines of its logs.
"""

import json
import os
import shutil
import signal
import ssl
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import asyncpg

from tests.support.postgres import WAIT_SECONDS, run, scratch_directory, wait_until
from tracelake.client.stack import LocalStack
from tracelake.settings.home import Home
from tracelake.stack.machine import postgres_processes_in, socket_directory

ROOT = Path(__file__).resolve().parent.parent.parent

SHORT_TIMES = {
    "lease_seconds": "3",
    "heartbeat_seconds": "1",
    "retry_min_seconds": "0.2",
    "retry_max_seconds": "0.5",
    "max_attempts": "2",
    "outbox_retry_min_seconds": "0.1",
    "outbox_retry_max_seconds": "0.2",
    "outbox_max_tries": "2",
    "queue_visibility_seconds": "1",
    "queue_max_receives": "2",
    "reconcile_seconds": "1",
    "reconcile_grace_seconds": "1",
    "scheduler_poll_seconds": "0.5",
    "jwks_cache_seconds": "1",
}
RUNTIMES = '[runtimes.by_hand]\nkind = "queue"\n[runtimes.spare]\nkind = "queue"\n'
"""Runtimes that no worker takes from, unless a test starts one: tests claim the tasks of `by_hand` themselves."""

STOP_SECONDS = 180
LOG_LINES = 30
UNFINISHED = """
    SELECT j.dag_name, j.name, t.unit_key, t.task_id::text, t.status, t.attempt, t.max_attempts, t.error
    FROM tasks t JOIN jobs j USING (job_id) WHERE t.status NOT IN ('Completed', 'Canceled')
    ORDER BY t.task_id LIMIT 50"""


class RealStack:
    """A stack below a directory of its own. `settings` replace the short times; `variables` are of its environment."""

    def __init__(
        self, *, settings: Mapping[str, str] = SHORT_TIMES, variables: Mapping[str, str] | None = None
    ) -> None:
        self.root = scratch_directory()
        self.home = Home(self.root / "home")
        self.settings = {
            "workers": "1",
            "query_service": "false",
            "runner": "false",
            "runtimes_file": str(self.root / "runtimes.toml"),
            **settings,
        }
        self.variables = dict(variables or {})
        self.process: subprocess.Popen[str] | None = None
        self.files = Path(tempfile.mkdtemp(dir=self.root))
        """The current directory of the runbooks' commands."""
        (self.root / "runtimes.toml").write_text(RUNTIMES)
        (self.root / "bin").mkdir()
        program = self.root / "bin" / "trace"
        program.write_text(f'#!/bin/sh\nexec "{sys.executable}" -P -m tracelake "$@"\n')
        program.chmod(0o755)

    @property
    def environment(self) -> dict[str, str]:
        """Of whoever follows a page: `trace` is there, and knows its home."""
        spark = {name: value for name, value in os.environ.items() if name == "TRACE_SPARK_SPARE"}
        kept = {name: value for name, value in os.environ.items() if not name.startswith("TRACE_")}
        return (
            kept
            | spark
            | {f"TRACE_{name.upper()}": value for name, value in self.settings.items()}
            | {
                "TRACE_HOME": str(self.home.root),
                "PATH": f"{self.root / 'bin'}:{os.environ['PATH']}",
                "PYTHONPATH": f"{ROOT / 'src'}",
                "COLUMNS": "200",
            }
            | self.variables
        )

    # The stack

    @contextmanager
    def running(self) -> Iterator["RealStack"]:
        """From its start to its end. If nothing failed, it ends by SIGTERM, and well."""
        try:
            self.up()
            yield self
            self.down()
            assert self.process is not None
            assert self.process.returncode == 0, self.report()
            assert not self.home.stack_file.exists()
        finally:
            self.close()

    def up(self) -> None:
        with (self.root / "up.err").open("ab") as errors:
            self.process = subprocess.Popen(
                ["trace", "up", "--json"],
                env=self.environment,
                executable=str(self.root / "bin" / "trace"),
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
            )
        assert self.process.stdout is not None
        assert self.process.stdout.readline(), (self.root / "up.err").read_text()

    def kill(self) -> None:
        """A power cut: no process gets to end by itself."""
        assert self.process is not None
        servers = [part["pid"] for name, part in self.parts().items() if name.startswith("postgres")]
        self.process.send_signal(signal.SIGSTOP)
        for pid in servers:
            os.kill(pid, signal.SIGKILL)
        self.process.kill()
        self._await_end()

    def kill_part(self, name: str) -> int:
        """SIGKILL; the supervisor starts the part again. Returns the process that is gone."""
        pid: int = self.parts()[name]["pid"]
        os.kill(pid, signal.SIGKILL)
        return pid

    def down(self) -> None:
        if self.process is not None and self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            self.process.wait(timeout=STOP_SECONDS)
        self._await_end()

    def _await_end(self) -> None:
        if self.process is not None:
            self.process.communicate(timeout=STOP_SECONDS)
        for directory in (self.home.postgres_state, self.home.postgres_data):
            wait_until(lambda d=directory: not postgres_processes_in(d.resolve()), "postgres to end")  # type: ignore[misc]

    def close(self) -> None:
        try:
            if self.process is not None and self.process.poll() is None:
                self.process.kill()
            self._await_end()
        finally:
            shutil.rmtree(socket_directory(self.home.root), ignore_errors=True)
            shutil.rmtree(self.root, ignore_errors=True)

    def parts(self) -> dict[str, Any]:
        return {part["name"]: part for part in json.loads(self.home.parts_file.read_text())}

    @property
    def stack(self) -> LocalStack:
        stack = self.home.read_stack()
        assert stack is not None
        return stack

    # Waiting

    def wait_until(self, condition: Callable[[], bool], what: str, timeout: float = WAIT_SECONDS) -> None:
        """Polls less often than a unit test does: a look at a stack takes CPU time from the stack."""
        wait_until(condition, what, timeout, interval=0.1, report=self.report)

    def report(self) -> str:
        """Describes the stack for the output of a failed test. It never fails itself."""
        sections: list[str] = []
        with suppress(OSError, ValueError):
            parts = [f"{name}: {part['state']}, process {part['pid']}" for name, part in self.parts().items()]
            sections.append("\n".join(["Parts", *parts]))
        try:
            tasks = [" ".join(f"{name}={value}" for name, value in row.items()) for row in self.sql(UNFINISHED)]
        except (OSError, asyncpg.PostgresError) as error:
            tasks = [f"the state database does not tell them: {error!r}"]
        sections.append("\n".join(["Unfinished tasks", *(tasks or ["none"])]))
        for log in sorted(self.home.logs.glob("worker*.log")):
            lines = log.read_text(errors="replace").splitlines()[-LOG_LINES:]
            sections.append("\n".join([f"The last lines of {log.name}", *lines]))
        return "\n\n".join(sections)

    # Commands

    def shell(self, line: str, *, fine: tuple[int, ...] = (0,)) -> str:
        """One command of a page, by somebody who means it; returns what it printed."""
        done = subprocess.run(
            ["sh", "-c", line],
            env=self.environment,
            cwd=self.files,
            input="y\n",
            capture_output=True,
            text=True,
            timeout=WAIT_SECONDS,
            check=False,
        )
        assert done.returncode in fine, f"{line}: {done.stdout}{done.stderr}\n{self.report()}"
        return done.stdout + done.stderr

    def trace(self, arguments: str) -> Any:
        return json.loads(self.shell(f"trace {arguments} --json"))

    def deploy(self, name: str, text: str) -> None:
        (self.files / f"{name}.yaml").write_text(text)
        self.shell(f"trace deploy {name}.yaml")

    # Calls of workers and senders

    def call(self, url: str, path: str, body: Any, headers: dict[str, str], method: str = "POST") -> tuple[int, Any]:
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        request = Request(url + path, data, {"Content-Type": "application/json"} | headers, method=method)
        context = ssl.create_default_context(cafile=self.stack.ca_file)
        try:
            with urlopen(request, timeout=60, context=context) as response:
                return response.status, json.loads(response.read())
        except HTTPError as error:
            with error:
                return error.code, json.loads(error.read())

    def claim(self, task_id: str) -> Any:
        token = Path(self.stack.worker_token_file).read_text().strip()
        body = {"task_id": task_id, "worker_id": "by-hand"}
        status, reply = self.call(
            self.stack.internal_url, "/internal/task-claim", body, {"X-Trace-Worker-Token": token}
        )
        assert status == 200, reply
        assert reply["status"] == "Claimed", reply
        return reply

    def say(self, call: str, task_id: str, claimed: Any, **fields: Any) -> tuple[int, Any]:
        body = {"task_id": task_id, "attempt": claimed["attempt"], "lease_token": claimed["lease_token"]} | fields
        headers = {"X-Trace-Task-Capability": claimed["capability_token"]}
        return self.call(self.stack.task_url, f"/v1/task/{call}", body, headers)

    def finish(self, task_id: str, status: str, **fields: Any) -> Any:
        claimed = self.claim(task_id)
        said, reply = self.say("complete", task_id, claimed, status=status, **fields)
        assert said == 200, reply
        return claimed

    def tasks(self, dag: str, job: str, status: str | None = None) -> list[str]:
        """Their ids, the oldest first."""
        rows = self.sql(
            """SELECT task_id::text FROM tasks JOIN jobs USING (job_id)
               WHERE dag_name = $1 AND name = $2 AND lower(status) = coalesce($3, lower(status)) ORDER BY task_id""",
            dag,
            job,
            status,
        )
        return [row["task_id"] for row in rows]

    def await_tasks(self, dag: str, job: str, status: str, number: int) -> list[str]:
        self.wait_until(lambda: len(self.tasks(dag, job, status)) >= number, f"{number} {status} tasks of {job}")
        return self.tasks(dag, job, status)

    # Tables

    def sql(self, query: str, *arguments: Any, dsn_file: Path | None = None) -> list[asyncpg.Record]:
        return run(self._sql((dsn_file or self.home.state_dsn_file).read_text().strip(), query, arguments))

    async def _sql(self, dsn: str, query: str, arguments: tuple[Any, ...]) -> list[asyncpg.Record]:
        connection = await asyncpg.connect(dsn)
        try:
            return await connection.fetch(query, *arguments)
        finally:
            await connection.close()
