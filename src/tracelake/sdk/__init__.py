"""The SDK of Python functions. It uses the standard library alone, so that a function needs nothing else installed.

    from tracelake.sdk import FunctionTask, NonRetryable, handler

    @handler
    def handle(task: FunctionTask) -> None:
        rows = task.query("SELECT number, miner FROM blocks WHERE gas_used > $gas", {"gas": 29_000_000})
        task.publish([{"dedupe_key": str(row["number"]), "miner": row["miner"]} for row in rows], key="dedupe_key")

Returning completes the task, raising fails it; `NonRetryable` fails it without a retry. docs/functions.md describes
each call. The recorded vectors in sdk/vectors define what every call sends and returns, for the SDKs of all languages.
"""

from tracelake.sdk.errors import (
    ArgumentError,
    CallError,
    FencedError,
    NonRetryable,
    ResultTooLargeError,
    UnstableKeyError,
)
from tracelake.sdk.function import FunctionInput, FunctionOutput, FunctionTask, handler

__all__ = [
    "ArgumentError",
    "CallError",
    "FencedError",
    "FunctionInput",
    "FunctionOutput",
    "FunctionTask",
    "NonRetryable",
    "ResultTooLargeError",
    "UnstableKeyError",
    "handler",
]
