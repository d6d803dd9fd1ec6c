"""Runtimes as data: how the tasks of each are started, where they wait, what they may ask for.

The registry is configured (`runtimes_file`), not hard-wired; `BUILT_IN` is what a stack has without a file.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from tracelake.errors import TraceError


class RuntimeKind(StrEnum):
    QUEUE = "queue"
    """A wake-up in a queue; a worker claims the task."""
    INVOKE = "invoke"
    """The Dispatcher claims the task and hands it to the Invoker port."""
    IN_PROCESS = "in_process"
    """The Dispatcher runs it itself; platform control operators alone."""


@dataclass(frozen=True, slots=True)
class Runtime:
    name: str
    kind: RuntimeKind
    queue: str | None = None
    """Of queue-backed runtimes."""
    image: str | None = None
    cpu: float | None = None
    memory_mb: int | None = None
    """What a cluster starts a worker with; lite has the one worker of `trace up`."""
    default_timeout_seconds: int | None = None
    """None: the setting `timeout_seconds`."""
    max_timeout_seconds: int | None = None
    lease_is_timeout: bool = False
    """Heartbeat is optional: the lease is the whole of the attempt's time."""


@dataclass(frozen=True, slots=True)
class RuntimeRegistry:
    runtimes: Mapping[str, Runtime]
    operator_limits: Mapping[str, int] = field(default_factory=dict)
    """How many tasks of an operator may run at once, over all orgs."""

    def __getitem__(self, name: str) -> Runtime:
        return self.runtimes[name]

    def get(self, name: str) -> Runtime | None:
        return self.runtimes.get(name)

    def started_here(self) -> list[str]:
        """The runtimes whose tasks a Dispatcher starts itself, instead of waking a worker."""
        return [runtime.name for runtime in self.runtimes.values() if runtime.kind is not RuntimeKind.QUEUE]


DISPATCHER = "dispatcher"
LAMBDA = "lambda"
LAMBDA_MAX_TIMEOUT_SECONDS = 900

BUILT_IN = RuntimeRegistry(
    {
        runtime.name: runtime
        for runtime in (
            Runtime(DISPATCHER, RuntimeKind.IN_PROCESS, default_timeout_seconds=60, max_timeout_seconds=900),
            Runtime(
                LAMBDA,
                RuntimeKind.INVOKE,
                default_timeout_seconds=60,
                max_timeout_seconds=LAMBDA_MAX_TIMEOUT_SECONDS,
                lease_is_timeout=True,
            ),
            Runtime("ecs_platform", RuntimeKind.QUEUE, queue="tasks.ecs_platform", image="trace-worker"),
        )
    }
)


def resolve_timeout(runtime: Runtime, requested: int | None, default_seconds: int) -> int:
    """The limit of one attempt: what the job wants, or the runtime's default, or `default_seconds`.

    A wish above the runtime's limit is refused; a general default above it gives way.
    """
    most = runtime.max_timeout_seconds
    if requested is not None:
        if most is not None and requested > most:
            raise TraceError(
                "job_invalid",
                f"Expected at most {most} for timeout_seconds of a {runtime.name} job; received {requested}.",
                field="limits.timeout_seconds",
            )
        return requested
    if runtime.default_timeout_seconds is not None:
        return runtime.default_timeout_seconds
    return default_seconds if most is None else min(default_seconds, most)
