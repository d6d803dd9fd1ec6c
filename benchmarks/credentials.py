"""What credentials of a task cost: a set from the embedded store's STS, with our own client and with boto3.

    python -m benchmarks.credentials [--quick | --smoke]

All subjects take turns in one run. The last line is one JSON object of medians in milliseconds.

- `endpoint_ms`: one set, minted by the adapter that signs the call itself. `boto3_ms`: the same with boto3.
- `reused_ms`: a call that gets a set again. `many_ms`: all sets of a task with `inputs` inputs; `sets` is their number.
- `policy_characters`: the longest policy of these sets; STS takes 2,048.
"""

import asyncio
import json
import os
import time
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any
from uuid import uuid4

import boto3
from tests.support.object_store import object_store

from benchmarks.support.options import parse_scale, say
from benchmarks.support.stats import Series, interleave
from tracelake.adapters.aws_sts import AwsMinter
from tracelake.adapters.s3.sts import EndpointMinter
from tracelake.dispatcher.task_credentials import TaskCredentials
from tracelake.model.session_policy import make_grants, write_policy
from tracelake.ports import CredentialMinter
from tracelake.stack.seaweedfs import EmbeddedObjectStore
from tracelake.stack.store_roles import TASK_ROLE
from tracelake.tokens.token_claims import AUDIENCE, S3Grant, VerifiedClaims

INPUTS = 200


def make_claims(inputs: int) -> VerifiedClaims:
    task = uuid4()
    return VerifiedClaims(
        iss="bench",
        aud=AUDIENCE,
        sub=f"task:{task}",
        iat=0,
        exp=2**31,
        jti="1",
        org_id=uuid4(),
        task_id=task,
        attempt=1,
        datasets=(),
        publishes=(),
        s3=S3Grant(
            read_prefixes=tuple(f"s3://trace-datasets/datasets/{uuid4()}/{uuid4()}/" for _ in range(inputs)),
            write_prefixes=(),
            buffer_prefix=f"s3://trace-scratch/buffers/{task}/1/",
            scratch_prefix=f"s3://trace-scratch/scratch/{task}/1/",
        ),
    )


async def timed(work: Callable[[], Awaitable[Any]]) -> float:
    began = time.perf_counter()
    await work()
    return (time.perf_counter() - began) * 1000


async def no_audit(_groups: object) -> None:
    pass


async def mint(minter: CredentialMinter) -> None:
    grants = make_grants(["s3://trace-datasets/datasets/a/b/"], ["s3://trace-scratch/scratch/a/1/"])
    await minter.mint(grants, session="bench", seconds=900)


async def issue(desk: TaskCredentials, claims: VerifiedClaims) -> None:
    await desk.issue(claims, desk.choose_groups(claims, None), 900, no_audit)


async def measure(store: EmbeddedObjectStore) -> dict[str, object]:
    rounds = parse_scale(__doc__).pick(100, 20, 2)
    access = store.access()
    client = boto3.client(
        "sts",
        endpoint_url=access.endpoint,
        region_name=access.region,
        aws_access_key_id=access.access_key,
        aws_secret_access_key=access.secret_key,
    )
    own = EndpointMinter(access, TASK_ROLE)
    desk, few = TaskCredentials(own), make_claims(3)
    await issue(desk, few)
    many = make_claims(INPUTS)
    groups = desk.choose_groups(many, None)
    subjects: dict[str, Callable[[], Awaitable[Any]]] = {
        "endpoint": partial(mint, own),
        "boto3": partial(mint, AwsMinter(access.region, TASK_ROLE, client)),
        "reused": partial(issue, desk, few),
        "many": lambda: issue(TaskCredentials(own), many),
    }
    readings = {name: partial(timed, subject) for name, subject in subjects.items()}
    series: dict[str, Series] = await interleave(readings, rounds, say, show=lambda value: f"{value:.2f} ms")
    figures: dict[str, object] = {}
    for name, values in series.items():
        figures[f"{name}_ms"] = round(values.median, 2)
        figures[f"{name}_quartiles"] = values.spread
    return figures | {
        "inputs": INPUTS,
        "sets": len(groups),
        "policy_characters": max(len(write_policy(group)) for group in groups),
        "cores": os.cpu_count(),
    }


if __name__ == "__main__":
    with object_store() as running_store:
        print(json.dumps(asyncio.run(measure(running_store))))
