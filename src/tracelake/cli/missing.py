"""Names that nothing has: the error says which name it was, and which one was perhaps meant."""

import difflib
from collections.abc import Awaitable, Iterable
from typing import TypeVar

from tracelake.cli.text import clean
from tracelake.client.user import UserClient
from tracelake.errors import TraceError
from tracelake.wire import routes

T = TypeVar("T")


async def explained(
    client: UserClient,
    answer: Awaitable[T],
    *,
    dag: str | None = None,
    job: str | None = None,
    dataset: str | None = None,
) -> T:
    """The answer; a name that the server does not know is said with the nearest one that it does."""
    try:
        return await answer
    except TraceError as error:
        if error.code == "dag_not_found" and dag is not None:
            names = [row.name for row in (await client.call(routes.LIST_DAGS)).dags]
            raise TraceError("dag_not_found", _no("DAG", dag, names)) from None
        if error.code == "dataset_not_found" and dataset is not None:
            names = [row.name for row in (await client.call(routes.LIST_DATASETS)).datasets]
            raise TraceError("dataset_not_found", _no("dataset", dataset, names)) from None
        if error.code == "job_not_found" and job is not None:
            raise TraceError("job_not_found", _no("job", job, await _jobs(client, dag))) from None
        raise


async def _jobs(client: UserClient, dag: str | None) -> list[str]:
    try:
        return [] if dag is None else [row.name for row in (await client.call(routes.LIST_JOBS, dag=dag)).jobs]
    except TraceError:  # it has no active version
        return []


def _no(kind: str, name: str, names: Iterable[str]) -> str:
    return f"There is no {kind} `{clean(name)}`.{meant(name, names)}"


def meant(name: str, names: Iterable[str]) -> str:
    """` Did you mean ...?`, or nothing when no name is near."""
    close = difflib.get_close_matches(name[:200], list(names), n=1)
    return f" Did you mean `{clean(close[0])}`?" if close else ""
