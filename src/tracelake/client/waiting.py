"""Waits for work that was started: what follows from a trigger, and the build of a version.

The Dispatcher says in one snapshot whether anything of a trigger is still open (`GET /v1/triggers`), so nothing that
follows can be missed between two looks. The commands wait in the same way.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TypeVar
from uuid import UUID

from tracelake.client.errors import ClientError, WaitTimeoutError
from tracelake.client.user import UserClient
from tracelake.errors import TraceError
from tracelake.model.backoff import Backoff
from tracelake.wire import routes
from tracelake.wire.dags import BuildProgress, DeployReply, Plan
from tracelake.wire.jobs import TriggerReply
from tracelake.wire.trigger_progress import TriggerProgressReply

T = TypeVar("T")

_POLL = Backoff(0.1, 2.0)
_MOST_FAILURES = 60
"""How many looks in a row may fail before the error is raised; a restart of the Dispatcher takes far fewer."""


@dataclass(frozen=True, slots=True)
class StartedWork:
    """What a trigger has started in a DAG; `Client.wait` waits for it."""

    dag: str
    job: str
    reply: TriggerReply

    @property
    def task_ids(self) -> list[UUID]:
        """The tasks that were created at once."""
        return list(self.reply.tasks) if self.reply.task_id is None else [self.reply.task_id]


async def await_work(client: UserClient, work: StartedWork, timeout: float | None) -> TriggerProgressReply:
    """Returns when nothing that follows from the trigger is open. Raises `tasks_failed` if something of it is missing
    and nothing will compute it, `wait_timeout` after the time."""

    async def look() -> TriggerProgressReply | None:
        progress = await client.call(routes.SHOW_TRIGGER, key=work.reply.idempotency_key)
        return progress if progress.finished else None

    progress = await _poll(look, timeout, f"the work of {work.dag}/{work.job} has not ended")
    if not progress.succeeded:
        raise ClientError(
            "tasks_failed",
            _explain_failure(work, progress),
            task_ids=[str(group.task_id) for group in progress.errors],
            failed=progress.failed,
            dead_letters=progress.dead_letters,
        )
    return progress


def _explain_failure(work: StartedWork, progress: TriggerProgressReply) -> str:
    subject = f"the work of {work.dag}/{work.job} ended incomplete"
    if progress.errors:
        group = progress.errors[0]
        first_line = group.error.strip().split("\n", 1)[0]
        return f"{subject}: {progress.failed} tasks failed, {group.tasks} of them with: {first_line}"
    if progress.dead_letters:
        return f"{subject}: a sink refused {progress.dead_letters} batches of rows; see `trace dlq list`"
    return f"{subject}: {progress.held_events} events wait behind a failed unit; see `trace why {work.dag}/{work.job}`"


async def await_build(client: UserClient, reply: DeployReply, timeout: float | None) -> None:
    """Returns when the version is active; raises `build_failed` if it will not be by itself."""
    plan = reply.plan

    async def look() -> bool | None:
        rows = (await client.call(routes.LIST_VERSIONS, dag=plan.dag)).versions
        row = next((row for row in rows if row.number == plan.version), None)
        if row is None or row.state == "Inactive":
            raise ClientError(
                "build_failed",
                f"the build of version {plan.version} of {plan.dag} was abandoned: another version was activated",
            )
        build = row.build
        if row.state == "Active":
            return True
        if build is None or build.open or build.draining_edges or build.waiting_batches:
            return None
        if build.failed or build.dead_letters:
            raise ClientError(
                "build_failed",
                f"the build of version {plan.version} of {plan.dag} cannot finish: {_explain_build(plan, build)}",
                failed=build.failed,
                dead_letters=build.dead_letters,
                old_dead_letters=build.old_dead_letters,
            )
        return None

    await _poll(look, timeout, f"the build of version {plan.version} of {plan.dag} has not ended")


def _explain_build(plan: Plan, build: BuildProgress) -> str:
    """`2 tasks failed. See ...`; batches of an earlier build are told as such."""
    sentences = []
    if build.failed:
        see = f"`trace tasks --dag {plan.dag} --version {plan.version} --status Failed`"
        sentences.append(f"{build.failed} {'task' if build.failed == 1 else 'tasks'} failed; see {see}")
    if build.dead_letters:
        replay = " and ".join(f"`trace dlq replay --dataset {name}`" for name in build.rejected_datasets)
        batches = f"{build.dead_letters} {'batch was' if build.dead_letters == 1 else 'batches were'} rejected"
        old = "" if not build.old_dead_letters else f", {build.old_dead_letters} of them before this deploy"
        sentences.append(f"{batches}{old}: {replay or 'see `trace dlq list`'}")
    return ". ".join(sentences)


async def _poll(look: Callable[[], Awaitable[T | None]], timeout: float | None, what: str) -> T:
    """Looks again and again until there is a result. An outage is waited for, within bounds."""
    deadline = None if timeout is None else time.monotonic() + timeout
    tries = failures = 0
    while True:
        tries += 1
        try:
            result = await look()
            failures = 0
        except TraceError as error:
            failures += 1
            if not error.retryable or failures > _MOST_FAILURES:
                raise
            result = None
        if result is not None:
            return result
        rest = None if deadline is None else deadline - time.monotonic()
        if rest is not None and rest <= 0:
            raise WaitTimeoutError(f"{what} within {timeout:g} seconds; it goes on")
        pause = _POLL.seconds(tries)
        await asyncio.sleep(pause if rest is None else min(pause, rest))
