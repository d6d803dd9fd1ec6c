"""How the table of a buffered dataset is called in Postgres data, for those who make it and those who tell of it."""

import hashlib
from uuid import UUID

_LONGEST_NAME = 63


def table_name(dataset_uuid: UUID) -> str:
    return f"dataset_{dataset_uuid}"


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
