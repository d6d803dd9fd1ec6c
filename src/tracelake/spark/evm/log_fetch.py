"""Reading the logs that a filter takes, by eth_getLogs: a stretch of blocks from one node, checked, made into tables.

A job that wants a few contracts asks for their logs instead of for every block and receipt. Of blocks, only headers are
read: of the first and the last, which join the stretch to its neighbours, and of those with a log, or of all, if
anything of them is wanted. The last one is read before and after the logs. Blocks name their parents, so if it is the
same both times, all logs are of one chain.

The range of a query follows from what the node takes (`log_ranges`), which is kept with the node.
"""

import threading
from collections.abc import Collection, Sequence
from itertools import pairwise

import numpy as np
import pyarrow as pa

from tracelake.spark.evm.answer_checks import check_blocks
from tracelake.spark.evm.answers import BlockHeader, FilteredLog
from tracelake.spark.evm.calls import CallSet, answers_of, quantity
from tracelake.spark.evm.chain_rules import ChainRules
from tracelake.spark.evm.columns import BadHexError, binary, numbers, spread_lists
from tracelake.spark.evm.errors import (
    AnswerError,
    BrokenChainError,
    ForeignReceiptsError,
    IncompleteAnswerError,
    LogGapError,
    LogRangeError,
    MissingAnswerError,
    RpcError,
    TooLargeError,
    ValueTooLargeError,
)
from tracelake.spark.evm.fetch import Stretch
from tracelake.spark.evm.log_filter import LogSelection
from tracelake.spark.evm.node import ProgressDeadline, RpcNode
from tracelake.spark.evm.node_pool import RpcPool
from tracelake.spark.evm.packed import MOST_TOPICS
from tracelake.spark.evm.read_options import ReadOptions, decoders_of
from tracelake.spark.evm.tables import blocks_table, schema_of, sizes_of
from tracelake.spark.evm.texts import Texts

GET_LOGS = "eth_getLogs"
_HASH, _ADDRESS = 32, 20
_MOST_READINGS = 4
LOG_ANSWERS = answers_of(list[FilteredLog])


def fetch_logs(
    pool: RpcPool,
    numbers: Sequence[int],
    tables: Collection[str],
    stop: threading.Event | None,
    options: ReadOptions,
) -> Stretch:
    """The logs of consecutive blocks that `options.filter` takes. `blocks` has the blocks with such logs, or all.

    As in `fetch`, what a node has answered is kept while the stretch is read, unless a check fails."""
    assert options.filter is not None
    log_filter = options.filter
    readings: dict[RpcNode, _LogReading] = {}

    def read(node: RpcNode, deadline: ProgressDeadline) -> Stretch:
        reading = readings.pop(node, None) or _LogReading(node, numbers, log_filter, options, tables)
        readings[node] = reading
        if len(readings) > _MOST_READINGS:
            del readings[next(iter(readings))]
        try:
            reading.complete(deadline)
            result_tables = reading.make_tables(tables, pool.options.chain_id)
        except MissingAnswerError:
            raise
        except AnswerError:
            del readings[node]
            raise
        except (BadHexError, ValueTooLargeError) as error:
            del readings[node]
            raise AnswerError(f"logs of blocks {numbers[0]} to {numbers[-1]}: {error}", host=node.label) from None
        return Stretch(numbers, reading.ends, result_tables)

    return pool.run(read, stop)


