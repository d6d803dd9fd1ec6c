"""Credentials of the object store for users' code: who gets them, for what, how long and how often; and commits by
copy, which make what they can write later harmless."""

import asyncio
import json
from typing import Any
from uuid import uuid4

import msgspec
import pytest

from tests.http.support import Claimed, Refusals, claimed, fresh, make_job
from tests.support.dispatcher import DispatcherHarness
from tests.support.harnesses import harness_of_module as harness
from tests.support.minter import MemoryMinter
from tracelake.dispatcher.artifacts import list_publications
from tracelake.dispatcher.task_credentials import GrantGroup, TaskCredentials
from tracelake.errors import StoreUnavailableError, TraceError
from tracelake.model.session_policy import POLICY_CHARACTERS, write_policy
from tracelake.ports import MintedCredentials
from tracelake.tokens.token_claims import AUDIENCE, S3Grant, VerifiedClaims
from tracelake.wire.task_calls import DatasetPublished

__all__ = ["harness"]


@pytest.fixture
def minter(harness: DispatcherHarness) -> MemoryMinter:
    assert isinstance(harness.minter, MemoryMinter)
    harness.minter.mints.clear()
    return harness.minter


def run_udf(harness: DispatcherHarness, timeout: int = 600, **fields: Any) -> Claimed:
    job = make_job(harness, operator="udf", limits={"timeout_seconds": timeout, "heartbeat_timeout_seconds": 60})
    return claimed(harness, job, **fields)


def make_claims(reads: int, exp: int = 4000) -> VerifiedClaims:
    task = uuid4()
    return VerifiedClaims(
        iss="test", aud=AUDIENCE, sub=f"task:{task}", iat=0, exp=exp, jti="1", org_id=uuid4(), task_id=task, attempt=1,
        datasets=(), publishes=(),
        s3=S3Grant(
            read_prefixes=tuple(f"s3://trace-datasets/datasets/{uuid4()}/{uuid4()}/" for _ in range(reads)),
            write_prefixes=(f"s3://trace-datasets/staging/{uuid4()}/{uuid4()}/{task}/1/",),
            buffer_prefix=f"s3://trace-scratch/buffers/{task}/1/",
            scratch_prefix=f"s3://trace-scratch/scratch/{task}/1/",
        ),
    )  # fmt: skip


async def no_audit(_groups: "list[GrantGroup] | Any") -> None:
    pass


# The call


def test_one_set_for_all_that_the_token_grants(harness: DispatcherHarness, minter: MemoryMinter) -> None:
    task = run_udf(harness)
    reply = task.call("credentials")
    assert reply.status == 200, reply
    [credentials] = reply.body["credentials"]
    written = {task.where("s3")["write_prefix"], task.where("buffered")["buffer_prefix"]}
    assert written < set(credentials["write_prefixes"])
    assert [uri for uri in credentials["write_prefixes"] if uri not in written] == [
        harness.config.layout.scratch_prefix(task.lease["task"]["task_id"], 1)
    ]
    assert "/staging/" in task.where("s3")["write_prefix"], "committed files are elsewhere"
    assert credentials["read_prefixes"] == []
    assert (reply.body["endpoint"], reply.body["region"]) == (minter.endpoint, minter.region)
    [(_, session, seconds)] = minter.mints
    assert session == f"task-{task.task_id}-1"
    assert 890 < seconds <= 900, "as long as the token: timeout and grace"


def test_each_mint_is_audited_and_asking_again_mints_nothing(harness: DispatcherHarness, minter: MemoryMinter) -> None:
    task = run_udf(harness)
    replies = [task.call("credentials") for _ in range(5)]
    assert len({reply.body["credentials"][0]["access_key_id"] for reply in replies}) == 1
    assert len(minter.mints) == 1
    [entry] = harness.sql("SELECT * FROM audit_log WHERE subject = $1", f"task:{task.task_id}")
    assert (entry["action"], entry["target"]) == ("credentials.mint", "dag/job")
    secrets = replies[0].body["credentials"][0]
    assert not [key for key in ("secret_access_key", "session_token") if secrets[key] in str(dict(entry))]


def test_locations_outside_of_the_token(harness: DispatcherHarness, minter: MemoryMinter) -> None:
    task, other = run_udf(harness), run_udf(harness)
    own = task.where("s3")["write_prefix"]
    with Refusals(harness) as refusals:
        for location in (
            other.where("s3")["write_prefix"],
            own[:-2],
            own[:-1] + "0/",
            own + "../x",
            own.replace("/staging/", "/datasets/"),
            own.replace("trace-", "other-"),
            own + "%2e%2e/x",
            "s3://trace-datasets/",
            "*",
        ):
            refusals.check(task.call("credentials", locations=[own, location]), 403, "prefix_forbidden", "locations[1]")
    assert minter.mints == []
    assert task.call("credentials", locations=[own, own + "a/b.parquet"]).status == 200
    assert len(minter.mints) == 1


