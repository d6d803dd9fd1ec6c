"""A Dispatcher refuses to start on a clock that somebody replaced."""

import asyncio
from collections.abc import Callable
from pathlib import Path

import asyncpg
import pytest

from tests.support.dispatcher import MOVABLE_CLOCK
from tests.support.postgres import TestCluster
from tracelake.processes import dispatcher
from tracelake.settings import Settings, SettingsError
from tracelake.settings.home import Home
from tracelake.stack import listeners
from tracelake.stack.credentials import LiteCredentials
from tracelake.stack.tls import ensure_tls


async def execute(dsn: str, statement: str) -> None:
    connection = await asyncpg.connect(dsn)
    try:
        await connection.execute(statement)
    finally:
        await connection.close()


async def serve_briefly(home: Path, state_dsn: str, queue_dsn: str, *, test_clock: bool) -> None:
    """Start as the process does, and stop at once if it came up."""
    Home(home).make()
    settings = Settings.load(
        {
            "home": home,
            "state_dsn": state_dsn,
            "queue_dsn": queue_dsn,
            "s3_endpoint": "http://127.0.0.1:1",
            "test_clock": test_clock,
        },
        environ={},
    )
    ensure_tls(settings.layout.tls, *settings.bind_hosts)
    LiteCredentials.ensure(settings.layout.keys)
    sockets = listeners.bind(settings)
    stop = asyncio.Event()
    stop.set()
    try:
        await asyncio.wait_for(dispatcher.serve(settings, sockets, stop), 30)
    finally:
        for sock in sockets.values():
            sock.close()


@pytest.fixture
def dsns(cluster: TestCluster, fresh_state_dsn: Callable[[], str], fresh_queue_dsn: Callable[[], str]) -> list[str]:
    # By the owner, as an operator with databases of its own would run it.
    return [fresh_state_dsn(), cluster.user_dsn(fresh_queue_dsn(), "trace_state")]


def test_it_starts_on_its_own_clock(dsns: list[str], tmp_path: Path) -> None:
    asyncio.run(serve_briefly(tmp_path, *dsns, test_clock=False))


@pytest.mark.parametrize("which", ["state", "queue"])
def test_it_refuses_a_replaced_clock(dsns: list[str], tmp_path: Path, which: str) -> None:
    asyncio.run(execute(dsns[which == "queue"], MOVABLE_CLOCK))
    with pytest.raises(SettingsError, match=f"trace_now\\(\\) of the {which} database was replaced"):
        asyncio.run(serve_briefly(tmp_path, *dsns, test_clock=False))


def test_a_test_may_allow_a_replaced_clock(dsns: list[str], tmp_path: Path) -> None:
    asyncio.run(execute(dsns[0], MOVABLE_CLOCK))
    asyncio.run(serve_briefly(tmp_path, *dsns, test_clock=True))
