"""The operators of a stack, as a deploy knows them."""

import msgspec

from tracelake.wire.base import Reply


class OperatorRow(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    name: str
    summary: str
    package: str | None = None
    """The installed package, with its version, that it comes from; none for operators of Trace itself."""
    available: bool = True
    """False: its package is installed, and it could not be loaded. The log of the Dispatcher has the reason."""


class OperatorsReply(Reply, frozen=True, kw_only=True):
    operators: list[OperatorRow]
    """Sorted by name."""
