"""Run in a process of its own: builds a Dispatcher that does not trace, or asks the command for help."""

import asyncio
import tempfile
from contextlib import suppress
from pathlib import Path


async def _build() -> None:
    from tracelake.processes.dispatcher import build
    from tracelake.settings import Settings
    from tracelake.stack.tls import ensure_tls

    with tempfile.TemporaryDirectory() as home:
        dsn = "postgresql://nobody@127.0.0.1:1/nothing"
        settings = Settings.load({"home": home, "state_dsn": dsn, "queue_dsn": dsn, "s3_endpoint": "aws"}, environ={})
        dispatcher = build(settings, ensure_tls(Path(home) / "tls", "127.0.0.1"), "https://127.0.0.1:1")
        assert dispatcher.tracing is None


def main(arguments: list[str]) -> None:
    if arguments == ["dispatcher"]:
        asyncio.run(_build())
        return
    from tracelake.processes.main import main as command

    with suppress(SystemExit):
        command(["--help"])
