"""A filtered read returns the rows of an unfiltered one that the filter takes, whatever ranges a node accepts."""

from collections.abc import Callable, Iterator
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.chain.faults import Call, RpcErrors, Status
from tests.spark.evm.support import CHAIN_ID, expected, pool_of
from tests.support.chain import ServedChain, recorded, serve_chain
from tracelake.spark.evm.chain_rules import ChainRules
from tracelake.spark.evm.chunk import stretches
from tracelake.spark.evm.errors import (
    AnswerError,
    BrokenChainError,
    ForeignReceiptsError,
    LogGapError,
    LogRangeError,
    MissingAnswerError,
    RpcError,
)
from tracelake.spark.evm.fetch import Stretch, fetch
from tracelake.spark.evm.log_fetch import fetch_logs
from tracelake.spark.evm.log_filter import LogSelection
from tracelake.spark.evm.log_ranges import LogRangeSize
from tracelake.spark.evm.read_options import ReadOptions
from tracelake.spark.evm.refusals import ProviderRefusal, error_of

Json = dict[str, Any]
BLOCKS = 400
ROWS = expected(recorded(BLOCKS))
LOGS = ROWS["logs"]
WHOLE = range(BLOCKS)


def by_count(column: str) -> list[bytes]:
    """The values of a column, the most frequent first."""
    values = [row[column] for row in LOGS if row[column] is not None]
    return sorted(set(values), key=lambda value: (-values.count(value), value))


ADDRESSES = ["0x" + value.hex() for value in by_count("address")]
EVENTS = ["0x" + value.hex() for value in by_count("topic0")]
SENDERS = ["0x" + value.hex() for value in by_count("topic1")]
FILTERS = {
    "one contract": LogSelection.of([ADDRESSES[0]], []),
    "contracts, in capital letters": LogSelection.of([one.upper().replace("0X", "0x") for one in ADDRESSES[1:3]], []),
    "an event": LogSelection.of([], [[EVENTS[0]]]),
    "events of a contract": LogSelection.of([ADDRESSES[1]], [EVENTS[:2]]),
    "a second topic": LogSelection.of([], [[], SENDERS[:3]]),
    "both": LogSelection.of(ADDRESSES[:3], [[EVENTS[0]], SENDERS[:5]]),
    "nothing": LogSelection.of(["0x" + "77" * 20], []),
}


def matching(log_filter: LogSelection, numbers: range = WHOLE) -> list[Json]:
    """In plain Python."""

    def takes(row: Json) -> bool:
        topics = [row[f"topic{place}"] for place in range(len(log_filter.topics))]
        return (not log_filter.addresses or "0x" + row["address"].hex() in log_filter.addresses) and all(
            topic is not None and (not choices or "0x" + topic.hex() in choices)
            for topic, choices in zip(topics, log_filter.topics, strict=True)
        )

    return [row for row in LOGS if row["block_number"] in numbers and takes(row)]


@pytest.fixture(scope="module")
def served() -> Iterator[ServedChain]:
    with serve_chain(BLOCKS) as chain:
        yield chain


@pytest.fixture
def chain(served: ServedChain) -> Iterator[ServedChain]:
    yield served
    served.clear()
    served.restore()
    served.calls.clear()
    served._watchers.clear()


def read(
    chain: ServedChain,
    log_filter: LogSelection,
    numbers: range = WHOLE,
    tables: tuple[str, ...] = ("logs",),
    options: ReadOptions | None = None,
    **pool: Any,
) -> Stretch:
    nodes = pool_of(chain, **pool)
    try:
        return fetch_logs(nodes, numbers, tables, None, options or ReadOptions(filter=log_filter))
    finally:
        nodes.close()


