"""What the Dispatcher must know, as one frozen object; `settings.configs` fills it from the settings."""

from dataclasses import dataclass
from pathlib import Path

from tracelake.bundles.archive import ArchiveLimits
from tracelake.model.backoff import Backoff
from tracelake.model.locations import Layout
from tracelake.model.quota import Quotas
from tracelake.model.runtime import RuntimeRegistry
from tracelake.tokens.users import UserTokenRules


@dataclass(frozen=True, slots=True, kw_only=True)
class DispatcherConfig:
    """Settings by their names, and what follows from some of them."""

    layout: Layout
    issuer: str
    default_lease_seconds: int
    default_timeout_seconds: int
    default_max_attempts: int
    retry: Backoff
    group_commit_max: int
    group_commit_lanes: int
    group_commit_weight: int
    group_commit_stall_seconds: float
    user_tokens: UserTokenRules
    user_rate_per_second: int
    user_rate_burst: int
    document_processes: int
    document_queue: int
    webhook_max_bytes: int
    webhook_tolerance_seconds: float
    webhook_retention_days: int
    webhook_rotation_seconds: float
    webhook_rate_per_second: float
    webhook_rate_burst: int
    jwks_cache_seconds: int
    artifact_max_bytes: int
    body_max_bytes: int
    batch_body_max_bytes: int
    http_anonymous_body_bytes: int
    outbox_retry: Backoff
    outbox_max_tries: int
    relay_batch: int
    relay_poll_seconds: float
    reaper_seconds: float
    retry_seconds: float
    reconcile_seconds: float
    reconcile_grace_seconds: float
    staging_retention_days: int
    trigger_retention_days: int
    attempt_retention_days: int
    task_retention_days: int
    check_retention_days: int
    query_audit_retention_days: int
    query_batch_seconds: int
    query_batch_running: int
    query_batch_user_open: int
    query_batch_org_open: int
    query_batch_result_bytes: int
    query_batch_retention_days: int
    kept_versions: int
    version_retention_days: int
    removed_retention_days: int
    audit_retention_days: int
    buffer_retention_days: int
    runtimes: RuntimeRegistry
    invoke_slots: int
    bundle_bucket: str
    log_retention_days: int
    bundle_limits: ArchiveLimits
    bundle_upload_seconds: int
    bundle_open_uploads: int
    bundles_per_org: int
    bundle_processes: int
    udf_memory_mb: int
    udf_max_memory_mb: int
    quotas: Quotas
    """Of orgs for which the operator has set no others."""
    otlp_endpoint: str
    """Where traces are sent; nowhere, and none are made, if it is empty."""
    otlp_sample_ratio: float
    openlineage_url: str
    """Who hears of attempts; nobody, and nothing is noted, if it is empty."""
    openlineage_key_file: Path | None
    openlineage_namespace: str
    openlineage_backlog: int
