"""The recorded chain, repeated, over JSON-RPC on loopback: `python -m benchmarks.support.repeated_chain --times N`.

Each repetition continues the one before it: numbers and timestamps go on, and the hashes of blocks and transactions are
those of the recording with the number of the repetition in their last digits. A block is made when it is asked for.
"""

import argparse
import asyncio
import json
import sys
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import overload

import msgspec
import uvloop

from tracelake.demo.chain.app import ChainApp
from tracelake.demo.chain.head import Visible
from tracelake.demo.chain.methods import Methods
from tracelake.demo.chain.recording import Recording
from tracelake.demo.chain.rpc import Rpc
from tracelake.demo.chain.server import ChainServer, bound_socket
from tracelake.demo.chain.store import ChainStore, StoredBlock

RECORDING = Path(__file__).parents[2] / "examples" / "token_flows" / "chain.jsonl.xz"
_DIGITS = 6
"""Of a hash: the number of the repetition."""


class RepeatedBlocks(Sequence[StoredBlock]):
    def __init__(self, blocks: Sequence[StoredBlock], times: int) -> None:
        self._blocks = blocks
        self._times = times
        first, last = (int(_header(block)["timestamp"], 16) for block in (blocks[0], blocks[-1]))
        self._seconds = (last - first) // (len(blocks) - 1) + last - first
        self._make = lru_cache(maxsize=4096)(self._repeat)  # one block is asked for several times in a row

    def __len__(self) -> int:
        return len(self._blocks) * self._times

    @overload
    def __getitem__(self, place: int) -> StoredBlock: ...
    @overload
    def __getitem__(self, place: slice) -> Sequence[StoredBlock]: ...
    def __getitem__(self, place: int | slice) -> StoredBlock | Sequence[StoredBlock]:
        if isinstance(place, slice):
            return [self._make(number) for number in range(*place.indices(len(self)))]
        return self._make(place)

    def _repeat(self, number: int) -> StoredBlock:
        repetition, place = divmod(number, len(self._blocks))
        block = self._blocks[place]
        if not repetition:
            return block
        header = _header(block)
        time = int(header["timestamp"], 16)
        parent = header["parentHash"]
        changes = [
            (f'umber":"{hex(place)}"', f'umber":"{hex(number)}"'),
            (f'imestamp":"{hex(time)}"', f'imestamp":"{hex(time + repetition * self._seconds)}"'),
            (parent, _renamed(parent, repetition) if place else _renamed(self._blocks[-1].hash, repetition - 1)),
            *((name, _renamed(name, repetition)) for name in (block.hash, *block.transactions)),
        ]
        pairs = [(old.encode(), new.encode()) for old, new in changes]

        def change(text: bytes) -> bytes:
            for old, new in pairs:
                text = text.replace(old, new)
            return text

        return StoredBlock(
            hash=_renamed(block.hash, repetition),
            full=change(block.full),
            brief=change(block.brief),
            receipts=change(block.receipts),
            transactions=tuple(_renamed(name, repetition) for name in block.transactions),
            logs=tuple(msgspec.structs.replace(log, body=change(log.body)) for log in block.logs),
        )


def _renamed(name: str, repetition: int) -> str:
    return f"{name[:-_DIGITS]}{repetition:0{_DIGITS}x}" if repetition else name


def _header(block: StoredBlock) -> dict[str, str]:
    header: dict[str, str] = msgspec.json.decode(block.brief)
    return header


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--times", type=int, required=True)
    times = parser.parse_args().times
    recording = Recording(RECORDING)
    store = ChainStore.load(recording, chain_id=recording.head.chain_id, client=recording.head.client)
    store.blocks = RepeatedBlocks(store.blocks, times)  # type: ignore[assignment]
    uvloop.run(_serve(store))


async def _serve(store: ChainStore) -> None:
    visible = Visible(len(store.blocks), of=len(store.blocks))
    server = ChainServer(ChainApp(Rpc(Methods(store, visible).table()), compress=False), bound_socket(0))
    await server.start()
    print(json.dumps({"url": server.url, "chain_id": store.chain_id}), flush=True)
    await asyncio.to_thread(sys.stdin.read)  # until the benchmark closes its end
    await server.stop()


if __name__ == "__main__":
    main()
