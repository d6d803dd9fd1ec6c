"""Hostile functions are contained; the runner is healthy after each, and the next function is not affected."""

import asyncio
import json
import os
import platform
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.runner.conftest import Functions
from tests.sandbox.conftest import descendants
from tests.sandbox.test_machine import run_as_plain_user
from tracelake.runner.languages import find_node
from tracelake.sandbox.spec import MIB
from tracelake.sandbox.syscalls import PROGRAMS, X86_64

ATTACKS = Path(__file__).parent / "attacks"
SPARES = 1
LANGUAGES = {"python": "probes.py", "node": "probes.mjs"}
CALLS = {
    "add_key": 248, "bpf": 321, "chroot": 161, "fsopen": 430, "init_module": 175, "io_uring_setup": 425, "ioperm": 173,
    "kexec_load": 246, "keyctl": 250, "memfd_create": 319, "mount": 165, "move_mount": 429, "open_by_handle_at": 304,
    "open_tree": 428, "perf_event_open": 298, "personality": 135, "pidfd_getfd": 438, "pidfd_open": 434,
    "pivot_root": 155, "process_vm_readv": 310, "process_vm_writev": 311, "ptrace": 101, "quotactl": 179, "reboot": 169,
    "seccomp": 317, "setdomainname": 171, "setns": 308, "settimeofday": 164, "shmget": 29, "swapon": 167, "syslog": 103,
    "umount2": 166, "unshare": 272, "userfaultfd": 323, "vhangup": 153,
}  # fmt: skip
"""Numbers of x86_64."""
ENVIRONMENT = {
    "AWS_ENDPOINT_URL_S3", "AWS_LAMBDA_FUNCTION_MEMORY_SIZE", "AWS_LAMBDA_RUNTIME_API", "HOME", "LAMBDA_TASK_ROOT",
    "LANG", "LC_CTYPE", "PATH", "TMPDIR", "TRACE_TASK_CAPABILITY_TOKEN", "TRACE_TASK_URL", "TZ", "_HANDLER",
}  # fmt: skip


def check_health(functions: Functions) -> None:
    """Nothing is left of the last function, and another one works."""

    async def wait() -> None:
        async with asyncio.timeout(30):
            # Of each spare there is a monitor and a first process.
            while len(descendants(functions.sandboxes.pid or 0)) > 2 * SPARES:
                await asyncio.sleep(0.02)

    functions.runner.run(wait())
    source = "import os\ndef handler(event, context):\n    return [event, os.listdir('/tmp')]"
    assert functions.value(source, event=7) == [7, []]


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[dict[str, Any]]:
    """What a hostile function would like to reach: a secret, sockets and a port of this process."""
    secret = tmp_path / "secret"
    secret.write_text("secret")
    abstract = f"trace-test-{os.getpid()}"
    with (
        socket.create_server(("127.0.0.1", 0)) as server,
        socket.socket(socket.AF_UNIX) as file_server,
        socket.socket(socket.AF_UNIX) as abstract_server,
    ):
        file_server.bind(str(tmp_path / "socket"))
        file_server.listen()
        abstract_server.bind(f"\0{abstract}")
        abstract_server.listen()
        yield {
            "secret": str(secret),
            "directory": str(tmp_path),
            "socket_file": str(tmp_path / "socket"),
            "abstract": abstract,
            "ports": [server.getsockname()[1], 5432, 80],
            "pid": os.getpid(),
            "ptrace": 101,
            "calls": CALLS if platform.machine() == "x86_64" else {},
        }


@pytest.mark.parametrize("language", LANGUAGES)
def test_nothing_is_reachable(functions: Functions, machine: dict[str, Any], language: str) -> None:
    if language == "node" and find_node() is None:
        pytest.skip("no Node on this machine")
    name = LANGUAGES[language]
    files: dict[str, str | bytes] = {name: (ATTACKS / name).read_bytes()}
    memory = 256 * MIB
    result = functions.run(files, language=language, entrypoint="probes.handler", event=machine, memory_bytes=memory)
    assert result.ending == "completed", result
    report = json.loads(result.response)
    assert {name: ending for name, ending in report["results"].items() if ending.startswith("allowed")} == {}
    assert len(report["results"]) >= 24
    assert set(report["environment"]) <= ENVIRONMENT
    assert (report["pid"], report["parent"]) == (1, 0)
    check_health(functions)


def test_the_list_of_attacked_calls_is_of_calls_that_no_profile_has() -> None:
    assert not set(CALLS) & PROGRAMS
    assert not set(CALLS.values()) & {X86_64[name] for name in PROGRAMS if name in X86_64}


