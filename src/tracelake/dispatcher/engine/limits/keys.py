"""The keys of the limits that a task has: of its job, its operator, and its org."""

from uuid import UUID

from tracelake.model.job import Job
from tracelake.model.runtime import RuntimeRegistry


def limit_keys_of(runtimes: RuntimeRegistry, job: Job, *, org_limited: bool = False) -> tuple[str, ...]:
    """Returns the keys of the limits that a task of this job takes a place in, sorted."""
    keys = [org_key(job.org_id)] if org_limited else []
    if job.max_concurrency is not None:
        keys.append(job.limit_key)
    if job.operator in runtimes.operator_limits:
        keys.append(operator_key(job.operator))
    return tuple(sorted(keys))


def operator_key(operator: str) -> str:
    return f"operator:{operator}"


def org_key(org_id: UUID) -> str:
    """Returns the key of an org's quota of running tasks."""
    return f"org:{org_id}"


def is_quota(limit_key: str) -> bool:
    """Whether it is the key of an org's quota of running tasks."""
    return limit_key.startswith("org:")


def is_shared(limit_key: str) -> bool:
    """Whether tasks of several orgs may wait for it."""
    return limit_key.startswith("operator:")
