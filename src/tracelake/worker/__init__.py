"""The worker wrapper: receive, claim, run, heartbeat, complete, ack.

It speaks to the Dispatcher and the queue so that operators need not: an operator is a plain function of its
context. Rules it keeps: it aborts on 409 and never on its own clock; while the Dispatcher
is away it keeps computing and repeats what it has to say; it acks only what is final.
"""

from tracelake.catalogue.context import (
    CanceledError,
    EmitRefusedError,
    NonRetryableError,
    OperatorContext,
    OperatorResult,
)
from tracelake.worker.loop import Worker, WorkerConfig

__all__ = [
    "CanceledError",
    "EmitRefusedError",
    "NonRetryableError",
    "OperatorContext",
    "OperatorResult",
    "Worker",
    "WorkerConfig",
]