@pytest.mark.parametrize("name", FILTERS)
def test_the_rows_are_those_of_an_unfiltered_read(chain: ServedChain, name: str) -> None:
    log_filter = FILTERS[name]
    wanted = matching(log_filter)
    assert bool(wanted) == (name != "nothing")
    stretch = read(chain, log_filter)
    pool = pool_of(chain)
    usual = fetch(pool, WHOLE, ("blocks", "logs"))
    pool.close()
    assert stretch.tables["logs"].schema == usual.tables["logs"].schema
    assert stretch.tables["logs"].to_pylist() == wanted
    assert [row for row in usual.tables["logs"].to_pylist() if row in wanted] == wanted
    ends = ("first_parent", "last_hash", "first_time", "last_time", "numbers")
    assert {end: getattr(stretch, end) for end in ends} == {end: getattr(usual, end) for end in ends}


def test_a_genesis_without_a_time_is_left_out_of_the_times(chain: ServedChain) -> None:
    chain._change(0, lambda block, receipts: (block | {"timestamp": "0x0"}, receipts))
    second = int(chain.block(1).block["timestamp"], 16)
    pool = pool_of(chain)
    for numbers, first in ((WHOLE, second), (range(1), 0), (range(2), second), (range(1, 9), second)):
        for stretch in (read(chain, FILTERS["one contract"], numbers), fetch(pool, numbers, ("blocks", "logs"))):
            assert stretch.first_time == first
            assert stretch.last_time == int(chain.block(numbers[-1]).block["timestamp"], 16)
    pool.close()


def test_only_logs_and_the_ends_are_asked_for(chain: ServedChain) -> None:
    read(chain, FILTERS["one contract"])
    assert sorted(call.method for call in chain.calls) == [
        "eth_chainId",
        *["eth_getBlockByNumber"] * 3,
        "eth_getLogs",
    ]


def test_blocks_are_those_with_logs_and_times_are_theirs(chain: ServedChain) -> None:
    log_filter = FILTERS["a second topic"]
    options = ReadOptions.of({"logs": ["block_hash", "timestamp", "n_data_bytes"]}, log_filter=log_filter)
    made = read(chain, log_filter, tables=("logs", "blocks"), options=options).tables
    numbers = {row["block_number"] for row in matching(log_filter)}
    blocks = {row["block_number"]: row for row in ROWS["blocks"]}
    assert made["blocks"].to_pylist() == [blocks[number] for number in sorted(numbers)]
    assert made["logs"].to_pylist() == [
        {
            **row,
            "block_hash": blocks[row["block_number"]]["block_hash"],
            "timestamp": blocks[row["block_number"]]["timestamp"],
            "n_data_bytes": len(row["data"]),
        }
        for row in matching(log_filter)
    ]


@pytest.mark.parametrize("name", ["a second topic", "nothing"])
def test_all_blocks_are_those_of_an_unfiltered_read(chain: ServedChain, name: str) -> None:
    columns = {"blocks": ["size", "withdrawals"], "logs": ["block_hash", "timestamp"]}
    options = ReadOptions.of(columns, log_filter=FILTERS[name], all_blocks=True)
    made = read(chain, FILTERS[name], tables=("logs", "blocks"), options=options).tables
    assert not any(call.method == "eth_getBlockByNumber" and call.params[1] for call in chain.calls), "headers only"
    pool = pool_of(chain)
    usual = fetch(pool, WHOLE, ("blocks", "logs"), None, ReadOptions.of(columns)).tables
    pool.close()
    assert made["blocks"].equals(usual["blocks"])
    wanted = {(row["block_number"], row["log_index"]) for row in matching(FILTERS[name])}
    rows = [row for row in usual["logs"].to_pylist() if (row["block_number"], row["log_index"]) in wanted]
    assert made["logs"].to_pylist() == rows
    chain.calls.clear()
    read(chain, FILTERS[name], options=ReadOptions.of({}, log_filter=FILTERS[name], all_blocks=True))
    assert sum(call.method == "eth_getBlockByNumber" for call in chain.calls) == 3, "nobody wants blocks"


