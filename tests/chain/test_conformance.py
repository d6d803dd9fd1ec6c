"""The server against request and response pairs of the Ethereum JSON-RPC specification's own test suite.

The suite's chain is not at hand as a whole, so it is pieced together from the responses: their blocks, receipts and
logs at their places, and between them blocks that no pair speaks of.
"""

import json
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tracelake.demo.chain.head import Visible
from tracelake.demo.chain.methods import Methods
from tracelake.demo.chain.rpc import Rpc
from tracelake.demo.chain.store import ChainStore

DATA = Path(__file__).parent / "data" / "rpc_conformance"
HEAD = 0x36


class Pair(NamedTuple):
    name: str
    asked: dict[str, Any]
    answered: dict[str, Any]


def _pairs() -> list[Pair]:
    found = []
    for path in sorted(DATA.glob("*/*.io")):
        lines = path.read_text().splitlines()
        asked = [json.loads(line[2:]) for line in lines if line.startswith(">>")]
        answered = [json.loads(line[2:]) for line in lines if line.startswith("<<")]
        assert len(asked) == len(answered) == 1
        found.append(Pair(f"{path.parent.name}/{path.stem}", asked[0], answered[0]))
    return found


PAIRS = _pairs()


def _chain() -> ChainStore:
    blocks: dict[int, dict[str, Any]] = {}
    receipts: dict[int, list[dict[str, Any]]] = {}
    logs: dict[int, dict[str, dict[str, Any]]] = {}
    for pair in PAIRS:
        result, method = pair.answered.get("result"), pair.asked["method"]
        if method == "eth_getBlockByNumber" and result:
            whole = [one if isinstance(one, dict) else {"hash": one} for one in result["transactions"]]
            blocks[int(result["number"], 16)] = {**result, "transactions": whole}
        elif method == "eth_getBlockReceipts" and result:
            receipts[int(result[0]["blockNumber"], 16)] = result
        elif method == "eth_getLogs" and result:
            for log in result:
                logs.setdefault(int(log["blockNumber"], 16), {})[log["logIndex"]] = log
    store = ChainStore(chain_id="0x1", client="a node")
    for number in range(HEAD + 1):
        known_logs = list(logs.get(number, {}).values())
        known = receipts.get(number) or ([{"logs": known_logs}] if known_logs else [])
        hashes = {part["blockHash"] for part in (*known, *known_logs) if "blockHash" in part}
        block_hash = hashes.pop() if hashes else f"0x{number:064x}"
        store.append(blocks.get(number) or {"number": hex(number), "hash": block_hash, "transactions": []}, known)
    return store


@pytest.fixture(scope="module", name="rpc")
def _rpc() -> Rpc:
    return Rpc(Methods(_chain(), Visible(HEAD + 1, of=HEAD + 1)).table())


@pytest.mark.parametrize("pair", PAIRS, ids=lambda pair: pair.name)
def test_the_server_answers_as_the_specification_says(rpc: Rpc, pair: Pair) -> None:
    raw = rpc.answer(json.dumps(pair.asked).encode())
    assert raw is not None
    assert json.loads(raw) == pair.answered


def test_the_pairs_are_there() -> None:
    assert {pair.asked["method"] for pair in PAIRS} == {"eth_getBlockByNumber", "eth_getBlockReceipts", "eth_getLogs"}
    assert len(PAIRS) == 27
