"""Pools over served chains and providers, and what the recording says, read without any of the code that is tested."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from tests.chain.providers import Profile, Provider, VirtualClock
from tests.support.chain import RECORDING, ServedChain
from tracelake.demo.chain.recording import RecordedBlock, Recording
from tracelake.spark.evm.endpoints import parse_endpoint
from tracelake.spark.evm.fetch import fetch
from tracelake.spark.evm.http import HttpOptions
from tracelake.spark.evm.node import RpcOptions
from tracelake.spark.evm.node_pool import RpcPool

CHAIN_ID = int(Recording(RECORDING).head.chain_id, 16)
TABLES = ("blocks", "transactions", "logs")
STRETCH = 40
Row = dict[str, Any]


def options(**changed: Any) -> RpcOptions:
    """Impatient: faults are waited out in milliseconds."""
    usual: dict[str, Any] = {
        "chain_id": CHAIN_ID,
        "backoff_seconds": 0.001,
        "longest_backoff_seconds": 0.01,
        "tries": 8,
        "http": HttpOptions(connect_seconds=5.0, answer_seconds=30.0),
    }
    return RpcOptions(**(usual | changed))


def pool_of(*chains: ServedChain | str, **changed: Any) -> RpcPool:
    urls = [chain if isinstance(chain, str) else chain.url for chain in chains]
    return RpcPool([parse_endpoint(url) for url in urls], options(**changed))


def _bytes(said: str | None) -> bytes | None:
    return None if said is None else bytes.fromhex(said.removeprefix("0x"))


def _int(said: str | None) -> int | None:
    return None if said is None else int(said, 16)


def expected(blocks: Sequence[RecordedBlock], chain_id: int = CHAIN_ID) -> dict[str, list[Row]]:
    """The rows of all tables, value by value, in plain Python."""
    rows: dict[str, list[Row]] = {"blocks": [], "transactions": [], "logs": []}
    for one in blocks:
        rows["blocks"].append(_block(one.block, chain_id))
        for index, transaction in enumerate(one.block["transactions"]):
            rows["transactions"].append(_transaction(one.number, index, transaction, one.receipts[index], chain_id))
        rows["logs"].extend(_log(log, chain_id) for receipt in one.receipts for log in receipt["logs"])
    return rows


def _block(block: Row, chain_id: int) -> Row:
    return {
        "block_hash": _bytes(block["hash"]),
        "parent_hash": _bytes(block["parentHash"]),
        "author": _bytes(block["miner"]),
        "block_number": _int(block["number"]),
        "gas_used": _int(block["gasUsed"]),
        "extra_data": _bytes(block["extraData"]),
        "timestamp": _int(block["timestamp"]),
        "base_fee_per_gas": _int(block.get("baseFeePerGas")),
        "chain_id": chain_id,
    }


def _transaction(number: int, index: int, transaction: Row, receipt: Row, chain_id: int) -> Row:
    value = int(transaction["value"], 16)
    data = bytes.fromhex(transaction["input"][2:])
    status = _int(receipt.get("status"))
    return {
        "block_number": number,
        "transaction_index": index,
        "transaction_hash": _bytes(transaction["hash"]),
        "nonce": _int(transaction["nonce"]),
        "from_address": _bytes(transaction["from"]),
        "to_address": _bytes(transaction["to"]),
        "value_binary": value.to_bytes(32, "big"),
        "value_string": str(value),
        "value_f64": float(value),
        "input": data,
        "gas_limit": _int(transaction["gas"]),
        "gas_used": _int(receipt["gasUsed"]),
        "gas_price": _int(transaction["gasPrice"]),
        "transaction_type": int(transaction.get("type") or "0x0", 16),
        "max_priority_fee_per_gas": _int(transaction.get("maxPriorityFeePerGas")),
        "max_fee_per_gas": _int(transaction.get("maxFeePerGas")),
        "success": None if status is None else status == 1,
        "n_input_bytes": len(data),
        "n_input_zero_bytes": data.count(0),
        "n_input_nonzero_bytes": len(data) - data.count(0),
        "chain_id": chain_id,
    }


def _log(log: Row, chain_id: int) -> Row:
    topics = [_bytes(topic) for topic in log["topics"]] + [None] * 4
    return {
        "block_number": _int(log["blockNumber"]),
        "transaction_index": _int(log["transactionIndex"]),
        "log_index": _int(log["logIndex"]),
        "transaction_hash": _bytes(log["transactionHash"]),
        "address": _bytes(log["address"]),
        "topic0": topics[0],
        "topic1": topics[1],
        "topic2": topics[2],
        "topic3": topics[3],
        "data": _bytes(log["data"]),
        "chain_id": chain_id,
    }


class Visit:
    """A pool and a provider in one virtual time."""

    def __init__(self, chain: ServedChain, profile: Profile, **options: Any) -> None:
        self.clock = VirtualClock()
        self._began = self.clock.now
        self.provider = Provider(profile, self.clock)
        self.pool = RpcPool(
            [parse_endpoint(chain.url.replace("//", "//user:passw0rd@") + "/v2/k3y-of-mine")],
            RpcOptions(chain_id=CHAIN_ID, **options),
            clock=self.clock,
            sleep=self.clock.sleep,
        )

    def read(self, blocks: int) -> dict[str, list[dict[str, Any]]]:
        rows: dict[str, list[dict[str, Any]]] = {table: [] for table in TABLES}
        for first in range(0, blocks, STRETCH):
            stretch = fetch(self.pool, range(first, min(blocks, first + STRETCH)), TABLES)
            for table in TABLES:
                rows[table] += stretch.tables[table].to_pylist()
        return rows

    @property
    def seconds(self) -> float:
        return self.clock.now - self._began


@contextmanager
def visit(chain: ServedChain, profile: Profile, **options: Any) -> Iterator[Visit]:
    guest = Visit(chain, profile, **options)
    chain.inject(guest.provider, times=None)
    try:
        yield guest
    finally:
        guest.pool.close()
        chain.clear()