def test_operators_of_the_platform_get_none(harness: DispatcherHarness, minter: MemoryMinter) -> None:
    task = claimed(harness)
    assert "/datasets/" in task.where("s3")["write_prefix"]
    with Refusals(harness) as refusals:
        refusals.check(task.call("credentials"), 403, "credentials_forbidden")
    assert minter.mints == []


def test_as_many_inputs_as_a_task_may_have(harness: DispatcherHarness, minter: MemoryMinter) -> None:
    """Through HTTP, with a token that names them all: several sets, and the one that a location needs alone."""
    org = fresh()
    writers = [
        harness.make_job(
            f"writer_{half}",
            org=org,
            outputs=[{"name": f"in_{half}_{number}", "storage": "s3"} for number in range(50)],
        )
        for half in range(2)
    ]
    inputs = [
        {
            "input_index": index,
            "dataset_uuid": output["dataset_uuid"],
            "dataset_version": output["dataset_version"],
            "unit": {"cursor": {"after": 0, "to": 1}},
        }
        for index, output in enumerate(output for job in writers for output in job["outputs"])
    ]
    task = claimed(harness, make_job(harness, org, operator="udf"), inputs=inputs)
    prefixes = [harness.config.layout.generation(item["dataset_uuid"], item["dataset_version"]) for item in inputs]
    [one] = task.call("credentials", locations=[prefixes[70] + "a.parquet"]).body["credentials"]
    assert prefixes[70] in one["read_prefixes"]
    assert len(minter.mints) == 1
    sets = task.call("credentials").body["credentials"]
    assert 5 < len(sets) < 20
    assert sorted(uri for item in sets for uri in item["read_prefixes"]) == sorted(prefixes), "each is in one of them"
    assert len(minter.mints) == len(sets), "the first is used again"


# The rules


def issue(desk: TaskCredentials, claims: VerifiedClaims, seconds: int = 900) -> Any:
    return asyncio.run(desk.issue(claims, desk.choose_groups(claims, None), seconds, no_audit))


def test_200_inputs() -> None:
    minter, claims = MemoryMinter(), make_claims(reads=200)
    desk = TaskCredentials(minter)
    sets = issue(desk, claims).credentials
    assert 10 < len(sets) < 40
    assert sorted(uri for item in sets for uri in item.read_prefixes) == sorted(claims.s3.read_prefixes)
    assert [len(item.write_prefixes) for item in sets] == [3] + [0] * (len(sets) - 1)
    for prefix in claims.s3.read_prefixes:
        [group] = desk.choose_groups(claims, [prefix + "part.parquet"])
        assert prefix in {grant.prefix.uri for grant in group}
        assert len(write_policy(group)) <= POLICY_CHARACTERS


def test_a_store_that_packs_policies_gets_smaller_ones() -> None:
    """AWS says only afterwards that a policy is too large once it is packed."""
    minter = MemoryMinter(limit=900)
    claims = make_claims(reads=9)
    reply = issue(TaskCredentials(minter), claims)
    assert len(reply.credentials) > 2
    assert max(len(write_policy(grants)) for grants, _, _ in minter.mints) <= 900
    prefixes = [uri for item in reply.credentials for uri in item.read_prefixes]
    assert sorted(prefixes) == sorted(claims.s3.read_prefixes)


def test_nothing_is_minted_without_its_audit_entry() -> None:
    minter = MemoryMinter()
    desk, claims = TaskCredentials(minter), make_claims(reads=1)

    async def fail(_groups: Any) -> None:
        raise StoreUnavailableError("away")

    async def test() -> None:
        with pytest.raises(StoreUnavailableError):
            await desk.issue(claims, desk.choose_groups(claims, None), 900, fail)
        assert minter.mints == []

    asyncio.run(test())


def test_a_failed_mint_is_tried_again_and_concurrent_calls_share_one() -> None:
    class Flaky(MemoryMinter):
        away = True

        async def mint(self, grants: Any, *, session: str, seconds: int) -> MintedCredentials:
            await asyncio.sleep(0)
            if self.away:
                raise StoreUnavailableError("away")
            return await super().mint(grants, session=session, seconds=seconds)

    async def test() -> None:
        minter = Flaky()
        desk, claims = TaskCredentials(minter), make_claims(reads=1)
        groups = desk.choose_groups(claims, None)
        with pytest.raises(StoreUnavailableError):
            await desk.issue(claims, groups, 900, no_audit)
        minter.away = False
        await asyncio.gather(*(desk.issue(claims, groups, 900, no_audit) for _ in range(20)))
        assert len(minter.mints) == 1

    asyncio.run(test())


