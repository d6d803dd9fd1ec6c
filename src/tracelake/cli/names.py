"""Names that people type: a job without its DAG, and suggestions for words that do not exist."""

from collections.abc import Iterable

import click

from tracelake.cli.text import clean
from tracelake.client.name_suggestions import nearest_name
from tracelake.client.user import UserClient
from tracelake.errors import TraceError
from tracelake.wire import routes


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


def suggestion(name: str, names: Iterable[str]) -> str:
    """` Did you mean ...?`, or nothing when no name is near."""
    nearest = nearest_name(name, names)
    return "" if nearest is None else f" Did you mean `{clean(nearest)}`?"
