"""The whole operator on a real Spark session against a served chain."""

from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.pandas.types import from_arrow_schema

from tests.chain.faults import RpcErrors
from tests.spark.evm.support import CHAIN_ID
from tests.spark.support import Bench
from tests.support.chain import ServedChain, serve_chain
from tracelake.catalogue.context import NonRetryableError
from tracelake.catalogue.token_metadata import KNOWN_COLUMNS, TOKEN_COLUMNS
from tracelake.demo.chain.contracts import CONTRACTS
from tracelake.model.dag import ReadMode
from tracelake.spark.operators.token_metadata import run
from tracelake.wire.units import ReadScope

BLOCKS = 60
HUSD, GRN, BND, RELICS, WARES = (bytes.fromhex(address[2:]) for address in list(CONTRACTS)[:5])
PREVIOUS = ReadScope(mode=ReadMode.PREVIOUS, start=0, end=9)
FIRST = ReadScope(mode=ReadMode.PREVIOUS, empty=True, columns={"token": "binary"})


@pytest.fixture(scope="module")
def served() -> Iterator[ServedChain]:
    with serve_chain(BLOCKS) as chain:
        yield chain


@pytest.fixture
def chain(served: ServedChain, monkeypatch: pytest.MonkeyPatch) -> Iterator[ServedChain]:
    monkeypatch.setenv("TRACE_RPC_DEFAULT", served.url)
    served.calls.clear()
    yield served
    served.clear()


def transfers(*rows: tuple[int, bytes | None], column: str = "token") -> pa.Table:
    blocks, tokens = zip(*rows, strict=True) if rows else ((), ())
    return pa.table({"block_number": pa.array(blocks, pa.uint32()), column: pa.array(tokens, pa.binary())})


def known(*tokens: bytes) -> pa.Table:
    return pa.table({"token": pa.array(tokens, pa.binary())})


def look_up(
    bench: Bench, table: pa.Table, *lists: tuple[pa.Table | None, ReadScope], outputs: int = 2, **config: Any
) -> list[dict[str, Any]]:
    """`lists`: further inputs, with how much of each is read."""
    bench.inputs.clear()
    bench.scopes.clear()
    bench.add_input(f"transfers{bench.attempts}", table)
    for index, (rows, scope) in enumerate(lists):
        bench.add_input(f"known{bench.attempts}_{index}", known() if rows is None else rows, scope=scope)
    bench.outputs = ["tokens", "known"][:outputs]
    bench.run("token_metadata", run, {"chain_id": CHAIN_ID, **config}, blocks=(10, 19))
    found: list[dict[str, Any]] = bench.table().to_pylist()
    return found


def test_each_token_is_looked_up_once_over_all_units(chain: ServedChain, bench: Bench) -> None:
    rows = look_up(bench, transfers((12, GRN), (11, HUSD), (15, HUSD), (14, None), (13, RELICS)), (None, FIRST))
    assert [list(row.values()) for row in rows] == [
        [11, HUSD, "HUSD", 6, "Harbor Dollar", None, 19, CHAIN_ID],
        [12, GRN, "GRN", 18, "Grain", None, 19, CHAIN_ID],
        [13, RELICS, "RELIC", None, "Harbor Relics", "decimals: reverted", 19, CHAIN_ID],
    ]
    for index, declared in enumerate((TOKEN_COLUMNS, KNOWN_COLUMNS)):
        fields = from_arrow_schema(bench.table(index).schema).fields
        types = [(field.name, field.dataType.simpleString()) for field in fields]
        assert types == [(column.name, column.type) for column in declared.columns]
    state = bench.table(1)
    assert state["token"].to_pylist() == sorted([HUSD, GRN, RELICS])
    assert bench.progress_texts[-1] == "3 new tokens looked up, 1 of them with problems"
    chain.calls.clear()
    rows = look_up(bench, transfers((12, GRN), (18, BND)), (state, PREVIOUS))
    assert [(row["token"], row["symbol"]) for row in rows] == [(BND, "BND")]
    assert {call.params[0]["to"] for call in chain.calls if call.method == "eth_call"} == {"0x" + BND.hex()}
    assert bench.table(1)["token"].to_pylist() == sorted([HUSD, GRN, RELICS, BND])
    chain.calls.clear()
    assert look_up(bench, transfers(), (bench.table(1), PREVIOUS)) == []
    assert bench.table(1).num_rows == 4
    assert chain.calls == []


def test_without_a_list_each_unit_has_its_own_tokens(chain: ServedChain, bench: Bench) -> None:
    rows = look_up(bench, transfers((12, WARES), column="contract"), outputs=1, column="contract", at="latest")
    assert [(row["token"], row["read_at_block"]) for row in rows] == [(WARES, BLOCKS - 1)]


def test_a_list_of_tokens_from_elsewhere(chain: ServedChain, bench: Bench) -> None:
    listed = pa.table({"token": pa.array([HUSD], pa.binary()), "symbol": ["HUSD"]})
    rows = look_up(bench, transfers((12, GRN), (11, HUSD)), (listed, ReadScope(mode=ReadMode.ALL)), outputs=1)
    assert [row["symbol"] for row in rows] == ["GRN"]


def test_jobs_that_cannot_work(chain: ServedChain, bench: Bench) -> None:
    with pytest.raises(NonRetryableError, match="no column contract"):
        look_up(bench, transfers((12, GRN)), column="contract")
    with pytest.raises(NonRetryableError, match="expected binary"):
        look_up(bench, pa.table({"block_number": [12], "token": ["0x00"]}))
    with pytest.raises(NonRetryableError, match="output_index: 1"):
        look_up(bench, transfers((12, GRN)), (None, FIRST), outputs=1)
    wrong = pa.table({"token": pa.array([HUSD], pa.binary()), "symbol": ["HUSD"]})
    with pytest.raises(NonRetryableError, match="output_index: 1"):
        look_up(bench, transfers((12, GRN)), (wrong, PREVIOUS))
    with pytest.raises(NonRetryableError, match="no_rpc_endpoint"):
        look_up(bench, transfers((12, GRN)), rpc="nowhere")
    with pytest.raises(NonRetryableError, match="chain_mismatch"):
        look_up(bench, transfers((12, GRN)), chain_id=1)
    chain.inject(RpcErrors(-32000, "missing trie node"), times=None, when=lambda calls: calls[0].method == "eth_call")
    with pytest.raises(NonRetryableError, match=r"rpc_no_state: .*at: latest"):
        look_up(bench, transfers((12, GRN)))
