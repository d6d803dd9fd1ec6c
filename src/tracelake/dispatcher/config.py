"""What the Dispatcher must know, as one frozen object; the composition root fills it from the settings."""

from dataclasses import dataclass, field

from tracelake.model.locations import Layout
from tracelake.model.quota import Quotas
from tracelake.model.retry import Backoff
from tracelake.model.runtime import BUILT_IN, RuntimeRegistry


@dataclass(frozen=True, slots=True)
class UserTokenRules:
    """What a user token must say, and where it says it."""

    issuer: str = "trace"
    audience: str = "trace.user"
    org_claim: str = "org"
    roles_claim: str = "roles"


@dataclass(frozen=True, slots=True)
class DispatcherConfig:
    layout: Layout = field(default_factory=lambda: Layout("trace-datasets", "trace-scratch"))
    issuer: str = "trace"
    default_lease_seconds: int = 120
    default_timeout_seconds: int = 1800
    default_max_attempts: int = 3
    retry: Backoff = field(default_factory=lambda: Backoff(30.0, 600.0))
    group_commit_max: int = 128
    group_commit_lanes: int = 2
    group_commit_weight: int = 512
    group_commit_stall_seconds: float = 120.0
    user_tokens: UserTokenRules = field(default_factory=UserTokenRules)
    user_rate_per_second: int = 50
    user_rate_burst: int = 100
    document_processes: int = 2
    document_queue: int = 8
    webhook_max_bytes: int = 256 * 1024
    webhook_tolerance_seconds: float = 300.0
    webhook_retention_days: int = 30
    webhook_rotation_seconds: float = 24 * 3600.0
    webhook_rate_per_second: int = 50
    webhook_rate_burst: int = 100
    jwks_cache_seconds: int = 300
    artifact_max_bytes: int = 16 * 1024 * 1024
    body_max_bytes: int = 1024 * 1024
    batch_body_max_bytes: int = 8 * 1024 * 1024
    http_anonymous_body_bytes: int = 16 * 1024 * 1024
    outbox_retry: Backoff = field(default_factory=lambda: Backoff(1.0, 300.0))
    outbox_max_tries: int = 20
    relay_batch: int = 256
    relay_poll_seconds: float = 1.0
    reaper_seconds: float = 1.0
    retry_seconds: float = 0.5
    reconcile_seconds: float = 60.0
    reconcile_grace_seconds: float = 60.0
    staging_retention_days: int = 7
    trigger_retention_days: int = 30
    attempt_retention_days: int = 30
    task_retention_days: int = 90
    kept_versions: int = 20
    version_retention_days: int = 30
    buffer_retention_days: int = 7
    runtimes: RuntimeRegistry = BUILT_IN
    invoke_slots: int = 16
    quotas: Quotas = field(default_factory=Quotas)
    """Of orgs for which the operator has set no others."""
    otlp_endpoint: str = ""
    """Where traces are sent; nowhere, and none are made, if it is empty."""
    otlp_sample_ratio: float = 1.0
