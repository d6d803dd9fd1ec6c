"""`trace scheduler`: the composition root of one scheduler process.

It finds the Dispatcher by `HOME/stack.json` and waits for it.
"""

import asyncio
import logging
from pathlib import Path

import click

from tracelake.cli.options import home_option
from tracelake.client import FileCredential, HttpClient, InternalClient
from tracelake.scheduler import Scheduler, SchedulerConfig
from tracelake.settings import Settings
from tracelake.settings.configs import take_config
from tracelake.settings.home import LocalStack
from tracelake.stack.follow import follow_stack, run_process

logger = logging.getLogger(__name__)


async def serve(settings: Settings, stop: asyncio.Event) -> None:
    """Serves until `stop` is set. A stack that was started again has other addresses: the scheduler moves with it."""

    async def serve_stack(stack: LocalStack, leave: asyncio.Event) -> None:
        http = HttpClient(stack.internal_url, stack.ca_file)
        calls = InternalClient(http, service=FileCredential(settings.layout.keys / "service.token"))
        logger.info("scheduler ready")
        try:
            await Scheduler(take_config(SchedulerConfig, settings, "scheduler_"), calls=calls).run(leave)
        finally:
            await http.close()

    await follow_stack(settings.layout, stop, serve_stack)
    logger.info("scheduler stops")


@click.command(short_help="Run one scheduler process (what `trace up` starts).")
@home_option
def command(home: Path | None) -> None:
    """Run one scheduler process: it fires cron sources when their time comes.

    `trace up` starts and supervises one; a second one on the same home does no harm, and takes over when the first is
    away.
    """
    settings = Settings.load({"home": home})
    run_process("scheduler", settings, serve)
