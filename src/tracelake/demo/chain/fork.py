"""Other blocks in the place of recorded ones: a branch that a node could have switched to.

Each replaced block loses its last transaction, with its receipt and logs, and has another hash; the blocks after them
have other hashes alone. Parents, indexes, gas and blooms fit together. Hashes are made from those before, so the same
reorganisation always gives the same branch; they and the roots are not those of the contents.
"""

import hashlib
from collections.abc import Sequence

import msgspec

from tracelake.demo.chain.packing import Json
from tracelake.demo.chain.store import ChainStore, StoredBlock

MARK = "0x" + b"another branch".hex()


def reorganise(store: ChainStore, first: int, changed: int) -> None:
    """Replaces block `first` and all that follow it; the first `changed` of them lose their last transaction."""
    old_parent = parent = store.blocks[first - 1].hash
    for number in range(first, len(store.blocks)):
        stored = store.blocks[number]
        new_hash = "0x" + hashlib.sha3_256(bytes.fromhex(stored.hash[2:])).hexdigest()
        if number < first + changed:
            store.replace(number, *_other_block(stored, new_hash, parent))
        else:
            store.rename(number, {stored.hash: new_hash, old_parent: parent})
        old_parent, parent = stored.hash, new_hash


def _other_block(stored: StoredBlock, new_hash: str, parent: str) -> tuple[Json, list[Json]]:
    block: Json = msgspec.json.decode(stored.full)
    receipts: list[Json] = msgspec.json.decode(stored.receipts)
    if receipts:
        block["transactions"].pop()
        receipts.pop()
        block["gasUsed"] = receipts[-1]["cumulativeGasUsed"] if receipts else "0x0"
        block["logsBloom"] = _bloom(receipts)
    block |= {"extraData": MARK, "parentHash": parent, "hash": new_hash}
    for part in (*block["transactions"], *receipts, *(log for receipt in receipts for log in receipt["logs"])):
        part["blockHash"] = new_hash
    return block, receipts


def _bloom(receipts: Sequence[Json]) -> str:
    bloom = 0
    for receipt in receipts:
        bloom |= int(receipt["logsBloom"], 16)
    return f"0x{bloom:0512x}"
