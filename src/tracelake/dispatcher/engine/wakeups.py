"""How a ready task is started: by a message in a queue, or by the Dispatcher itself."""

from tracelake.dispatcher.engine.plan import WakeTarget
from tracelake.model.runtime import RuntimeKind, RuntimeRegistry

WAKEUP = "task_wakeup"
INVOKE = "task_invoke"


def wake_of(runtimes: RuntimeRegistry, runtime: str) -> WakeTarget:
    """Returns how tasks of the runtime are started. One that the registry does not know has a queue of its name."""
    definition = runtimes.get(runtime)
    if definition is not None and definition.kind is not RuntimeKind.QUEUE:
        return WakeTarget(INVOKE, runtime)
    return WakeTarget(WAKEUP, (definition.queue if definition is not None else None) or f"tasks.{runtime}")