class _LogReading:
    """What one node has answered so far."""

    def __init__(
        self,
        node: RpcNode,
        block_numbers: Sequence[int],
        log_filter: LogSelection,
        options: ReadOptions,
        tables: Collection[str],
    ) -> None:
        self.ends: list[BlockHeader] = []
        """The first and the last block, and block 1 behind a block 0 that has no time."""
        self.logs: list[FilteredLog] = []
        self._node = node
        self._numbers = block_numbers
        self._filter = log_filter
        self._options = options
        self._decoders = decoders_of(options)
        self._all_blocks = options.all_blocks and "blocks" in tables
        self._with_blocks = "blocks" in tables or "timestamp" in options.optional("logs")
        self._open = [(block_numbers[0], block_numbers[-1])]
        """Ranges whose logs were not read yet, in order."""
        self._most = len(block_numbers)
        """Blocks of a query: no more than the node has refused for this stretch."""
        self._end_calls = _header_calls(sorted({block_numbers[0], block_numbers[-1]}))
        self._second_calls = _header_calls([1])
        self._again = _header_calls([block_numbers[-1]])
        self._block_calls: CallSet | None = None
        self._headers: dict[int, BlockHeader] = {}

    def complete(self, deadline: ProgressDeadline) -> None:
        """Asks for what is missing, and checks all of it."""
        first, last = self._numbers[0], self._numbers[-1]
        if not self.ends:
            ends = self._read_headers(self._end_calls, sorted({first, last}), deadline)
            if first == 0 < last and quantity(ends[0].timestamp, self._node.label) == 0:
                ends[1:1] = self._read_headers(self._second_calls, [1], deadline)
            self.ends = ends
        while self._open:
            self._read_logs(deadline)
        (again,) = self._read_headers(self._again, [last], deadline)
        if again.hash != self.ends[-1].hash:
            raise BrokenChainError(f"block {last} is another than before its logs were read", host=self._node.label)
        self.logs = order_logs(self.logs, self._options.rules, self._node.label)
        if self._with_blocks:
            with_logs = {quantity(log.block_number, self._node.label) for log in self.logs}
            header_numbers = list(self._numbers) if self._all_blocks else sorted(with_logs)
            if self._block_calls is None:
                self._block_calls = _header_calls(header_numbers)
            read = self._read_headers(self._block_calls, header_numbers, deadline)
            self._headers = dict(zip(header_numbers, read, strict=True))
        if self._all_blocks:
            self._check_chain()
        self._check_owners()

    def _check_chain(self) -> None:
        """All headers are one chain, which ends with the block that was the last one before and after the logs."""
        check_blocks(self._numbers, list(self._headers.values()), self._node.label)
        last = self._numbers[-1]
        if self._headers[last].hash != self.ends[-1].hash:
            raise BrokenChainError(f"block {last} is another than when its logs were read", host=self._node.label)

    def _read_logs(self, deadline: ProgressDeadline) -> None:
        size = min(self._node.log_ranges.current, self._most)
        pieces = [
            (start, min(end, start + size - 1)) for begin, end in self._open for start in range(begin, end + 1, size)
        ]
        calls = CallSet([(GET_LOGS, self._filter.params(*piece)) for piece in pieces])
        failure: RpcError | None = None
        try:
            self._node.complete(calls, LOG_ANSWERS, deadline)
        except RpcError as error:
            failure = error
        open_places = set(calls.open)
        for place, piece in enumerate(pieces):
            answer = calls.results[place]
            if answer is None:
                open_places.add(place)
            else:
                check_range(piece, answer, self._filter, self._node.label)
                self.logs += answer
                self._node.log_ranges.answered(piece[1] - piece[0] + 1)
        self._open = [pieces[place] for place in sorted(open_places)]
        if failure is not None:
            self._adapt(failure, max(last - first + 1 for first, last in self._open))
        elif self._open:
            first, last = self._open[0]
            raise MissingAnswerError(f"null for the logs of blocks {first} to {last}", host=self._node.label)

    def _adapt(self, error: RpcError, blocks: int) -> None:
        """Smaller ranges, or the error."""
        ranges = self._node.log_ranges
        match error:
            case LogRangeError() if blocks > 1:
                self._most = ranges.refused(blocks, limits=error.limits, proposed=error.proposed)
            case TooLargeError() if blocks > 1:
                self._most = ranges.refused(blocks)
            case IncompleteAnswerError() if blocks > 1:
                self._most = ranges.refused(blocks)
                raise error
            case _:
                raise error

    def _read_headers(self, calls: CallSet, expected: Sequence[int], deadline: ProgressDeadline) -> list[BlockHeader]:
        self._node.complete(calls, self._decoders.headers, deadline)
        headers: list[BlockHeader] = []
        try:
            for number, header in zip(expected, calls.results, strict=True):
                check_blocks([number], [header], self._node.label)
                headers.append(header)
        except MissingAnswerError:
            calls.reopen_nulls()
            raise
        return headers

    def _check_owners(self) -> None:
        """Logs of one block have one block hash: that of its header, where it was read."""
        hashes = {quantity(header.number, self._node.label): header.hash for header in self.ends}
        hashes |= {number: header.hash for number, header in self._headers.items()}
        for log in self.logs:
            number = quantity(log.block_number, self._node.label)
            if hashes.setdefault(number, log.block_hash) != log.block_hash:
                raise ForeignReceiptsError(
                    f"logs of block {number} are of another block with that number", host=self._node.label
                )

    def make_tables(self, tables: Collection[str], chain_id: int) -> dict[str, pa.Table]:
        result_tables = {}
        if "blocks" in tables:
            result_tables["blocks"] = blocks_table(
                list(self._headers.values()), chain_id, self._options.optional("blocks")
            )
        if "logs" in tables:
            times = {number: header.timestamp for number, header in self._headers.items()}
            result_tables["logs"] = filtered_logs_table(self.logs, chain_id, times, self._options.optional("logs"))
        return result_tables


