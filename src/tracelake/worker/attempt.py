"""One claimed attempt while this worker holds it."""

import asyncio
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

from tracelake.catalogue import CATALOGUE
from tracelake.catalogue.context import Batch
from tracelake.ports import SecretValues
from tracelake.ports.queue import Delivery
from tracelake.wire.claims import ClaimReply, TaskSecrets, TokenRequest
from tracelake.wire.head_progress import HeadProgress
from tracelake.wire.run_logs import LogLevel
from tracelake.wire.task_calls import (
    BufferPublishRequest,
    CompleteReply,
    CompleteRequest,
    EventsRequest,
    FilesRequest,
    FinalStatus,
    HeartbeatRequest,
    TaskDeliveriesRequest,
)
from tracelake.wire.units import EventIn, PayloadInput, TaskOutput, TaskPayload
from tracelake.worker.attempt_log import AttemptLog

_MAX_ERROR_TEXT = 2000
_NONE = SecretValues()


@dataclass(slots=True, eq=False)
class Attempt:
    delivery: Delivery
    task: TaskPayload
    number: int
    lease_token: UUID = field(repr=False)
    capability_token: str = field(repr=False)
    lease_seconds: float
    fenced: asyncio.Future[None]
    """Done when the Dispatcher said that this attempt is no longer current."""
    cancel: threading.Event = field(default_factory=threading.Event)
    paused: threading.Event = field(default_factory=threading.Event)
    stopping: asyncio.Event = field(default_factory=asyncio.Event)
    """`cancel` for the event loop."""
    cancel_requested: bool = False
    finishing: bool = False
    """The final word is being said: heartbeats have no meaning any more."""
    unheard: bool = False
    """It was said and could not be taken yet, by a store that is away, say: the lease has to be kept meanwhile."""
    always_on: bool = False
    """The run of a source: it ends when it is told to, and not before."""
    org: str = ""
    wanted_secrets: TaskSecrets | None = None
    """By name."""
    secrets: SecretValues = field(default_factory=lambda: _NONE, repr=False)
    """What its operator was given: none of it may be in what is said about the attempt."""
    leaving: bool = False
    """The worker ends, and the operator was told to stop before it was done."""
    progress: HeadProgress | None = None
    """What its operator said last of how far it is; the next heartbeat tells it."""
    log: AttemptLog | None = None
    """Lines about it for people; None: none are kept."""
    heard: tuple[CompleteRequest, CompleteReply] | None = None
    """The final report that the Dispatcher took, and its answer."""
    given_up: asyncio.Future[None] = field(default_factory=lambda: asyncio.get_running_loop().create_future())
    """The worker ends and waits no longer for the operator: the final word is said without it."""

    @classmethod
    def from_claim(cls, delivery: Delivery, reply: ClaimReply) -> "Attempt | None":
        """None if the reply lacks what a claim must have."""
        if (
            reply.task is None
            or reply.attempt is None
            or reply.lease_token is None
            or reply.lease_expires_at is None
            or reply.capability_token is None
        ):
            return None
        # Only the pace of heartbeats hangs on this; whether the lease still holds is the Dispatcher's to say.
        lease_seconds = (reply.lease_expires_at - datetime.now(UTC)).total_seconds()
        attempt = cls(
            delivery,
            reply.task,
            reply.attempt,
            reply.lease_token,
            reply.capability_token,
            lease_seconds,
            asyncio.get_running_loop().create_future(),
            always_on=reply.always_on,
            org=reply.org or "",
            wanted_secrets=reply.secrets,
        )
        attempt.pause(reply.pause)
        return attempt

    @property
    def task_id(self) -> UUID:
        return self.task.task_id

    @property
    def log_fields(self) -> dict[str, Any]:
        return {"task_id": str(self.task_id), "attempt": self.number, "operator": self.task.operator}

    def note(self, text: str, level: LogLevel = "info") -> None:
        """A line in its log."""
        if self.log is not None:
            self.log.add(level, "worker", text)

    def stop(self) -> None:
        self.cancel.set()
        self.stopping.set()

    def leave(self) -> None:
        """The worker ends: the operator should stop. What it is saying at this moment is still to be heard."""
        self.leaving = True
        self.cancel.set()

    def give_up(self) -> None:
        self.leaving = True
        self.stop()
        if not self.given_up.done():
            self.given_up.set_result(None)

    def stop_fenced(self) -> None:
        self.stop()
        if not self.fenced.done():
            self.fenced.set_result(None)

    def stop_canceled(self) -> None:
        self.cancel_requested = True
        self.stop()

    def pause(self, paused: bool) -> None:
        if paused:
            self.paused.set()
        else:
            self.paused.clear()

    def heartbeat_request(self) -> HeartbeatRequest:
        return HeartbeatRequest(
            task_id=self.task_id, attempt=self.number, lease_token=self.lease_token, progress=self.progress
        )

    def report(self, progress: HeadProgress) -> None:
        self.progress = progress

    def events_request(self, events: Sequence[EventIn]) -> EventsRequest:
        return EventsRequest(
            task_id=self.task_id, attempt=self.number, lease_token=self.lease_token, events=list(events)
        )

    def files_request(self, item: PayloadInput) -> FilesRequest:
        """Of the positions that the input is read at; all of the generation if that is no range."""
        start, end = item.positions
        return FilesRequest(
            task_id=self.task_id,
            attempt=self.number,
            lease_token=self.lease_token,
            dataset_uuid=item.dataset_uuid,
            dataset_version=item.dataset_version,
            start=start,
            end=end,
        )

    def schema_request(self, output: TaskOutput) -> FilesRequest:
        return FilesRequest(
            task_id=self.task_id,
            attempt=self.number,
            lease_token=self.lease_token,
            dataset_uuid=output.dataset_uuid,
            dataset_version=output.dataset_version,
        )

    def deliveries_request(self, item: PayloadInput) -> TaskDeliveriesRequest:
        return TaskDeliveriesRequest(
            task_id=self.task_id,
            attempt=self.number,
            lease_token=self.lease_token,
            dataset_uuid=item.dataset_uuid,
            dataset_version=item.dataset_version,
        )

    def publish_request(self, batch: Batch) -> BufferPublishRequest:
        return BufferPublishRequest(
            task_id=self.task_id,
            attempt=self.number,
            lease_token=self.lease_token,
            dataset_uuid=batch.output.dataset_uuid,
            dataset_version=batch.output.dataset_version,
            batch_uri=batch.uri,
            record_count=batch.records,
            batch_sha256=batch.sha256,
        )

    def token_request(self) -> TokenRequest:
        return TokenRequest(task_id=self.task_id, attempt=self.number, lease_token=self.lease_token)

    @property
    def operator_package(self) -> str | None:
        return CATALOGUE.package_of(self.task.operator)

    def final(self, status: FinalStatus, error: str | None = None, *, retryable: bool = True) -> CompleteRequest:
        return CompleteRequest(
            task_id=self.task_id,
            attempt=self.number,
            lease_token=self.lease_token,
            status=status,
            # Hidden before it is cut: half of a secret would not be recognised.
            error_message=None if error is None else _plain(self.secrets.hide(error)),
            retryable=retryable,
            operator_package=self.operator_package,
        )

    def final_when_leaving(
        self, events: Sequence[EventIn] = (), reason: str = "the worker was told to stop"
    ) -> CompleteRequest:
        """The worker had to end it first: another attempt begins at once, and this one is not counted."""
        return CompleteRequest(
            task_id=self.task_id,
            attempt=self.number,
            lease_token=self.lease_token,
            status="Failed",
            events=list(events),
            error_message=f"worker_stopping: {reason}",
            error_code="worker_stopping",
            operator_package=self.operator_package,
        )


def _plain(text: str) -> str:
    """Text that JSON can carry, however strange the exception was."""
    return text[:_MAX_ERROR_TEXT].encode("utf-8", "replace").decode()
