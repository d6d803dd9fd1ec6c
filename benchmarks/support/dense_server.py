"""Serves a dense chain on loopback: `python -m benchmarks.support.dense_server --blocks N`.

It is the demo's server with answers made before. With `--gzip` answers to our client are compressed, as those of a node
behind a public proxy are, without any work of compression while somebody measures: each block is compressed when the
server starts, and an answer to a batch is put together from such pieces, which deflate allows at byte boundaries.
"""

import argparse
import json
import sys
import zlib
from typing import Any

import msgspec
import uvloop

from benchmarks.support.dense_chain import CHAIN_ID, DenseChain
from tracelake.demo.chain.app import ChainApp
from tracelake.demo.chain.head import Visible
from tracelake.demo.chain.methods import Methods
from tracelake.demo.chain.rpc import Rpc
from tracelake.demo.chain.server import ChainServer, bound_socket
from tracelake.demo.chain.store import ChainStore

_POLYNOMIAL = 0xEDB88320
_HEAD, _END = b"\x1f\x8b\x08\x00\x00\x00\x00\x00\x00\xff", b"\x03\x00"
_LEVEL = 6
_OURS = (b"user-agent", b"tracelake")


class _Piece:
    """Some bytes, as a part of a deflate stream that refers to nothing outside of it."""

    __slots__ = ("crc", "deflated", "shift", "size")

    def __init__(self, content: bytes, *, stored: bool = False) -> None:
        self.size = len(content)
        self.crc = zlib.crc32(content)
        self.shift = _shift(self.size)
        if stored:
            size = self.size.to_bytes(2, "little")
            self.deflated = b"\x00" + size + bytes(byte ^ 0xFF for byte in size) + content
        else:
            packer = zlib.compressobj(_LEVEL, wbits=-15)
            self.deflated = packer.compress(content) + packer.flush(zlib.Z_FULL_FLUSH)


def _multiply(left: int, right: int) -> int:
    """Polynomials modulo that of CRC-32, the lowest bit first."""
    product = 0
    while left:
        if left & 0x80000000:
            product ^= right
        left = left << 1 & 0xFFFFFFFF
        right = right >> 1 ^ (_POLYNOMIAL if right & 1 else 0)
    return product


def _shift(count: int) -> int:
    """What a checksum is multiplied by when so many bytes follow."""
    power, square = 0x80000000, 0x00800000  # x^0 and x^8
    while count:
        if count & 1:
            power = _multiply(square, power)
        square = _multiply(square, square)
        count >>= 1
    return power


def join_gzip(pieces: list[_Piece]) -> bytes:
    crc = size = 0
    for piece in pieces:
        crc = _multiply(crc, piece.shift) ^ piece.crc
        size += piece.size
    tail = crc.to_bytes(4, "little") + (size & 0xFFFFFFFF).to_bytes(4, "little")
    return b"".join([_HEAD, *(piece.deflated for piece in pieces), _END, tail])


class GzipApp:
    """Compressed answers to our client's calls for blocks and receipts; the rest is the plain server's."""

    def __init__(self, plain: ChainApp, store: ChainStore) -> None:
        self._plain = plain
        self._pieces = {
            "eth_getBlockByNumber": [_Piece(block.full) for block in store.blocks],
            "eth_getBlockReceipts": [_Piece(block.receipts) for block in store.blocks],
        }
        self._end = _Piece(b"}", stored=True)

    async def __call__(self, scope: dict[str, Any], receive: Any, send: Any) -> None:
        if scope["type"] != "http" or _OURS not in scope["headers"]:
            await self._plain(scope, receive, send)
            return
        message = await receive()
        content = message["body"]
        while message.get("more_body"):
            message = await receive()
            content += message["body"]
        asked = msgspec.json.decode(content)
        calls = asked if isinstance(asked, list) else [asked]
        if not all(call["method"] in self._pieces for call in calls):
            await self._plain(scope, _once(content), send)
            return
        pieces: list[_Piece] = []
        for place, call in enumerate(calls):
            opening = b"" if asked is call else b"," if place else b"["
            pieces.append(_Piece(opening + b'{"jsonrpc":"2.0","id":%d,"result":' % call["id"], stored=True))
            pieces += [self._pieces[call["method"]][int(call["params"][0], 16)], self._end]
        if isinstance(asked, list):
            pieces.append(_Piece(b"]", stored=True))
        answer = join_gzip(pieces)
        headers = [
            (b"content-type", b"application/json"),
            (b"content-encoding", b"gzip"),
            (b"content-length", str(len(answer)).encode()),
        ]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": answer})


def _once(content: bytes) -> Any:
    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": content, "more_body": False}

    return receive


async def _serve(server: ChainServer, blocks: int) -> None:
    import asyncio

    await server.start()
    print(json.dumps({"url": server.url, "chain_id": hex(CHAIN_ID), "blocks": blocks}), flush=True)
    # Whoever started it closes this pipe, in whatever way it ends.
    await asyncio.get_running_loop().run_in_executor(None, sys.stdin.buffer.read)
    await server.stop()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--blocks", type=int, required=True)
    parser.add_argument("--gzip", action="store_true")
    options = parser.parse_args()
    store = ChainStore(chain_id=hex(CHAIN_ID), client="dense")
    for block, receipts in DenseChain(options.blocks):
        store.append(block, receipts)
    plain = ChainApp(Rpc(Methods(store, Visible(options.blocks, of=options.blocks)).table()), compress=False)
    app = GzipApp(plain, store) if options.gzip else plain
    uvloop.run(_serve(ChainServer(app, bound_socket(0)), options.blocks))


if __name__ == "__main__":
    main()
