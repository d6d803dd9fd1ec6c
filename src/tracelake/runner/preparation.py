"""What a run of an invoked attempt is given: its plan, its event, and its way out."""

import time
from base64 import urlsafe_b64decode
from pathlib import Path

import msgspec

from tracelake.runner.egress import Destinations, EgressProxy
from tracelake.runner.function import CountRefusal, Egress
from tracelake.runner.languages import FunctionPlan
from tracelake.runner.object_paths import ObjectGrant
from tracelake.runner.runtime_api import RuntimeApi
from tracelake.sandbox.spec import MIB
from tracelake.tokens.token_claims import S3Grant
from tracelake.wire.claims import BundleRef, Invocation


class _GrantClaims(msgspec.Struct, frozen=True):
    s3: S3Grant


def plan_function(invocation: Invocation, bundle: BundleRef, directory: Path, scratch_bytes: int) -> FunctionPlan:
    """`directory` has the unpacked bundle."""
    job = invocation.job
    return FunctionPlan(
        language=bundle.language,
        entrypoint=bundle.entrypoint or "",
        bundle=directory,
        timeout_seconds=float(bundle.timeout_seconds),
        memory_bytes=bundle.memory_mb * MIB,
        scratch_bytes=scratch_bytes,
        environment={
            "AWS_LAMBDA_FUNCTION_NAME": f"{job.dag_name}-{job.name}",
            "AWS_LAMBDA_FUNCTION_VERSION": str(bundle.bundle_id),
            "TRACE_TASK_CAPABILITY_TOKEN": invocation.capability_token,
        },
    )


def make_runtime_api(invocation: Invocation, timeout_seconds: float) -> RuntimeApi:
    """The event is the payload of the wire contract; addresses for the runner stay outside."""
    event = msgspec.structs.replace(invocation, bundle_url=None, bundle=None, org=None, log=None)
    return RuntimeApi(
        request_id=f"{invocation.task_id}-{invocation.attempt}",
        event=msgspec.json.encode(event),
        deadline_ms=int((time.time() + timeout_seconds) * 1000),
        function_name=invocation.job.name,
    )


def make_egress(
    invocation: Invocation, grant: S3Grant, destinations: Destinations, count_refusal: CountRefusal
) -> Egress:
    write = [prefix for prefix in (*grant.write_prefixes, grant.buffer_prefix, grant.scratch_prefix) if prefix]
    proxy = EgressProxy(
        task_id=invocation.task_id,
        attempt=invocation.attempt,
        grant=ObjectGrant(read=grant.read_prefixes, write=write),
        destinations=destinations,
        count_refusal=count_refusal,
    )
    return Egress(handler=proxy.handle, count_refusal=count_refusal)


def decode_grant(token: str) -> S3Grant:
    """The Dispatcher sent the token over a channel that it authenticates; its services check the signature."""
    payload = token.split(".")[1]
    return msgspec.json.decode(urlsafe_b64decode(payload + "=" * (-len(payload) % 4)), type=_GrantClaims).s3
