"""Lookups of tokens against served chains: which calls are made, and what becomes of every kind of answer."""

from collections.abc import Iterator
from typing import Any

import pytest

from tests.chain.faults import RpcErrors, Status
from tests.spark.evm.support import pool_of
from tests.support.chain import ServedChain, serve_chain
from tracelake.demo.chain.contracts import CONTRACTS, EXECUTION_REVERTED, encode_text
from tracelake.demo.chain.rpc import ChainRpcError
from tracelake.spark.evm.errors import AnswerError, BrokenChainError, MissingAnswerError, NoStateError, WrongBlockError
from tracelake.spark.evm.token_lookup import GAS, SLICE, TokenBlock, TokenRow, look_up

BLOCKS = 60
HUSD, GRN, BND, RELICS, WARES = (bytes.fromhex(address[2:]) for address in list(CONTRACTS)[:5])
NOBODY = bytes.fromhex("de" * 20)
AT = TokenBlock(40)
RECORDED = [
    TokenRow(HUSD, "HUSD", 6, "Harbor Dollar", None, 40),
    TokenRow(RELICS, "RELIC", None, "Harbor Relics", "decimals: reverted", 40),
    TokenRow(WARES, None, None, None, "symbol: reverted, decimals: reverted, name: reverted", 40),
    TokenRow(NOBODY, None, None, None, "no_contract", 40),
]
TOKENS = [row.token for row in RECORDED]


@pytest.fixture
def chain() -> Iterator[ServedChain]:
    with serve_chain(BLOCKS) as served:
        yield served


def read(chain: ServedChain, tokens: list[bytes] = TOKENS, block: TokenBlock = AT, **changed: Any) -> list[TokenRow]:
    pool = pool_of(chain, **changed)
    try:
        return list(look_up(pool, tokens, block))
    finally:
        pool.close()


def calls(chain: ServedChain, method: str) -> list[Any]:
    return [call.params for call in chain.calls if call.method == method]


def test_tokens_of_the_recording(chain: ServedChain) -> None:
    assert read(chain) == RECORDED
    asked = calls(chain, "eth_call")
    assert len(asked) == 3 * len(TOKENS)
    assert {tag for _, tag in asked} == {hex(40)}
    assert {call["gas"] for call, _ in asked} == {hex(GAS)}
    assert [address for address, _ in calls(chain, "eth_getCode")] == ["0x" + NOBODY.hex()]
    assert chain.requests < 8


def test_small_batches_and_single_calls(chain: ServedChain) -> None:
    assert read(chain, batch_size=5) == RECORDED
    assert read(chain, batch_size=1) == RECORDED


def test_many_tokens_keep_their_order(chain: ServedChain) -> None:
    tokens = [number.to_bytes(20, "big") for number in range(2 * SLICE + 10)] + [HUSD]
    rows = read(chain, tokens, batch_size=1000)
    assert [row.token for row in rows] == tokens
    assert rows[-1].symbol == "HUSD"


def test_what_is_no_address_is_not_asked(chain: ServedChain) -> None:
    rows = read(chain, [b"short", HUSD, b"x" * 32])
    assert [row.problem for row in rows] == ["no_address", None, "no_address"]
    assert read(chain, [b""]) == [TokenRow(b"", problem="no_address")]
    assert len(calls(chain, "eth_call")) == 3


@pytest.mark.parametrize(
    "words",
    [
        "execution reverted: rate limit exceeded, too many requests",
        "execution reverted: monthly quota exceeded, payment required",
        "execution reverted: missing trie node, archive",
        "execution reverted: the batch is too large",
    ],
)
@pytest.mark.parametrize("code", [3, -32000])
def test_words_of_a_contract_are_not_mistaken_for_those_of_the_node(chain: ServedChain, words: str, code: int) -> None:
    def hostile(params: list[Any]) -> Any:
        raise ChainRpcError(code, words)

    chain.add_method("eth_call", hostile)
    (row,) = read(chain, [HUSD])
    assert row.problem == "symbol: reverted, decimals: reverted, name: reverted"
    assert len(calls(chain, "eth_call")) == 3
    assert read(chain, [HUSD], batch_size=1) == [row]


