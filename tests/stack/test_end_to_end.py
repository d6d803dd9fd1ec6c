"""`trace up` with the real Dispatcher: three listeners with TLS, and a Dispatcher that is killed."""

import http.client
import json
import os
import shutil
import signal
import ssl
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit
from urllib.request import urlopen

import pytest

from tests.support.postgres import scratch_directory, wait_until
from tracelake.settings.home import Home, Stack
from tracelake.stack.machine import postgres_processes_in, socket_directory
from tracelake.stack.probe import ready


@pytest.fixture
def running() -> Iterator[Stack]:
    root = scratch_directory()
    home = Home(root / "home")
    command = [sys.executable, "-m", "tracelake", "up", "--json", "--no-workers", "--home", str(home.root)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        assert line, process.communicate()
        stack = home.read_stack()
        assert stack is not None
        yield stack
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=90) == 0
        assert not home.stack_file.exists()
    finally:
        process.kill()
        process.communicate()
        for directory in (home.postgres_state, home.postgres_data):
            wait_until(lambda d=directory: not postgres_processes_in(d.resolve()), "postgres to end")  # type: ignore[misc]
        shutil.rmtree(socket_directory(home.root), ignore_errors=True)
        shutil.rmtree(root, ignore_errors=True)


def metrics(stack: Stack) -> str:
    context = ssl.create_default_context(cafile=stack.ca_file)
    with urlopen(f"{stack.internal_url}/metrics", timeout=30, context=context) as response:
        text: str = response.read().decode()
    return text


def get(url: str, path: str, ca_file: str) -> int:
    parts = urlsplit(url)
    context = ssl.create_default_context(cafile=ca_file)
    connection = http.client.HTTPSConnection(parts.hostname or "", parts.port, timeout=30, context=context)
    try:
        connection.request("GET", path)
        response = connection.getresponse()
        response.read()
        return response.status
    finally:
        connection.close()


def test_the_stack_serves_and_a_killed_dispatcher_comes_back_at_the_same_addresses(running: Stack) -> None:
    for url, path, status in (
        (running.internal_url, "/healthz", 200),
        (running.internal_url, "/readyz", 200),
        (running.internal_url, "/internal/jwks/task", 200),
        (running.task_url, "/internal/jwks/task", 200),
        (running.task_url, "/readyz", 404),
        (running.public_url, "/readyz", 404),
        (running.public_url, "/internal/jwks/task", 404),
    ):
        assert get(url, path, running.ca_file) == status, (url, path)
    for file in (
        running.worker_token_file,
        running.service_token_file,
        running.admin_token_file,
        running.queue_dsn_file,
        running.data_dsn_file,
    ):
        assert Path(file).stat().st_mode & 0o777 == 0o600
    parts = {part["name"]: part for part in json.loads(Home(Path(running.home)).parts_file.read_text())}
    assert parts["scheduler"]["state"] == "running"
    asked = 'trace_http_requests_total{listener="internal",route="/internal/sources",status="200"}'
    wait_until(lambda: asked in metrics(running), "the scheduler to ask for its sources")
    os.kill(parts["dispatcher"]["pid"], signal.SIGKILL)
    wait_until(lambda: ready(running.internal_url, Path(running.ca_file)), "the Dispatcher to come back")
