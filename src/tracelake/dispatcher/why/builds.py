"""Why the version that is being built cannot become active: tasks of its build have failed."""

from uuid import UUID

from tracelake.db.transaction import Connection
from tracelake.dispatcher.predicates import is_failed_for_good
from tracelake.dispatcher.views.words import counted
from tracelake.dispatcher.why.answer import Reason, Step, reason
from tracelake.wire.dags import BuildProgress

_FIRST_FAILED = f"""
    SELECT t.task_id, t.error FROM dag_version_jobs v JOIN jobs own USING (job_id)
    JOIN jobs j ON j.node_id = own.node_id JOIN tasks t ON t.job_id = j.job_id AND {is_failed_for_good("t")}
    WHERE v.dag_version_id = $1
      AND EXISTS (SELECT FROM edges e WHERE e.node_id = own.node_id AND e.phase = 'Staged')
    ORDER BY t.finished_at, t.task_id LIMIT 1"""  # noqa: S608 - constants only


def is_stuck(build: BuildProgress) -> bool:
    """Returns whether the build waits for a person: tasks have failed, and no other is left that could still run."""
    return build.failed > 0 and not build.open


async def failed_build(connection: Connection, dag: str, version: UUID, number: int, build: BuildProgress) -> Reason:
    """The reason for whatever a stuck build would have made active."""
    first = await connection.fetchrow(_FIRST_FAILED, version)
    failed = f"{counted(build.failed, 'task')} of its build {'has' if build.failed == 1 else 'have'} failed"
    error = "" if first is None else (first["error"] or "").partition("\n")[0]
    text = f"Version {number} of {dag} cannot become active: {failed}, {build.done:,} {_is(build.done)} done."
    text += f' The first error: "{error}".' if error else ""
    references = [("version", f"{dag}@{number}"), *(() if first is None else [("task", first["task_id"])])]
    return reason("build_failed", text, *_steps(dag, number), references=references)


def _steps(dag: str, number: int) -> tuple[Step, ...]:
    """What `trace deploy` and `trace dags` advise as well."""
    build = f"--dag {dag} --version {number}"
    return (
        ("see them", f"trace tasks {build} --status Failed"),
        ("see the log of one", "trace logs TASK_ID"),
        ("correct the document and deploy it", "trace deploy FILE"),
        ("or retry them", f"trace retry {build} --failed"),
        ("or go on without them", f"trace skip {build} --failed"),
        ("or activate it with what is built so far", f"trace activate {dag} {number} --now"),
    )


def _is(number: int) -> str:
    return "is" if number == 1 else "are"
