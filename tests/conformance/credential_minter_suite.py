"""Every promise of the CredentialMinter port. Each adapter subclasses `CredentialMinterSuite` and provides `minter`.

What the credentials open and what they do not is in `tests/security/test_minted_credentials.py`.
"""

import asyncio
from datetime import UTC, datetime, timedelta

import pytest

from tracelake.model.prefixes import Prefix
from tracelake.model.session_policy import PolicyTooLargeError, PrefixGrant, make_grants
from tracelake.ports import CredentialMinter, MintedCredentials

GRANTS = make_grants(["s3://bucket-one/datasets/a/"], ["s3://bucket-one/scratch/a/1/"])
SLACK = timedelta(seconds=30)


def mint(minter: CredentialMinter, seconds: int = 900) -> MintedCredentials:
    return asyncio.run(minter.mint(GRANTS, session="task-1", seconds=seconds))


class CredentialMinterSuite:
    @pytest.mark.parametrize("seconds", [900, 3600])
    def test_they_live_as_long_as_was_asked(self, minter: CredentialMinter, seconds: int) -> None:
        before = datetime.now(UTC)
        credentials = mint(minter, seconds)
        assert abs(credentials.expires_at - before - timedelta(seconds=seconds)) < SLACK

    def test_each_set_is_its_own(self, minter: CredentialMinter) -> None:
        first, second = mint(minter), mint(minter)
        assert first.session_token != second.session_token
        assert first.access_key_id != second.access_key_id

    def test_a_trace_shows_no_secret(self, minter: CredentialMinter) -> None:
        credentials = mint(minter)
        text = repr(credentials)
        assert credentials.secret_access_key not in text
        assert credentials.session_token not in text

    @pytest.mark.parametrize("seconds", [0, 899, 3601, 43_200])
    def test_other_lives_are_refused(self, minter: CredentialMinter, seconds: int) -> None:
        with pytest.raises(ValueError, match="900 to 3600"):
            mint(minter, seconds)

    def test_nothing_is_minted_for_no_grants(self, minter: CredentialMinter) -> None:
        with pytest.raises(ValueError, match="without grants"):
            asyncio.run(minter.mint((), session="task-1", seconds=900))

    def test_grants_that_one_policy_cannot_hold(self, minter: CredentialMinter) -> None:
        many = [PrefixGrant(Prefix.parse(f"s3://bucket-one/datasets/{number:040}/")) for number in range(40)]
        with pytest.raises(PolicyTooLargeError):
            asyncio.run(minter.mint(many, session="task-1", seconds=900))
