"""The operators that need no Spark, by name."""

from collections.abc import Callable
from dataclasses import dataclass

from tracelake.catalogue import SleepConfig
from tracelake.catalogue.announce import announce
from tracelake.catalogue.context import CanceledError, OperatorContext, OperatorResult
from tracelake.worker.block_follower import follow_blocks
from tracelake.worker.ticker import ticker


@dataclass(frozen=True, slots=True)
class Operator:
    run: Callable[[OperatorContext], OperatorResult]
    inline: bool = False
    """So short that it runs on the event loop; everything else gets a thread."""


class SleepFailedError(Exception):
    """The failure that `fail_attempts` asks for."""


def noop(context: OperatorContext) -> OperatorResult:
    return OperatorResult(events=announce(context.inputs, context.outputs))


def sleep(context: OperatorContext) -> OperatorResult:
    config = context.config
    assert isinstance(config, SleepConfig)
    if context.cancel.wait(config.seconds):
        raise CanceledError
    if context.attempt <= config.fail_attempts:
        raise SleepFailedError(f"attempt {context.attempt} of {config.fail_attempts} that were asked to fail")
    return OperatorResult(events=announce(context.inputs, context.outputs))


OPERATORS: dict[str, Operator] = {
    "block_follower": Operator(follow_blocks),
    "noop": Operator(noop, inline=True),
    "sleep": Operator(sleep),
    "ticker": Operator(ticker),
}
