"""What the contracts of the recorded chain answer when they are asked for their names.

A recording has blocks and receipts and no state, so nothing is executed here. The contracts never change these answers
(tools/recorder/contracts), and have them from their first block on; a contract without such a function reverts.
"""

from typing import Any

from tracelake.demo.chain.rpc import INVALID_PARAMS, ChainRpcError
from tracelake.demo.chain.values import parse_address

EXECUTION_REVERTED = 3
NO_CODE = b'"0x"'
_SOME_CODE = b'"0x6080604052"'
_CHAIN = "0x1466a9"
_SYMBOL, _DECIMALS, _NAME = "0x95d89b41", "0x313ce567", "0x06fdde03"
_WORD = 32


def _word(number: int) -> bytes:
    return number.to_bytes(_WORD, "big")


def encode_text(text: str) -> str:
    """A `string` of the ABI."""
    raw = text.encode()
    padded = raw + bytes(-len(raw) % _WORD)
    return "0x" + (_word(_WORD) + _word(len(raw)) + padded).hex()


def _erc20(symbol: str, decimals: int, name: str) -> dict[str, str]:
    return {_SYMBOL: encode_text(symbol), _DECIMALS: "0x" + _word(decimals).hex(), _NAME: encode_text(name)}


CONTRACTS: dict[str, dict[str, str]] = {
    "0x5fbdb2315678afecb367f032d93f642f64180aa3": _erc20("HUSD", 6, "Harbor Dollar"),
    "0xe7f1725e7734ce288f8367e1bb143e90bb3f0512": _erc20("GRN", 18, "Grain"),
    "0x9fe46736679d2d9a65f0992f2272de9f3c7fa6e0": _erc20("BND", 24, "Boundless"),
    "0xcf7ed3acca5a467e9e704c703e8d87f634fb0fc9": {
        _SYMBOL: encode_text("RELIC"),
        _NAME: encode_text("Harbor Relics"),
    },
    "0xdc64a140aa3e981100a9beca4e685f962f0cf6c9": {},
    "0x2279b7a0a67db372996a5fab50d91eaa73d2ebe6": {},
    "0x0165878a594ca255338adfa4d48449f69242eb8f": {},
}
"""By address, the answers by selector."""


def call_contract(chain_id: str, value: Any) -> bytes:
    """The answer of `eth_call`."""
    if not isinstance(value, dict):
        raise ChainRpcError(INVALID_PARAMS, "invalid argument 0: a call object is wanted")
    data = value.get("input", value.get("data")) or "0x"
    if not isinstance(data, str):
        raise ChainRpcError(INVALID_PARAMS, "invalid argument 0: data is hex")
    answers = _answers(chain_id, parse_address(value.get("to"), "to"))
    if answers is None:
        return NO_CODE
    answer = answers.get(data.lower())
    if answer is None:
        raise ChainRpcError(EXECUTION_REVERTED, "execution reverted")
    return b'"%s"' % answer.encode()


def code_of(chain_id: str, address: Any) -> bytes:
    """The answer of `eth_getCode`: whether there is some, not which."""
    return NO_CODE if _answers(chain_id, parse_address(address, "argument 0")) is None else _SOME_CODE


def _answers(chain_id: str, address: str) -> dict[str, str] | None:
    return CONTRACTS.get(address) if chain_id == _CHAIN else None
