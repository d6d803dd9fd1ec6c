"""CredentialMinter: short-lived credentials of the object store that reach some prefixes and nothing else."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Protocol

from tracelake.model.session_policy import PrefixGrant

MIN_SECONDS = 900
MAX_SECONDS = 3600
"""Lives of minted credentials. STS gives none for less than the first; nothing in a task needs more than the second,
since it can ask again."""


@dataclass(frozen=True, slots=True)
class MintedCredentials:
    access_key_id: str
    secret_access_key: str = field(repr=False)
    session_token: str = field(repr=False)
    expires_at: datetime


class CredentialMinter(Protocol):
    @property
    def endpoint(self) -> str | None:
        """Where the credentials are used. None: S3 in AWS."""
        ...

    @property
    def region(self) -> str: ...

    async def mint(self, grants: Sequence[PrefixGrant], *, session: str, seconds: int) -> MintedCredentials:
        """Credentials for exactly these grants, which cannot be exchanged for others.

        `session` names them in the store's own logs. Raises ValueError without grants, or with a life outside of
        `MIN_SECONDS` to `MAX_SECONDS`; PolicyTooLargeError if the grants need several sets; StoreUnavailableError if
        the store does not answer or refuses.
        """
        ...


def check_mint(grants: Sequence[PrefixGrant], seconds: int) -> None:
    """What every adapter refuses before it asks anybody."""
    if not grants:
        raise ValueError("credentials without grants")
    if not MIN_SECONDS <= seconds <= MAX_SECONDS:
        raise ValueError(f"expected a life of {MIN_SECONDS} to {MAX_SECONDS} seconds, received {seconds}")
