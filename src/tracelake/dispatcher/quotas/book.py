"""The quotas of every org, and what each org uses, as of the last look; in this process's memory.

Whoever routes asks here and pays no statement. Tasks that this process makes between two looks are added at once, so
that an org exceeds its quota by no more than what one call makes, and what other Dispatchers make between two looks.
"""

import math
import time
from collections import deque
from collections.abc import Callable, Mapping
from typing import Literal, NamedTuple
from uuid import UUID

from tracelake.errors import TraceError
from tracelake.model.quota import Quotas, exceeds, is_over

_MINUTE = 60.0
_MAX_ORGS = 10_000


class Overuse(NamedTuple):
    """A quota that holds an org back, and what the org uses of it."""

    kind: Literal["queued_tasks", "stored_bytes"]
    used: int
    quota: int


class QuotaBook:
    def __init__(self, defaults: Quotas | None = None, *, monotonic: Callable[[], float] = time.monotonic) -> None:
        self.defaults = defaults or Quotas()
        self._orgs: dict[UUID, Quotas] = {}
        self._queued: dict[UUID, int] = {}
        self._stored: dict[UUID, int] = {}
        self._over: dict[UUID, str] = {}
        """Orgs that are held back, and the quota that does it."""
        self._dry_runs: dict[str, deque[float]] = {}
        self._monotonic = monotonic

    def of(self, org_id: UUID | None) -> Quotas:
        return self.defaults if org_id is None else self._orgs.get(org_id, self.defaults)

    def weight_of(self, org_id: UUID) -> float:
        return self.of(org_id).weight

    @property
    def weights(self) -> dict[str, float]:
        """Of orgs that have another than 1."""
        return {str(org_id): quotas.weight for org_id, quotas in self._orgs.items() if quotas.weight != 1}

    def limits_running(self, org_id: UUID) -> bool:
        return self.of(org_id).running_tasks > 0

    # --- what holds an org back

    def holds_back(self, org_id: UUID) -> str | None:
        """The quota that this org has used up, if any: nothing new is made for it until it uses less."""
        return self._over.get(org_id)

    def overuse(self, org_id: UUID) -> Overuse | None:
        """The same with numbers."""
        match self.holds_back(org_id):
            case "queued_tasks":
                return Overuse("queued_tasks", self.queued(org_id), self.of(org_id).queued_tasks)
            case "stored_bytes":
                return Overuse("stored_bytes", self.stored(org_id), self.of(org_id).stored_bytes)
            case _:
                return None

    def queued(self, org_id: UUID) -> int:
        return self._queued.get(org_id, 0)

    def stored(self, org_id: UUID) -> int:
        return self._stored.get(org_id, 0)

    def note_made(self, org_id: UUID, tasks: int) -> None:
        self._queued[org_id] = self._queued.get(org_id, 0) + tasks
        self._judge(org_id)

    def set_quotas(self, orgs: Mapping[UUID, Quotas]) -> None:
        self._orgs = dict(orgs)

    def set_use(self, queued: Mapping[UUID, int], stored: Mapping[UUID, int]) -> bool:
        """What a look found. True if an org goes on that was held back."""
        self._queued, self._stored = dict(queued), dict(stored)
        before = set(self._over)
        for org_id in {*queued, *stored, *before}:
            self._judge(org_id)
        return bool(before - set(self._over))

    def _judge(self, org_id: UUID) -> None:
        quotas, before = self.of(org_id), self._over.get(org_id)
        over = None
        for kind, used, quota in (
            ("queued_tasks", self.queued(org_id), quotas.queued_tasks),
            ("stored_bytes", self.stored(org_id), quotas.stored_bytes),
        ):
            if is_over(used, quota, before=before == kind):
                over = kind
        if over is None:
            self._over.pop(org_id, None)
        else:
            self._over[org_id] = over

    # --- what is refused

    def check_new_work(self, org_id: UUID) -> None:
        """A person asks for work, or deploys what will make some."""
        over = self.holds_back(org_id)
        if over == "queued_tasks":
            raise queued_tasks_exceeded(self.queued(org_id), self.of(org_id).queued_tasks)
        if over == "stored_bytes":
            quota, used = self.of(org_id).stored_bytes, self.stored(org_id)
            raise TraceError(
                "quota_stored_bytes",
                f"The organisation stores {used} bytes; its quota is {quota}: no new work starts above it.",
                quota=quota,
                used=used,
            )

    def check_units(self, org_id: UUID, units: int, field: str) -> None:
        quota = self.of(org_id).units_per_range
        if exceeds(units, quota):
            raise TraceError(
                "quota_units_per_range",
                f"The range has {units} units; the quota is {quota}: use a shorter range or larger units.",
                field=field,
                quota=quota,
                used=units,
            )

    def take_dry_run(self, org: str, org_id: UUID | None) -> None:
        """One dry run of this org: 429 if there were as many in the last minute as it may have."""
        quota = self.of(org_id).dry_runs_per_minute
        now = self._monotonic()
        runs = self._recent_dry_runs(org, now)
        if exceeds(len(runs) + 1, quota):
            raise TraceError(
                "quota_dry_runs",
                f"The organisation has made {len(runs)} dry runs in the last minute; its quota is {quota}.",
                quota=quota,
                used=len(runs),
                retry_after_seconds=max(1, math.ceil(runs[0] + _MINUTE - now)),
            )
        if org not in self._dry_runs:
            if len(self._dry_runs) >= _MAX_ORGS:
                self._dry_runs.clear()
            self._dry_runs[org] = runs
        runs.append(now)

    def dry_runs(self, org: str) -> int:
        """In the last minute, by this process."""
        return len(self._recent_dry_runs(org, self._monotonic()))

    def _recent_dry_runs(self, org: str, now: float) -> "deque[float]":
        runs = self._dry_runs.get(org) or deque()
        while runs and runs[0] <= now - _MINUTE:
            runs.popleft()
        return runs


def queued_tasks_exceeded(used: int, quota: int) -> TraceError:
    return TraceError(
        "quota_queued_tasks",
        f"The organisation has {used} queued tasks; its quota is {quota}: wait until some of them have run.",
        quota=quota,
        used=used,
        retry_after_seconds=30,
    )
