"""Packs one block for a recording: what a node repeats in its answers is left out, and put back when it is read.

A node says the hash, number and time of a block again in each of its transactions, receipts and logs, and much else
follows from what stands beside it. Each object becomes the list of its values, led by the number of its shape (its
keys, in the node's order). A value that follows from others is left out; one that does not is kept as it is. So
unpacking gives exactly what was packed, key order included, whatever the node said.
"""

from typing import Any

LEFT_OUT = ""
"""Stands where a value follows from others. No node says an empty string: no bytes are "0x"."""

Json = dict[str, Any]
Packed = list[Any]


class Packer:
    """Packs, or unpacks, the blocks of one chain in their order. `shapes` holds the key lists seen so far."""

    def __init__(self, chain_id: str) -> None:
        self.shapes: list[tuple[str, ...]] = []
        self._numbers: dict[tuple[str, ...], int] = {}
        self._chain_id = chain_id
        self._parent_hash = ""

    def pack(self, block: Json, receipts: list[Json]) -> tuple[Packed, list[Packed]]:
        transactions = block["transactions"]
        packed_transactions = [
            self._pack(transaction, self._of_transaction(block, index, transaction))
            for index, transaction in enumerate(transactions)
        ]
        packed_receipts = []
        logs_before = used_before = 0
        for index, receipt in enumerate(receipts):
            transaction = _at(transactions, index)
            logs = [
                self._pack(log, _of_log(block, transaction, index, logs_before + position))
                for position, log in enumerate(receipt["logs"])
            ]
            implied = _of_receipt(block, transaction, index, used_before, receipt)
            packed_receipts.append(self._pack({**receipt, "logs": logs}, implied))
            logs_before += len(logs)
            used_before = int(receipt["cumulativeGasUsed"], 16)
        implied = self._of_block(receipts)
        self._parent_hash = block["hash"]
        return self._pack({**block, "transactions": packed_transactions}, implied), packed_receipts

    def unpack(self, packed: Packed, packed_receipts: list[Packed]) -> tuple[Json, list[Json]]:
        block = self._named(packed)
        transactions: list[Json] = []
        for index, values in enumerate(block["transactions"]):
            transaction = self._named(values)
            transactions.append(_fill(transaction, self._of_transaction(block, index, transaction)))
        block["transactions"] = transactions
        receipts: list[Json] = []
        logs_before = used_before = 0
        for index, values in enumerate(packed_receipts):
            receipt = self._named(values)
            transaction = _at(transactions, index)
            receipt["logs"] = [
                _fill(self._named(log), _of_log(block, transaction, index, logs_before + position))
                for position, log in enumerate(receipt["logs"])
            ]
            receipts.append(_fill(receipt, _of_receipt(block, transaction, index, used_before, receipt)))
            logs_before += len(receipt["logs"])
            used_before = int(receipt["cumulativeGasUsed"], 16)
        _fill(block, self._of_block(receipts))
        self._parent_hash = block["hash"]
        return block, receipts

    def _pack(self, item: Json, implied: Json) -> Packed:
        keys = tuple(item)
        if keys not in self._numbers:
            self._numbers[keys] = len(self.shapes)
            self.shapes.append(keys)
        packed: Packed = [self._numbers[keys]]
        for key, value in item.items():
            if isinstance(value, str) and value == LEFT_OUT:
                raise ValueError(f"an answer with an empty string cannot be recorded: {key}")
            follows = key in implied and implied[key] == value and type(implied[key]) is type(value)
            packed.append(LEFT_OUT if follows else value)
        return packed

    def _named(self, packed: Packed) -> Json:
        return dict(zip(self.shapes[packed[0]], packed[1:], strict=True))

    def _of_block(self, receipts: list[Json]) -> Json:
        bloom = 0
        for receipt in receipts:
            bloom |= int(receipt["logsBloom"], 16)
        used = receipts[-1]["cumulativeGasUsed"] if receipts else "0x0"
        return {"parentHash": self._parent_hash, "logsBloom": f"0x{bloom:0512x}", "gasUsed": used}

    def _of_transaction(self, block: Json, index: int, own: Json) -> Json:
        implied = {
            "blockHash": block["hash"],
            "blockNumber": block["number"],
            "blockTimestamp": block["timestamp"],
            "transactionIndex": hex(index),
            "chainId": self._chain_id,
        }
        if "yParity" in own:
            implied["v"] = own["yParity"]
        if "maxFeePerGas" in own and "baseFeePerGas" in block:
            tip = int(block["baseFeePerGas"], 16) + int(own["maxPriorityFeePerGas"], 16)
            implied["gasPrice"] = hex(min(int(own["maxFeePerGas"], 16), tip))
        return implied


def _of_receipt(block: Json, transaction: Json, index: int, used_before: int, own: Json) -> Json:
    return {
        "type": transaction.get("type"),
        "transactionHash": transaction.get("hash"),
        "transactionIndex": hex(index),
        "blockHash": block["hash"],
        "blockNumber": block["number"],
        "blockTimestamp": int(block["timestamp"], 16),
        "from": transaction.get("from"),
        "to": transaction.get("to"),
        "effectiveGasPrice": transaction.get("gasPrice"),
        "gasUsed": hex(int(own["cumulativeGasUsed"], 16) - used_before),
    }


def _of_log(block: Json, transaction: Json, index: int, log_index: int) -> Json:
    return {
        "address": transaction.get("to"),
        "blockHash": block["hash"],
        "blockNumber": block["number"],
        "blockTimestamp": block["timestamp"],
        "transactionHash": transaction.get("hash"),
        "transactionIndex": hex(index),
        "logIndex": hex(log_index),
        "removed": False,
    }


def _fill(fields: Json, implied: Json) -> Json:
    for key, value in fields.items():
        if value == LEFT_OUT:
            fields[key] = implied[key]
    return fields


def _at(transactions: list[Json], index: int) -> Json:
    return transactions[index] if index < len(transactions) else {}
