"""`trace up` with its runner: a function from its upload to its result, through every part of the platform."""

import hashlib
import io
import json
import zipfile
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from urllib.request import Request, urlopen

import pytest

from tests.runbooks.page import follow
from tests.support.real_stack import SHORT_TIMES, RealStack

pytestmark = pytest.mark.system

DAG = """
name: moves
jobs:
  - {name: tick, activation: source, source: {kind: manual}}
  - name: work
    activation: reactive
    runtime: lambda
    operator: udf
    timeout_seconds: 60
    inputs: [{from: {job: tick}}]
    udf: {bundle_id: BUNDLE, entrypoint: main.handle}
"""
SOURCE = """
import os, socket, time
from tracelake.sdk import FunctionTask, handler

@handler
def handle(task):
    task.heartbeat()
    place = task.put('note.txt', b'hello')
    assert task.get('note.txt') == b'hello'
    try:
        socket.create_connection(('192.0.2.1', 443), timeout=2)
    except OSError:
        task.log('contained')
    cursor = task.inputs[0].unit.get('cursor', {}).get('to')
    if cursor == 2:
        print('looked at', os.environ['TRACE_TASK_CAPABILITY_TOKEN'])
        raise ValueError('on purpose')
    if cursor == 3:
        print('waiting \\x1b[2J', flush=True)
        time.sleep(600)
"""


def ask(stack: RealStack, path: str, body: Any) -> Any:
    token = (stack.home.keys / "admin.jwt").read_text().strip()
    status, reply = stack.call(stack.stack.public_url, path, body, {"authorization": f"Bearer {token}"})
    assert status == 200, reply
    return reply


def push(stack: RealStack, source: str) -> str:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr(zipfile.ZipInfo("main.py"), source)
    data = buffer.getvalue()
    opened = ask(stack, "/v1/udf/bundles", {"size_bytes": len(data)})
    request = Request(opened["url"], data=data, headers=opened["headers"], method="PUT")
    with urlopen(request, timeout=30) as reply:
        assert reply.status == 200
    body = {"sha256": hashlib.sha256(data).hexdigest(), "language": "python", "entrypoint": "main.handle"}
    ask(stack, f"/v1/udf/bundles/{opened['bundle_id']}/finalize", body)
    bundle_id: str = opened["bundle_id"]
    return bundle_id


def tasks(stack: RealStack) -> dict[str, Any]:
    rows = json.loads(stack.shell("trace tasks --dag moves --json"))
    return {row["status"]: row for row in rows["tasks"] if row["job"] == "work"}


def test_a_function_of_a_stack() -> None:
    settings = {**SHORT_TIMES, "runner": "true", "workers": "0", "max_attempts": "1"}
    with RealStack(settings=settings).running() as stack:
        document = stack.files / "moves.yaml"
        bundle_id = push(stack, SOURCE)
        document.write_text(DAG.replace("BUNDLE", bundle_id))
        stack.shell(f"trace deploy {document}")
        stack.shell("trace trigger moves/tick --cursor 1")
        stack.wait_until(lambda: "Completed" in tasks(stack), "the function has completed")
        before = stack.kill_part("runner")
        stack.wait_until(lambda: stack.parts()["runner"]["pid"] not in (None, before), "the runner runs again")
        stack.shell("trace trigger moves/tick --cursor 2")
        stack.wait_until(lambda: "Failed" in tasks(stack), "the function has failed")
        assert "ValueError: on purpose" in json.dumps(tasks(stack)["Failed"])
        check_logs(stack, tasks(stack)["Failed"]["task_id"])
        page = follow(stack, "functions.md", words={"ORG": "default", "BUNDLE": bundle_id})
        assert any("running functions" in text for text in page.printed)
        assert bundle_id in page.printed[0]


def check_logs(stack: RealStack, failed: str) -> None:
    """The log of a failure, and one that is followed while its function runs."""
    lines = stack.shell(f"trace logs {failed}").splitlines()
    assert lines[0].startswith("moves/work (1, 2], attempt 1: error, after ")
    assert lines[1] == "ValueError: on purpose"
    assert "looked at [redacted]" in lines
    assert f"trace logs {failed}" in stack.shell(f"trace why {failed}")
    assert "looked at [redacted]" in stack.shell("trace udf logs moves/work")
    stack.shell(f"trace skip {failed}")  # it holds the input
    stack.shell("trace trigger moves/tick --cursor 3")
    stack.wait_until(lambda: "Running" in tasks(stack), "the function runs")
    running = tasks(stack)["Running"]["task_id"]
    with ThreadPoolExecutor(1) as pool:
        following = pool.submit(stack.shell, f"trace logs {running} --follow")
        log = f"trace logs {running} --json"
        stack.wait_until(lambda: "waiting" in stack.shell(log), "its output while it runs")
        assert json.loads(stack.shell(log))["state"] == "running"
        stack.shell(f"trace cancel {running}")
        text = following.result(timeout=60)
    assert "waiting \\x1b[2J\n" in text
    assert "moves/work (2, 3], attempt 1: canceled" in text