@pytest.mark.parametrize(
    ("code", "words"),
    [(-32015, "VM execution error."), (-32000, "invalid opcode: INVALID"), (-32000, "out of gas"), (3, "")],
)
def test_failures_of_contracts_in_the_words_of_nodes(chain: ServedChain, code: int, words: str) -> None:
    def failing(params: list[Any]) -> Any:
        if params[0]["to"] == "0x" + GRN.hex():
            raise ChainRpcError(code, words)
        return encode_text("fine")

    chain.add_method("eth_call", failing)
    rows = read(chain, [HUSD, GRN])
    assert [row.symbol for row in rows] == ["fine", None]
    assert rows[1].problem == "symbol: reverted, decimals: reverted, name: reverted"


def test_a_node_without_the_state_is_a_final_error(chain: ServedChain) -> None:
    chain.inject(RpcErrors(-32000, "missing trie node 12 (path )"), times=None, when=_has_calls)
    with pytest.raises(NoStateError, match="archive node") as raised:
        read(chain)
    assert not raised.value.retryable
    assert len(calls(chain, "eth_call")) == 3 * len(TOKENS)


def test_another_node_may_have_the_state(chain: ServedChain) -> None:
    with serve_chain(BLOCKS) as other:
        chain.inject(RpcErrors(-32000, "required historical state unavailable"), times=None, when=_has_calls)
        pool = pool_of(chain, other)
        assert list(look_up(pool, TOKENS, AT)) == RECORDED
        pool.close()


def test_a_node_that_refuses_for_a_while_is_asked_again(chain: ServedChain) -> None:
    chain.inject(Status(429, retry_after="0"), times=2, when=_has_calls)
    assert read(chain) == RECORDED


def test_the_newest_block_where_there_is_no_older_state(chain: ServedChain) -> None:
    rows = read(chain, block=TokenBlock(40, latest=True))
    assert [row.read_at_block for row in rows] == [BLOCKS - 1] * len(TOKENS)
    assert {tag for _, tag in calls(chain, "eth_call")} == {hex(BLOCKS - 1)}


def test_a_node_that_lags_behind_is_not_asked_for_names(chain: ServedChain) -> None:
    """It would say that a new token does not exist."""
    chain.show(30)
    for latest in (True, False):
        with pytest.raises(MissingAnswerError):
            read(chain, block=TokenBlock(40, latest=latest), tries=2)
    assert not calls(chain, "eth_call")


def test_a_block_that_becomes_another_is_read_again(chain: ServedChain) -> None:
    pending = [True]

    def reorganise(seen: list[Any]) -> None:
        if pending and seen[0].method == "eth_call":
            pending.clear()
            chain.reorganise(30)

    chain.watch(reorganise)
    assert read(chain) == RECORDED
    assert len(calls(chain, "eth_call")) == 2 * 3 * len(TOKENS)


def test_a_chain_that_never_rests_is_an_error(chain: ServedChain) -> None:
    """Though every try reads something, they come to an end."""
    count = iter(range(1000))
    chain.add_method("eth_getBlockByNumber", lambda params: {"number": params[0], "hash": hex(next(count))})
    with pytest.raises(BrokenChainError):
        read(chain, tries=3)
    assert next(count) == 6


def test_a_node_whose_newest_block_is_missing_is_an_error(chain: ServedChain) -> None:
    chain.null_block(BLOCKS - 1)
    with pytest.raises(WrongBlockError):
        read(chain, block=TokenBlock(40, latest=True), tries=3)


@pytest.mark.parametrize("result", ["", "0x1", "zz", "0xzz", "0x 12", 7, None])
def test_answers_that_are_no_bytes(chain: ServedChain, result: Any) -> None:
    chain.add_method("eth_call", lambda params: result)
    with pytest.raises(AnswerError):
        read(chain, [HUSD], tries=2)


def test_the_code_of_reverts_is_that_of_geth() -> None:
    assert EXECUTION_REVERTED == 3


def _has_calls(seen: list[Any]) -> bool:
    return any(call.method == "eth_call" for call in seen)
