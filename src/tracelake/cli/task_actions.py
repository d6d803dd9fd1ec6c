"""`trace cancel`, `trace retry` and `trace skip`.

Several tasks are handled one by one: a failure for one does not affect the others.
"""

from collections.abc import Callable
from typing import Any, TypeVar
from uuid import UUID

import click
import msgspec

from tracelake.cli.session import Session, user_command
from tracelake.cli.text import clean
from tracelake.client.user import UserClient
from tracelake.errors import TraceError
from tracelake.wire import routes
from tracelake.wire.base import ErrorInfo
from tracelake.wire.contract import Route
from tracelake.wire.platform import CancelReply
from tracelake.wire.tasks import RetryReply, SkipReply

R = TypeVar("R")

_tasks_argument = click.argument("task_ids", nargs=-1, required=True, type=click.UUID, metavar="TASK_ID...")


class NotDone(msgspec.Struct, frozen=True, kw_only=True):
    """The entry in the JSON list for a task for which the action failed."""

    task_id: UUID
    error: ErrorInfo


@click.command()
@_tasks_argument
@user_command
def cancel(session: Session, task_ids: tuple[UUID, ...]) -> None:
    """Cancel tasks: a waiting task at once; a running one is asked to stop. `trace retry` runs a cancelled task again.

    \b
    Example:
      trace cancel 01890000-0000-7000-8000-000000000001
    """
    _do(session, task_ids, routes.CANCEL_TASK, _cancelled)


@click.command()
@_tasks_argument
@user_command
def retry(session: Session, task_ids: tuple[UUID, ...]) -> None:
    """Run tasks again that failed for good, wait for a retry, or were cancelled.

    A task that completed is not run again; `trace trigger DAG/JOB` computes its unit anew.

    \b
    Examples:
      trace retry 01890000-0000-7000-8000-000000000001
      trace tasks --status Failed --json | jq -r '.tasks[].task_id' | xargs trace retry
    """
    _do(session, task_ids, routes.RETRY_TASK, _retried)


@click.command()
@_tasks_argument
@user_command
def skip(session: Session, task_ids: tuple[UUID, ...]) -> None:
    """Give up tasks that failed for good, so that the work held behind them goes on.

    Their units stay missing from the outputs until the tasks are retried.

    \b
    Example:
      trace skip 01890000-0000-7000-8000-000000000001
    """
    _do(session, task_ids, routes.SKIP_TASK, _skipped)


def _do(session: Session, task_ids: tuple[UUID, ...], route: Route[None, R], words: Callable[[R], str]) -> None:
    answers = session.run(lambda client: _each(client, task_ids, route))
    failed = [answer for answer in answers if isinstance(answer, NotDone)]
    session.answer(answers, status=1 if failed else 0)
    for answer in answers:
        if isinstance(answer, NotDone):
            text = f"{answer.task_id}: {clean(answer.error.code)}: {clean(answer.error.message)}"
            click.echo(f"{text} See `trace tasks {answer.task_id}`.", err=True)
        else:
            session.say(f"{answer.task_id}: {words(answer)}")
    done = [answer for answer in answers if not isinstance(answer, NotDone)]
    if done:
        session.hint("see it", "tasks", str(done[-1].task_id))
    if failed:
        click.get_current_context().exit(1)


async def _each(client: UserClient, task_ids: tuple[UUID, ...], route: Route[None, Any]) -> list[Any]:
    answers: list[Any] = []
    for task_id in dict.fromkeys(task_ids):
        try:
            answers.append(await client.call(route, task_id=task_id))
        except TraceError as error:
            if error.status in (401, 403) or error.retryable:
                raise  # it would be the same for all of them
            info = ErrorInfo(code=error.code, message=error.message, details=error.details)
            answers.append(NotDone(task_id=task_id, error=info))
    return answers


def _cancelled(reply: CancelReply) -> str:
    if reply.status == "Canceled":
        return "was already cancelled." if reply.duplicate else "cancelled."
    return "was asked to stop; it ends when its worker receives the request."


def _retried(reply: RetryReply) -> str:
    if reply.cancel_requested:
        return "is being stopped; retry it when it is Canceled."
    if reply.duplicate:
        return f"is {reply.status} already."
    return "will run again" + (f" (up to attempt {reply.max_attempts})." if reply.max_attempts else ".")


def _skipped(reply: SkipReply) -> str:
    return "was already skipped." if reply.duplicate else "skipped."