def test_a_set_is_used_again_for_half_of_its_life(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = 1000.0
    monkeypatch.setattr("tracelake.dispatcher.task_credentials.time.monotonic", lambda: clock)
    minter = MemoryMinter()
    desk, claims = TaskCredentials(minter), make_claims(reads=1)

    async def test() -> None:
        nonlocal clock
        for later in (0, 440, 460, 470):
            clock = 1000.0 + later
            await desk.issue(claims, desk.choose_groups(claims, None), 900, no_audit)

    asyncio.run(test())
    assert len(minter.mints) == 2


def test_a_stack_without_a_minter() -> None:
    with pytest.raises(TraceError, match="mints no credentials"):
        TaskCredentials(None).choose_groups(make_claims(1), None)


def test_a_location_in_both_kinds_gets_the_set_that_writes() -> None:
    claims = make_claims(reads=40)
    desk = TaskCredentials(MemoryMinter())
    [writing] = desk.choose_groups(claims, [claims.s3.scratch_prefix])
    assert any(grant.writable for grant in writing)
    [reading] = desk.choose_groups(claims, [claims.s3.read_prefixes[-1]])
    assert not any(grant.writable for grant in reading)


# Commits by copy


def write_staged(task: Claimed, body: bytes = b"PAR1") -> dict[str, Any]:
    prefix = task.where("s3")["write_prefix"]
    task.put(prefix + "blocks_0_9.parquet", body)
    task.put(prefix + "_SUCCESS", b"")
    return task.publication(range_start=0, range_end=9)


def committed_files(task: Claimed) -> list[Any]:
    rows = task.harness.sql("SELECT objects FROM manifests WHERE task_id = $1", task.task_id)
    return [file for row in rows for file in json.loads(row["objects"])]


def test_users_files_are_committed_by_copy(harness: DispatcherHarness) -> None:
    task = run_udf(harness, unit={"partition_key": "0-9", "start": 0, "end": 9})
    publication = write_staged(task)
    assert task.call("complete", status="Completed", datasets_published=[publication]).status == 200
    [file] = committed_files(task)
    generation = harness.config.layout.generation(**task.output("s3"))
    assert file["uri"].startswith(f"{generation}{task.task_id}/1/blocks_0_9-")
    # Late writes, and a second report that would copy them, change nothing.
    write_staged(task, b"PAR1 changed")
    repeat = task.call("complete", status="Completed", datasets_published=[publication])
    assert (repeat.status, repeat.body["duplicate"]) == (200, True)
    assert committed_files(task) == [file]
    assert harness.run(harness.objects.get(file["uri"], if_match=file["etag"])) == b"PAR1"
    assert len(harness.run(harness.objects.list(generation))) == 1, "nothing was copied for the repeat"


def test_a_stale_attempt_copies_nothing(harness: DispatcherHarness) -> None:
    task = run_udf(harness, unit={"partition_key": "0-9", "start": 0, "end": 9})
    publication = write_staged(task)
    assert harness.service("POST", f"/internal/tasks/{task.task_id}/cancel").status == 200
    assert task.call("complete", status="Canceled").status == 200
    assert task.call("complete", status="Completed", datasets_published=[publication]).status == 200
    assert harness.run(harness.objects.list(harness.config.layout.generation(**task.output("s3")))) == []


def test_reports_that_race_copy_to_different_places(harness: DispatcherHarness) -> None:
    """Both may copy before one of them commits: the other must not replace what it pinned."""
    task = run_udf(harness, unit={"partition_key": "0-9", "start": 0, "end": 9})
    published = [msgspec.convert(write_staged(task), DatasetPublished)]
    claims = msgspec.structs.replace(
        make_claims(0),
        s3=S3Grant(
            read_prefixes=(),
            write_prefixes=(task.where("s3")["write_prefix"],),
            buffer_prefix="s3://trace-scratch/buffers/a/1/",
            scratch_prefix="s3://trace-scratch/scratch/a/1/",
        ),
    )
    copies = []
    for body in (b"PAR1", b"PAR2 is longer"):
        write_staged(task, body)
        listing = list_publications(harness.objects, published, claims, harness.config.layout)
        [publication] = harness.run(listing)
        [file] = publication.objects
        copies.append((file, body))
    for file, body in copies:
        assert harness.run(harness.objects.get(file.uri, if_match=file.etag)) == body
