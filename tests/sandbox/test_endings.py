"""A sandbox ends at its deadline, when it is cancelled and with whoever started it; nothing of it stays."""

import asyncio
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.sandbox.conftest import ROOT, Playground, SourceServer, descendants, read_lines
from tracelake.errors import TraceError
from tracelake.sandbox.pipes import open_pipe
from tracelake.sandbox.seccomp import Profile
from tracelake.sandbox.spec import Ending, SandboxReport

WAIT_SECONDS = 30
STUBBORN = """
for number in range(3):
    if os.fork() == 0:
        os.setsid()
        for number in range(1, 32):
            if number not in (9, 19):
                signal.signal(number, signal.SIG_IGN)
        break
say("started")
time.sleep(600)
"""


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(WAIT_SECONDS):
        while not condition():
            await asyncio.sleep(0.01)


def test_deadline_ends_everything(programs: Playground) -> None:
    assert programs.server.pid
    lines, report = programs.report(STUBBORN, deadline_seconds=2)
    assert set(lines) == {"started"}
    assert report.ending is Ending.DEADLINE
    programs.runner.run(until(lambda: not descendants(programs.server.pid or 0)))


def test_leaving_the_block_ends_everything(programs: Playground) -> None:
    async def cancel() -> tuple[int, SandboxReport]:
        spec = programs.spec()
        async with open_pipe() as pipe, programs.server.launch(spec, STUBBORN.encode(), [pipe.write_end]) as sandbox:
            pipe.give_away()
            await read_lines(pipe, 4)
            count = len(descendants(programs.server.pid or 0))
            task = asyncio.create_task(sandbox.wait())
            await asyncio.sleep(0)
        assert not await pipe.read(), "the pipe has ended"
        return count, await task

    count, report = programs.runner.run(cancel())
    assert count >= 2
    assert report.ending is Ending.CANCELLED
    programs.runner.run(until(lambda: not descendants(programs.server.pid or 0)))


def test_ends_with_its_monitor(computing: Playground) -> None:
    async def kill_monitor() -> None:
        spec = computing.spec()
        async with open_pipe() as pipe:
            source = b"say('started'); time.sleep(600)"
            async with computing.server.launch(spec, source, [pipe.write_end]) as sandbox:
                pipe.give_away()
                await pipe.read()
                server = computing.server.pid or 0
                monitor = min(descendants(server), key=lambda pid: len(descendants(pid)) == 0)
                first = descendants(monitor)
                assert len(first) == 1
                os.kill(monitor, signal.SIGKILL)
                with pytest.raises(TraceError, match="sandbox_lost"):
                    await sandbox.wait()
                assert await pipe.read() == b""
                await until(lambda: not any(map(is_running, first)))

    computing.runner.run(kill_monitor())


@pytest.mark.parametrize("profile", list(Profile))
def test_fork_server_is_replaced(profile: Profile) -> None:
    async def kill_server() -> None:
        server = SourceServer()
        await server.start()
        playground = Playground(server, asyncio.Runner(), profile)
        try:
            old = server.pid
            assert old
            async with open_pipe() as pipe:
                source = b"say('started'); time.sleep(600)"
                async with server.launch(playground.spec(), source, [pipe.write_end]) as sandbox:
                    pipe.give_away()
                    await pipe.read()
                    below = descendants(old)
                    assert len(below) == 2
                    os.kill(old, signal.SIGKILL)
                    with pytest.raises(TraceError, match="sandbox_lost"):
                        await sandbox.wait()
                    assert await pipe.read() == b""
            lines, _ = await playground._run("say('again')", playground.spec())
            assert lines == ["again"]
            assert server.pid != old
        finally:
            await server.close()

    asyncio.run(kill_server())


def test_ends_with_the_service() -> None:
    """The service is killed with SIGKILL, and can clean nothing up."""
    script = f"""
import asyncio, sys
sys.path.insert(0, {str(ROOT)!r})
from tests.sandbox.conftest import *
async def main():
    server = SourceServer()
    await server.start()
    spec = Playground(server, asyncio.Runner(), Profile.PROGRAMS).spec()
    async with open_pipe() as pipe, server.launch(spec, {STUBBORN!r}.encode(), [pipe.write_end]) as sandbox:
        await read_lines(pipe, 4)
        print("started", flush=True)
        await asyncio.sleep(600)
asyncio.run(main())
"""

    async def kill_service() -> None:
        service = await asyncio.create_subprocess_exec(
            sys.executable, "-c", script, stdout=asyncio.subprocess.PIPE, cwd=ROOT
        )
        assert service.stdout
        assert await asyncio.wait_for(service.stdout.readline(), WAIT_SECONDS) == b"started\n"
        below = descendants(service.pid)
        assert len(below) >= 4, "the fork server, the monitor and the processes of the sandbox"
        service.kill()
        await service.wait()
        await until(lambda: not any(is_running(pid) for pid in below))

    asyncio.run(kill_service())


def is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def test_many_at_once_and_in_turn(computing: Playground) -> None:
    async def run_many() -> list[tuple[list[str], SandboxReport]]:
        return await asyncio.gather(*(computing._run(f"say({number})", computing.spec()) for number in range(40)))

    results = computing.runner.run(run_many())
    assert [lines for lines, _ in results] == [[str(number)] for number in range(40)]
    computing.runner.run(until(lambda: not descendants(computing.server.pid or 0)))


def test_reports_exit_status_and_usage(playground: Playground) -> None:
    _, report = playground.report("end = time.process_time() + 0.2\nwhile time.process_time() < end: pass\nos._exit(7)")
    assert (report.ending, report.status) == (Ending.EXITED, 7)
    assert report.cpu_seconds >= 0.2
    assert report.peak_memory > 1 << 20


def test_crash_is_reported(playground: Playground) -> None:
    _, report = playground.report("ctypes.string_at(0)")
    assert (report.ending, report.status) == (Ending.SIGNALLED, signal.SIGSEGV)
    _, report = playground.report("raise ValueError")
    assert (report.ending, report.status) == (Ending.EXITED, 125)
