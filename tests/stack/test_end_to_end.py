"""`trace up` with the real Dispatcher: three listeners with TLS, and a Dispatcher that is killed."""

import ssl
from pathlib import Path
from urllib.error import HTTPError
from urllib.request import urlopen

import pytest

from tests.support.real_stack import RealStack
from tracelake.client.stack import LocalStack
from tracelake.stack.probe import ready

DAG = """\
name: unfinished
jobs:
  - { name: head, activation: source, source: { kind: manual } }
  - { name: work, activation: reactive, operator: noop, runtime: by_hand, inputs: [{ from: { job: head } }] }
"""


def get(url: str, path: str, ca_file: str) -> tuple[int, str]:
    try:
        with urlopen(url + path, timeout=60, context=ssl.create_default_context(cafile=ca_file)) as response:
            return response.status, response.read().decode()
    except HTTPError as error:
        with error:
            return error.code, error.read().decode()


def test_the_stack_serves_and_a_killed_dispatcher_comes_back_at_the_same_addresses(shared_stack: RealStack) -> None:
    running: LocalStack = shared_stack.stack
    for url, path, status in (
        (running.internal_url, "/healthz", 200),
        (running.internal_url, "/readyz", 200),
        (running.internal_url, "/internal/jwks/task", 200),
        (running.task_url, "/internal/jwks/task", 200),
        (running.task_url, "/readyz", 404),
        (running.public_url, "/readyz", 404),
        (running.public_url, "/internal/jwks/task", 404),
    ):
        assert get(url, path, running.ca_file)[0] == status, (url, path)
    for file in (
        running.worker_token_file,
        running.service_token_file,
        running.admin_token_file,
        running.queue_dsn_file,
        running.data_dsn_file,
    ):
        assert Path(file).stat().st_mode & 0o777 == 0o600
    assert shared_stack.parts()["scheduler"]["state"] == "running"
    line = 'trace_http_requests_total{listener="internal",route="/internal/sources",status="200"}'
    shared_stack.wait_until(
        lambda: line in get(running.internal_url, "/metrics", running.ca_file)[1],
        "the scheduler to ask for its sources",
    )
    killed = shared_stack.kill_part("dispatcher")
    shared_stack.wait_until(
        lambda: (
            shared_stack.parts()["dispatcher"]["pid"] != killed and ready(running.internal_url, Path(running.ca_file))
        ),
        "the Dispatcher to come back",
    )
    assert shared_stack.stack == running


def test_a_timeout_describes_the_stack(shared_stack: RealStack) -> None:
    shared_stack.deploy("unfinished", DAG)
    shared_stack.shell("trace trigger unfinished/head --cursor 1")
    (task_id,) = shared_stack.await_tasks("unfinished", "work", "queued", 1)
    with pytest.raises(AssertionError, match="timed out after 0 s waiting for what never happens") as failure:
        shared_stack.wait_until(lambda: False, "what never happens", timeout=0)
    report = str(failure.value)
    assert f"task_id={task_id} status=Queued attempt=0 " in report
    assert "dispatcher: running" in report
    assert "The last lines of worker.log\n{" in report
    shared_stack.finish(task_id, "Completed")
