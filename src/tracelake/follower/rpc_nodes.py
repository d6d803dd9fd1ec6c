"""Nodes over JSON-RPC, each by itself: the follower has to know who said what.

Rows are read, checked and made by the code of `evm_ingest`. A call is tried once: what follows a failure is decided by
the follower, which lets the node rest and may ask another. With a filter, `filtered_rows` reads them.
"""

import re
import threading
from collections.abc import Collection, Sequence
from dataclasses import replace

from tracelake.follower.filtered_rows import read_filtered_rows
from tracelake.follower.links import ChainLink, links_of
from tracelake.follower.nodes import ChainRows
from tracelake.spark.evm.answers import BlockHeader
from tracelake.spark.evm.calls import Call, answers_of, quantity
from tracelake.spark.evm.endpoints import RpcEndpoint
from tracelake.spark.evm.errors import AnswerError, MissingAnswerError, WrongBlockError
from tracelake.spark.evm.fetch import fetch
from tracelake.spark.evm.node import ProgressDeadline, RpcNode, RpcOptions
from tracelake.spark.evm.node_pool import RpcPool
from tracelake.spark.evm.read_options import USUAL, ReadOptions, decoders_of
from tracelake.spark.evm.root_checks import check_header_hash

_HASH = re.compile("0x[0-9a-f]{64}")
_headers = answers_of(BlockHeader)


class RpcChainNode:
    """One endpoint as the follower sees it. `stop` ends what is being read."""

    def __init__(
        self,
        endpoint: RpcEndpoint,
        options: RpcOptions,
        tables: Collection[str],
        *,
        number: int = 1,
        stop: threading.Event | None = None,
        reading: ReadOptions = USUAL,
    ) -> None:
        once = replace(options, tries=1, backoff_seconds=0.0, longest_backoff_seconds=0.0)
        self._pool = RpcPool([endpoint], once, first_number=number)
        self._tables = tables
        self._stop = stop
        self._reading = reading
        self._head: int | None = None

    @property
    def label(self) -> str:
        return self._pool.nodes[0].label

    def close(self) -> None:
        self._pool.close()

    def read_head(self) -> ChainLink:
        head = self._read_headers([("eth_getBlockByNumber", ["latest", False])])[0]
        self._head = head.number
        return head

    def read_links(self, numbers: Sequence[int]) -> list[ChainLink]:
        links = self._read_headers([("eth_getBlockByNumber", [hex(number), False]) for number in numbers])
        for number, link in zip(numbers, links, strict=True):
            if link.number != number:
                raise WrongBlockError(
                    f"asked for block {number}, it gave one that calls itself {link.number}", host=self.label
                )
        return links

    def read_rows(self, first: int, last: int) -> ChainRows:
        self._pool.forgive()
        if self._reading.filter is not None:
            rows = read_filtered_rows(self._pool, first, last, self._reading, self._head, self._stop)
            return ChainRows(rows.links, {table: rows.tables[table] for table in self._tables})
        stretch = fetch(self._pool, range(first, last + 1), self._tables, self._stop, self._reading)
        return ChainRows(links_of(stretch.tables["blocks"]), stretch.tables)

    def _read_headers(self, calls: Sequence[Call]) -> list[ChainLink]:
        def ask(node: RpcNode, deadline: ProgressDeadline) -> list[ChainLink]:
            decoder = decoders_of(self._reading).headers if self._reading.verify_roots else _headers
            return [self._link(header) for header in node.ask(calls, decoder, deadline)]

        self._pool.forgive()
        return self._pool.run(ask, self._stop)

    def _link(self, header: BlockHeader | None) -> ChainLink:
        if header is None:
            raise MissingAnswerError("null for a block", host=self.label)
        names = header.hash.lower(), header.parent_hash.lower()
        if not all(_HASH.fullmatch(name) for name in names):
            raise AnswerError("a block whose hash is none", host=self.label)
        link = ChainLink(quantity(header.number, self.label), *names, quantity(header.timestamp, self.label))
        if self._reading.verify_roots:
            check_header_hash(link.number, header, self.label)
        return link
