"""The config objects of the parts, made from the settings."""

import math

from tracelake.dispatcher.config import DispatcherConfig, UserTokenRules
from tracelake.model.locations import Layout
from tracelake.model.quota import Quotas
from tracelake.model.retry import Backoff
from tracelake.settings.declarations import Settings
from tracelake.settings.runtimes import load_runtimes

ISSUER = "trace"


def dispatcher_config(settings: Settings) -> DispatcherConfig:
    return DispatcherConfig(
        layout=Layout(settings.dataset_bucket, settings.scratch_bucket),
        issuer=ISSUER,
        default_lease_seconds=math.ceil(settings.lease_seconds),
        default_timeout_seconds=math.ceil(settings.timeout_seconds),
        default_max_attempts=settings.max_attempts,
        retry=Backoff(settings.retry_min_seconds, settings.retry_max_seconds),
        group_commit_max=settings.group_commit_max,
        group_commit_lanes=settings.group_commit_lanes,
        group_commit_weight=settings.group_commit_weight,
        group_commit_stall_seconds=settings.group_commit_stall_seconds,
        user_tokens=user_token_rules(settings),
        user_rate_per_second=settings.user_rate_per_second,
        user_rate_burst=settings.user_rate_burst,
        document_processes=settings.document_processes,
        document_queue=settings.document_queue,
        webhook_max_bytes=settings.webhook_max_bytes,
        webhook_tolerance_seconds=settings.webhook_tolerance_seconds,
        webhook_retention_days=settings.webhook_retention_days,
        webhook_rotation_seconds=settings.webhook_rotation_seconds,
        webhook_rate_per_second=settings.webhook_rate_per_second,
        webhook_rate_burst=settings.webhook_rate_burst,
        jwks_cache_seconds=int(settings.jwks_cache_seconds),
        artifact_max_bytes=settings.artifact_max_bytes,
        body_max_bytes=settings.body_max_bytes,
        batch_body_max_bytes=settings.batch_body_max_bytes,
        http_anonymous_body_bytes=settings.http_anonymous_body_bytes,
        outbox_retry=Backoff(settings.outbox_retry_min_seconds, settings.outbox_retry_max_seconds),
        outbox_max_tries=settings.outbox_max_tries,
        relay_batch=settings.relay_batch,
        relay_poll_seconds=settings.relay_poll_seconds,
        reaper_seconds=settings.reaper_seconds,
        retry_seconds=settings.retry_seconds,
        reconcile_seconds=settings.reconcile_seconds,
        reconcile_grace_seconds=settings.reconcile_grace_seconds,
        staging_retention_days=settings.staging_retention_days,
        trigger_retention_days=settings.trigger_retention_days,
        attempt_retention_days=settings.attempt_retention_days,
        task_retention_days=settings.task_retention_days,
        kept_versions=settings.kept_versions,
        version_retention_days=settings.version_retention_days,
        buffer_retention_days=settings.buffer_retention_days,
        runtimes=load_runtimes(settings),
        invoke_slots=settings.invoke_slots,
        quotas=Quotas(
            queued_tasks=settings.quota_queued_tasks,
            running_tasks=settings.quota_running_tasks,
            units_per_range=settings.quota_units_per_range,
            stored_bytes=settings.quota_stored_bytes,
            deploys_per_hour=settings.quota_deploys_per_hour,
            dry_runs_per_minute=settings.quota_dry_runs_per_minute,
        ),
        otlp_endpoint=settings.otlp_endpoint,
        otlp_sample_ratio=settings.otlp_sample_ratio,
    )


def user_token_rules(settings: Settings) -> UserTokenRules:
    return UserTokenRules(
        issuer=settings.user_issuer,
        audience=settings.user_audience,
        org_claim=settings.user_org_claim,
        roles_claim=settings.user_roles_claim,
    )
