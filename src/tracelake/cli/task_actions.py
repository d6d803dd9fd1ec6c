"""`trace cancel`, `trace retry` and `trace skip`: of given tasks, or of all that failed or are open.

Given tasks are handled one by one: a failure for one does not affect the others. `many_tasks` handles the others.
"""

from collections.abc import Callable
from typing import Any, TypeVar
from uuid import UUID

import click
import msgspec

from tracelake.cli.many_tasks import act_on_many
from tracelake.cli.session import Session, user_command
from tracelake.cli.text import clean
from tracelake.client.user import UserClient
from tracelake.errors import TraceError
from tracelake.wire import routes
from tracelake.wire.base import ErrorInfo
from tracelake.wire.contract import Route
from tracelake.wire.failures import TaskAction
from tracelake.wire.platform import CancelReply
from tracelake.wire.tasks import RetryReply, SkipReply

R = TypeVar("R")

_tasks_argument = click.argument("task_ids", nargs=-1, type=click.UUID, metavar="[TASK_ID...]")


def _many_options(flag: str, flag_help: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """The options that name many tasks instead of ids."""
    options = (
        click.option(flag, "many", is_flag=True, help=flag_help),
        click.option("--dag", help="Those of this DAG."),
        click.option("--job", metavar="DAG/JOB", help="Those of this job."),
        click.option(
            "--version",
            type=click.IntRange(1),
            metavar="N",
            help="Those of version N of the DAG (default: of the active version and the one being built).",
        ),
        click.option("--yes", is_flag=True, help="Do not ask for confirmation."),
    )

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        for option in reversed(options):
            function = option(function)
        return function

    return decorate


class NotDone(msgspec.Struct, frozen=True, kw_only=True):
    """The entry in the JSON list for a task for which the action failed."""

    task_id: UUID
    error: ErrorInfo


@click.command()
@_tasks_argument
@_many_options("--open", "All queued, running and retrying tasks of --dag or --job.")
@user_command
def cancel(session: Session, task_ids: tuple[UUID, ...], **options: Any) -> None:
    """Cancel tasks: a waiting task at once; a running one is asked to stop. `trace retry` runs a cancelled task again.

    With --open it shows how many tasks there are, asks, and cancels them in batches. Tasks that are created meanwhile
    are not cancelled; to stop new ones, pause the source first.

    \b
    Examples:
      trace cancel 01890000-0000-7000-8000-000000000001
      trace cancel --job pools/prices --open
    """
    _do(session, "cancel", task_ids, routes.CANCEL_TASK, _cancelled, **options)


@click.command()
@_tasks_argument
@_many_options("--failed", "All failed tasks of --dag or --job that have no retry left.")
@user_command
def retry(session: Session, task_ids: tuple[UUID, ...], **options: Any) -> None:
    """Run tasks again that failed, wait for a retry, or were cancelled.

    A task that completed is not run again; `trace trigger DAG/JOB` computes its unit anew.

    With --failed it shows how many failed tasks there are, grouped by error, asks, and retries them in batches. A task
    that somebody else has retried or skipped meanwhile is left alone. If it is interrupted, the same command continues.
    Without a terminal it needs --yes; else it only shows the preview, and the exit status is 2.

    \b
    Examples:
      trace retry 01890000-0000-7000-8000-000000000001
      trace retry --dag pools --failed
      trace retry --job pools/prices --failed --yes
    """
    _do(session, "retry", task_ids, routes.RETRY_TASK, _retried, **options)


@click.command()
@_tasks_argument
@_many_options("--failed", "All failed tasks of --dag or --job that have no retry left.")
@user_command
def skip(session: Session, task_ids: tuple[UUID, ...], **options: Any) -> None:
    """Give up tasks that failed and have no retry left, so that the work held behind them goes on.

    Their units stay missing from the outputs until the tasks are retried. --failed works as for `trace retry`.

    \b
    Examples:
      trace skip 01890000-0000-7000-8000-000000000001
      trace skip --job pools/prices --failed
    """
    _do(session, "skip", task_ids, routes.SKIP_TASK, _skipped, **options)


def _do(
    session: Session,
    action: TaskAction,
    task_ids: tuple[UUID, ...],
    route: Route[None, R],
    words: Callable[[R], str],
    *,
    many: bool,
    dag: str | None,
    job: str | None,
    version: int | None,
    yes: bool,
) -> None:
    flag = "--open" if action == "cancel" else "--failed"
    if many:
        if task_ids or (dag is None and job is None):
            raise click.UsageError(f"{flag} needs --dag or --job, and no TASK_ID.")
        act_on_many(session, action, dag, job, version, yes=yes)
        return
    if not task_ids or dag or job or version:
        raise click.UsageError(f"Give TASK_IDs, or {flag} with --dag or --job.")
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
