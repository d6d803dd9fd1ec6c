"""The control operators by name: they read the state database and answer with events, and touch no data."""

from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import TypeAlias

from tracelake.dispatcher.invoke.operators.context import ControlContext
from tracelake.dispatcher.invoke.operators.noop import noop
from tracelake.dispatcher.invoke.operators.range_aggregator import range_aggregator
from tracelake.dispatcher.invoke.operators.range_splitter import range_splitter
from tracelake.wire.units import EventIn

__all__ = ["CONTROL_OPERATORS", "ControlOperator"]

ControlOperator: TypeAlias = Callable[[ControlContext], Awaitable[Iterable[EventIn]]]
"""Events are taken from the iterable as they are sent: a million of them are never in memory together."""

CONTROL_OPERATORS: Mapping[str, ControlOperator] = {
    "noop": noop,
    "range_aggregator": range_aggregator,
    "range_splitter": range_splitter,
}
