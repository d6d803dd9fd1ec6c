"""`trace scheduler`: the composition root of one scheduler process.

It finds the Dispatcher by `HOME/stack.json` and waits for it.
"""

import asyncio
import logging

import click
import uvloop

from tracelake.client import FileCredential, HttpClient, InternalClient
from tracelake.scheduler import Scheduler, SchedulerConfig
from tracelake.settings import Settings
from tracelake.settings.configs import take_config
from tracelake.settings.home import Stack
from tracelake.stack import logs
from tracelake.stack.follow import follow_stack, stop_event

logger = logging.getLogger(__name__)


async def serve(settings: Settings, stop: asyncio.Event) -> None:
    """Until told to stop. A stack that was started again has other addresses: the scheduler moves with it."""

    async def serve_stack(stack: Stack, leave: asyncio.Event) -> None:
        http = HttpClient(stack.internal_url, stack.ca_file)
        calls = InternalClient(http, service=FileCredential(settings.layout.keys / "service.token"))
        logger.info("scheduler ready")
        try:
            await Scheduler(take_config(SchedulerConfig, settings, "scheduler_"), calls=calls).run(leave)
        finally:
            await http.close()

    await follow_stack(settings.layout, stop, serve_stack)
    logger.info("scheduler stops")


async def _main(settings: Settings) -> None:
    await serve(settings, stop_event())


@click.command(short_help="Run one scheduler process (what `trace up` starts).")
@click.option("--home", type=click.Path(), help="Where the stack keeps everything it stores.")
def command(home: str | None) -> None:
    """Run one scheduler process: it fires cron sources when their time comes.

    `trace up` starts and supervises one; a second one on the same home does no harm, and takes over when the first is
    away.
    """
    settings = Settings.load({"home": home})
    logs.configure("scheduler", settings.log_level)
    uvloop.run(_main(settings))
