"""Hostile functions are contained; the runner is healthy after each, and the next function is not affected.

The attacks are those of the catalogue, tests/runner/attacks/README.md.
"""

import asyncio
import errno
import os
import platform
import shutil
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.runner.attacks import ATTACKS, program, script
from tests.runner.attacks.__main__ import README, render
from tests.runner.attacks.catalogue import LANGUAGES, Attack, Place
from tests.runner.attacks.kernel_attacks import CALLS, PROBES
from tests.runner.attacks.service import RecordingService, open_proxy
from tests.runner.conftest import Functions
from tests.sandbox.conftest import descendants
from tests.sandbox.test_machine import run_as_plain_user
from tracelake.runner.exchange import SandboxReply, SandboxRequest
from tracelake.runner.function import CountRefusal
from tracelake.runner.languages import find_node
from tracelake.runner.outcome import RunResult
from tracelake.sandbox.spec import MIB
from tracelake.sandbox.syscalls import AARCH64, PROGRAMS, X86_64

DIRECTORY = Path(__file__).parent / "attacks"
SPARES = 1
LEAST_ATTACKS = 60
VICTIM_PORT = 7777
ENTRYPOINTS = {"python": "attack.py", "node": "attack.mjs", "rust": "bootstrap"}
MEMORY = {"python": 64 * MIB, "node": 200 * MIB, "rust": 64 * MIB}
SPECIAL_CALLS = ("clone", "clone3", "ioctl", "prctl", "prlimit64", "socket", "socketpair")
"""Allowed for some arguments."""
VICTIM = """
import os, socket
def handler(port, context):
    with open('/tmp/victim', 'w') as file: file.write('mine')
    servers = [socket.create_server(('127.0.0.1', port)), socket.socket(socket.AF_UNIX)]
    servers[1].bind(chr(0) + 'victim')
    servers[1].listen()
    with socket.create_connection(('127.0.0.1', 9002)) as client:
        client.sendall(b'GET / HTTP/1.1\\r\\n\\r\\n')
        client.recv(100)
    visitors = []
    for server in servers:
        server.setblocking(False)
        try: visitors.append(str(server.accept()))
        except BlockingIOError: pass
    return [open('/tmp/victim').read(), os.listdir('/tmp'), visitors, os.getpriority(os.PRIO_PROCESS, 0)]
"""


def check_health(functions: Functions) -> None:
    """Nothing is left of the last function, and another one works."""

    async def wait() -> None:
        async with asyncio.timeout(30):
            # Of each spare there is a monitor and a first process.
            while len(descendants(functions.sandboxes.pid or 0)) > 2 * SPARES:
                await asyncio.sleep(0.02)

    functions.runner.run(wait())
    source = (
        "import os\ndef handler(event, context):\n    return [event, os.listdir('/tmp'), os.getpid(), os.getpgid(0)]"
    )
    assert functions.value(source, event=7) == [7, [], 1, 1]


