"""Where files of a live dataset meet blocks that its table has, or had.

Files of past blocks and the table are read from nodes at different times, and a node may show a chain of its own. The
table keeps the hash of the block before its first one, and those of the last blocks of sealed units; the follower
writes them, and changes them in a repair. Files that do not fit are not committed.
"""

from collections.abc import Mapping

from tracelake.spark.evm.errors import IngestError
from tracelake.spark.work import SparkWork


def check_joints(work: SparkWork, blocks: int, hashes: Mapping[int, str]) -> None:
    """`blocks`: the output of that table. `hashes`: of the last block that was read and of the one before the first, by
    number. Raises IngestError if the table of a live dataset has another hash for one of them."""
    output = work.output(blocks)
    if not output.storage.live:
        return
    _, snapshot = work.hold_tables([])
    for number, read_hash in hashes.items():
        mark = snapshot.read_mark(output.dataset_uuid, number)
        if mark is not None and mark != bytes.fromhex(read_hash.removeprefix("0x")):
            raise IngestError(
                "table_mismatch",
                f"expected block {number} to be 0x{mark.hex()}, as the table of {output.name} has it, received"
                f" {read_hash}: a node shows another chain. Another attempt reads it again. If it stays so, correct the"
                " endpoints; if the table is wrong, its follower says `reorg_too_deep` and what to do",
            )
