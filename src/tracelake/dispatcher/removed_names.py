"""Names of removed DAGs and of their datasets: what is answered to whoever asks for one.

Nobody finds what was removed by its name, and nobody else gets the name until it was purged. An answer is about the org
of the caller alone.
"""

from datetime import datetime
from typing import Any
from uuid import UUID

import asyncpg

from tracelake.db.transaction import Connection
from tracelake.errors import TraceError

_COLUMNS = "d.dag_name, d.removed_at, d.removed_by, d.restorable_until, d.purged_at"

_DAG = f"SELECT {_COLUMNS} FROM dags d WHERE d.org_id = $1 AND d.dag_name = $2 AND d.removed_at IS NOT NULL"  # noqa: S608

_DATASET = f"""
    SELECT {_COLUMNS} FROM datasets s JOIN dags d ON d.org_id = s.org_id AND d.dag_name = s.dag_name
    WHERE s.org_id = $1 AND s.name = $2 AND s.removed_at IS NOT NULL"""  # noqa: S608 - constants only


async def find_removed_dag(connection: Connection, org_id: UUID | None, dag: str) -> TraceError | None:
    """The refusal for the name of a DAG that was removed; None for every other name."""
    row = await connection.fetchrow(_DAG, org_id, dag)
    if row is None:
        return None
    message, details = _describe(f"The DAG {dag} was removed", row)
    return TraceError("dag_removed", message, **details)


async def find_removed_dataset(connection: Connection, org_id: UUID | None, dataset: str) -> TraceError | None:
    """The refusal for the name of a dataset whose DAG was removed; None for every other name."""
    row = await connection.fetchrow(_DATASET, org_id, dataset)
    if row is None:
        return None
    message, details = _describe(f"The dataset {dataset} was removed with the DAG {row['dag_name']}", row)
    return TraceError("dataset_removed", message, **details)


async def check_not_removed(connection: Connection, org_id: UUID | None, dag: str) -> None:
    """Raises `dag_removed` if the DAG was removed."""
    refusal = await find_removed_dag(connection, org_id, dag)
    if refusal is not None:
        raise refusal


def _describe(what: str, row: asyncpg.Record) -> tuple[str, dict[str, Any]]:
    """The message and the details of a refusal."""
    dag, until = row["dag_name"], row["restorable_until"]
    details = {"dag": dag, "removed_at": row["removed_at"], "removed_by": row["removed_by"]}
    when = f"{what} on {_day(row['removed_at'])}"
    if row["purged_at"] is not None:
        text = f"{when}, and is being deleted. Its names are free when that is done: see `trace remove --list`."
        return text, details | {"purged_at": row["purged_at"]}
    limit = "" if until is None else f" until {_day(until)}"
    purge = f"or delete it for good: `trace remove --purge {dag}`"
    text = f"{when}. Restore it with `trace remove --undo {dag}`{limit}, {purge}."
    return text, details | {"restorable_until": until}


def _day(time: datetime) -> str:
    return f"{time:%Y-%m-%d %H:%M} UTC"
