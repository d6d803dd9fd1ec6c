"""A job by the words of a person: `DAG/JOB`, or the job's name alone where only one active DAG has it."""

import click

from tracelake.cli.text import clean
from tracelake.client.user import UserClient
from tracelake.errors import TraceError
from tracelake.wire import routes


async def named(client: UserClient, target: str) -> tuple[str, str]:
    """The DAG and the job."""
    dag, slash, job = target.partition("/")
    return (dag, job) if slash else await find_job(client, target)


async def find_job(client: UserClient, name: str) -> tuple[str, str]:
    """The one DAG whose active version has a job of that name."""
    active = [row.name for row in (await client.call(routes.LIST_DAGS)).dags if row.active_version is not None]
    homes = [
        dag for dag in active if any(job.name == name for job in (await client.call(routes.LIST_JOBS, dag=dag)).jobs)
    ]
    if not homes:
        raise TraceError("job_not_found", f"No active DAG has a job named {name}.")
    if len(homes) > 1:
        choices = ", ".join(f"{dag}/{name}" for dag in homes)
        raise click.UsageError(f"Several DAGs have such a job; give one of {clean(choices)}.")
    return homes[0], name
