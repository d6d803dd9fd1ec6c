"""What nobody can do without: asking for the answers, and making objects of them."""

import time
from collections.abc import Callable
from functools import partial

from benchmarks.support.ingest_chain import asked_by_ours
from tracelake.spark.evm.answers import Block, Receipt
from tracelake.spark.evm.calls import answers_of
from tracelake.spark.evm.endpoints import parse_endpoint
from tracelake.spark.evm.http import HttpNode, HttpOptions

_BATCH = 10


def floor_seconds(url: str, blocks: int, *, rounds: int) -> tuple[float, float]:
    """CPU seconds of this process for fetching alone, and for fetching and decoding: the least of so many rounds."""
    node = HttpNode(parse_endpoint(url), HttpOptions())
    bodies = asked_by_ours(blocks, _BATCH)
    decoders = (answers_of(Block), answers_of(list[Receipt]))

    def fetch(*, decode: bool) -> None:
        for place, body in enumerate(bodies):
            reply = node.post(body, until=float("inf"))
            if decode:
                decoders[place % 2].decode(reply.body)

    try:
        return _least(partial(fetch, decode=False), rounds), _least(partial(fetch, decode=True), rounds)
    finally:
        node.close()


def _least(work: Callable[[], None], rounds: int) -> float:
    work()
    readings = []
    for _ in range(rounds):
        began = time.process_time()
        work()
        readings.append(time.process_time() - began)
    return min(readings)
