"""The values of JSON-RPC calls: quantities, hashes and addresses, taken only in the form a node takes them."""

import re
from typing import Any

from tracelake.demo.chain.rpc import INVALID_PARAMS, ChainRpcError

HASH_CHARS = 66
_QUANTITY = re.compile(r"0x(0|[1-9a-fA-F][0-9a-fA-F]{0,15})", re.ASCII)
_HASH = re.compile(r"0x[0-9a-fA-F]{64}", re.ASCII)
_ADDRESS = re.compile(r"0x[0-9a-fA-F]{40}", re.ASCII)


def parse_quantity(value: Any, what: str) -> int:
    if isinstance(value, str) and _QUANTITY.fullmatch(value):
        return int(value, 16)
    raise ChainRpcError(INVALID_PARAMS, f"invalid {what}: a hex quantity without leading zeros (0x1b4), or a block tag")


def parse_hash(value: Any, what: str) -> str:
    if isinstance(value, str) and _HASH.fullmatch(value):
        return value.lower()
    raise ChainRpcError(INVALID_PARAMS, f"invalid {what}: 0x and 64 hex digits")


def parse_address(value: Any, what: str) -> str:
    if isinstance(value, str) and _ADDRESS.fullmatch(value):
        return value.lower()
    raise ChainRpcError(INVALID_PARAMS, f"invalid {what}: 0x and 40 hex digits")
