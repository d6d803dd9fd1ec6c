"""What minted credentials open on a real SeaweedFS, and what they do not: with boto3, obstore and DuckDB.

DuckDB reads S3 by itself with the extension httpfs, which is in no wheel; here it gets what obstore fetched.
"""

import asyncio
import http.client
import io
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any
from urllib.parse import urlsplit

import duckdb
import obstore
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from obstore.exceptions import BaseError
from obstore.store import S3Store

from tests.security.conftest import RunningStore
from tests.support.postgres import wait_until
from tracelake.adapters.s3.access import ASKING, S3Access
from tracelake.adapters.s3.object_store import S3ObjectStore, open_bucket
from tracelake.adapters.s3.sts import EndpointMinter
from tracelake.errors import StoreUnavailableError
from tracelake.model.session_policy import make_grants
from tracelake.stack.seaweedfs import REGION
from tracelake.stack.store_roles import TASK_ROLE

boto3 = pytest.importorskip("boto3", reason="`make setup-dev` installs boto3")
from botocore.config import Config  # noqa: E402
from botocore.exceptions import ClientError  # noqa: E402

READ, WRITE, BUCKET, OTHER = "datasets/in/1/", "staging/out/1/", "minted-one", "minted-two"
SIBLING = "datasets/in/12"
OUTSIDE = [SIBLING, "datasets/in/1x/a", "datasets/in/a", "datasets/a", "staging/out/12/a", "top"]
"""Keys beside the grants: siblings with the same beginning, parents, and others."""
POLICY = '{"Version":"2012-10-17","Statement":[{"Effect":"Allow","Principal":"*","Action":"s3:*","Resource":"*"}]}'
ENABLED = {"Status": "Enabled"}
TEN_YEARS = {"Rules": [{"ID": "x", "Status": "Enabled", "Filter": {"Prefix": ""}, "Expiration": {"Days": 3650}}]}
REFUSED = {
    "AccessDenied",
    "403",
    "MethodNotAllowed",
    "InvalidRequest",
    "InvalidArgument",
    "Unknown",
    "InvalidAccessKeyId",
}


@dataclass(frozen=True)
class Minted:
    access: S3Access
    s3: Any
    sts: Any
    iam: Any
    platform: S3ObjectStore
    bare: Any
    """A client of S3 with the keys and without the session token."""

    @property
    def bucket(self) -> S3Store:
        return open_bucket(self.access, BUCKET, ASKING)

    def presigned(self, operation: str, key: str, method: str, body: bytes | None = None) -> int:
        url = self.s3.generate_presigned_url(operation, Params={"Bucket": BUCKET, "Key": key}, ExpiresIn=300)
        place = urlsplit(url)
        connection = http.client.HTTPConnection(place.netloc, timeout=20)
        connection.request(method, f"{place.path}?{place.query}", body)
        return connection.getresponse().status

    def upload_in_parts(self, key: str, source: str | None = None) -> None:
        upload = self.s3.create_multipart_upload(Bucket=BUCKET, Key=key)["UploadId"]
        part = {"Bucket": BUCKET, "Key": key, "UploadId": upload, "PartNumber": 1}
        if source is None:
            etag = self.s3.upload_part(Body=b"part", **part)["ETag"]
        else:
            etag = self.s3.upload_part_copy(CopySource=source, **part)["CopyPartResult"]["ETag"]
        parts = {"Parts": [{"PartNumber": 1, "ETag": etag}]}
        self.s3.complete_multipart_upload(Bucket=BUCKET, Key=key, UploadId=upload, MultipartUpload=parts)


@pytest.fixture(scope="module")
def minted(running: RunningStore) -> Minted:
    access = running[0].access()
    platform = S3ObjectStore(access)
    table = io.BytesIO()
    pq.write_table(pa.table({"block": [1, 2, 3]}), table)

    def put(uri: str, data: bytes) -> bool:
        """A busy store makes the first volumes of a bucket late."""
        try:
            asyncio.run(platform.put(uri, data))
        except StoreUnavailableError:
            return False
        return True

    objects = {f"s3://{BUCKET}/{key}": key.encode() for key in [f"{READ}a", f"{WRITE}before", *OUTSIDE]}
    objects[f"s3://{BUCKET}/{READ}blocks.parquet"] = table.getvalue()
    objects[f"s3://{OTHER}/{READ}a"] = b"other bucket"
    for uri, data in objects.items():
        wait_until(lambda uri=uri, data=data: put(uri, data), f"the store to take {uri}")  # type: ignore[misc]
    grants = make_grants([f"s3://{BUCKET}/{READ}"], [f"s3://{BUCKET}/{WRITE}"])
    keys = asyncio.run(EndpointMinter(access, TASK_ROLE).mint(grants, session="task-1", seconds=900))

    def client(service: str, *, session_token: bool = True) -> Any:
        return boto3.client(
            service,
            endpoint_url=access.endpoint,
            region_name=REGION,
            aws_access_key_id=keys.access_key_id,
            aws_secret_access_key=keys.secret_access_key,
            aws_session_token=keys.session_token if session_token else None,
            config=Config(
                signature_version="s3v4" if service == "s3" else None,
                s3={"addressing_style": "path"},
                retries={"total_max_attempts": 1},
            ),
        )

    scoped = S3Access(access.endpoint, REGION, keys.access_key_id, keys.secret_access_key, keys.session_token)
    return Minted(scoped, client("s3"), client("sts"), client("iam"), platform, client("s3", session_token=False))


