"""Programs that replace the forked process: the interpreter runs, its output is bounded, its environment is empty."""

import asyncio
import os
import sys
from collections.abc import Iterator
from dataclasses import dataclass

import msgspec
import pytest

from tests.sandbox.conftest import LIMITS
from tracelake.sandbox.program import ProgramCall, ProgramResult, interpreter_mounts, run_program
from tracelake.sandbox.seccomp import Profile
from tracelake.sandbox.server import SandboxServer
from tracelake.sandbox.spec import MIB, Ending, SandboxSpec


@dataclass
class Interpreter:
    server: SandboxServer
    runner: asyncio.Runner

    def run(self, source: str, *, output_bytes: int = MIB, proc: bool = False) -> ProgramResult:
        mounts, links = interpreter_mounts()
        limits = msgspec.structs.replace(LIMITS, scratch_bytes=MIB, file_bytes=MIB, memory_bytes=512 * MIB)
        spec = SandboxSpec(limits=limits, profile=Profile.PROGRAMS, mounts=mounts, links=links, proc=proc)
        call = ProgramCall(arguments=(sys.executable, "-I", "-S", "-c", source))
        return self.runner.run(run_program(self.server, spec, call, output_bytes=output_bytes))


@pytest.fixture(scope="module")
def interpreter(secret_environment: None) -> Iterator[Interpreter]:
    with asyncio.Runner() as runner:
        server = SandboxServer("tracelake.sandbox.program")
        runner.run(server.start())
        yield Interpreter(server, runner)
        runner.run(server.close())


def test_runs_the_interpreter(interpreter: Interpreter) -> None:
    result = interpreter.run("import sys, json, decimal; print('out'); print('err', file=sys.stderr); sys.exit(3)")
    assert (result.output, result.errors) == (b"out\n", b"err\n")
    assert (result.report.ending, result.report.status) == (Ending.EXITED, 3)


def test_keeps_the_end_of_its_output(interpreter: Interpreter) -> None:
    result = interpreter.run("print('x' * 5_000_000 + 'end')", output_bytes=1000)
    assert len(result.output) == 1000
    assert result.output.endswith(b"end\n")


def test_has_an_empty_environment(interpreter: Interpreter) -> None:
    source = """
import os
names = [name for name in os.listdir("/proc") if name.isdigit()]
print(names, [open(f"/proc/{name}/environ", "rb").read() for name in names])
"""
    result = interpreter.run(source, proc=True)
    assert result.output == b"['1'] [b'']\n", result.errors


def test_starts_processes_and_uses_its_scratch(interpreter: Interpreter) -> None:
    source = f"""
import os, subprocess
open("/tmp/file", "w").write("mine")
command = [{sys.executable!r}, "-I", "-S", "-c", "print(open('/tmp/file').read())"]
print(subprocess.run(command, capture_output=True).stdout)
print(os.path.exists("/etc/passwd"), os.path.exists("/home"), os.listdir("/dev"))
"""
    result = interpreter.run(source)
    first, second = result.output.decode().splitlines()
    assert first == "b'mine\\n'", result.errors
    assert second.startswith("False False ["), second


def test_has_no_privileged_programs(interpreter: Interpreter) -> None:
    source = """
import os
for path in ("/usr/bin/su", "/usr/bin/mount", "/usr/bin/passwd"):
    if os.path.exists(path):
        print(bool(os.statvfs(path).f_flag & os.ST_NOSUID), bool(os.statvfs(path).f_flag & os.ST_RDONLY))
print(True, True)
"""
    assert set(interpreter.run(source).output.splitlines()) == {b"True True"}


def test_parallel_programs_do_not_mix(interpreter: Interpreter) -> None:
    mounts, links = interpreter_mounts()
    spec = SandboxSpec(limits=LIMITS, profile=Profile.PROGRAMS, mounts=mounts, links=links)

    async def run_many() -> list[ProgramResult]:
        calls = [ProgramCall(arguments=(sys.executable, "-I", "-S", "-c", f"print({number})")) for number in range(8)]
        return await asyncio.gather(*(run_program(interpreter.server, spec, call) for call in calls))

    results = interpreter.runner.run(run_many())
    assert [result.output for result in results] == [f"{number}\n".encode() for number in range(8)]
    assert os.getpid()
