"""The recorded chain, repeated, over JSON-RPC on loopback: `python -m benchmarks.support.repeated_chain --times N`.

Each repetition continues the one before it: numbers and timestamps go on, and the hashes of blocks and transactions are
those of the recording with the number of the repetition in their last digits. A block is made when it is asked for.
"""

import argparse
import asyncio
import json
import re
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
from tracelake.demo.chain.store import ChainStore, StoredBlock, StoredLog

RECORDING = Path(__file__).parents[2] / "examples" / "token_flows" / "chain.jsonl.xz"
_DIGITS = 6
"""Of a hash: the number of the repetition."""


class Template:
    """A text in which some words change from one repetition to the next."""

    def __init__(self, text: bytes, words: Sequence[str]) -> None:
        parts = re.split(b"(" + b"|".join(re.escape(word.encode()) for word in words) + b")", text)
        places = {word.encode(): number for number, word in enumerate(words)}
        self._parts = parts
        self._words = [(place, places[parts[place]]) for place in range(1, len(parts), 2)]

    def fill(self, words: Sequence[bytes]) -> bytes:
        parts = self._parts.copy()
        for place, number in self._words:
            parts[place] = words[number]
        return b"".join(parts)


class RepeatedBlock:
    """A block of the recording: what changes in it, and its answers as templates."""

    def __init__(self, place: int, block: StoredBlock) -> None:
        header: dict[str, str] = msgspec.json.decode(block.brief)
        self.place, self.block = place, block
        self.time = int(header["timestamp"], 16)
        self._parent = header["parentHash"]
        self._hashes = (block.hash, *block.transactions)
        numbers = [f'umber":"{hex(place)}"', f'imestamp":"{hex(self.time)}"']
        words = [*numbers, *self._hashes, *([self._parent] if place else [])]
        if not place:  # its parent is the last block of the repetition before, and zeros stand for other things too
            words.append(f'"parentHash":"{self._parent}"')
        self._full, self._brief, self._receipts = (
            Template(text, words) for text in (block.full, block.brief, block.receipts)
        )
        self._logs = [Template(log.body, words) for log in block.logs]

    def repeat(self, number: int, repetition: int, seconds: int, last: str) -> StoredBlock:
        hashes = [_renamed(name, repetition) for name in self._hashes]
        parent = _renamed(self._parent, repetition)
        if not self.place:
            parent = f'"parentHash":"{_renamed(last, repetition - 1)}"'
        time = hex(self.time + repetition * seconds)
        words = [f'umber":"{hex(number)}"', f'imestamp":"{time}"', *hashes, parent]
        new = [word.encode() for word in words]
        logs = zip(self.block.logs, self._logs, strict=True)
        return StoredBlock(
            hash=hashes[0],
            full=self._full.fill(new),
            brief=self._brief.fill(new),
            receipts=self._receipts.fill(new),
            transactions=tuple(hashes[1:]),
            logs=tuple(StoredLog(log.address, log.topics, template.fill(new)) for log, template in logs),
        )


class RepeatedBlocks(Sequence[StoredBlock]):
    def __init__(self, blocks: Sequence[StoredBlock], times: int) -> None:
        self._blocks = [RepeatedBlock(place, block) for place, block in enumerate(blocks)]
        self._times = times
        duration = self._blocks[-1].time - self._blocks[0].time
        self._seconds = duration + duration // (len(blocks) - 1)
        self._make = lru_cache(maxsize=20_000)(self._repeat)  # a block is asked for several times, not always in a row

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
            return block.block
        return block.repeat(number, repetition, self._seconds, self._blocks[-1].block.hash)


def _renamed(name: str, repetition: int) -> str:
    return f"{name[:-_DIGITS]}{repetition:0{_DIGITS}x}" if repetition else name


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--times", type=int, required=True)
    times = parser.parse_args().times
    recording = Recording(RECORDING)
    store = ChainStore.load(recording, chain_id=recording.head.chain_id, client=recording.head.client)
    if times > 1:
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
