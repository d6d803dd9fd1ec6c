"""`noop`: does nothing, and says that its outputs have the unit of its input."""

from collections.abc import Iterable

from tracelake.catalogue.announce import announce
from tracelake.dispatcher.invoke.operators.context import ControlContext
from tracelake.wire.units import EventIn


async def noop(context: ControlContext) -> Iterable[EventIn]:
    return announce(context.inputs, context.outputs)