@pytest.mark.parametrize("first", [150, BLOCKS - 1])
def test_headers_of_another_chain_than_the_logs_are_read_again(chain: ServedChain, first: int) -> None:
    """The chain changes when its logs have been read; none of the filter's logs is in a changed block."""
    log_filter = FILTERS["nothing"]
    headers = 0

    def watch(calls: list[Call]) -> None:
        nonlocal headers
        headers += sum(call.method == "eth_getBlockByNumber" for call in calls)
        if headers > 3 and not changed:
            changed.append(True)
            chain.reorganise(first)

    changed: list[bool] = []
    chain.watch(watch)
    options = ReadOptions.of({}, log_filter=log_filter, all_blocks=True)
    stretch = read(chain, log_filter, tables=("logs", "blocks"), options=options)
    assert changed
    assert stretch.last_hash == chain.block(BLOCKS - 1).block["hash"]
    hashes = [chain.block(number).block["hash"] for number in WHOLE]
    assert ["0x" + name.hex() for name in stretch.tables["blocks"]["block_hash"].to_pylist()] == hashes


def test_one_block(chain: ServedChain) -> None:
    number = matching(FILTERS["an event"])[0]["block_number"]
    made = read(chain, FILTERS["an event"], range(number, number + 1))
    assert made.tables["logs"].to_pylist() == matching(FILTERS["an event"], range(number, number + 1))


def span(call: Call) -> tuple[int, int]:
    query = call.params[0]
    return int(query["fromBlock"], 16), int(query["toBlock"], 16)


def blocks_of(call: Call) -> int:
    first, last = span(call)
    return last - first + 1


def more_blocks_than(most: int) -> Callable[[list[Call]], bool]:
    return lambda calls: any(call.method == "eth_getLogs" and blocks_of(call) > most for call in calls)


def more_logs_than(most: int) -> Callable[[list[Call]], bool]:
    counts = [0] * BLOCKS
    for row in matching(FILTERS["an event"]):
        counts[row["block_number"]] += 1

    def is_more(call: Call) -> bool:
        first, last = span(call)
        return sum(counts[first : last + 1]) > most

    return lambda calls: any(call.method == "eth_getLogs" and is_more(call) for call in calls)


BUSIEST = max(sum(row["block_number"] == number for row in matching(FILTERS["an event"])) for number in range(BLOCKS))
LIMITS: dict[str, tuple[Any, Callable[[list[Call]], bool]]] = {
    "10 blocks, named": (
        RpcErrors(-32600, "Under the Free tier plan, you can make eth_getLogs requests with up to a 10 block range."),
        more_blocks_than(10),
    ),
    "64 blocks, named": (RpcErrors(-32701, "exceed maximum block range: 64"), more_blocks_than(64)),
    "37 blocks, not named": (RpcErrors(-32000, "block range is too wide"), more_blocks_than(37)),
    "50 blocks, by status": (
        Status(
            400,
            body=b'{"jsonrpc":"2.0","id":null,"error":{"code":-32614,"message":'
            b'"eth_getLogs is limited to a 50 range"}}',
        ),
        more_blocks_than(50),
    ),
    "many logs, as a rate limit": (
        RpcErrors(-32005, "query returned more than 10000 results"),
        more_logs_than(max(30, BUSIEST)),
    ),
    "a timeout": (RpcErrors(-32000, "query timeout exceeded"), more_blocks_than(100)),
    "too large": (RpcErrors(-32003, "response too large"), more_logs_than(max(50, BUSIEST))),
    "one block": (RpcErrors(-32602, "eth_getLogs is limited to 1 blocks range"), more_blocks_than(1)),
}


