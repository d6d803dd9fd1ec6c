"""A real stack whose operator raises, logs, prints and reports its secret: no log, row, span or child has the value."""

import asyncio
import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import asyncpg
import pytest

from tests.support.postgres import scratch_directory, wait_until
from tests.tracing.support import Collector, collector
from tracelake.adapters.secret_file import set_secret
from tracelake.settings.home import Home, private_directory
from tracelake.stack.machine import postgres_processes_in, socket_directory

FILED = "filed-5d41402abc4b2a76/b9719d91+1017c592"
TOLD = "told https://user:hunter2@node.example/v3/?key=31d6cfe0d16ae931"
THEIRS = "theirs-c4ca4238a0b923820dcc509a6f75849b"
PIECES = ("5d41402abc", "1017c592", "hunter2", "31d6cfe0d1", "c4ca4238a0")
"""Of each value from its beginning and its end: half of one would be found too."""

DAG = """
name: keys
defaults: {runtime: ecs_platform, max_attempts: 1}
jobs:
  - {name: src, activation: source, source: {kind: manual}}
  - name: tell
    activation: reactive
    operator: sleep
    config: {seconds: 1}
    secrets: [FILED, TOLD]
    inputs: [{from: {job: src}}]
  - {name: quiet, activation: reactive, operator: sleep, config: {seconds: 2}, inputs: [{from: {job: src}}]}
  - name: wants
    activation: reactive
    operator: sleep
    config: {seconds: 3}
    secrets: [THEIRS]
    inputs: [{from: {job: src}}]
"""

# Loaded by every Python process of the stack; only a worker's operators are replaced.
OPERATOR = """
import hashlib, json, logging, os, sys, warnings
if sys.orig_argv[-1:] == ["worker"]:
    from tracelake.worker import operators

    def tell(context):
        number = int(context.config.seconds)
        digests = {name: hashlib.sha256(value.encode()).hexdigest() for name, value in context.secrets.items()}
        inherited = [name for name in os.environ if name.startswith("TRACE_SECRET")]
        with open(os.path.join(os.environ["SEEN"], str(number)), "w") as file:
            json.dump({"digests": digests, "inherited": inherited}, file)
        if number == 2:
            return operators.OperatorResult()
        filed, told = context.secrets["FILED"], context.secrets["TOLD"]
        context.progress(f"with {filed}")
        logging.getLogger("operator").warning("got %s", context.secrets["TOLD"], extra={"all": dict(context.secrets)})
        logging.getLogger("operator").warning("seen as %r", context)
        warnings.warn(filed)
        print("printed", filed, told, flush=True)
        print("printed", repr(told), file=sys.stderr, flush=True)
        raise RuntimeError(f"{filed} {'.' * 1900} {told} {json.dumps(told)}") from ValueError(told)

    operators.OPERATORS["sleep"] = operators.Operator(tell)
"""


@dataclass
class Stack:
    home: Home
    seen: Path
    collector: Collector

    def trace(self, *arguments: str) -> None:
        command = [sys.executable, "-m", "tracelake", *arguments, "--home", str(self.home.root)]
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
        assert done.returncode == 0, done.stdout + done.stderr

    def sql(self, query: str) -> list[asyncpg.Record]:
        async def ask() -> list[asyncpg.Record]:
            connection = await asyncpg.connect(self.home.state_dsn_file.read_text().strip())
            try:
                return list(await connection.fetch(query))
            finally:
                await connection.close()

        return asyncio.run(ask())

    def parts(self) -> dict[str, int]:
        return {part["name"]: part["pid"] for part in json.loads(self.home.parts_file.read_text())}