def check_range(piece: tuple[int, int], logs: Sequence[FilteredLog], log_filter: LogSelection, host: str) -> None:
    """All are of these blocks, and such as were asked for."""
    for log in logs:
        number = quantity(log.block_number, host)
        if not piece[0] <= number <= piece[1]:
            raise AnswerError(f"a log of block {number} among those of {piece[0]} to {piece[1]}", host=host)
        if log.removed:
            raise ForeignReceiptsError(f"a log of block {number} is of a block that was removed", host=host)
        if len(log.topics) > MOST_TOPICS:
            raise AnswerError(f"a log of block {number} has more than four topics", host=host)
        if not log_filter.takes(log.address, log.topics):
            raise AnswerError(f"a log of block {number} is none that was asked for", host=host)


def order_logs(logs: Sequence[FilteredLog], rules: ChainRules, host: str) -> list[FilteredLog]:
    """In the order of the chain, each once."""
    keys = [
        (quantity(log.block_number, host), quantity(log.transaction_index, host), quantity(log.log_index, host))
        for log in logs
    ]
    if rules.log_index != "strict":
        order = sorted(range(len(keys)), key=lambda place: keys[place][:2])
        return [logs[place] for place in order]
    order = sorted(range(len(keys)), key=lambda place: (keys[place][0], keys[place][2]))
    for before, after in pairwise(order):
        if keys[before][0] != keys[after][0]:
            continue
        if keys[before][2] == keys[after][2] or keys[before][1] > keys[after][1]:
            raise LogGapError(f"logs of block {keys[after][0]} have numbers that contradict each other", host=host)
    return [logs[place] for place in order]


def filtered_logs_table(
    logs: Sequence[FilteredLog], chain_id: int, times: dict[int, str], optional: Sequence[str] = ()
) -> pa.Table:
    """The same columns as those of all logs. `times`: of blocks, by number, if they are wanted."""
    data = binary("data", [log.data for log in logs])
    topic_counts = np.array([len(log.topics) for log in logs], np.int64)

    def optional_column(name: str) -> pa.Array:
        if name == "block_hash":
            return binary(name, [log.block_hash for log in logs], _HASH)
        if name == "timestamp":
            return numbers(name, [times[int(log.block_number, 16)] for log in logs], "uint32")
        return sizes_of(data)

    columns = [
        numbers("block_number", [log.block_number for log in logs], "uint32"),
        numbers("transaction_index", [log.transaction_index for log in logs], "uint32"),
        numbers("log_index", [log.log_index for log in logs], "uint32"),
        binary("transaction_hash", [log.transaction_hash for log in logs], _HASH),
        binary("address", [log.address for log in logs], _ADDRESS),
        *spread_lists(
            "topics", Texts.of([topic for log in logs for topic in log.topics]), topic_counts, MOST_TOPICS, _HASH
        ),
        data,
        pa.array(np.full(len(logs), chain_id, np.uint64)),
        *(optional_column(name) for name in optional),
    ]
    return pa.Table.from_arrays(columns, schema=schema_of("logs", optional))


def _header_calls(block_numbers: Sequence[int]) -> CallSet:
    return CallSet([("eth_getBlockByNumber", [hex(number), False]) for number in block_numbers])
