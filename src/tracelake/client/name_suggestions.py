"""Suggestions for names of DAGs, jobs and datasets that the server does not know."""

import difflib
from collections.abc import Awaitable, Iterable
from typing import TypeVar

from tracelake.client.user import UserClient
from tracelake.errors import TraceError
from tracelake.wire import routes

T = TypeVar("T")


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
    nearest = nearest_name(name, names)
    hint = "" if nearest is None else f" Did you mean `{nearest}`?"
    return f"There is no {kind} `{name}`.{hint}"


def nearest_name(name: str, names: Iterable[str]) -> str | None:
    """The name that somebody may have meant."""
    return next(iter(difflib.get_close_matches(name[:200], list(names), n=1)), None)
