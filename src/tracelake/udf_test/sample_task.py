"""The task that a function gets in a test: its event, its token, and what both grant.

The event has the fields of a real one, so an event of a real task can be given. Ids, prefixes, the lease and the token
are always made here: those of a stack would lead nowhere.
"""

from base64 import urlsafe_b64encode
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Annotated, Any, Literal
from uuid import UUID

import msgspec

from tracelake.model.dag import Column, ColumnType, Schema
from tracelake.model.ids import new_id, new_secret_id
from tracelake.model.locations import Layout
from tracelake.tokens.token_claims import AUDIENCE, DatasetGrant, PublishGrant, S3Grant, VerifiedClaims
from tracelake.udf_test.samples import SampleTable, UdfTestError, dataset_uuid, dataset_version
from tracelake.wire.base import Name, Revision
from tracelake.wire.claims import Invocation
from tracelake.wire.units import CursorRange, JobRef, PayloadInput, Scalar, StorageOut, TaskOutput, Unit

LAYOUT = Layout("trace-datasets", "trace-scratch")
OutputKind = Literal["buffered", "s3", "none"]


class _Part(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    pass


class SampleInput(_Part, frozen=True, kw_only=True):
    name: Name
    unit: Unit | None = None
    """None: all blocks of the sample; without a block_number, the cursor 0."""
    revision: Revision = ""
    where: dict[str, Scalar | list[Scalar]] | None = None
    input_index: int = 0
    dataset_uuid: UUID | None = None
    dataset_version: UUID | None = None


class _SampleStorage(msgspec.Struct, frozen=True):
    """Of a real event; its prefixes are those of another attempt."""

    kind: OutputKind


class SampleOutput(_Part, frozen=True, kw_only=True):
    name: Name
    kind: OutputKind = "buffered"
    key: list[str] = []
    """Columns of a row's key (`unique_key` of the job); published rows are checked against it."""
    columns: dict[str, ColumnType] = {}
    """Of a buffered dataset; published rows are then read as a sink would read them."""
    storage: _SampleStorage | None = None
    output_index: int = 0
    dataset_uuid: UUID | None = None
    dataset_version: UUID | None = None

    @property
    def schema(self) -> Schema | None:
        if not self.columns:
            return None
        columns = tuple(
            Column(name=name, type=kind, nullable=name not in self.key) for name, kind in self.columns.items()
        )
        return Schema(columns=columns, unique=tuple(self.key))


class SampleEvent(_Part, frozen=True, kw_only=True):
    """What of the task matters to the function."""

    config: dict[str, Any] = {}
    inputs: list[SampleInput] | None = None
    """None: each sample is an input."""
    outputs: list[SampleOutput] | None = None
    """None: one buffered output of the name `output`."""
    job: JobRef = JobRef(dag_name="test", name="function")
    attempt: Annotated[int, msgspec.Meta(ge=1, le=1000)] = 1
    task_id: UUID | None = None
    operator: str = "udf"
    traceparent: str | None = None
    lease_token: str = ""
    lease_expires_at: str = ""
    capability_token: str = ""


_NO_OUTPUT = [SampleOutput(name="output")]


def read_event(data: bytes) -> SampleEvent:
    """Raises UdfTestError."""
    try:
        return msgspec.json.decode(data, type=SampleEvent)
    except msgspec.ValidationError as error:
        raise UdfTestError(f"the event does not fit: {error}") from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise UdfTestError(f"the event is not JSON: {error}") from None


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleTask:
    invocation: Invocation
    claims: VerifiedClaims
    outputs: Mapping[UUID, SampleOutput]
    """By dataset."""

    @property
    def token(self) -> str:
        return self.invocation.capability_token


def make_task(event: SampleEvent, samples: Mapping[str, SampleTable], timeout_seconds: int) -> SampleTask:
    """Raises UdfTestError for an input without a sample."""
    task_id, attempt = event.task_id or new_id(), event.attempt
    described = event.inputs if event.inputs is not None else [SampleInput(name=name) for name in samples]
    outputs = event.outputs if event.outputs is not None else _NO_OUTPUT
    for kind, names in (("input", described), ("output", outputs)):
        _check_names(kind, [item.name for item in names])
    inputs = [_make_input(index, item, samples) for index, item in enumerate(described)]
    payload_outputs = [_make_output(index, item, task_id, attempt) for index, item in enumerate(outputs)]
    now = datetime.now(UTC)
    claims = VerifiedClaims(
        iss="trace udf test",
        aud=AUDIENCE,
        sub=f"task:{task_id}",
        iat=int(now.timestamp()),
        exp=int(now.timestamp()) + timeout_seconds + 300,
        jti=str(new_id()),
        org_id=dataset_uuid("org"),
        task_id=task_id,
        attempt=attempt,
        datasets=tuple(
            DatasetGrant(
                dataset_uuid=item.dataset_uuid, dataset_version=item.dataset_version, name=item.name, storage=("s3",)
            )
            for item in inputs
        ),
        publishes=tuple(
            PublishGrant(dataset_uuid=item.dataset_uuid, dataset_version=item.dataset_version, name=item.name)
            for item in payload_outputs
        ),
        s3=S3Grant(
            read_prefixes=tuple(LAYOUT.generation(item.dataset_uuid, item.dataset_version) for item in inputs),
            write_prefixes=tuple(item.storage.write_prefix for item in payload_outputs if item.storage.write_prefix),
            buffer_prefix=LAYOUT.buffer_prefix(task_id, attempt),
            scratch_prefix=LAYOUT.scratch_prefix(task_id, attempt),
        ),
    )
    invocation = Invocation(
        task_id=task_id,
        attempt=attempt,
        job=event.job,
        operator="udf",
        config=event.config,
        inputs=inputs,
        outputs=payload_outputs,
        lease_token=new_secret_id(),
        lease_expires_at=now + timedelta(seconds=timeout_seconds),
        capability_token=_encode_token(claims),
        bundle_url=None,
    )
    described_outputs = {dataset_uuid(item.name): item for item in outputs}
    return SampleTask(invocation=invocation, claims=claims, outputs=described_outputs)


def _check_names(kind: str, names: Sequence[str]) -> None:
    if len(set(names)) != len(names):
        raise UdfTestError(f"the event has two {kind}s of one name: keep one of them.")


def _make_input(index: int, item: SampleInput, samples: Mapping[str, SampleTable]) -> PayloadInput:
    sample = samples.get(item.name)
    if sample is None:
        raise UdfTestError(
            f"the event has the input {item.name}, for which there is no sample: add --input {item.name}=FILE."
        )
    return PayloadInput(
        input_index=index,
        dataset_uuid=dataset_uuid(item.name),
        dataset_version=dataset_version(item.name),
        name=item.name,
        unit=item.unit or _choose_unit(sample),
        revision=item.revision,
        where=item.where,
    )


def _choose_unit(sample: SampleTable) -> Unit:
    if sample.blocks is None:
        return Unit(cursor=CursorRange(after=-1, to=0))
    start, end = sample.blocks
    return Unit(partition_key=f"{start}-{end}", start=start, end=end)


def _make_output(index: int, item: SampleOutput, task_id: UUID, attempt: int) -> TaskOutput:
    kind = item.storage.kind if item.storage is not None else item.kind
    owner, version = dataset_uuid(item.name), dataset_version(item.name)
    staging = f"{LAYOUT.staging(owner, version)}{task_id}/{attempt}/"
    return TaskOutput(
        output_index=index,
        dataset_uuid=owner,
        dataset_version=version,
        name=item.name,
        storage=StorageOut(
            kind=kind,
            write_prefix=staging if kind == "s3" else None,
            buffer_prefix=LAYOUT.buffer_prefix(task_id, attempt) if kind == "buffered" else None,
        ),
    )


def _encode_token(claims: VerifiedClaims) -> str:
    """A token of the form of a real one. No service would take it: it has no signature."""
    parts = (b'{"alg":"none","typ":"JWT"}', msgspec.json.encode(claims), new_secret_id().bytes)
    return ".".join(urlsafe_b64encode(part).rstrip(b"=").decode() for part in parts)
