"""Minting: the grants of one attempt, from the task and its job's definition."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from uuid import UUID

import msgspec

from tracelake.dispatcher.config import DispatcherConfig
from tracelake.dispatcher.job_definitions import Definitions
from tracelake.dispatcher.read_pins import LivePin, ReadPin, decode_pins
from tracelake.model.ids import new_secret_id
from tracelake.model.job import Job, Storage
from tracelake.model.task import Task
from tracelake.tokens.token_claims import AUDIENCE, DatasetGrant, PublishGrant, S3Grant, VerifiedClaims
from tracelake.tokens.verify import KeyDirectory, TokenVerifier
from tracelake.wire.units import TaskInput

GRACE_SECONDS = 300
MAX_LIFE_SECONDS = 24 * 3600
ALWAYS_ON_LIFE_SECONDS = 3600


@dataclass(eq=False)
class TokenMint:
    keys: KeyDirectory
    definitions: Definitions
    config: DispatcherConfig
    verifier: TokenVerifier

    def mint(self, task: Task, job: Job, inputs: list[TaskInput], now: datetime) -> str:
        """A fresh token for the current attempt of a claimed task. Its datasets must be loaded."""
        layout = self.config.layout
        # One grant per generation, however many units of it are read.
        distinct = {(item.dataset_uuid, item.dataset_version): item for item in inputs}
        pins = decode_pins(task.read_as_of)
        reads = tuple(self._read_grant(item, pins) for item in distinct.values())
        read_prefixes = {
            layout.generation(grant.dataset_uuid, grant.dataset_version): None
            for grant in reads
            if Storage.S3 in grant.storage
        }
        issued = int(now.timestamp())
        claims = VerifiedClaims(
            iss=self.config.issuer,
            aud=AUDIENCE,
            sub=f"task:{task.task_id}",
            iat=issued,
            exp=issued + self._life(task, job, now),
            jti=str(new_secret_id()),
            org_id=task.org_id,
            task_id=task.task_id,
            attempt=task.attempt,
            datasets=reads,
            publishes=tuple(
                PublishGrant(
                    dataset_uuid=output.dataset_uuid, dataset_version=output.dataset_version, name=output.dataset.name
                )
                for output in job.outputs
            ),
            s3=S3Grant(
                read_prefixes=tuple(read_prefixes),
                write_prefixes=tuple(
                    layout.write_prefix(job, output, task.task_id, task.attempt)
                    for output in job.outputs
                    if output.storage is Storage.S3
                ),
                buffer_prefix=layout.buffer_prefix(task.task_id, task.attempt),
                scratch_prefix=layout.scratch_prefix(task.task_id, task.attempt),
            ),
        )
        return self._sign(claims, now)

    def renew(self, claims: VerifiedClaims, task: Task, job: Job, now: datetime) -> str | None:
        """The same grants with a new expiry, once under a third of the life is left."""
        if (claims.exp - now.timestamp()) * 3 >= claims.exp - claims.iat:
            return None
        issued = int(now.timestamp())
        fresh = msgspec.structs.replace(
            claims, iat=issued, exp=issued + self._life(task, job, now), jti=str(new_secret_id())
        )
        return self._sign(fresh, now) if fresh.exp > claims.exp else None

    def _sign(self, claims: VerifiedClaims, now: datetime) -> str:
        token, kid = self.keys.sign(msgspec.json.encode(claims), now)
        self.verifier.remember(token, kid, claims)
        return token

    def _life(self, task: Task, job: Job, now: datetime) -> int:
        if job.timeout_seconds is None:
            return ALWAYS_ON_LIFE_SECONDS
        life = min(job.timeout_seconds + GRACE_SECONDS, MAX_LIFE_SECONDS)
        if task.deadline_at is not None:
            left = (task.deadline_at + timedelta(seconds=GRACE_SECONDS) - now).total_seconds()
            life = min(life, int(left))
        return max(life, 0)

    def _read_grant(self, item: TaskInput, pins: Mapping[UUID, ReadPin]) -> DatasetGrant:
        dataset = self.definitions.dataset(item.dataset_uuid)
        pin = pins.get(item.dataset_version)
        return DatasetGrant(
            dataset_uuid=item.dataset_uuid,
            dataset_version=item.dataset_version,
            name=dataset.name if dataset else item.name or "",
            storage=_kinds(dataset.storage) if dataset else (),
            boundary=pin.boundary if isinstance(pin, LivePin) else None,
        )


def _kinds(storage: Storage) -> tuple[str, ...]:
    """A live dataset is both: files up to the boundary, a table above it."""
    return (Storage.S3, Storage.POSTGRES) if storage is Storage.LIVE else (storage.value,)
