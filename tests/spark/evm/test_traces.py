"""Traces: both forms become the rows that a plain model has, and nothing else is believed."""

import copy
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.chain.faults import RpcErrors
from tests.spark.evm.support import expected, pool_of
from tests.spark.evm.trace_trees import (
    ADDRESSES,
    ERRORS,
    PRECOMPILED,
    TREES,
    CallNode,
    Json,
    as_block_traces,
    as_call_frames,
    rows_of,
)
from tests.support.chain import ServedChain, recorded, serve_chain
from tracelake.catalogue import read_config
from tracelake.catalogue.evm_columns import EVM_COLUMNS
from tracelake.errors import TraceError
from tracelake.spark.evm.answers import BlockHeader
from tracelake.spark.evm.chain_rules import ChainRules
from tracelake.spark.evm.columns import BadHexError
from tracelake.spark.evm.errors import (
    ForeignTracesError,
    NoStateError,
    NoTracesError,
    WrongTracesError,
)
from tracelake.spark.evm.fetch import Stretch, fetch
from tracelake.spark.evm.read_options import ReadOptions
from tracelake.spark.evm.tables import TRACES, schema_of
from tracelake.spark.evm.traces import (
    BlockTrace,
    BlockTraces,
    TracedTransaction,
    name_error,
    pack_block_traces,
    pack_call_frames,
)
from tracelake.spark.evm.traces_reading import BY_HASH, BY_NUMBER, PlacedTraces
from tracelake.spark.evm.traces_table import traces_table

BLOCKS = 60
NUMBERS = range(10, 20)
REWARD = {"author": ADDRESSES[1], "rewardType": "block", "value": hex(2 * 10**18)}
SHAPES = [
    CallNode(value=5, input="0x01", output="0x0203"),
    CallNode(
        inner=[
            CallNode("staticcall", target=PRECOMPILED[0], input="0xaa", output="0xbb"),
            CallNode("delegatecall", value=9, inner=[CallNode("call", value=1), CallNode("selfdestruct", value=3)]),
            CallNode("call", target=PRECOMPILED[1], value=2),
            CallNode("create2", input="0x6001", output="0x60", inner=[CallNode("create", error="out_of_gas")]),
            CallNode(error="reverted", output="0x08c379a0", inner=[CallNode(value=4), CallNode("callcode", value=1)]),
        ]
    ),
    CallNode("create", input="0x6002", error="reverted", output="0xff"),
    CallNode(target=PRECOMPILED[0], error="bad_instruction"),
]
"""What a block has to show: precompiles with and without value, inherited value, failures inside, creations."""


def block_trees(number: int) -> list[tuple[str, CallNode]]:
    hashes = [transaction["hash"] for transaction in recorded(BLOCKS)[number].block["transactions"]]
    return [(name, SHAPES[(number + index) % len(SHAPES)]) for index, name in enumerate(hashes)]


@pytest.fixture
def chain() -> Iterator[ServedChain]:
    with serve_chain(BLOCKS) as served:
        yield served


def serve_by_number(chain: ServedChain, rewards: Sequence[Json] = ()) -> None:
    chain.add_method(BY_NUMBER, lambda params: by_number(chain, int(params[0], 16), rewards))


def by_number(chain: ServedChain, number: int, rewards: Sequence[Json] = ()) -> list[Json]:
    one = chain.block(number)
    present = {transaction["hash"] for transaction in one.block["transactions"]}
    return as_block_traces(one, [pair for pair in block_trees(number) if pair[0] in present], rewards)


def serve_by_hash(chain: ServedChain) -> None:
    numbers = {one.block["hash"]: one.number for one in recorded(BLOCKS)}

    def answer(params: list[Any]) -> list[Json]:
        assert params[1] == {"tracer": "callTracer"}
        return as_call_frames(block_trees(numbers[params[0]]))

    chain.add_method(BY_HASH, answer)


def read(chain: ServedChain, tables: Sequence[str] = ("traces",), **changed: Any) -> Stretch:
    pool = pool_of(chain, **changed)
    try:
        return fetch(pool, NUMBERS, tables)
    finally:
        pool.close()


def model_rows(rewards: Sequence[Json] = ()) -> list[Json]:
    return [row for number in NUMBERS for row in rows_of(number, block_trees(number), rewards)]