@pytest.fixture(scope="module")
def stack() -> Iterator[Stack]:
    root = scratch_directory()
    home, seen, modules = Home(root / "home"), root / "seen", root / "modules"
    seen.mkdir()
    modules.mkdir()
    (modules / "sitecustomize.py").write_text(OPERATOR)
    environment = os.environ | {
        "PYTHONPATH": os.pathsep.join([str(modules), *filter(None, [os.environ.get("PYTHONPATH")])]),
        "SEEN": str(seen),
        "TRACE_SECRET_DEFAULT__TOLD": TOLD,
        "TRACE_SECRET_OTHER__THEIRS": THEIRS,
    }
    with collector() as traces:
        stack = Stack(home, seen, traces)
        private_directory(home.root)
        for org, name, value in (("default", "FILED", FILED), ("other", "THEIRS", THEIRS)):
            set_secret(home.secrets_file, org, name, value)
        command = [sys.executable, "-m", "tracelake", "up", "--json", "--home", str(home.root)]
        command += ["--set", f"otlp_endpoint={traces.url}"]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment)
        try:
            assert process.stdout is not None
            assert process.stdout.readline(), process.communicate()
            yield stack
            process.send_signal(signal.SIGTERM)
            assert process.wait(timeout=90) == 0
            assert not home.secrets_environment_file.exists(), "what the environment said is gone with the stack"
        finally:
            process.kill()
            process.communicate()
            for directory in (home.postgres_state, home.postgres_data):
                wait_until(lambda d=directory: not postgres_processes_in(d.resolve()), "postgres to end")  # type: ignore[misc]
            shutil.rmtree(socket_directory(home.root), ignore_errors=True)
            shutil.rmtree(root, ignore_errors=True)


async def everything_stored(dsn: str) -> str:
    connection = await asyncpg.connect(dsn)
    try:
        tables = await connection.fetch("SELECT tablename FROM pg_tables WHERE schemaname = 'public'")
        rows = [await connection.fetch(f'SELECT t::text FROM "{table[0]}" t') for table in tables]
    finally:
        await connection.close()
    return "\n".join(row[0] for found in rows for row in found)


def test_the_operator_has_it_and_nothing_else_does(stack: Stack, tmp_path: Path) -> None:
    (tmp_path / "keys.yaml").write_text(DAG)
    stack.trace("deploy", str(tmp_path / "keys.yaml"))
    stack.trace("trigger", "keys/src", "--cursor", "1")

    def tasks() -> dict[str, tuple[str, str]]:
        rows = stack.sql("SELECT j.name, t.status, t.error FROM tasks t JOIN jobs j USING (job_id)")
        return {row["name"]: (row["status"], row["error"] or "") for row in rows}

    over = {"tell": "Failed", "quiet": "Completed", "wants": "Failed"}
    wait_until(lambda: {job: task[0] for job, task in tasks().items()} == over, "the tasks", timeout=60)
    wait_until(lambda: len([span for span in stack.collector.spans if span.error]) >= 2, "their spans", timeout=60)

    def seen(number: int) -> Any:
        return json.loads((stack.seen / str(number)).read_text())

    digests = {"FILED": hashlib.sha256(FILED.encode()).hexdigest(), "TOLD": hashlib.sha256(TOLD.encode()).hexdigest()}
    assert seen(1) == {"digests": digests, "inherited": []}, "the operator was given both"
    assert seen(2) == {"digests": {}, "inherited": []}, "a job that names none has none"
    assert not (stack.seen / "3").exists(), "what another org has is missing, and nothing is started"

    assert tasks()["tell"][1].startswith("RuntimeError: [secret] ...")
    assert tasks()["wants"][1].startswith("secret_missing: The org default has no secret THEIRS;")

    logs = {path.name: path.read_text(errors="replace") for path in stack.home.logs.iterdir()}
    said = logs["worker.log"]
    for line in (
        '"message": "got [secret]"',
        '"progress": "with [secret]"',
        "printed [secret] [secret]",
        "printed '[secret]'",
    ):
        assert line in said, f"the operator was heard: {line}"
    state = asyncio.run(everything_stored(stack.home.state_dsn_file.read_text().strip()))
    assert "RuntimeError: [secret]" in state
    queue = asyncio.run(everything_stored(stack.home.queue_dsn_file.read_text().strip()))
    described = [path.read_text() for path in (stack.home.stack_file, stack.home.parts_file)]
    places = {"state": state, "queue": queue, "spans": repr(stack.collector.spans), "files": "".join(described)}
    for name, pid in stack.parts().items():
        places[f"environment of {name}"] = Path(f"/proc/{pid}/environ").read_text()
        places[f"arguments of {name}"] = Path(f"/proc/{pid}/cmdline").read_text()
    assert len(stack.parts()) >= 6
    for place, text in (logs | places).items():
        assert not [piece for piece in PIECES if piece in text], place
        assert "TRACE_SECRET" not in text or place == "worker.log", place
