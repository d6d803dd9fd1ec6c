"""How an object store is reached: an address, a region, and who asks. No client is needed to read this."""

import json
from dataclasses import dataclass, field
from pathlib import Path

from tracelake.private_files import write_private


@dataclass(frozen=True, slots=True)
class S3Access:
    """Without an endpoint it is S3 in AWS; without keys the machine's own identity is used (its role, say)."""

    endpoint: str | None
    region: str
    access_key: str | None = field(default=None, repr=False)
    secret_key: str | None = field(default=None, repr=False)
    session_token: str | None = field(default=None, repr=False)


@dataclass(frozen=True, slots=True)
class StorePatience:
    """How long a client waits for an answer, and for how long it asks again where none came."""

    request_seconds: float
    retry_seconds: float
    retries: int


ASKING = StorePatience(10.0, 10.0, 3)
"""For small questions that somebody waits for: an answer or a refusal within half a minute."""
WORKING = StorePatience(60.0, 60.0, 1000)
"""Tasks have time: a store that restarts is back before this. It is the time that ends the tries, not their number."""


def write_access(path: Path, access: S3Access) -> None:
    """For the parts of a stack, in a file that only they can read."""
    fields = {
        "endpoint": access.endpoint,
        "region": access.region,
        "access_key": access.access_key,
        "secret_key": access.secret_key,
    }
    write_private(path, json.dumps(fields) + "\n")


def read_access(path: Path) -> S3Access:
    """Raises FileNotFoundError or another OSError, and ValueError for what is no such file."""
    try:
        fields = json.loads(path.read_text())
        return S3Access(fields["endpoint"], fields["region"], fields["access_key"], fields["secret_key"])
    except (KeyError, TypeError) as error:
        raise ValueError("not an object store's access file") from error