@pytest.mark.parametrize("serve", [serve_by_number, serve_by_hash])
@pytest.mark.parametrize("tables", [("traces",), ("blocks", "transactions", "logs", "traces")])
def test_both_forms_give_the_rows_of_the_model(
    chain: ServedChain, serve: Callable[[ServedChain], None], tables: Sequence[str]
) -> None:
    serve(chain)
    stretch = read(chain, tables)
    assert stretch.tables["traces"].schema == TRACES
    assert stretch.tables["traces"].to_pylist() == model_rows()
    assert len(model_rows()) > 3 * len(NUMBERS)
    usual = expected(recorded(BLOCKS)[NUMBERS.start : NUMBERS.stop])
    for table in set(tables) - {"traces"}:
        assert stretch.tables[table].to_pylist() == usual[table]


def test_nobody_asks_for_traces_that_are_not_wanted(chain: ServedChain) -> None:
    read(chain, ("blocks", "transactions", "logs"))
    assert not {call.method for call in chain.calls} & {BY_NUMBER, BY_HASH}


def test_rewards_come_last_and_have_no_transaction(chain: ServedChain) -> None:
    uncle = {"author": ADDRESSES[2], "rewardType": "uncle", "value": "0x1"}
    serve_by_number(chain, [REWARD, uncle])
    assert read(chain).tables["traces"].to_pylist() == model_rows([REWARD, uncle])


def test_optional_columns_are_those_of_the_block(chain: ServedChain) -> None:
    serve_by_number(chain)
    options = ReadOptions.of({"traces": ["block_hash", "timestamp"]})
    pool = pool_of(chain)
    table = fetch(pool, NUMBERS, ("traces",), options=options).tables["traces"]
    pool.close()
    assert table.schema == schema_of("traces", ["block_hash", "timestamp"])
    headers = {one.number: one.block for one in recorded(BLOCKS)}
    for row in table.to_pylist():
        assert row["block_hash"].hex() == headers[row["block_number"]]["hash"][2:]
        assert row["timestamp"] == int(headers[row["block_number"]]["timestamp"], 16)


def test_a_node_without_traces_is_a_final_error_that_names_what_was_tried(chain: ServedChain) -> None:
    with pytest.raises(NoTracesError) as raised:
        read(chain)
    assert not raised.value.retryable
    assert raised.value.kind == "rpc_no_traces"
    assert BY_NUMBER in str(raised.value)
    assert BY_HASH in str(raised.value)
    assert len([call for call in chain.calls if call.method == BY_NUMBER]) <= len(NUMBERS)


def test_a_backend_without_the_method_does_not_end_the_task(chain: ServedChain) -> None:
    """Behind one address are several nodes; one of them refuses after others have answered."""
    serve_by_number(chain)
    asked: list[Any] = []

    def refuse_once(calls: list[Any]) -> bool:
        asked.extend(call for call in calls if call.method == BY_NUMBER)
        return len(asked) in (4, 5)

    chain.inject(RpcErrors(-32601, "the method trace_block does not exist"), times=1, when=refuse_once)
    assert read(chain, batch_size=1).tables["traces"].to_pylist() == model_rows()


def test_words_about_a_method_count_when_they_are_said_twice(chain: ServedChain) -> None:
    serve_by_number(chain)
    is_traced: Callable[[list[Any]], bool] = lambda calls: calls[0].method == BY_NUMBER  # noqa: E731
    chain.inject(RpcErrors(-32000, "this call is blocked"), times=1, when=is_traced)
    assert read(chain).tables["traces"].to_pylist() == model_rows()
    chain.inject(RpcErrors(-32000, "this call is blocked"), times=2, when=is_traced)
    with pytest.raises(NoTracesError, match="this call is blocked"):
        read(chain)


def test_another_node_is_asked_if_the_first_has_no_traces(chain: ServedChain) -> None:
    with serve_chain(BLOCKS) as other:
        serve_by_hash(other)
        pool = pool_of(chain, other)
        for _ in range(2):
            assert fetch(pool, NUMBERS, ("traces",)).tables["traces"].to_pylist() == model_rows()
        pool.close()


@pytest.mark.parametrize("words", ["missing trie node 0xabc", "required historical state unavailable (reexec=128)"])
def test_a_node_without_the_state_is_a_final_error(chain: ServedChain, words: str) -> None:
    serve_by_hash(chain)
    chain.inject(RpcErrors(-32000, words), times=None, when=lambda calls: calls[0].method == BY_HASH)
    with pytest.raises(NoStateError, match="archive node") as raised:
        read(chain)
    assert not raised.value.retryable