@pytest.mark.parametrize("batch_size", [1, 20])
@pytest.mark.parametrize("name", LIMITS)
def test_limits_of_providers(chain: ServedChain, name: str, batch_size: int) -> None:
    fault, when = LIMITS[name]
    chain.inject(fault, times=None, when=when)
    nodes = pool_of(chain, batch_size=batch_size)
    options = ReadOptions(filter=FILTERS["an event"])
    made = fetch_logs(nodes, WHOLE, ("logs",), None, options)
    assert made.tables["logs"].to_pylist() == matching(FILTERS["an event"])
    before = sum(when([call]) for call in chain.calls)
    assert before <= 20 + 2 * batch_size, "a limit is learnt, not met again and again"
    if "named" in name and "not" not in name:
        fetch_logs(nodes, WHOLE, ("logs",), None, options)
        assert sum(when([call]) for call in chain.calls) == before, "and remembered"
    nodes.close()


def test_a_proposed_range_is_used(chain: ServedChain) -> None:
    words = "query returned more than 10000 results. Try with this block range [0x0, 0x63]."
    chain.inject(RpcErrors(-32005, words), when=lambda calls: calls[0].method == "eth_getLogs")
    made = read(chain, FILTERS["an event"])
    assert made.tables["logs"].to_pylist() == matching(FILTERS["an event"])
    spans = [span(call) for call in chain.calls if call.method == "eth_getLogs"]
    assert spans == [(0, 399), (0, 99), (100, 199), (200, 299), (300, 399)]


def test_one_block_that_is_too_large_is_an_error(chain: ServedChain) -> None:
    chain.inject(RpcErrors(-32005, "query returned more than 10000 results"), times=None, when=more_blocks_than(0))
    with pytest.raises(LogRangeError, match="more than 10000 results") as caught:
        read(chain, FILTERS["an event"], range(10), tries=2)
    assert caught.value.kind == "rpc_too_large"


def test_answers_are_kept_over_failures(chain: ServedChain) -> None:
    chain.inject(RpcErrors(-32701, "exceed maximum block range: 50"), times=None, when=more_blocks_than(50))
    chain.inject(Status(503), times=2, when=lambda calls: any(span(c)[0] == 200 for c in calls if len(c.params) == 1))
    made = read(chain, FILTERS["an event"], batch_size=1)
    assert made.tables["logs"].to_pylist() == matching(FILTERS["an event"])
    spans = [span(call) for call in chain.calls if call.method == "eth_getLogs"]
    assert (len(spans), len(set(spans))) == (11, 9), "only what failed is asked again"


def test_stretches_of_a_chunk_are_joined(chain: ServedChain) -> None:
    nodes = pool_of(chain)
    options = ReadOptions(filter=FILTERS["both"])
    parts = list(stretches(nodes, 0, BLOCKS - 1, ("logs",), options))
    nodes.close()
    assert [row for part in parts for row in part.tables["logs"].to_pylist()] == matching(FILTERS["both"])


WRONG: dict[str, tuple[Callable[[Json], None], type[RpcError]]] = {
    "another contract": (lambda log: log.update(address="0x" + "99" * 20), AnswerError),
    "another event": (lambda log: log["topics"].__setitem__(0, "0x" + "99" * 32), AnswerError),
    "another range": (lambda log: log.update(blockNumber=hex(10**6)), AnswerError),
    "a removed block": (lambda log: log.update(removed=True), ForeignReceiptsError),
    "no number": (lambda log: log.update(logIndex="first"), AnswerError),
    "a number that no column holds": (lambda log: log.update(logIndex=hex(2**40)), AnswerError),
    "bad data": (lambda log: log.update(data="0x1"), AnswerError),
    "another block": (lambda log: log.update(blockHash="0x" + "99" * 32), ForeignReceiptsError),
    "no place": (lambda log: log.pop("transactionIndex"), AnswerError),
}
EVENTS_OF = LogSelection.of([ADDRESSES[0]], [[EVENTS[0]]])


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_answer_is_caught(chain: ServedChain, name: str) -> None:
    change, error = WRONG[name]
    number = matching(EVENTS_OF)[0]["block_number"]

    chain._change(number, lambda block, receipts: (block, receipts))  # so that it is restored
    stored = chain._store.blocks[number]
    original = next(log for log in stored.logs if EVENTS_OF.takes(log.address, log.topics))
    body = msgspec.json.decode(original.body)
    change(body)
    wrong = msgspec.structs.replace(original, body=msgspec.json.encode(body))
    logs = tuple(wrong if log is original else log for log in stored.logs)
    chain._store.blocks[number] = msgspec.structs.replace(stored, logs=logs)
    with pytest.raises(error, match=r"^node-1: "):
        read(chain, EVENTS_OF, range(number, number + 20), tries=2)


