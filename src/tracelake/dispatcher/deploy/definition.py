"""A job of a document as the row that runs: every default filled in, and one hash for all of it."""

from dataclasses import dataclass

import msgspec

from tracelake.dispatcher.config import DispatcherConfig
from tracelake.dispatcher.job_definitions import digest
from tracelake.model.dag import JobDocument, SourceKind
from tracelake.model.runtime import DISPATCHER, resolve_timeout

NOTHING_RUNS = "noop"
"""The operator in the row of a source that only emits."""


@dataclass(frozen=True, slots=True)
class Definition:
    runtime: str
    operator: str
    config: str
    config_hash: str
    lease_seconds: int
    timeout_seconds: int | None
    max_attempts: int | None
    strategy: str
    priority: str
    max_concurrency: int | None
    document: str
    definition_hash: str


def define(job: JobDocument, data_hash: str, config: DispatcherConfig) -> Definition:
    runtime = config.runtimes[DISPATCHER if job.runtime is None else job.runtime]
    operator = job.operator or NOTHING_RUNS
    timeout: int | None = resolve_timeout(runtime, job.timeout_seconds, config.default_timeout_seconds)
    max_attempts: int | None = job.max_attempts or config.default_max_attempts
    lease = job.heartbeat_timeout_seconds or config.default_lease_seconds
    if runtime.lease_is_timeout:
        assert timeout is not None
        lease = timeout
    if job.source is not None and job.source.kind is SourceKind.ALWAYS_ON:
        timeout = max_attempts = None  # it runs until somebody stops it
    document = msgspec.json.encode(job, order="deterministic")
    return Definition(
        runtime=runtime.name,
        operator=operator,
        config=msgspec.json.encode(job.config, order="deterministic").decode(),
        config_hash=digest(operator, job.config, None if job.udf is None else job.udf.code),
        lease_seconds=lease,
        timeout_seconds=timeout,
        max_attempts=max_attempts,
        strategy=job.execution_strategy.value,
        priority=job.priority,
        max_concurrency=job.max_concurrency,
        document=document.decode(),
        definition_hash=digest(document, data_hash, runtime.name, lease, timeout, max_attempts),
    )