def list_keys(minted: Minted, **arguments: Any) -> list[str]:
    reply = minted.s3.list_objects_v2(**{"Bucket": BUCKET, **arguments})
    return [item["Key"] for item in reply.get("Contents", [])]


def test_everything_inside_of_the_grant_works(minted: Minted) -> None:
    s3 = minted.s3
    assert s3.get_object(Bucket=BUCKET, Key=f"{READ}a")["Body"].read() == f"{READ}a".encode()
    assert s3.get_object(Bucket=BUCKET, Key=f"{READ}a", Range="bytes=0-3")["Body"].read() == b"data"
    assert s3.head_object(Bucket=BUCKET, Key=f"{READ}a")["ContentLength"] == len(READ) + 1
    assert list_keys(minted, Prefix=READ) == [f"{READ}a", f"{READ}blocks.parquet"]
    assert list_keys(minted, Prefix=f"{READ}bl", Delimiter="/") == [f"{READ}blocks.parquet"]
    s3.put_object(Bucket=BUCKET, Key=f"{WRITE}new", Body=b"new", IfNoneMatch="*")
    s3.copy_object(Bucket=BUCKET, Key=f"{WRITE}copy", CopySource=f"{BUCKET}/{READ}a")
    minted.upload_in_parts(f"{WRITE}parts")
    minted.upload_in_parts(f"{WRITE}copied-parts", source=f"{BUCKET}/{READ}a")
    assert minted.presigned("get_object", f"{READ}a", "GET") == 200
    assert minted.presigned("put_object", f"{WRITE}presigned", "PUT", b"x") == 200
    names = ["before", "copied-parts", "copy", "new", "parts", "presigned"]
    assert list_keys(minted, Prefix=WRITE) == [WRITE + name for name in names]
    assert s3.get_object(Bucket=BUCKET, Key=f"{WRITE}copy")["Body"].read() == f"{READ}a".encode()


def test_obstore_and_duckdb(minted: Minted) -> None:
    obstore.put(minted.bucket, f"{WRITE}obstore", b"1")
    assert bytes(obstore.get(minted.bucket, f"{WRITE}obstore").bytes()) == b"1"
    assert [item["path"] for page in obstore.list(minted.bucket, READ) for item in page] == [
        f"{READ}a",
        f"{READ}blocks.parquet",
    ]
    blocks = pq.read_table(io.BytesIO(bytes(obstore.get(minted.bucket, f"{READ}blocks.parquet").bytes())))
    with duckdb.connect() as connection:
        connection.register("blocks", blocks)
        assert connection.sql("SELECT sum(block) FROM blocks").fetchall() == [(6,)]
    signed = obstore.sign(minted.bucket, "GET", f"{READ}a", timedelta(minutes=5))
    assert urlsplit(signed).path == f"/{BUCKET}/{READ}a"
    outside = [f"{READ[:-1]}2", "top"]
    for key in outside:
        for work in (
            lambda key=key: obstore.get(minted.bucket, key),
            lambda key=key: obstore.put(minted.bucket, key, b"1"),
            lambda key=key: obstore.delete(minted.bucket, key),
            lambda key=key: obstore.copy(minted.bucket, key, f"{WRITE}stolen"),
            lambda: list(obstore.list(minted.bucket, "datasets/")),
        ):
            with pytest.raises((BaseError, PermissionError), match=r"403|Forbidden|AccessDenied|ermission"):
                work()


Attack = Callable[[Minted], Any]


def call_on(operation: str, key: str) -> Attack:
    return lambda minted: getattr(minted.s3, operation)(Bucket=BUCKET, Key=key)