PROXY = """
import socket
def ask(port, message):
    with socket.create_connection(('127.0.0.1', port)) as client:
        client.sendall(message)
        return client.recv(100).split(b'\\r\\n')[0].decode()
"""
BOMBS = {
    "forks": ("import os\nwhile True:\n    os.fork()", {"error", "timeout", "exit", "memory"}),
    "threads": (
        "import threading, time\nwhile True:\n    threading.Thread(target=time.sleep, args=(600,)).start()",
        {"error", "exit"},
    ),
    "disk": ("with open('/tmp/x', 'wb') as file:\n    while True: file.write(b'x' * 65536)", {"error", "memory"}),
    "inodes": ("import os\nfor number in range(10**9): os.mkdir(f'/tmp/{number}')", {"error"}),
    "descriptors": ("import os\nwhile True: os.open('/dev/null', 0)", {"error", "exit"}),
    "stderr": ("import os\nwhile True: os.write(2, b'x' * 65536)", {"output"}),
    "recursion": ("import sys\nsys.setrecursionlimit(10**9)\ndef f(): f()\nf()", {"signal", "memory", "error"}),
    "a hang that ignores signals": (
        "import signal, time\nfor number in range(1, 32):\n"
        "    if number not in (9, 19): signal.signal(number, signal.SIG_IGN)\nwhile True: time.sleep(600)",
        {"timeout"},
    ),
    "a busy loop": ("while True: pass", {"timeout"}),
    "killing all": ("import os\nos.kill(-1, 9)\nos.kill(1, 9)\nwhile True: pass", {"error", "timeout"}),
    "closing everything": ("import os\nos.closerange(0, 256)\nwhile True: pass", {"timeout"}),
    "a second event": (
        PROXY + "ask(9001, b'GET /2018-06-01/runtime/invocation/next HTTP/1.1\\r\\n\\r\\n')",
        {"timeout"},
    ),
}


@pytest.mark.parametrize("name", BOMBS)
def test_bombs(functions: Functions, name: str) -> None:
    source, endings = BOMBS[name]
    lines = "\n".join(f"    {line}" for line in source.splitlines())
    timeout = 1.5 if "timeout" in endings else 60.0
    result = functions.run({"main.py": f"def handler(event, context):\n{lines}\n"}, timeout_seconds=timeout)
    assert result.ending in endings, result
    check_health(functions)


QUIET = {
    "a daemon": """
import os, time
def handler(event, context):
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            time.sleep(600)
        os._exit(0)
    return 'ok'
""",
    "zombies": """
import os
def handler(event, context):
    for _ in range(20):
        if os.fork() == 0:
            os._exit(0)
    return 'ok'
""",
    "forged calls": PROXY
    + """
def post(path, body=b'"x"'):
    prefix = '/2018-06-01/runtime'
    head = f'POST {prefix}{path} HTTP/1.1\\r\\ncontent-length: {len(body)}\\r\\n\\r\\n'
    return ask(9001, head.encode() + body).split()[1]
def handler(event, context):
    other = [post('/invocation/request-2/response'), post('/invocation/../request-1/response'), post('/restore/error')]
    assert set(other) <= {'400', '404'}, other
    assert ask(9001, b'\\x16\\x03\\x01 nonsense').split()[1] == '400'
    clients = [socket.create_connection(('127.0.0.1', 9001)) for _ in range(100)]
    del clients
    while True:  # until the server has seen that they are gone, it refuses more
        try:
            assert post('/restore/error') == '404'
            break
        except (ConnectionError, IndexError):
            pass
    assert post(f'/invocation/{context.aws_request_id}/response', b'"ok"') == '202'
    assert post(f'/invocation/{context.aws_request_id}/response', b'"again"') == '400'
    assert post(f'/invocation/{context.aws_request_id}/error', b'{}') == '400'
    return 'late'
""",
}


@pytest.mark.parametrize("name", QUIET)
def test_what_a_function_leaves_behind_ends_with_it(functions: Functions, name: str) -> None:
    result = functions.run({"main.py": QUIET[name]}, timeout_seconds=30.0)
    assert (result.ending, result.response) == ("completed", b'"ok"'), result
    check_health(functions)


def test_node_that_takes_too_much(functions: Functions) -> None:
    if find_node() is None:
        pytest.skip("no Node on this machine")
    source = "export async function handler() { const all = []; for (;;) all.push(Buffer.alloc(1 << 20, 1)); }"
    result = functions.run({"main.mjs": source}, language="node", memory_bytes=200 * MIB)
    assert result.ending == "memory", result
    source = "export async function handler() { for (;;); }"
    result = functions.run({"main.mjs": source}, language="node", timeout_seconds=1.5)
    assert result.ending == "timeout", result
    late = "setTimeout(() => { throw new RangeError('late') }, 1)"
    source = f"export async function handler() {{ {late}; await new Promise(() => {{}}); }}"
    result = functions.run({"main.mjs": source}, language="node")
    assert result.ending == "error", result
    assert result.error is not None
    assert result.error.error_type == "RangeError"
    check_health(functions)


@pytest.mark.skipif(os.geteuid() != 0, reason="the other tests already run as a plain user")
@pytest.mark.system
def test_attacks_fail_for_a_plain_user_too() -> None:
    """There the memory limit is the watch, and the user id is the runner's own."""
    script = """
import pytest, sys
sys.exit(pytest.main(["-q", "tests/runner/test_attacks.py", "tests/runner/test_functions.py"]))
"""
    status, text = run_as_plain_user(script)
    assert status == 0, text