def test_logs_twice_are_caught_unless_numbers_are_taken_as_given(chain: ServedChain) -> None:
    number = matching(EVENTS_OF)[0]["block_number"]
    stored = chain._store.blocks[number]
    chain._store.blocks[number] = msgspec.structs.replace(stored, logs=(*stored.logs, *stored.logs))
    try:
        with pytest.raises(LogGapError):
            read(chain, EVENTS_OF, range(number, number + 1), tries=2)
        options = ReadOptions(rules=ChainRules("as_given"), filter=EVENTS_OF)
        made = read(chain, EVENTS_OF, range(number, number + 1), options=options)
        assert made.tables["logs"].num_rows == 2 * len(matching(EVENTS_OF, range(number, number + 1)))
    finally:
        chain._store.blocks[number] = stored


def test_a_chain_that_changes_while_its_logs_are_read_is_read_again(chain: ServedChain) -> None:
    def reorganise(calls: list[Call]) -> None:
        if calls[0].method == "eth_getLogs" and not changes:
            changes.append(1)
            chain.reorganise(300)

    changes: list[int] = []
    chain.watch(reorganise)
    made = read(chain, FILTERS["an event"])
    assert made.last_hash == chain.block(BLOCKS - 1).block["hash"]
    wanted = expected([chain.block(number) for number in range(BLOCKS)])["logs"]
    event = bytes.fromhex(EVENTS[0][2:])
    assert made.tables["logs"].to_pylist() == [row for row in wanted if row["topic0"] == event]
    changes.clear()
    with pytest.raises(BrokenChainError):
        read(chain, FILTERS["an event"], tries=1)


def test_a_block_that_is_not_there_yet_is_no_answer(chain: ServedChain) -> None:
    chain.null_block(50)
    with pytest.raises(MissingAnswerError):
        read(chain, FILTERS["an event"], range(50, 55), tries=2)


REFUSALS: list[tuple[int, str, tuple[int, ...] | None, int | None]] = [
    (-32005, "query returned more than 10000 results", (10_000,), None),
    (-32005, "query returned more than 10000 results. Try with this block range [0x10, 0x1f].", None, 16),
    (
        -32602,
        "Log response size exceeded. You can make eth_getLogs requests with up to a 2K block range and no limit on the"
        " response size, or you can request any block range with a cap of 10K logs in the response. Based on your"
        " parameters and the response size limit, this block range should work: [0xee6b28, 0xee6b31]",
        None,
        10,
    ),
    (-32614, "eth_getLogs is limited to a 10,000 range", (10_000,), None),
    (-32602, "eth_getLogs is limited to 0 - 10000 blocks range", (0, 10_000), None),
    (-32602, "query exceeds max results 20000, retry with the range 100-250", None, 151),
    (-32602, "query exceeds max block range 100000", (100_000,), None),
    (-32000, "eth_getLogs block range too large, range: 5000, max: 1000", (5_000, 1_000), None),
    (-32000, "ranges over 10000 blocks are not supported on freetier", (10_000,), None),
    (-32600, "Block range limit exceeded.", (), None),
    (-32000, "Exceeded maximum block range: 1000", (1_000,), None),
    (-32000, "query timeout exceeded", (), None),
    (-32005, "the range has more than 10000 blocks; ask for fewer", (10_000,), None),
    (-32005, "the answer has more than 20000 logs; ask for fewer blocks", (20_000,), None),
]


