"""What the org's work needs, in one line for `trace status`: failed tasks, gaps, refused batches.

It is asked as the user, within seconds. A Dispatcher that does not answer, or a token that may not read, is no error
here: the status of the stack is shown without it.
"""

import asyncio
import ssl
from pathlib import Path

import msgspec

from tracelake.cli.text import clean, count
from tracelake.client.stack import Stack
from tracelake.client.user import UserClient
from tracelake.errors import TraceError
from tracelake.wire import routes
from tracelake.wire.dags import DagRow

_SECONDS = 5.0


class WorkSummary(msgspec.Struct, frozen=True, kw_only=True):
    """The counts of all DAGs together; those of `trace dags`."""

    dags: int = 0
    open_tasks: int = 0
    failed_tasks: int = 0
    """Also those of builds."""
    gaps: int = 0
    dead_letters: int = 0
    more: bool = False
    """Counting stopped at a limit: the numbers are lower bounds."""
    error: str | None = None
    """Why it is unknown."""

    @property
    def needs_attention(self) -> bool:
        return bool(self.failed_tasks or self.dead_letters)


def read_work(stack: Stack, token_file: Path | None = None) -> WorkSummary:
    try:
        return asyncio.run(asyncio.wait_for(_read(stack, token_file), _SECONDS))
    except TimeoutError:
        return WorkSummary(error="the Dispatcher did not answer in time")
    except TraceError as error:
        return WorkSummary(error=f"{error.code}: {error.message}")
    except (OSError, ssl.SSLError) as error:
        return WorkSummary(error=f"{type(error).__name__}: no certificate or no token that can be read")


async def _read(stack: Stack, token_file: Path | None) -> WorkSummary:
    client = UserClient.of_stack(stack, token_file)
    try:
        return summarize((await client.call(routes.LIST_DAGS)).dags)
    finally:
        await client.close()


def summarize(dags: list[DagRow]) -> WorkSummary:
    return WorkSummary(
        dags=len(dags),
        open_tasks=sum(dag.open_tasks for dag in dags),
        failed_tasks=sum(dag.failed_tasks + dag.failed_building for dag in dags),
        gaps=sum(dag.gaps for dag in dags),
        dead_letters=sum(dag.dead_letters for dag in dags),
        more=any(dag.more for dag in dags),
    )


def work_lines(work: WorkSummary) -> list[str]:
    """`Work: 2 DAGs, 5 open tasks, 1 failed task.`, and the next step if something needs attention."""
    if work.error is not None:
        return [f"Work: unknown ({clean(work.error)})."]
    parts = [count(work.dags, "DAG"), count(work.open_tasks, "open task"), count(work.failed_tasks, "failed task")]
    parts += [count(work.gaps, "gap")] if work.gaps else []
    parts += [count(work.dead_letters, "refused batch")] if work.dead_letters else []
    more = " At least: counting stopped at a limit." if work.more else ""
    lines = [f"Work: {', '.join(parts)}.{more}"]
    if work.failed_tasks:
        lines.append("see what failed: trace tasks --by-error")
    if work.dead_letters:
        lines.append("see the refused batches: trace dlq list")
    return lines
