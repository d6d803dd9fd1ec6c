"""A recorded chain as a part of a stack: a JSON-RPC endpoint on this machine, for trying things without a node.

Workers know it as the endpoint `default`. Its port stays the same from one start to the next. At `/live` it is served
once more, with a head that can be moved (`demo.chain.orders`).
"""

import asyncio
import contextlib
import os
import signal
import sys
from dataclasses import dataclass
from pathlib import Path

from tracelake.settings import Settings, SettingsError
from tracelake.settings.kinds import EXAMPLE_RECORDING
from tracelake.stack.kept_ports import again, read_ports
from tracelake.stack.machine import wrap

NAME = "chain"
_HOST = "127.0.0.1"


@dataclass(frozen=True, slots=True)
class RecordedChain:
    recording: Path
    port: int
    log_file: Path

    @classmethod
    def plan(cls, settings: Settings) -> "RecordedChain | None":
        """None unless the settings name a recording. Raises SettingsError if there is no such file."""
        if settings.recorded_chain is None:
            return None
        if not settings.recorded_chain.is_file():
            raise SettingsError(
                f"recorded_chain: there is no file {settings.recorded_chain}; "
                f"{EXAMPLE_RECORDING} is the recording that comes with Trace"
            )
        home = settings.layout
        return cls(settings.recorded_chain, again(read_ports(home.ports_file), NAME), home.log_file(NAME))

    @property
    def url(self) -> str:
        return f"http://{_HOST}:{self.port}"

    def command(self) -> list[str]:
        program = [sys.executable, "-P", "-m", "tracelake.demo.chain.server"]
        arguments = ["--recording", str(self.recording), "--port", str(self.port), "--live"]
        return wrap([*program, *arguments], death_signal=signal.SIGKILL)

    def environment(self) -> dict[str, str]:
        return {name: value for name, value in os.environ.items() if not name.startswith(("TRACE_", "OTEL_"))}

    async def ready(self) -> bool:
        with contextlib.suppress(OSError):
            _, writer = await asyncio.open_connection(_HOST, self.port)
            writer.close()
            return True
        return False