ATTACKS: dict[str, Attack] = {
    "read the other bucket": lambda m: m.s3.get_object(Bucket=OTHER, Key=f"{READ}a"),
    "read with dots": lambda m: m.s3.get_object(Bucket=BUCKET, Key=f"{READ}../a"),
    "read without the session token": lambda m: m.bare.get_object(Bucket=BUCKET, Key=f"{READ}a"),
    "attributes": lambda m: m.s3.get_object_attributes(Bucket=BUCKET, Key="top", ObjectAttributes=["ETag"]),
    "write what may be read": lambda m: m.s3.put_object(Bucket=BUCKET, Key=f"{READ}new", Body=b""),
    "write the other bucket": lambda m: m.s3.put_object(Bucket=OTHER, Key=f"{WRITE}a", Body=b""),
    "write a new bucket": lambda m: m.s3.put_object(Bucket="minted-three", Key=f"{WRITE}a", Body=b""),
    "write with dots": lambda m: m.s3.put_object(Bucket=BUCKET, Key=f"{WRITE}../a", Body=b""),
    "write the prefix without its slash": lambda m: m.s3.put_object(Bucket=BUCKET, Key=WRITE[:-1], Body=b""),
    "list all": lambda m: list_keys(m),
    "list an empty prefix": lambda m: list_keys(m, Prefix=""),
    "list without the slash": lambda m: list_keys(m, Prefix=READ[:-1]),
    "list the parent": lambda m: list_keys(m, Prefix="datasets/"),
    "list a sibling": lambda m: list_keys(m, Prefix="datasets/in/1x/"),
    "list the other bucket": lambda m: list_keys(m, Bucket=OTHER, Prefix=READ),
    "list with version 1": lambda m: m.s3.list_objects(Bucket=BUCKET),
    "list versions": lambda m: m.s3.list_object_versions(Bucket=BUCKET),
    "list uploads": lambda m: m.s3.list_multipart_uploads(Bucket=BUCKET),
    "copy from outside": lambda m: m.s3.copy_object(Bucket=BUCKET, Key=f"{WRITE}x", CopySource=f"{BUCKET}/top"),
    "copy from a sibling": lambda m: m.s3.copy_object(Bucket=BUCKET, Key=f"{WRITE}x", CopySource=f"{BUCKET}/{SIBLING}"),
    "copy from the other bucket": lambda m: m.s3.copy_object(
        Bucket=BUCKET, Key=f"{WRITE}x", CopySource=f"{OTHER}/{READ}a"
    ),
    "copy from dots": lambda m: m.s3.copy_object(Bucket=BUCKET, Key=f"{WRITE}x", CopySource=f"{BUCKET}/{READ}../a"),
    "copy to the outside": lambda m: m.s3.copy_object(Bucket=BUCKET, Key="top", CopySource=f"{BUCKET}/{READ}a"),
    "copy onto read-only": lambda m: m.s3.copy_object(Bucket=BUCKET, Key=f"{READ}x", CopySource=f"{BUCKET}/{READ}a"),
    "parts outside": lambda m: m.upload_in_parts("top"),
    "parts where one may read": lambda m: m.upload_in_parts(f"{READ}parts"),
    "copy a part from outside": lambda m: m.upload_in_parts(f"{WRITE}stolen", source=f"{BUCKET}/top"),
    "delete what was written": lambda m: m.s3.delete_object(Bucket=BUCKET, Key=f"{WRITE}before"),
    "delete what may be read": lambda m: m.s3.delete_object(Bucket=BUCKET, Key=f"{READ}a"),
    "delete outside": lambda m: m.s3.delete_object(Bucket=BUCKET, Key="top"),
    "tag": lambda m: m.s3.put_object_tagging(Bucket=BUCKET, Key=f"{WRITE}before", Tagging={"TagSet": []}),
    "read tags": lambda m: m.s3.get_object_tagging(Bucket=BUCKET, Key=f"{READ}a"),
    "read an ACL": lambda m: m.s3.get_object_acl(Bucket=BUCKET, Key=f"{READ}a"),
    "make an object public": lambda m: m.s3.put_object_acl(Bucket=BUCKET, Key=f"{WRITE}before", ACL="public-read"),
    "make a bucket public": lambda m: m.s3.put_bucket_acl(Bucket=BUCKET, ACL="public-read"),
    "read the policy": lambda m: m.s3.get_bucket_policy(Bucket=BUCKET),
    "write a policy": lambda m: m.s3.put_bucket_policy(Bucket=BUCKET, Policy=POLICY),
    "make a bucket": lambda m: m.s3.create_bucket(Bucket="minted-four"),
    "remove a bucket": lambda m: m.s3.delete_bucket(Bucket=OTHER),
    "expire all": lambda m: m.s3.put_bucket_lifecycle_configuration(Bucket=BUCKET, LifecycleConfiguration=TEN_YEARS),
    "turn versions on": lambda m: m.s3.put_bucket_versioning(Bucket=BUCKET, VersioningConfiguration=ENABLED),
    "assume the role again": lambda m: m.sts.assume_role(RoleArn=TASK_ROLE, RoleSessionName="again"),
    "assume it more widely": lambda m: m.sts.assume_role(RoleArn=TASK_ROLE, RoleSessionName="me", Policy=POLICY),
    "a federation token": lambda m: m.sts.get_federation_token(Name="again"),
    "a session token": lambda m: m.sts.get_session_token(),
    "make a user": lambda m: m.iam.create_user(UserName="again"),
    "make a key": lambda m: m.iam.create_access_key(UserName="platform"),
    "list users": lambda m: m.iam.list_users(),
    **{f"read {key}": call_on("get_object", key) for key in OUTSIDE},
    **{f"look at {key}": call_on("head_object", key) for key in OUTSIDE},
    **{f"write {key}": call_on("put_object", key) for key in OUTSIDE},
}  # fmt: skip


