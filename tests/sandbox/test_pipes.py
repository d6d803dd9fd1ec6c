"""Pipes out of a sandbox, on both event loops that run them."""

import asyncio
import os
import threading
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest
import uvloop

from tracelake.sandbox.pipes import open_pipe

Run = Callable[[Coroutine[Any, Any, Any]], Any]


@pytest.fixture(params=[asyncio.run, uvloop.run], ids=["asyncio", "uvloop"])
def run(request: pytest.FixtureRequest) -> Run:
    chosen: Run = request.param
    return chosen


def test_all_bytes_arrive_in_order(run: Run) -> None:
    text = os.urandom(1_000_000)

    async def read() -> bytes:
        async with open_pipe() as pipe:
            write_end = os.dup(pipe.write_end)
            pipe.give_away()
            writer = asyncio.create_task(asyncio.to_thread(write_all, write_end, text))
            chunks = []
            while chunk := await pipe.read():
                chunks.append(chunk)
            await writer
            return b"".join(chunks)

    def write_all(descriptor: int, data: bytes) -> None:
        with os.fdopen(descriptor, "wb") as sink:
            sink.write(data)

    assert run(read()) == text


def test_a_closed_pipe_ends_for_its_reader(run: Run) -> None:
    async def close_while_read() -> bytes:
        async with open_pipe() as pipe:
            reader = asyncio.create_task(pipe.read())
            await asyncio.sleep(0)
            await asyncio.sleep(0)
        return await reader

    assert run(close_while_read()) == b""


def test_closing_pipes_closes_no_file_of_other_threads(run: Run, tmp_path: Path) -> None:
    """A descriptor that is closed twice is, the second time, sometimes the one that a thread has just opened."""
    stop = threading.Event()
    failures: list[OSError] = []

    def open_files(number: int) -> None:
        path = tmp_path / str(number)
        while not stop.is_set():
            try:
                os.close(os.open(path, os.O_RDWR | os.O_CREAT))
            except OSError as error:
                failures.append(error)

    async def use_pipes() -> None:
        for _ in range(3000):
            async with open_pipe() as pipe:
                pipe.give_away()
                assert await pipe.read() == b""

    threads = [threading.Thread(target=open_files, args=(number,)) for number in range(3)]
    for thread in threads:
        thread.start()
    try:
        run(use_pipes())
    finally:
        stop.set()
        for thread in threads:
            thread.join()
    assert failures == []