def test_traces_of_another_fork_are_not_believed(chain: ServedChain) -> None:
    """The node was reorganised between the block and its traces, whose transactions may well be the same."""
    other_hash = "0x" + "0b" * 32

    def forked(params: list[Any]) -> list[Json]:
        return [{**trace, "blockHash": other_hash} for trace in by_number(chain, int(params[0], 16))]

    chain.add_method(BY_NUMBER, forked)
    with pytest.raises(ForeignTracesError):
        read(chain, tries=2)


def test_frames_are_asked_for_by_the_hash_of_the_block_that_was_read(chain: ServedChain) -> None:
    serve_by_hash(chain)
    read(chain)
    asked = [call.params[0] for call in chain.calls if call.method == BY_HASH]
    assert asked == [one.block["hash"] for one in recorded(BLOCKS)[10:20] if one.block["transactions"]]


def test_null_is_asked_for_again(chain: ServedChain) -> None:
    nulls = iter([None, None])

    def late(params: list[Any]) -> Any:
        return next(nulls, by_number(chain, int(params[0], 16)))

    chain.add_method(BY_NUMBER, late)
    assert read(chain).tables["traces"].to_pylist() == model_rows()


@pytest.mark.parametrize(
    "change",
    [
        lambda traces: [],
        lambda traces: traces[:-1],
        lambda traces: traces[1:],
        lambda traces: [trace for trace in traces if trace["traceAddress"] != [0]],
        lambda traces: traces[::-1],
        lambda traces: traces + traces[-1:],
        lambda traces: [{**trace, "transactionHash": None} for trace in traces],
        lambda traces: [{**traces[0], "subtraces": 4}, *traces[1:]],
    ],
)
def test_incomplete_traces_are_refused(chain: ServedChain, change: Callable[[list[Json]], list[Json]]) -> None:
    chain.add_method(BY_NUMBER, lambda params: change(by_number(chain, int(params[0], 16))))
    with pytest.raises(WrongTracesError):
        read(chain, tries=2)


def test_a_transaction_that_a_node_could_not_trace_is_refused(chain: ServedChain) -> None:
    numbers = {one.block["hash"]: one.number for one in recorded(BLOCKS)}

    def failing(params: list[Any]) -> list[Json]:
        frames = as_call_frames(block_trees(numbers[params[0]]))
        return [*frames[:-1], {"txHash": frames[-1]["txHash"], "error": "execution timeout"}]

    chain.add_method(BY_HASH, failing)
    with pytest.raises(WrongTracesError, match="has no trace"):
        read(chain, tries=2)


def test_phantoms_have_no_traces(chain: ServedChain) -> None:
    number = next(one.number for one in recorded(BLOCKS)[10:20] if len(one.block["transactions"]) > 1)
    trees = block_trees(number)

    def without(params: list[Any]) -> list[Json]:
        asked = int(params[0], 16)
        traces = by_number(chain, asked)
        return [trace for trace in traces if asked != number or trace["transactionHash"] != trees[0][0]]

    chain.add_method(BY_NUMBER, without)
    options = ReadOptions.of({}, ChainRules(drop_phantoms=True))
    pool = pool_of(chain, tries=2)
    rows = fetch(pool, NUMBERS, ("traces",), options=options).tables["traces"].to_pylist()
    assert {row["transaction_index"] for row in rows if row["block_number"] == number} == set(range(1, len(trees)))
    with pytest.raises(WrongTracesError):
        fetch(pool, NUMBERS, ("traces",))
    pool.close()


# Without a node.


def made_rows(traces: BlockTraces, hashes: Sequence[str]) -> list[Json]:
    assert traces.problem is None
    block = recorded(BLOCKS)[7].block
    header = msgspec.convert({**block, "transactions": []}, type=BlockHeader)
    placed = PlacedTraces(traces, range(len(hashes)), hashes)
    rows: list[Json] = traces_table([header], [placed], 1337001).to_pylist()
    return rows


@settings(max_examples=80, deadline=None)
@given(st.lists(TREES, max_size=3), st.booleans())
def test_any_tree_in_either_form(trees: list[CallNode], rewarded: bool) -> None:
    one = recorded(BLOCKS)[7]
    named = [(f"0x{index:064x}", tree) for index, tree in enumerate(trees)]
    hashes = [name for name, _ in named]
    rewards = [REWARD] if rewarded else []
    told = msgspec.json.encode(as_block_traces(one, named, rewards))
    flat = pack_block_traces(msgspec.json.decode(told, type=list[BlockTrace]))
    assert made_rows(flat, hashes) == rows_of(7, named, rewards)
    assert flat.transactions == hashes
    nested = pack_call_frames(
        msgspec.json.decode(msgspec.json.encode(as_call_frames(named)), type=list[TracedTransaction])
    )
    assert made_rows(nested, hashes) == rows_of(7, named)


