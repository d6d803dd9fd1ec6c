"""How fast one process reads a chain: parsing its JSON alone, decoding it, fetching and decoding it over HTTP.

    python -m benchmarks.chain [--quick | --smoke]

The recorded chain is served by a process of its own on the same machine. Readings are interleaved; the last line is one
JSON object of medians. `_cpu` is the same by this process' own time, which other work on the machine changes less.

- `parse_blocks_s`: `json.loads` of every answer, nothing else. `typed_blocks_s`: msgspec, into the types we read.
- `decode_blocks_s`: typed, checked, and made into the three Arrow tables. `decode_rows_s`: the same in rows.
- `fetch_blocks_s`: all of that with the answers asked for over HTTP, by three streams, as a Spark task does.
- `fetch_to_parse`: fetch_blocks_s over parse_blocks_s.
- `roots_ms_cpu`: own time to compute the hashes and roots of a dense block, as `verify: roots` does. Such a block has
  `roots_transactions`, those of recorded blocks that lie side by side, and on the average `roots_logs`.
"""

import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import Any

import msgspec

from benchmarks.support.options import parse_scale
from tracelake.demo.chain.recording import RecordedBlock, Recording
from tracelake.spark.evm.answer_checks import check_blocks, check_receipts
from tracelake.spark.evm.answers import Block, Receipt
from tracelake.spark.evm.block_roots import encode_transaction, header_hash, kind_of, receipts_root
from tracelake.spark.evm.calls import PackingDecoder, answers_of
from tracelake.spark.evm.chunk import stretches
from tracelake.spark.evm.endpoints import parse_endpoint
from tracelake.spark.evm.fetch import make_tables
from tracelake.spark.evm.node import RpcOptions
from tracelake.spark.evm.node_pool import RpcPool
from tracelake.spark.evm.optional_columns import ChosenFields
from tracelake.spark.evm.ordered_trie import ordered_root
from tracelake.spark.evm.packed import pack_regular_block, pack_regular_receipts
from tracelake.spark.evm.rlp import hash_text
from tracelake.spark.evm.verified_answers import VerifiedReceipt, verified_types

RECORDING = Path(__file__).parents[1] / "examples" / "token_flows" / "chain.jsonl.xz"
TABLES = ("blocks", "transactions", "logs")
STRETCH = 50
DENSE = 200
CHAIN_ID = int(Recording(RECORDING).head.chain_id, 16)


class Answers:
    """What a node would say, in batches."""

    def __init__(self, blocks: list[RecordedBlock]) -> None:
        self.count = len(blocks)
        self.blocks: list[bytes] = []
        self.receipts: list[bytes] = []
        for first in range(0, len(blocks), STRETCH):
            part = blocks[first : first + STRETCH]
            self.blocks.append(
                msgspec.json.encode([{"id": place, "result": one.block} for place, one in enumerate(part)])
            )
            self.receipts.append(
                msgspec.json.encode([{"id": place, "result": one.receipts} for place, one in enumerate(part)])
            )
        self._block_answers, self._receipt_answers = answers_of(Block), answers_of(list[Receipt])
        self._packed_blocks = PackingDecoder(Block, pack_regular_block)
        self._packed_receipts = PackingDecoder(list[Receipt], pack_regular_receipts)

    def parse(self) -> int:
        for raw in (*self.blocks, *self.receipts):
            json.loads(raw)
        return self.count

    def typed(self) -> int:
        for raw in self.blocks:
            self._block_answers.decode(raw)
        for raw in self.receipts:
            self._receipt_answers.decode(raw)
        return self.count

    def decode(self) -> int:
        rows = first = 0
        for raw, raw_receipts in zip(self.blocks, self.receipts, strict=True):
            read = [answer.result for answer in self._packed_blocks.decode(raw, STRETCH)]
            numbers = range(first, first + len(read))
            blocks = check_blocks(numbers, read, "")
            told = [answer.result for answer in self._packed_receipts.decode(raw_receipts, STRETCH)]
            receipts = [check_receipts(*one, "") for one in zip(numbers, blocks, told, strict=True)]
            rows += sum(table.num_rows for table in make_tables(blocks, receipts, TABLES, CHAIN_ID).values())
            first += len(read)
        return rows


