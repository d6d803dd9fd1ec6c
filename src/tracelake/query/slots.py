"""Who may run a query now: few engines, a short queue, and orgs that take turns.

- `enter` admits a query: each person and each task has a few at once, each org at most its share, and some may wait.
  People beyond that get 429 with Retry-After. Calls of a running task are never refused for being too many: they wait,
  and their time limit bounds the wait.
- `engine` is held while an engine works. Queries that read much have fewer engines than there are, so small ones of
  other callers always find one.
"""

from collections.abc import AsyncIterator, Hashable
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import dataclass

from tracelake.errors import TraceError
from tracelake.http.fair_slots import FairSlots
from tracelake.query.metrics import QueryMetrics

RETRY_SECONDS = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotLimits:
    engines: int
    """Engines that work at once."""
    user_queries: int
    """Queries of one person at once, waiting ones included."""
    task_queries: int
    """Queries of one task that run at once; more wait."""
    org_waiting: int
    """Queries of an org that wait."""
    heavy_bytes: int
    """A query that reads more is a heavy one."""

    @property
    def org_engines(self) -> int:
        """One engine is always left to other orgs."""
        return max(1, self.engines - 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class QueryCaller:
    """Whose query it is."""

    org: str
    subject: str
    is_task: bool
    dags: tuple[str, ...] | None = None
    """Of a person: the DAGs to which the token is limited."""


class QuerySlots:
    def __init__(self, limits: SlotLimits, metrics: QueryMetrics | None = None) -> None:
        self._limits = limits
        self._metrics = metrics or QueryMetrics()
        self._users: dict[Hashable, int] = {}
        # More than engines: a query whose files are fetched holds none.
        active = 4 * limits.engines
        self._active = FairSlots(
            active,
            per_org=max(1, active // 2),
            waiting=limits.org_waiting,
            retry_after_seconds=RETRY_SECONDS,
            what="queries",
        )
        self._tasks = FairSlots(2**31, per_org=limits.task_queries)
        self._heavy = FairSlots(max(1, limits.engines - 1), per_org=max(1, limits.org_engines - 1))
        self._engines = FairSlots(limits.engines, per_org=limits.org_engines)

    @asynccontextmanager
    async def enter(self, caller: QueryCaller) -> AsyncIterator[None]:
        if caller.is_task:
            slots = (self._tasks.slot(caller.subject), self._active.slot(caller.org, patient=True))
            async with self._entered("turn", *slots):
                yield
            return
        person = (caller.org, caller.subject)
        running = self._users.get(person, 0)
        if running >= self._limits.user_queries:
            raise TraceError(
                "rate_limited",
                f"You have {running} queries at once already: wait for one of them, or cancel it.",
                retry_after_seconds=RETRY_SECONDS,
            )
        self._users[person] = running + 1
        try:
            async with self._entered("turn", self._active.slot(caller.org)):
                yield
        finally:
            self._users[person] -= 1
            if not self._users[person]:
                del self._users[person]

    @asynccontextmanager
    async def engine(self, caller: QueryCaller, input_bytes: int) -> AsyncIterator[None]:
        slots = [self._engines.slot(caller.org)]
        if input_bytes > self._limits.heavy_bytes:
            slots.insert(0, self._heavy.slot(caller.org))
        async with self._entered("engine", *slots):
            yield

    @asynccontextmanager
    async def _entered(self, place: str, *slots: AbstractAsyncContextManager[None]) -> AsyncIterator[None]:
        async with AsyncExitStack() as stack:
            with self._metrics.waiting(place):
                for slot in slots:
                    await stack.enter_async_context(slot)
            yield