ODD: st.SearchStrategy[Any] = st.sampled_from(
    [None, "", "0x", "0x0", "0xzz", "0x1\n00x2", ADDRESSES[0], "call", "x" * 500, hex(2**300), -1, [5], {}]
)


@settings(max_examples=80, deadline=None)
@given(st.data(), TREES)
def test_whatever_a_node_says(data: st.DataObject, tree: CallNode) -> None:
    """Rows or a refusal; nothing else is raised."""
    name = "0x" + "11" * 32
    traces: Any = as_block_traces(recorded(BLOCKS)[7], [(name, tree)])
    frames: Any = as_call_frames([(name, tree)])
    flat = data.draw(st.booleans())
    content = copy.deepcopy(traces if flat else frames)
    for _ in range(data.draw(st.integers(1, 3))):
        item: Any = content
        while isinstance(item, list | dict) and item:
            key = (
                data.draw(st.sampled_from(sorted(item)))
                if isinstance(item, dict)
                else data.draw(st.integers(0, len(item) - 1))
            )
            if not isinstance(item[key], list | dict) or not item[key] or data.draw(st.booleans()):
                item[key] = copy.deepcopy(data.draw(ODD))  # it may be changed next
                break
            item = item[key]
    raw = msgspec.json.encode(content)
    try:
        packed = (
            pack_block_traces(msgspec.json.decode(raw, type=list[BlockTrace]))
            if flat
            else pack_call_frames(msgspec.json.decode(raw, type=list[TracedTransaction]))
        )
        if packed.problem is None and len(packed.transactions) == 1:
            made_rows(packed, [name])
    except (msgspec.ValidationError, BadHexError):
        pass


def test_calls_as_deep_as_the_machine_allows(chain: ServedChain) -> None:
    blocks = {one.block["hash"]: one.block for one in recorded(BLOCKS)}
    deepest = next(one.block for one in recorded(BLOCKS)[10:20] if one.block["transactions"])["transactions"][0]["hash"]

    def deep(params: list[Any]) -> msgspec.Raw:
        names = [transaction["hash"] for transaction in blocks[params[0]]["transactions"]]
        items = [(name.encode(), _deep(1023 if name == deepest else 0)) for name in names]
        return msgspec.Raw(b"[" + b",".join(b'{"txHash":"%s","result":%s}' % item for item in items) + b"]")

    chain.add_method(BY_HASH, deep)
    rows = read(chain).tables["traces"].slice(0, 1025).to_pylist()
    assert rows[1023]["trace_address"] == [0] * 1023
    assert rows[1024]["trace_address"] == []


def _deep(depth: int) -> bytes:
    head = b'{"from":"%s","to":"%s","gas":"0x1","gasUsed":"0x1","input":"0x","type":"CALL"' % (
        ADDRESSES[0].encode(),
        ADDRESSES[1].encode(),
    )
    return (head + b',"calls":[') * depth + head + b"}" + b"]}" * depth


def test_errors_have_one_name_in_both_forms() -> None:
    for name, words in ERRORS.items():
        assert {name_error(text) for text in words} == {name}
    assert name_error("Mutable Call In Static Context") == name_error("write protection") == "static"
    assert name_error("something\nnew " + "x" * 500) == ("something new " + "x" * 500)[:100]
    assert name_error("") is None
    assert name_error(None) is None


def test_the_catalogue_has_the_columns_of_the_files() -> None:
    assert [column.name for column in EVM_COLUMNS["traces"]] == TRACES.names


def test_traces_are_the_fourth_output_and_have_no_filter() -> None:
    config: Any = read_config("evm_ingest", {"chain_id": 1})
    assert config.tables[3] == "traces"
    assert config.writes().most == 4
    with pytest.raises(TraceError):
        read_config(
            "evm_ingest", {"chain_id": 1, "tables": ["logs", "traces"], "filter": {"addresses": [ADDRESSES[0]]}}
        )
    with pytest.raises(TraceError, match="no optional column"):
        read_config("evm_ingest", {"chain_id": 1, "columns": {"traces": ["nonsense"]}})
