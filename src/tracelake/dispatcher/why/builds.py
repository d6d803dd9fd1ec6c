"""Why the version that is being built cannot become active: tasks have failed, or batches were rejected."""

from uuid import UUID

from tracelake.db.transaction import Connection
from tracelake.dispatcher.predicates import is_finally_failed
from tracelake.dispatcher.views.words import counted
from tracelake.dispatcher.why.answer import Reason, Step, error_words, reason
from tracelake.wire.dags import BuildProgress

_FIRST_FAILED = f"""
    SELECT t.task_id, t.error FROM dag_version_jobs v JOIN jobs own USING (job_id)
    JOIN jobs j ON j.node_id = own.node_id JOIN tasks t ON t.job_id = j.job_id AND {is_finally_failed("t")}
    WHERE v.dag_version_id = $1
      AND EXISTS (SELECT FROM edges e WHERE e.node_id = own.node_id AND e.phase = 'Staged')
    ORDER BY t.finished_at, t.task_id LIMIT 1"""  # noqa: S608 - constants only


def is_stuck(build: BuildProgress) -> bool:
    """Returns whether the build waits for a person: tasks have failed or batches were rejected, and nothing is left
    that could still go on by itself."""
    if build.open:
        return False
    return build.failed > 0 or (build.dead_letters > 0 and not (build.draining_edges or build.waiting_batches))


async def failed_build(connection: Connection, dag: str, version: UUID, number: int, build: BuildProgress) -> Reason:
    """The reason for whatever a stuck build would have made active."""
    first = await connection.fetchrow(_FIRST_FAILED, version) if build.failed else None
    parts = []
    if build.failed:
        parts.append(f"{counted(build.failed, 'task')} of its build {'has' if build.failed == 1 else 'have'} failed")
    if build.dead_letters:
        parts.append(rejected_words(build))
    text = f"Version {number} of {dag} cannot become active: {', '.join(parts)}, {build.done:,} {_is(build.done)} done."
    error = "" if first is None else error_words(first["error"])
    text += f' The first error: "{error}".' if error else ""
    references = [("version", f"{dag}@{number}"), *(() if first is None else [("task", first["task_id"])])]
    steps = (*(_steps(dag, number) if build.failed else ()), *(_rejected_steps(build) if build.dead_letters else ()))
    return reason("build_failed", text, *steps, references=references)


def rejected_words(build: BuildProgress) -> str:
    """`2 batches of its rows were rejected, 1 of them before this deploy`."""
    one = build.dead_letters == 1
    text = f"{counted(build.dead_letters, 'batch')} of its rows {'was' if one else 'were'} rejected"
    if build.old_dead_letters == build.dead_letters:
        return f"{text} before this deploy"
    return f"{text}, {build.old_dead_letters:,} of them before this deploy" if build.old_dead_letters else text


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


def _rejected_steps(build: BuildProgress) -> tuple[Step, ...]:
    """The same for batches that were rejected."""
    return tuple(
        step
        for dataset in build.rejected_datasets
        for step in (
            ("see why", f"trace dlq list --dataset {dataset}"),
            ("once the cause is corrected, replay them", f"trace dlq replay --dataset {dataset}"),
            ("or go on without their rows", f"trace dlq drop --dataset {dataset}"),
        )
    )


def _is(number: int) -> str:
    return "is" if number == 1 else "are"
