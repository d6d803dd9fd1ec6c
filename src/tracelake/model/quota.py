"""What an org may use: its weight and its quotas. 0 is no limit."""

from collections.abc import Mapping
from dataclasses import dataclass, fields

RESUME = 0.8
"""An org that was held back goes on once it uses less than this share of its quota."""

KINDS = (
    "queued_tasks",
    "running_tasks",
    "running_functions",
    "units_per_range",
    "stored_bytes",
    "deploys_per_hour",
    "dry_runs_per_minute",
)


@dataclass(frozen=True, slots=True)
class Quotas:
    weight: float = 1.0
    queued_tasks: int = 0
    running_tasks: int = 0
    running_functions: int = 0
    units_per_range: int = 0
    stored_bytes: int = 0
    deploys_per_hour: int = 0
    dry_runs_per_minute: int = 0

    def override(self, values: Mapping[str, object]) -> "Quotas":
        """With those of `values` that are not None."""
        names = {field.name for field in fields(self)}
        overrides = {name: value for name, value in values.items() if name in names and value is not None}
        merged = {field.name: overrides.get(field.name, getattr(self, field.name)) for field in fields(self)}
        return Quotas(**merged)  # type: ignore[arg-type]


def is_over(used: int, quota: int, *, before: bool) -> bool:
    """Whether an org is held back: from its quota on, and until it uses clearly less, so that it does not flap."""
    return quota > 0 and (used >= quota or (before and used >= quota * RESUME))


def exceeds(used: int, quota: int) -> bool:
    return quota > 0 and used > quota
