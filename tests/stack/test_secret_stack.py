"""A real stack whose operator raises, logs, prints and reports its secret: no log, row, span or child has the value."""

import asyncio
import hashlib
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import asyncpg
import pytest

from tests.support.real_stack import RealStack
from tests.tracing.support import Collector, collector
from tracelake.adapters.secret_file import set_secret
from tracelake.settings.home import private_directory

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


class SecretStack(RealStack):
    """Its workers run the operator above in the place of `sleep`."""

    def __init__(self, traces: Collector) -> None:
        super().__init__(settings={"otlp_endpoint": traces.url})
        self.collector = traces
        self.seen, modules = self.root / "seen", self.root / "modules"
        self.seen.mkdir()
        modules.mkdir()
        (modules / "sitecustomize.py").write_text(OPERATOR)
        self.variables = {
            "PYTHONPATH": os.pathsep.join([str(modules), *filter(None, [os.environ.get("PYTHONPATH")])]),
            "SEEN": str(self.seen),
            "TRACE_SECRET_DEFAULT__TOLD": TOLD,
            "TRACE_SECRET_OTHER__THEIRS": THEIRS,
        }
        private_directory(self.home.root)
        for org, name, value in (("default", "FILED", FILED), ("other", "THEIRS", THEIRS)):
            set_secret(self.home.secrets_file, org, name, value)

    def down(self) -> None:
        super().down()
        assert not self.home.secrets_environment_file.exists(), "what the environment said is gone with the stack"


@pytest.fixture
def stack() -> Iterator[SecretStack]:
    with collector() as traces:
        stack = SecretStack(traces)
        with stack.running():
            yield stack


async def everything_stored(dsn: str) -> str:
    connection = await asyncpg.connect(dsn)
    try:
        tables = await connection.fetch("SELECT tablename FROM pg_tables WHERE schemaname = 'public'")
        rows = [await connection.fetch(f'SELECT t::text FROM "{table[0]}" t') for table in tables]
    finally:
        await connection.close()
    return "\n".join(row[0] for found in rows for row in found)


def test_the_operator_has_it_and_nothing_else_does(stack: SecretStack) -> None:
    stack.deploy("keys", DAG)
    stack.shell("trace trigger keys/src --cursor 1")

    def tasks() -> dict[str, tuple[str, str]]:
        rows = stack.sql("SELECT j.name, t.status, t.error FROM tasks t JOIN jobs j USING (job_id)")
        return {row["name"]: (row["status"], row["error"] or "") for row in rows}

    over = {"tell": "Failed", "quiet": "Completed", "wants": "Failed"}
    stack.wait_until(lambda: {job: task[0] for job, task in tasks().items()} == over, "the tasks")
    stack.wait_until(lambda: len([span for span in stack.collector.spans if span.error]) >= 2, "their spans")

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
    for name, part in stack.parts().items():
        places[f"environment of {name}"] = Path(f"/proc/{part['pid']}/environ").read_text()
        places[f"arguments of {name}"] = Path(f"/proc/{part['pid']}/cmdline").read_text()
    assert len(stack.parts()) >= 6
    for place, text in (logs | places).items():
        assert not [piece for piece in PIECES if piece in text], place
        assert "TRACE_SECRET" not in text or place == "worker.log", place