@pytest.fixture(scope="module")
def facts(functions: Functions, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """What hostile functions would like to reach: secrets, sockets, a port and processes of the runner."""
    directory = tmp_path_factory.mktemp("machine")
    (directory / "secret").write_text("secret")
    (directory / "keys").mkdir()
    abstract = f"trace-test-{os.getpid()}"
    with (
        socket.create_server(("0.0.0.0", 0)) as server,
        socket.socket(socket.AF_UNIX) as file_server,
        socket.socket(socket.AF_UNIX) as abstract_server,
    ):
        file_server.bind(str(directory / "socket"))
        file_server.listen()
        abstract_server.bind(f"\0{abstract}")
        abstract_server.listen()
        numbers = X86_64 if platform.machine() == "x86_64" else AARCH64
        allowlist = [numbers[name] for name in (*PROGRAMS, *SPECIAL_CALLS) if name in numbers]
        allowlist += PROBES.values()  # attacks of their own
        yield {
            "secret": str(directory / "secret"),
            "directory": str(directory),
            "bundles": str(functions.directory),
            "home": str(directory),
            "socket_file": str(directory / "socket"),
            "abstract": abstract,
            "address": find_own_address(),
            "port": str(server.getsockname()[1]),
            "victim_port": str(VICTIM_PORT),
            "pid": str(os.getpid()),
            "group": str(os.getpgrp()),
            "server": str(functions.sandboxes.pid),
            "allowlist": ",".join(map(str, sorted(allowlist))),
        }


def find_own_address() -> str:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as client:
        try:
            client.connect(("192.0.2.1", 9))  # sends nothing
        except OSError:
            return "192.0.2.2"
        return str(client.getsockname()[0])


def check_language(language: str) -> None:
    if language == "node" and find_node() is None:
        pytest.skip("no Node on this machine")
    if language == "rust" and platform.machine() != "x86_64":
        pytest.skip("the prebuilt program is for x86_64; see tests/runner/attacks/program.py")


def files_of(language: str) -> dict[str, str | bytes]:
    name = ENTRYPOINTS[language]
    return {name: program.read_program() if language == "rust" else (DIRECTORY / name).read_bytes()}


def make_line(attack: Attack, facts: dict[str, str]) -> str:
    arguments = [item if isinstance(item, bytes) else item.format_map(facts) for item in attack.arguments]
    return script.encode(attack.verb, arguments)


async def attack_from_inside(
    functions: Functions, language: str, event: str, service: RecordingService, **limits: Any
) -> RunResult:
    async with open_proxy(service, CountRefusal()) as proxy:
        return await functions.execute(
            files_of(language),
            language=language,
            entrypoint="attack.handler",
            event=event,
            egress=proxy.handle,
            **({"memory_bytes": MEMORY[language]} | limits),
        )


async def attack_beside_a_victim(
    functions: Functions, language: str, attacks: list[Attack], facts: dict[str, str], service: RecordingService
) -> tuple[RunResult, RunResult]:
    """The hostile run, and that of another task at the same time."""
    ready, finished = asyncio.Event(), asyncio.Event()

    async def hold(_request: SandboxRequest) -> SandboxReply:
        ready.set()
        await finished.wait()
        return SandboxReply(status=204)

    victim = asyncio.create_task(functions.execute({"main.py": VICTIM}, event=VICTIM_PORT, egress=hold))
    await ready.wait()
    known = facts | {"victim": str(max(descendants(functions.sandboxes.pid or 0))), "program": ENTRYPOINTS[language]}
    event = script.join([make_line(attack, known) for attack in attacks])
    result = await attack_from_inside(functions, language, event, service)
    finished.set()
    return result, await victim


ROUTE = """
import socket
def handler(event, context):
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as datagrams:
        try:
            datagrams.connect(('192.0.2.1', 9))
        except OSError as error:
            return error.errno
"""
"""Asks for a route to an address that is reserved for documentation. Connecting a datagram socket sends nothing."""


def check_no_route(functions: Functions) -> None:
    """Attacks name other machines. They begin only where nothing can leave, so that none is ever called."""
    assert functions.value(ROUTE) == errno.ENETUNREACH, "the sandbox has a route: no attack on the network is tried"


@pytest.mark.parametrize("language", LANGUAGES)
def test_nothing_is_reachable(functions: Functions, facts: dict[str, str], language: str) -> None:
    check_language(language)
    check_no_route(functions)
    attacks = [item for item in ATTACKS if language in item.languages and not item.alone]
    attacks = [item for item in attacks if item.machine in (None, platform.machine())]
    service = RecordingService()
    result, victim = functions.runner.run(attack_beside_a_victim(functions, language, attacks, facts, service))
    assert result.ending == "completed", result
    endings = script.read_endings(result.response)
    assert len(endings) == len(attacks)
    pairs = zip(attacks, endings, strict=True)
    assert {attack.name: ending for attack, ending in pairs if ending not in attack.contained} == {}
    for request in filter(None, service.requests):  # empty: given up before it was sent
        assert request.count(b"HTTP/1.1\r\n") == 1
        assert request.split(b" ")[1].startswith((b"/scratch/t/", b"/v1/task/heartbeat"))
    assert victim.response == b'["mine", ["victim"], [], 5]', victim
    check_health(functions)


BOMBS = [(language, attack) for attack in ATTACKS if attack.alone for language in attack.languages]


@pytest.mark.parametrize(("language", "attack"), BOMBS, ids=[f"{language}-{attack.name}" for language, attack in BOMBS])
def test_bombs(functions: Functions, facts: dict[str, str], language: str, attack: Attack) -> None:
    check_language(language)
    check_no_route(functions)
    server = functions.sandboxes.pid
    priorities = [os.getpriority(os.PRIO_PROCESS, pid) for pid in (0, server or 0)]
    event = make_line(attack, facts)
    run = attack_from_inside(functions, language, event, RecordingService(), timeout_seconds=attack.seconds)
    result = functions.runner.run(run)
    ending = script.read_endings(result.response)[0] if result.ending == "completed" else str(result.ending)
    assert ending in attack.contained, result
    assert functions.sandboxes.pid == server
    assert [os.getpriority(os.PRIO_PROCESS, pid) for pid in (0, server or 0)] == priorities
    check_health(functions)


FORGED_ANSWERS = {
    "an answer twice": (["/invocation/request-1/response", "/invocation/request-1/response"], ["202", "400"]),
    "an error after the answer": (["/invocation/request-1/response", "/invocation/request-1/error"], ["202", "400"]),
    "a failed start after the answer": (["/invocation/request-1/response", "/init/error"], ["202", "400"]),
}
FORGER = """
import socket
def ask(path):
    with socket.create_connection(('127.0.0.1', 9001)) as client:
        client.sendall(f'POST /2018-06-01/runtime{path} HTTP/1.1\\r\\ncontent-length: 8\\r\\n\\r\\n"forged"'.encode())
        return client.recv(100)[9:12].decode()
"""


@pytest.mark.parametrize("name", FORGED_ANSWERS)
def test_the_first_answer_counts(functions: Functions, name: str) -> None:
    paths, statuses = FORGED_ANSWERS[name]
    source = f"{FORGER}def handler(event, context):\n    print([ask(path) for path in {paths}], flush=True)\n"
    result = functions.run({"main.py": source})
    assert (result.ending, result.response, result.stdout) == ("completed", b'"forged"', f"{statuses}\n"), result
    check_health(functions)


def test_an_answer_before_the_event_is_refused(functions: Functions) -> None:
    source = f"{FORGER}early = ask('/invocation/request-1/response')\ndef handler(event, context):\n    return early\n"
    assert functions.value(source) == "400"
    check_health(functions)


def test_a_late_error_of_node_is_its_own(functions: Functions) -> None:
    check_language("node")
    late = "setTimeout(() => { throw new RangeError('late') }, 1)"
    source = f"export async function handler() {{ {late}; await new Promise(() => {{}}); }}"
    result = functions.run({"main.mjs": source}, language="node")
    assert result.ending == "error", result
    assert result.error is not None
    assert result.error.error_type == "RangeError"
    check_health(functions)


ENVIRONMENT = {
    "AWS_ENDPOINT_URL_S3", "AWS_LAMBDA_FUNCTION_MEMORY_SIZE", "AWS_LAMBDA_RUNTIME_API", "HOME", "LAMBDA_TASK_ROOT",
    "LANG", "LC_CTYPE", "PATH", "TMPDIR", "TRACE_TASK_CAPABILITY_TOKEN", "TRACE_TASK_URL", "TZ", "_HANDLER",
}  # fmt: skip


def test_the_environment_is_listed(functions: Functions) -> None:
    source = "import os\ndef handler(event, context):\n    return [sorted(os.environ), os.getpid(), os.getppid()]"
    names, pid, parent = functions.value(source)
    assert set(names) <= ENVIRONMENT
    assert (pid, parent) == (1, 0)


def test_the_catalogue() -> None:
    """Enough attacks of each language, each once, and none whose system call a profile allows."""
    names = [attack.name for attack in ATTACKS]
    assert len(set(names)) == len(names)
    for language in LANGUAGES:
        own = [attack for attack in ATTACKS if language in attack.languages]
        # Bytes that are sent to the runner are the same in every language.
        assert sum(attack.place not in (Place.RUNTIME, Place.PROXY) for attack in own) >= LEAST_ATTACKS
    assert all(attack.unsuitable for attack in ATTACKS if attack.languages != LANGUAGES)
    assert not set(CALLS) & PROGRAMS
    assert not set(CALLS.values()) & {X86_64[name] for name in PROGRAMS if name in X86_64}
    assert README.read_text() == render(), "run `python -m tests.runner.attacks`"


def test_the_rust_program_is_of_its_source() -> None:
    check_language("rust")
    shipped = program.unpack_program()
    assert program.source_hash().encode() in shipped, "run `python -m tests.runner.attacks.program`"


@pytest.mark.system
def test_the_rust_program_can_be_built() -> None:
    check_language("rust")
    if shutil.which("rustc") is None:
        pytest.skip("there is no rustc")
    # A rustc of rustup is there for everybody, and a toolchain of it for some homes only.
    if subprocess.run(["rustc", "--version"], capture_output=True, timeout=60).returncode != 0:
        pytest.skip("rustc has no toolchain in this home")
    assert program.source_hash().encode() in program.build()


@pytest.mark.skipif(os.geteuid() != 0, reason="the other tests already run as a plain user")
@pytest.mark.system
def test_attacks_fail_for_a_plain_user_too() -> None:
    """There the memory limit is the watch, and the user id is the runner's own."""
    script = """
import pytest, sys
sys.exit(pytest.main(["-q", "tests/runner/test_attacks.py", "tests/runner/test_functions.py"]))
"""
    status, text = run_as_plain_user(script, seconds=600)
    assert status == 0, text
