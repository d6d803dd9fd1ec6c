"""Answers the task calls of a function in a test, with the checks and the error codes of a Dispatcher."""

import secrets
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

from tracelake.errors import TraceError
from tracelake.http.router import Endpoint, HttpRequest, answer
from tracelake.model.ids import new_id
from tracelake.model.prefixes import lies_under
from tracelake.runner.inside import HOST, PORTS
from tracelake.udf_test.memory_objects import MemoryObjects, describe
from tracelake.udf_test.sample_task import LAYOUT, SampleOutput, SampleTask
from tracelake.udf_test.samples import SampleTable
from tracelake.wire import routes
from tracelake.wire.contract import HEADERS, Principal
from tracelake.wire.task_calls import (
    BufferPublishReply,
    BufferPublishRequest,
    CredentialsReply,
    CredentialsRequest,
    DataFile,
    EventAnswer,
    EventsReply,
    EventsRequest,
    Fenced,
    FilesReply,
    FilesRequest,
    FileUnit,
    HeartbeatReply,
    HeartbeatRequest,
    ScopedCredentials,
)
from tracelake.wire.units import EventIn

_LEASE = timedelta(seconds=120)
_KEYS = timedelta(hours=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishedBatch:
    dataset_uuid: UUID
    batch_uri: str
    data: bytes
    record_count: int | None


@dataclass(eq=False, kw_only=True)
class SampleTaskCalls:
    """The task listener of one task, and what the function told it."""

    task: SampleTask
    samples: dict[str, SampleTable]
    objects: MemoryObjects
    artifact_max_bytes: int
    now: Callable[[], datetime] = lambda: datetime.now(UTC)
    batches: dict[tuple[UUID, str], tuple[PublishedBatch, BufferPublishReply]] = field(default_factory=dict)
    events: list[EventIn] = field(default_factory=list)
    heartbeats: int = 0
    keys: ScopedCredentials = field(init=False)

    def __post_init__(self) -> None:
        s3 = self.task.claims.s3
        self.keys = ScopedCredentials(
            access_key_id=f"TEST{secrets.token_hex(8).upper()}",
            secret_access_key=secrets.token_urlsafe(30),
            session_token=secrets.token_urlsafe(60),
            expires_at=self.now() + _KEYS,
            read_prefixes=list(s3.read_prefixes),
            write_prefixes=[*s3.write_prefixes, s3.buffer_prefix, s3.scratch_prefix],
        )

    @property
    def secrets(self) -> list[str]:
        """What is blanked in the function's output, as a runner blanks it."""
        return [self.task.token, str(self.task.invocation.lease_token)]

    def endpoints(self) -> list[Endpoint]:
        return [
            answer(routes.HEARTBEAT, self._beat),
            answer(routes.ANNOUNCE_EVENTS, self._announce),
            answer(routes.PUBLISH_BATCH, self._publish),
            answer(routes.MINT_CREDENTIALS, self._mint),
            answer(routes.LIST_INPUT_FILES, self._list_files),
        ]

    async def admit(self, request: HttpRequest[Any], header: Callable[[str], str | None]) -> None:
        """The Admission of the listener."""
        token = header(HEADERS[Principal.TASK])
        if not token:
            raise TraceError("credential_missing", header=HEADERS[Principal.TASK])
        if not secrets.compare_digest(token.encode(), self.task.token.encode()):
            raise TraceError("credential_invalid")
        request.claims = self.task.claims
        request.proven = True

    def check_fence(self, body: Fenced) -> None:
        own = self.task.invocation
        if (body.task_id, body.attempt) != (own.task_id, own.attempt):
            raise TraceError("token_mismatch")
        if body.lease_token != own.lease_token:
            raise TraceError("fenced", attempt=own.attempt, status="Running")

    def find_output(self, dataset_uuid: UUID | None, name: str | None, version: UUID | None) -> SampleOutput:
        """The output that the names agree on."""
        described = [item for item in self.task.invocation.outputs if dataset_uuid in (None, item.dataset_uuid)]
        match = next((item for item in described if dataset_uuid is not None or item.name == name), None)
        if match is None:
            raise TraceError("dataset_forbidden", field="dataset_uuid" if dataset_uuid else "dedupe_scope")
        if name not in (None, match.name):
            message = "dataset_uuid and dedupe_scope name different datasets."
            raise TraceError("body_invalid", message, field="dedupe_scope")
        if version not in (None, match.dataset_version):
            message = "The task writes another version of this dataset."
            raise TraceError("dataset_forbidden", message, field="dataset_version")
        return self.task.outputs[match.dataset_uuid]

    async def _beat(self, request: HttpRequest[HeartbeatRequest]) -> HeartbeatReply:
        self.check_fence(request.body)
        self.heartbeats += 1
        return HeartbeatReply(lease_expires_at=self.now() + _LEASE, cancel=False, pause=False)

    async def _announce(self, request: HttpRequest[EventsRequest]) -> EventsReply:
        self.check_fence(request.body)
        for event in request.body.events:
            self.find_output(event.dataset_uuid, None, event.dataset_version)
        answers = []
        for event in request.body.events:
            duplicate = event in self.events
            if not duplicate:
                self.events.append(event)
            answers.append(EventAnswer(duplicate=duplicate, routed=True))
        return EventsReply(accepted=len(answers), duplicate=all(item.duplicate for item in answers), events=answers)

    async def _publish(self, request: HttpRequest[BufferPublishRequest]) -> BufferPublishReply:
        body = request.body
        self.check_fence(body)
        data = self._read_artifact(body)
        output = self.find_output(body.dataset_uuid, body.dedupe_scope, body.dataset_version)
        (owner,) = (uuid for uuid, item in self.task.outputs.items() if item is output)
        if next(item for item in self.task.invocation.outputs if item.dataset_uuid == owner).storage.kind != "buffered":
            raise TraceError("dataset_forbidden", "This output is not a buffered dataset.", field="dataset_uuid")
        key = (owner, body.batch_uri)
        if key in self.batches:
            _, reply = self.batches[key]
            return BufferPublishReply(publish_id=reply.publish_id, publish_seq=reply.publish_seq, duplicate=True)
        batch = PublishedBatch(dataset_uuid=owner, batch_uri=body.batch_uri, data=data, record_count=body.record_count)
        reply = BufferPublishReply(publish_id=new_id(), publish_seq=len(self.batches) + 1)
        self.batches[key] = (batch, reply)
        return reply

    def _read_artifact(self, body: BufferPublishRequest) -> bytes:
        if not lies_under(body.batch_uri, self.task.claims.s3.buffer_prefix):
            raise TraceError("prefix_forbidden", field="batch_uri")
        data = self.objects.get(body.batch_uri)
        if data is None:
            raise TraceError("artifact_missing", field="batch_uri")
        limit = self.artifact_max_bytes
        if len(data) > limit:
            message = f"The artifact has {len(data):,} bytes; `artifact_max_bytes` allows {limit:,}."
            raise TraceError("artifact_too_large", message, field="batch_uri", limit_bytes=limit)
        if body.batch_size_bytes not in (None, len(data)):
            raise TraceError("artifact_mismatch", field="batch_size_bytes")
        return data

    async def _mint(self, request: HttpRequest[CredentialsRequest]) -> CredentialsReply:
        self.check_fence(request.body)
        prefixes = (*self.keys.read_prefixes, *self.keys.write_prefixes)
        for number, location in enumerate(request.body.locations or ()):
            if not any(location.startswith(prefix) for prefix in prefixes):
                raise TraceError("prefix_forbidden", field=f"locations[{number}]")
        endpoint = f"http://{HOST}:{PORTS[1]}"
        return CredentialsReply(endpoint=endpoint, region="us-east-1", credentials=[self.keys])

    async def _list_files(self, request: HttpRequest[FilesRequest]) -> FilesReply:
        body = request.body
        self.check_fence(body)
        for output in self.task.invocation.outputs:
            if (output.dataset_uuid, output.dataset_version) == (body.dataset_uuid, body.dataset_version):
                return FilesReply(units=[], schema=self.task.outputs[output.dataset_uuid].schema)
        return FilesReply(units=self.list_units(body.dataset_uuid, body.dataset_version))

    def list_units(self, dataset_uuid: UUID, dataset_version: UUID) -> list[FileUnit]:
        """The sample of an input, as a dataset of one committed unit."""
        for item in self.task.invocation.inputs:
            if (item.dataset_uuid, item.dataset_version) == (dataset_uuid, dataset_version):
                sample = self.samples[item.name]
                start, end = sample.blocks or (None, None)
                uri = sample_uri(dataset_uuid, dataset_version)
                meta = describe(uri, sample.path.read_bytes())
                file = DataFile(uri=uri, size=meta.size, etag=meta.etag, sha256=sample.sha256)
                return [FileUnit(start=start, end=end, revision=1, files=[file])]
        raise TraceError("dataset_forbidden", field="dataset_uuid")


def sample_uri(dataset_uuid: UUID, dataset_version: UUID) -> str:
    return f"{LAYOUT.generation(dataset_uuid, dataset_version)}sample.parquet"
