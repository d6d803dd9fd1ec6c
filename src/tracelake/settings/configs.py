"""The config objects of the parts, taken from the settings by name.

A part says which values it needs, as fields without defaults; the settings of those names are their only declaration.
"""

import math
from dataclasses import fields
from typing import Any, TypeVar

from tracelake.bundles.archive import ArchiveLimits
from tracelake.dispatcher.config import DispatcherConfig
from tracelake.model.backoff import Backoff
from tracelake.model.locations import Layout
from tracelake.model.quota import Quotas
from tracelake.settings.declarations import Settings
from tracelake.settings.runtimes import load_runtimes
from tracelake.tokens.users import UserTokenRules

ISSUER = "trace"

C = TypeVar("C")


def take_config(config: type[C], settings: Settings, prefix: str = "", **others: Any) -> C:
    """A config whose fields are the settings of their names, after the prefix, but for those given here."""
    names = [spec.name for spec in fields(config) if spec.name not in others]  # type: ignore[arg-type]
    values = {name: getattr(settings, prefix + name) for name in names if hasattr(settings, prefix + name)}
    return config(**values, **others)


def dispatcher_config(settings: Settings) -> DispatcherConfig:
    return take_config(
        DispatcherConfig,
        settings,
        layout=Layout(settings.dataset_bucket, settings.scratch_bucket),
        issuer=ISSUER,
        default_lease_seconds=math.ceil(settings.lease_seconds),
        default_timeout_seconds=math.ceil(settings.timeout_seconds),
        default_max_attempts=settings.max_attempts,
        retry=Backoff(settings.retry_min_seconds, settings.retry_max_seconds),
        user_tokens=user_token_rules(settings),
        jwks_cache_seconds=int(settings.jwks_cache_seconds),
        outbox_retry=Backoff(settings.outbox_retry_min_seconds, settings.outbox_retry_max_seconds),
        runtimes=load_runtimes(settings),
        quotas=take_config(Quotas, settings, "quota_"),
        bundle_limits=archive_limits(settings),
    )


def archive_limits(settings: Settings) -> ArchiveLimits:
    """The Dispatcher and the runner have the same."""
    return take_config(ArchiveLimits, settings, "bundle_")


def user_token_rules(settings: Settings) -> UserTokenRules:
    return take_config(UserTokenRules, settings, "user_")
