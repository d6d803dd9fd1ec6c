"""One fork server for all tests of a module, and functions that run from source."""

import asyncio
import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tracelake.runner.exchange import Handler, SandboxReply, SandboxRequest, refuse
from tracelake.runner.function import CountRefusal, Egress, FunctionRunner, StopSignal
from tracelake.runner.languages import FunctionPlan
from tracelake.runner.memory import MemoryLimiter
from tracelake.runner.outcome import RunResult
from tracelake.runner.runtime_api import RuntimeApi
from tracelake.sandbox.server import SandboxServer
from tracelake.sandbox.spec import MIB


async def refuse_all(request: SandboxRequest) -> SandboxReply:
    return refuse(403, "egress_refused", "nothing is reachable")


@dataclass
class Functions:
    """Runs functions as the runner does, without a Dispatcher."""

    sandboxes: SandboxServer
    runner: asyncio.Runner
    directory: Path
    limiter: MemoryLimiter = field(default_factory=MemoryLimiter.choose)

    def bundle(self, files: dict[str, str | bytes]) -> Path:
        place = self.directory / f"bundle{len(list(self.directory.iterdir()))}"
        place.mkdir(mode=0o755)
        for name, content in files.items():
            (place / name).parent.mkdir(parents=True, exist_ok=True)
            (place / name).write_bytes(content if isinstance(content, bytes) else content.encode())
            (place / name).chmod(0o555 if name == "bootstrap" else 0o444)
        return place

    def run(self, files: dict[str, str | bytes], **fields: Any) -> RunResult:
        return self.runner.run(self.execute(files, **fields))

    async def execute(
        self,
        files: dict[str, str | bytes],
        *,
        language: str = "python",
        entrypoint: str = "main.handler",
        event: Any = None,
        egress: Handler = refuse_all,
        stop: StopSignal | None = None,
        secrets: tuple[str, ...] = (),
        **limits: Any,
    ) -> RunResult:
        plan = FunctionPlan(
            language=language,
            entrypoint=entrypoint,
            bundle=self.bundle(files),
            environment={"TRACE_TASK_CAPABILITY_TOKEN": "token"},
            **({"timeout_seconds": 30.0, "memory_bytes": 128 * MIB, "scratch_bytes": 16 * MIB} | limits),
        )
        api = RuntimeApi(request_id="request-1", event=json.dumps(event).encode(), deadline_ms=1, function_name="job")
        way_out = Egress(handler=egress, count_refusal=CountRefusal())
        functions = FunctionRunner(self.sandboxes, self.limiter)
        return await functions.run(plan, api, way_out, stop or StopSignal(), secrets)

    def value(self, source: str, **fields: Any) -> Any:
        """What the Python handler returns."""
        result = self.run({"main.py": source}, **fields)
        assert result.ending == "completed", result
        return json.loads(result.response)


@pytest.fixture(scope="module")
def functions(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Functions]:
    with asyncio.Runner() as runner:
        sandboxes = SandboxServer("tracelake.runner.inside", spares=1)
        runner.run(sandboxes.start())
        yield Functions(sandboxes, runner, tmp_path_factory.mktemp("bundles"))
        runner.run(sandboxes.close())