@pytest.mark.parametrize(("code", "words", "limits", "proposed"), REFUSALS)
def test_what_refusals_of_ranges_are_taken_for(
    code: int, words: str, limits: tuple[int, ...] | None, proposed: int | None
) -> None:
    error = error_of(ProviderRefusal(200, code, words, method="eth_getLogs", of_logs=True), "node")
    assert isinstance(error, LogRangeError)
    assert error.proposed == proposed
    assert limits is None or error.limits == limits
    other = error_of(ProviderRefusal(200, code, words, method="eth_getBlockReceipts"), "node")
    assert not isinstance(other, LogRangeError)


@pytest.mark.parametrize(
    ("status", "code", "words", "kind"),
    [
        (429, -32005, "rate limit exceeded", "rpc_rate_limited"),
        (200, -32602, "block range extends beyond current head block", "rpc_late_block"),
        (200, -32601, "the method eth_getLogs does not exist/is not available", "rpc_no_such_method"),
        (402, None, "block range is a paid feature", "rpc_quota_exhausted"),
        (200, -32000, "header not found", "rpc_late_block"),
        (200, -32603, "internal error", "rpc_unavailable"),
    ],
)
def test_other_refusals_of_queries(status: int, code: int | None, words: str, kind: str) -> None:
    assert error_of(ProviderRefusal(status, code, words, method="eth_getLogs", of_logs=True), "node").kind == kind


@given(st.text(st.sampled_from("range block logs 0x1f[]-,. 10k more than"), max_size=200) | st.text(max_size=100))
def test_any_words_are_some_error(words: str) -> None:
    error = error_of(ProviderRefusal(200, -32000, words, method="eth_getLogs", of_logs=True), "node")
    if isinstance(error, LogRangeError):
        assert error.proposed is None or error.proposed >= 1
        assert all(limit >= 0 for limit in error.limits)


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def test_ranges_grow_and_limits_expire() -> None:
    clock = Clock()
    ranges = LogRangeSize(clock)
    assert ranges.current == 2000
    ranges.answered(100)
    assert ranges.current == 2000, "a short query says nothing of long ones"
    ranges.answered(2000)
    assert ranges.current == 3000
    assert ranges.refused(3000, limits=(0, 800, 50)) == 800
    ranges.answered(800)
    assert ranges.current == 800, "a limit that was named stays"
    clock.now += 601
    ranges.answered(800)
    assert ranges.current == 1200, "for ten minutes"
    assert ranges.refused(1200, limits=(10_000,)) == 600
    assert ranges.refused(600, limits=(10_000,), proposed=7) == 7
    clock.now += 61
    for _ in range(30):
        ranges.answered(ranges.current)
    assert ranges.current == 10_000


@given(
    st.lists(st.tuples(st.booleans(), st.integers(1, 10_000), st.lists(st.integers(0, 30_000)), st.integers(-5, 99)))
)
def test_ranges_stay_within_bounds(events: list[tuple[bool, int, list[int], int]]) -> None:
    ranges = LogRangeSize(Clock())
    for is_answered, blocks, limits, proposed in events:
        if is_answered:
            ranges.answered(blocks)
        else:
            smaller = ranges.refused(blocks, limits=limits, proposed=proposed)
            assert 1 <= smaller < max(2, blocks)
            assert ranges.current <= max(smaller, 1)
        assert 1 <= ranges.current <= 10_000


def test_chain_ids_are_those_of_the_pool(chain: ServedChain) -> None:
    made = read(chain, FILTERS["one contract"], range(50, 150))
    assert set(made.tables["logs"]["chain_id"].to_pylist()) <= {CHAIN_ID}
