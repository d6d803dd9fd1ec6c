"""A CredentialMinter without a store: its credentials open nothing."""

import secrets
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta

from tracelake.model.session_policy import POLICY_CHARACTERS, PolicyTooLargeError, PrefixGrant, write_policy
from tracelake.ports import MintedCredentials
from tracelake.ports.credential_minter import check_mint


class MemoryMinter:
    def __init__(self, limit: int = POLICY_CHARACTERS) -> None:
        self.endpoint: str | None = "http://127.0.0.1:9"
        self.region = "us-east-1"
        self.limit = limit
        self.mints: list[tuple[tuple[PrefixGrant, ...], str, int]] = []
        """Grants, session and seconds of what was minted."""

    async def mint(self, grants: Sequence[PrefixGrant], *, session: str, seconds: int) -> MintedCredentials:
        check_mint(grants, seconds)
        if len(write_policy(grants)) > self.limit:
            raise PolicyTooLargeError("the policy")
        self.mints.append((tuple(grants), session, seconds))
        expires_at = datetime.now(UTC) + timedelta(seconds=seconds)
        return MintedCredentials(secrets.token_hex(8), secrets.token_hex(16), secrets.token_hex(32), expires_at)