class DenseBlocks:
    """Transactions of recorded blocks, put together to blocks like those of mainnet."""

    def __init__(self, blocks: list[RecordedBlock]) -> None:
        types = verified_types(ChosenFields())
        self.headers: list[Any] = [msgspec.convert(one.block, types.block) for one in blocks]
        receipts = [msgspec.convert(receipt, VerifiedReceipt) for one in blocks for receipt in one.receipts]
        rows = [row for header in self.headers for row in header.transactions]
        self.parts = [
            (rows[first : first + DENSE], receipts[first : first + DENSE])
            for first in range(0, max(1, len(rows) - DENSE + 1), DENSE)
        ]
        self.logs = sum(len(receipt.logs) for _, part in self.parts for receipt in part) / len(self.parts)

    def compute(self) -> int:
        for header, (rows, receipts) in zip(self.headers, self.parts, strict=False):
            header_hash(header)
            texts = [encode_transaction(row) for row in rows]
            ordered_root(texts)
            for text in texts:
                hash_text(text)
            receipts_root(receipts, [kind_of(row) for row in rows])
        return len(self.parts)


@contextmanager
def served() -> Iterator[str]:
    command = [sys.executable, "-m", "tracelake.demo.chain.server", "--recording", str(RECORDING), "--no-gzip"]
    server = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert server.stdin is not None
    assert server.stdout is not None
    try:
        yield json.loads(server.stdout.readline())["url"]
    finally:
        server.stdin.close()
        server.wait()
        server.stdout.close()


def main() -> None:
    count, readings = parse_scale(__doc__).pick((4000, 7), (1000, 3), (100, 1))
    recorded = list(islice(Recording(RECORDING), count))
    answers, dense = Answers(recorded), DenseBlocks(recorded)
    seconds: dict[str, list[float]] = {"parse": [], "typed": [], "decode": [], "fetch": []}
    own: dict[str, list[float]] = {name: [] for name in (*seconds, "roots")}
    rows = 0

    def timed(name: str, work: Callable[[], int]) -> int:
        began, began_own = time.perf_counter(), time.process_time()
        done = work()
        own[name].append(time.process_time() - began_own)
        if name in seconds:
            seconds[name].append(time.perf_counter() - began)
        return done

    with served() as url:
        pool = RpcPool([parse_endpoint(url)], RpcOptions(chain_id=CHAIN_ID, batch_size=50))

        def fetch() -> int:
            return sum(len(stretch.numbers) for stretch in stretches(pool, 0, count - 1, TABLES))

        fetch()  # connections are made, code is warm
        for _ in range(readings):
            timed("parse", answers.parse)
            timed("typed", answers.typed)
            rows = timed("decode", answers.decode)
            timed("fetch", fetch)
            timed("roots", dense.compute)
        pool.close()
    rate = {name: count / statistics.median(taken) for name, taken in seconds.items()}
    for name, value in rate.items():
        print(f"{name:7} {value:10,.0f} blocks/s")
    found = {f"{name}_blocks_s": round(value) for name, value in rate.items()}
    roots = own.pop("roots")
    found |= {f"{name}_blocks_s_cpu": round(count / statistics.median(taken)) for name, taken in own.items()}
    found["decode_rows_s"] = round(rows / statistics.median(seconds["decode"]))
    found["decode_rows_s_cpu"] = round(rows / statistics.median(own["decode"]))
    roots_ms = round(1000 * statistics.median(roots) / len(dense.parts), 1)
    of_roots = {"roots_ms_cpu": roots_ms, "roots_transactions": DENSE, "roots_logs": round(dense.logs)}
    print(f"roots   {roots_ms:10,.1f} ms of CPU for a block of {DENSE} transactions and {dense.logs:.0f} logs")
    print(json.dumps({**found, **of_roots, "fetch_to_parse": round(rate["fetch"] / rate["parse"], 3), "blocks": count}))


if __name__ == "__main__":
    main()
