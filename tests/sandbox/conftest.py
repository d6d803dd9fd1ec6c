"""One fork server for all tests of a module, and sandboxes that run Python source."""

import asyncio
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tracelake.sandbox.pipes import InwardPipe, open_pipe
from tracelake.sandbox.seccomp import Profile
from tracelake.sandbox.server import SandboxServer
from tracelake.sandbox.spec import MIB, Mount, SandboxLimits, SandboxReport, SandboxSpec

ROOT = Path(__file__).parents[2]
LIMITS = SandboxLimits(deadline_seconds=60, memory_bytes=256 * MIB, cpu_seconds=30)


class SourceServer(SandboxServer):
    """Its sandboxes run the Python source of their payload."""

    def __init__(self) -> None:
        super().__init__("tests.sandbox.payload")

    def _command(self) -> Sequence[str]:
        start = f"import sys; sys.path.insert(0, {str(ROOT)!r}); from tracelake.sandbox.fork_server import main; main()"
        return (sys.executable, "-I", "-c", start)


@dataclass
class Playground:
    server: SourceServer
    runner: asyncio.Runner
    profile: Profile = Profile.COMPUTING
    mounts: list[Mount] = field(default_factory=list)

    def spec(self, *, proc: bool = False, **limits: Any) -> SandboxSpec:
        return SandboxSpec(
            limits=msgspec.structs.replace(LIMITS, **limits), profile=self.profile, mounts=tuple(self.mounts), proc=proc
        )

    def report(self, source: str, *, proc: bool = False, **limits: Any) -> tuple[list[str], SandboxReport]:
        """What the source said, line by line, and how its sandbox ended."""
        return self.runner.run(self._run(source, self.spec(proc=proc, **limits)))

    def lines(self, source: str, *, proc: bool = False, **limits: Any) -> list[str]:
        return self.report(source, proc=proc, **limits)[0]

    async def _run(self, source: str, spec: SandboxSpec) -> tuple[list[str], SandboxReport]:
        async with open_pipe() as pipe, self.server.launch(spec, source.encode(), [pipe.write_end]) as sandbox:
            pipe.give_away()
            text = await pipe.read_tail(MIB)
            return text.decode().splitlines(), await sandbox.wait()


@pytest.fixture(scope="module")
def secret_environment() -> Iterator[None]:
    """The service has something in its environment before it starts anything."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SECRET_OF_THE_SERVICE", "value")
        yield


@pytest.fixture(scope="module")
def _served(secret_environment: None) -> Iterator[Playground]:
    with asyncio.Runner() as runner:
        server = SourceServer()
        runner.run(server.start())
        yield Playground(server, runner)
        runner.run(server.close())


@pytest.fixture(params=list(Profile))
def playground(_served: Playground, request: pytest.FixtureRequest) -> Playground:
    """With each profile in turn."""
    return Playground(_served.server, _served.runner, Profile(request.param))


@pytest.fixture
def computing(_served: Playground) -> Playground:
    return Playground(_served.server, _served.runner)


@pytest.fixture
def programs(_served: Playground) -> Playground:
    return Playground(_served.server, _served.runner, Profile.PROGRAMS)


async def read_lines(pipe: InwardPipe, count: int) -> None:
    """Reads until so many lines have arrived."""
    text = b""
    while text.count(b"\n") < count:
        chunk = await pipe.read()
        assert chunk, text
        text += chunk


def descendants(pid: int) -> set[int]:
    """All living processes below this one."""
    parents: dict[int, int] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                state, parent = (entry / "stat").read_text().rpartition(")")[2].split()[:2]
            except OSError:
                continue  # it has just ended
            if state != "Z":
                parents[int(entry.name)] = int(parent)
    below = {pid}
    while more := {child for child, parent in parents.items() if parent in below} - below:
        below |= more
    return below - {pid}
