"""How the table of a buffered dataset is called in Postgres data, and how that is reached, for those who make it, read
it or tell of it."""

import hashlib
from urllib.parse import urlencode
from uuid import UUID

from tracelake.model.dag import Schema

_LONGEST_NAME = 63
# A server that is gone without a word is noticed: a connection is one of few, and others wait for it.
_PATIENCE = {
    "connect_timeout": "10",
    "keepalives_idle": "30",
    "keepalives_interval": "10",
    "keepalives_count": "3",
    "tcp_user_timeout": "60000",
}


def table_name(dataset_uuid: UUID) -> str:
    return f"dataset_{dataset_uuid}"


def hidden_name(dataset_uuid: UUID) -> str:
    """The table of rows that are not visible now and may become so."""
    return f"hidden_{dataset_uuid}"


def view_names(org: str, dataset: str) -> tuple[str, str]:
    """Schema and name of the view by which people read it; orgs and datasets have names that SQL takes unquoted."""
    return short_name(f"org_{org}"), short_name(dataset)


def short_name(name: str) -> str:
    """A name that Postgres does not cut: a cut one could be another's."""
    if len(name.encode()) <= _LONGEST_NAME:
        return name
    digest = hashlib.sha256(name.encode()).hexdigest()[:10]
    return f"{name[: _LONGEST_NAME - 11]}_{digest}"


def quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def patient(dsn: str) -> str:
    """With times after which a connection is given up. What the setting says itself counts: it stands behind."""
    if "://" not in dsn:
        return " ".join([*(f"{name}={value}" for name, value in _PATIENCE.items()), dsn])
    where, _, parameters = dsn.partition("?")
    return f"{where}?{urlencode(_PATIENCE)}{'&' if parameters else ''}{parameters}"


def shown_rows(table: str, schema: Schema, condition: str = "true") -> str:
    """What follows FROM to read the rows of a table that people see. `table` is quoted, `condition` of our own."""
    if not schema.newest_wins:
        return table
    position, *key = map(quoted, schema.unique)
    columns = ", ".join(key)
    return (
        f"(SELECT DISTINCT ON ({columns}) * FROM {table} WHERE {condition}"  # noqa: S608 - quoted
        f" ORDER BY {columns}, {position} DESC) AS shown"
    )
