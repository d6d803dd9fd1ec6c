"""What a person may do next with a stack that is ready: the commands, for a stack with and without DAGs."""

import asyncio
import shlex
from pathlib import Path

import asyncpg

from tracelake.client.stack import default_home
from tracelake.settings import Settings, SettingsError

_HAS_DAGS = "SELECT EXISTS (SELECT FROM dag_versions)"
_ASK_SECONDS = 5.0


async def find_next_steps(settings: Settings) -> list[str]:
    """A sentence for each step. A state database that does not answer has no DAGs, as far as this is concerned."""
    return list_next_steps(settings.home, has_dags=await _has_dags(settings))


def list_next_steps(root: Path, *, has_dags: bool) -> list[str]:
    if has_dags:
        steps = [("top", "shows the work"), ("datasets", "lists the data"), ("deploy FILE", "deploys a change")]
    else:
        steps = [("init DIRECTORY", "makes a project to start from"), ("deploy FILE", "deploys its DAG")]
    home = "" if root == default_home() else f" --home {shlex.quote(str(root))}"
    # A project is no part of a stack.
    return [f"`trace {name}{'' if name.startswith('init') else home}` {effect}" for name, effect in steps]


async def _has_dags(settings: Settings) -> bool:
    try:
        async with asyncio.timeout(_ASK_SECONDS):
            connection = await asyncpg.connect(settings.resolve_state_dsn())
            try:
                return bool(await connection.fetchval(_HAS_DAGS))
            finally:
                await connection.close()
    except (OSError, ValueError, SettingsError, asyncpg.PostgresError, asyncpg.InterfaceError):
        return False  # TimeoutError is an OSError
