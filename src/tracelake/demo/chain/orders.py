"""Methods that no node has: whoever tries things on a recorded chain says how far it has come, and what it undoes."""

from typing import Any

from tracelake.demo.chain.fork import reorganise
from tracelake.demo.chain.head import Visible
from tracelake.demo.chain.rpc import INVALID_PARAMS, ChainRpcError, Method
from tracelake.demo.chain.store import ChainStore


class Orders:
    """Changes the chain of one process, between two of its answers."""

    def __init__(self, store: ChainStore, visible: Visible) -> None:
        self._store = store
        self._visible = visible

    def table(self) -> dict[str, Method]:
        return {"demo_setHead": self.set_head, "demo_reorg": self.reorg}

    def set_head(self, params: list[Any]) -> bytes:
        """Makes the block of this number the newest."""
        head = _number(params, 0, len(self._store.blocks) - 1)
        self._visible.set(head + 1)
        return b"true"

    def reorg(self, params: list[Any]) -> bytes:
        """Replaces so many of the newest blocks by others."""
        depth = _number(params, 1, self._visible.head)
        reorganise(self._store, self._visible.count - depth, depth)
        return b"true"


def _number(params: list[Any], least: int, most: int) -> int:
    if len(params) == 1 and type(params[0]) is int and least <= params[0] <= most:
        number: int = params[0]
        return number
    raise ChainRpcError(INVALID_PARAMS, f"invalid params: expected one number from {least} to {most}")
