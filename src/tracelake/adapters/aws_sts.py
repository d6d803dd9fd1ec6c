"""The CredentialMinter port over STS in AWS, with boto3 (the extra `aws`).

The role needs `GetObject`, `PutObject` and `ListBucket` on the platform's buckets, should deny `PutObject` below
`datasets/`, and must trust the Dispatcher's own role by its full ARN. Sessions cannot assume it again: they are another
principal, and their policy allows no `sts:AssumeRole`.
"""

import asyncio
from collections.abc import Sequence
from typing import Any

from tracelake.errors import StoreUnavailableError
from tracelake.model.session_policy import POLICY_CHARACTERS, PolicyTooLargeError, PrefixGrant, write_policy
from tracelake.ports.credential_minter import MintedCredentials, check_mint


class AwsMinter:
    def __init__(self, region: str, role_arn: str, client: Any = None) -> None:
        """`client` is a boto3 client of STS; without it, one with the machine's own identity."""
        self.endpoint: str | None = None
        self.region = region
        self._client = client or _open_client(region)
        self._role_arn = role_arn

    async def mint(self, grants: Sequence[PrefixGrant], *, session: str, seconds: int) -> MintedCredentials:
        check_mint(grants, seconds)
        policy = write_policy(grants)
        if len(policy) > POLICY_CHARACTERS:
            raise PolicyTooLargeError(f"a policy of {len(policy):,} characters")
        reply = await asyncio.to_thread(self._assume, policy, session, seconds)
        return MintedCredentials(
            reply["AccessKeyId"], reply["SecretAccessKey"], reply["SessionToken"], reply["Expiration"]
        )

    def _assume(self, policy: str, session: str, seconds: int) -> Any:
        from botocore.exceptions import BotoCoreError, ClientError

        try:
            reply = self._client.assume_role(
                RoleArn=self._role_arn, RoleSessionName=session, Policy=policy, DurationSeconds=seconds
            )
        except ClientError as refusal:
            code = refusal.response.get("Error", {}).get("Code", "unknown")
            if code == "PackedPolicyTooLarge":
                raise PolicyTooLargeError("the policy, packed") from None
            raise StoreUnavailableError(
                f"STS mints no credentials ({code}): see s3_task_role and the trust policy of that role."
            ) from refusal
        except BotoCoreError as error:
            raise StoreUnavailableError("STS is not available right now.") from error
        return reply["Credentials"]


def _open_client(region: str) -> Any:
    import boto3
    from botocore.config import Config

    patience = Config(connect_timeout=5, read_timeout=10, retries={"total_max_attempts": 3})
    return boto3.client("sts", region_name=region, config=patience)