def test_nothing_outside_of_the_grant_works(minted: Minted) -> None:
    before = asyncio.run(content(minted))
    failures = []
    for name, attack in ATTACKS.items():
        try:
            attack(minted)
            failures.append(f"{name}: it worked")
        except ClientError as refusal:
            error = refusal.response.get("Error", {})
            if error.get("Code", "Unknown") not in REFUSED:
                failures.append(f"{name}: {error}")
    for key in OUTSIDE:
        statuses = (minted.presigned("get_object", key, "GET"), minted.presigned("put_object", key, "PUT", b"x"))
        failures += [f"presigned {key}: {status}" for status in statuses if status != 403]
    keys = [*OUTSIDE, f"{READ}a", f"{WRITE}before"]
    reply = minted.s3.delete_objects(Bucket=BUCKET, Delete={"Objects": [{"Key": key} for key in keys]})
    if reply.get("Deleted") or len(reply["Errors"]) != len(keys):
        failures.append("delete many")
    if minted.s3.list_buckets()["Buckets"]:
        failures.append("list buckets")
    assert failures == []
    assert asyncio.run(content(minted)) == before


async def content(minted: Minted) -> dict[str, str]:
    """All that the credentials must not change."""
    places = [f"s3://{BUCKET}/datasets/", f"s3://{OTHER}/datasets/", f"s3://{BUCKET}/staging/"]
    listing = {meta.uri: meta.etag for place in places for meta in await minted.platform.list(place)}
    top = await minted.platform.head(f"s3://{BUCKET}/top")
    assert top is not None
    return {uri: etag for uri, etag in listing.items() if f"/{WRITE}" not in uri or uri.endswith("before")} | {
        "top": top.etag
    }


def test_no_session_policy_opens_committed_files_for_writing(running: RunningStore) -> None:
    """The role itself forbids it, should a prefix of a token ever be a wrong one."""
    access = running[0].access()
    grants = make_grants([], [f"s3://{BUCKET}/datasets/"])
    keys = asyncio.run(EndpointMinter(access, TASK_ROLE).mint(grants, session="task-1", seconds=900))
    scoped = S3Access(access.endpoint, REGION, keys.access_key_id, keys.secret_access_key, keys.session_token)
    bucket = open_bucket(scoped, BUCKET, ASKING)
    asyncio.run(S3ObjectStore(access).put(f"s3://{BUCKET}/datasets/committed", b"1"))
    assert bytes(obstore.get(bucket, "datasets/committed").bytes()) == b"1"
    with pytest.raises((BaseError, PermissionError)):
        obstore.put(bucket, "datasets/committed", b"2")
    assert bytes(obstore.get(bucket, "datasets/committed").bytes()) == b"1"


def test_a_grant_of_a_platform_bucket_opens_nothing(running: RunningStore, minted: Minted) -> None:
    """Whatever a token says by mistake: the role closes the bucket of bundles and logs to every session."""
    access = running[0].access()
    for bucket in running[0].private_buckets:
        prefix = f"s3://{bucket}/runs/org/task/1/"
        asyncio.run(minted.platform.put(f"{prefix}final.json", b"log"))
        grants = make_grants([prefix], [prefix])
        keys = asyncio.run(EndpointMinter(access, TASK_ROLE).mint(grants, session="task-1", seconds=900))
        scoped = S3Access(access.endpoint, REGION, keys.access_key_id, keys.secret_access_key, keys.session_token)
        store = open_bucket(scoped, bucket, ASKING)
        for attempt in (
            lambda store=store: obstore.get(store, "runs/org/task/1/final.json"),
            lambda store=store: obstore.put(store, "runs/org/task/1/final.json", b"forged"),
            lambda store=store: list(obstore.list(store, "runs/org/task/1")),
        ):
            with pytest.raises((BaseError, PermissionError)):
                attempt()
        assert asyncio.run(minted.platform.get(f"{prefix}final.json")) == b"log"
