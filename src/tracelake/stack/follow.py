"""Runs the processes of a stack: they find it by `HOME/stack.json`, wait for it, and follow it when it restarts."""

import asyncio
import logging
import signal
from collections.abc import Awaitable, Callable
from contextlib import suppress

import uvloop

from tracelake.model.backoff import Backoff
from tracelake.settings import Settings
from tracelake.settings.home import Home, LocalStack
from tracelake.stack import logs

logger = logging.getLogger(__name__)

_WAIT = Backoff(0.05, 0.2)
"""Short: `trace up` starts its parts before it is ready, and the first task waits for this."""
_WATCH_SECONDS = 2.0


def run_process(name: str, settings: Settings, serve: Callable[[Settings, asyncio.Event], Awaitable[None]]) -> None:
    """Serves in this process until SIGTERM or SIGINT, with its logs on standard error."""

    async def main() -> None:
        await serve(settings, stop_event())

    logs.configure(name, settings.log_level)
    uvloop.run(main())


def stop_event() -> asyncio.Event:
    """An event that SIGTERM or SIGINT to this process sets."""
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    return stop


async def follow_stack(
    home: Home, stop: asyncio.Event, serve: Callable[[LocalStack, asyncio.Event], Awaitable[None]]
) -> None:
    """Serves one stack after the other until `stop` is set. `serve` gets an event that is set when it is to leave its
    stack."""
    while (stack := await _wait_for_stack(home, stop)) is not None:
        leave = asyncio.Event()
        watching = asyncio.create_task(_watch(home, stack, stop, leave))
        try:
            await serve(stack, leave)
        finally:
            watching.cancel()
        if not stop.is_set():
            logger.info("the stack was started again")


async def _wait_for_stack(home: Home, stop: asyncio.Event) -> LocalStack | None:
    tries = 0
    while not stop.is_set():
        stack = home.read_stack()
        if stack is not None:
            return stack
        tries += 1
        if tries == 1:
            logger.info("waiting for the stack to say where it is")
        try:
            async with asyncio.timeout(_WAIT.seconds(tries)):
                await stop.wait()
        except TimeoutError:
            continue
    return None


async def _watch(home: Home, stack: LocalStack, stop: asyncio.Event, leave: asyncio.Event) -> None:
    """Sets `leave` when `stop` is set, or when another stack has taken the place of this one."""
    while home.read_stack() in (None, stack):
        with suppress(TimeoutError):
            await asyncio.wait_for(stop.wait(), _WATCH_SECONDS)
            break
    leave.set()
