"""What nobody can do without who reads these answers with these libraries and writes the same files. Each floor has
what the ones before it have:

- `fetch`: asking for the answers, with our own HTTP client, and throwing them away
- `batches`: msgspec's objects of what came, an answer to a whole batch at a time
- `objects`: the same block by block, each let go before the next one is made, which takes less
- `files`: and every digit that ends up in a table decoded once, and the tables written as Parquet with our settings.
  Digits and tables are there before: finding, checking and joining values, and making columns of them, are left out.
"""

import io
import time
from binascii import unhexlify
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.support.ingest_chain import asked_by_ours
from tracelake.spark.evm.answers import Block, Receipt
from tracelake.spark.evm.calls import answers_of
from tracelake.spark.evm.endpoints import parse_endpoint
from tracelake.spark.evm.fetch import make_tables
from tracelake.spark.evm.http import HttpNode, HttpOptions
from tracelake.spark.evm.tables import SCHEMAS

_BATCH = 10
Answer = bytes | bytearray


@dataclass(frozen=True, slots=True)
class Floors:
    """CPU seconds of this process, the least of so many rounds."""

    fetch: float
    batches: float
    objects: float
    files: float


class FloorReader:
    def __init__(self, url: str, blocks: int) -> None:
        self._node = HttpNode(parse_endpoint(url), HttpOptions())
        self._bodies = asked_by_ours(blocks, _BATCH)
        whole = (answers_of(Block), answers_of(list[Receipt]))
        self._batches = [one.decode for one in whole]
        self._objects = [_dropping(Block).decode, _dropping(list[Receipt]).decode]
        answers = [self._ask(body) for body in self._bodies]
        read: list[list[Any]] = [
            [one.result for one in whole[place % 2].decode(raw)] for place, raw in enumerate(answers)
        ]
        made = [make_tables(*pair, tuple(SCHEMAS), 1) for pair in zip(read[::2], read[1::2], strict=True)]
        self._digits = [_digits(tables) for tables in made]
        self._tables = {name: pa.concat_tables([tables[name] for tables in made]) for name in SCHEMAS}

    def measure(self, rounds: int) -> Floors:
        return Floors(
            _least(lambda: self._read([_drop, _drop]), rounds),
            _least(lambda: self._read(self._batches), rounds),
            _least(lambda: self._read(self._objects), rounds),
            _least(self._write, rounds),
        )

    def close(self) -> None:
        self._node.close()

    def _ask(self, body: bytes) -> Answer:
        return self._node.post(body, until=float("inf")).body

    def _read(self, decoders: Sequence[Callable[[Answer], Any]]) -> None:
        for place, body in enumerate(self._bodies):
            decoders[place % 2](self._ask(body))

    def _write(self) -> None:
        self._read(self._objects)
        for digits in self._digits:
            unhexlify(digits)
        for table in self._tables.values():
            pq.write_table(
                table,
                io.BytesIO(),
                compression="zstd",
                compression_level=3,
                write_page_index=True,
                store_schema=False,
                row_group_size=table.num_rows,
            )


def _dropping(kind: Any) -> "msgspec.json.Decoder[Any]":
    def drop(answer: Any) -> None:
        answer.result = None

    fields = [("result", kind | None, None)]
    answer = msgspec.defstruct("DroppedAnswer", fields, namespace={"__post_init__": drop}, gc=False)
    return msgspec.json.Decoder(list[answer])  # type: ignore[valid-type]


def _digits(tables: dict[str, pa.Table]) -> bytes:
    """Of all values that are bytes; the numbers, which are few, are left out."""
    columns = [column for table in tables.values() for column in table.columns if column.type == pa.binary()]
    return b"".join([value.hex().encode() for column in columns for value in column.to_pylist() if value])


def _drop(_answer: Answer) -> None:
    pass


def _least(work: Callable[[], None], rounds: int) -> float:
    work()
    readings = []
    for _ in range(rounds):
        began = time.process_time()
        work()
        readings.append(time.process_time() - began)
    return min(readings)
