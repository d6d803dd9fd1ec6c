"""The adapters of the CredentialMinter port, both on the STS of a real SeaweedFS.

The one for AWS makes the same calls with boto3 as it makes in AWS; whether AWS enforces its policies is not shown here.
"""

import asyncio
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from tests.conformance.credential_minter_suite import GRANTS, CredentialMinterSuite
from tests.support.minter import MemoryMinter
from tests.support.object_store import object_store
from tracelake.adapters.aws_sts import AwsMinter
from tracelake.adapters.s3.access import S3Access
from tracelake.adapters.s3.object_store import S3ObjectStore
from tracelake.adapters.s3.sts import EndpointMinter
from tracelake.errors import StoreUnavailableError
from tracelake.model.session_policy import make_grants
from tracelake.ports import CredentialMinter
from tracelake.stack.seaweedfs import REGION, EmbeddedObjectStore
from tracelake.stack.store_roles import TASK_ROLE, write_roles


@pytest.fixture(scope="module")
def seaweed() -> Iterator[EmbeddedObjectStore]:
    with object_store() as store:
        yield store


def boto3_client(store: EmbeddedObjectStore) -> Any:
    boto3 = pytest.importorskip("boto3", reason="`make setup-dev` installs boto3")
    access = store.access()
    return boto3.client(
        "sts",
        endpoint_url=access.endpoint,
        region_name=access.region,
        aws_access_key_id=access.access_key,
        aws_secret_access_key=access.secret_key,
    )


def mint_with(minter: CredentialMinter) -> None:
    asyncio.run(minter.mint(GRANTS, session="task-1", seconds=900))


class TestMemoryMinter(CredentialMinterSuite):
    """What the tests of the Dispatcher use."""

    @pytest.fixture
    def minter(self) -> MemoryMinter:
        return MemoryMinter()


class TestEndpointMinter(CredentialMinterSuite):
    @pytest.fixture
    def minter(self, seaweed: EmbeddedObjectStore) -> EndpointMinter:
        return EndpointMinter(seaweed.access(), TASK_ROLE)

    def test_a_store_that_is_away(self, seaweed: EmbeddedObjectStore) -> None:
        away = replace(seaweed.access(), endpoint="http://127.0.0.1:9")
        with pytest.raises(StoreUnavailableError):
            mint_with(EndpointMinter(away, TASK_ROLE))

    def test_a_role_that_does_not_exist(self, seaweed: EmbeddedObjectStore) -> None:
        with pytest.raises(StoreUnavailableError, match="status 4") as refusal:
            mint_with(EndpointMinter(seaweed.access(), TASK_ROLE + "x"))
        assert TASK_ROLE not in str(refusal.value)

    def test_buckets_exist_before_their_credentials(self, seaweed: EmbeddedObjectStore) -> None:
        """A session can make none, not even with its first object."""
        access = seaweed.access()
        grants = make_grants([], ["s3://bucket-of-sessions/scratch/a/1/"])
        keys = asyncio.run(EndpointMinter(access, TASK_ROLE).mint(grants, session="task-1", seconds=900))
        scoped = S3Access(access.endpoint, REGION, keys.access_key_id, keys.secret_access_key, keys.session_token)
        asyncio.run(S3ObjectStore(scoped).put("s3://bucket-of-sessions/scratch/a/1/x", b"1"))

    def test_it_needs_keys(self, seaweed: EmbeddedObjectStore) -> None:
        with pytest.raises(ValueError, match="keys"):
            EndpointMinter(replace(seaweed.access(), secret_key=None), TASK_ROLE)


class TestAwsMinter(CredentialMinterSuite):
    @pytest.fixture
    def minter(self, seaweed: EmbeddedObjectStore) -> AwsMinter:
        return AwsMinter("us-east-1", TASK_ROLE, boto3_client(seaweed))

    def test_a_role_that_does_not_exist(self, seaweed: EmbeddedObjectStore) -> None:
        with pytest.raises(StoreUnavailableError, match="s3_task_role"):
            mint_with(AwsMinter("us-east-1", TASK_ROLE + "x", boto3_client(seaweed)))


def test_the_key_of_sessions_survives_a_restart(seaweed: EmbeddedObjectStore) -> None:
    path = seaweed.config_dir / "roles.json"
    before = path.read_text()
    write_roles(path, "platform")
    assert path.read_text() == before
