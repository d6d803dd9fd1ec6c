"""Names that people type: a job without its DAG, and suggestions for names that do not exist."""

import difflib
from collections.abc import Awaitable, Iterable
from typing import TypeVar

import click

from tracelake.cli.text import clean
from tracelake.client.user import UserClient
from tracelake.errors import TraceError
from tracelake.wire import routes

T = TypeVar("T")


async def resolve_job(client: UserClient, target: str) -> tuple[str, str]:
    """The DAG and the job of `DAG/JOB`, or of `JOB` where only one active DAG has a job of that name."""
    dag, slash, job = target.partition("/")
    return (dag, job) if slash else await find_job(client, target)


async def find_job(client: UserClient, name: str) -> tuple[str, str]:
    """The one DAG whose active version has a job of that name, and the name."""
    active = [row.name for row in (await client.call(routes.LIST_DAGS)).dags if row.active_version is not None]
    homes = [
        dag for dag in active if any(job.name == name for job in (await client.call(routes.LIST_JOBS, dag=dag)).jobs)
    ]
    if not homes:
        raise TraceError("job_not_found", f"No active DAG has a job named {name}.")
    if len(homes) > 1:
        choices = ", ".join(f"{dag}/{name}" for dag in homes)
        raise click.UsageError(f"Several DAGs have a job named {clean(name)}: name one of {clean(choices)}.")
    return homes[0], name


async def suggest_names(
    client: UserClient,
    answer: Awaitable[T],
    *,
    dag: str | None = None,
    job: str | None = None,
    dataset: str | None = None,
) -> T:
    """Returns the answer. If the server does not know one of the names, the error suggests the nearest one."""
    try:
        return await answer
    except TraceError as error:
        if error.code == "dag_not_found" and dag is not None:
            names = [row.name for row in (await client.call(routes.LIST_DAGS)).dags]
            raise TraceError("dag_not_found", _unknown("DAG", dag, names)) from None
        if error.code == "dataset_not_found" and dataset is not None:
            names = [row.name for row in (await client.call(routes.LIST_DATASETS)).datasets]
            raise TraceError("dataset_not_found", _unknown("dataset", dataset, names)) from None
        if error.code == "job_not_found" and job is not None:
            raise TraceError("job_not_found", _unknown("job", job, await _jobs(client, dag))) from None
        raise


async def _jobs(client: UserClient, dag: str | None) -> list[str]:
    try:
        return [] if dag is None else [row.name for row in (await client.call(routes.LIST_JOBS, dag=dag)).jobs]
    except TraceError:  # it has no active version
        return []


def _unknown(kind: str, name: str, names: Iterable[str]) -> str:
    return f"There is no {kind} `{clean(name)}`.{suggestion(name, names)}"


def suggestion(name: str, names: Iterable[str]) -> str:
    """` Did you mean ...?`, or nothing when no name is near."""
    close = difflib.get_close_matches(name[:200], list(names), n=1)
    return f" Did you mean `{clean(close[0])}`?" if close else ""
