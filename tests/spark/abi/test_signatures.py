"""Event signatures: what is read, what is refused, and that both forms mean the same."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.chain import ethereum
from tests.spark.abi.encoder import TYPES
from tracelake.catalogue.abi import AbiType, Array, Tuple, event_of_json, parse_event, read_event
from tracelake.catalogue.decode import BUILT_IN, DecodeLogsConfig, all_columns, built_in
from tracelake.spark.evm.keccak import keccak256


def test_names_topics_and_types() -> None:
    event = parse_event(
        "event  Swap(address payable indexed sender, uint amount, (uint8 kind, string[2][] notes)[3] legs, bytes);"
    )
    assert event.signature == "Swap(address,uint256,(uint8,string[2][])[3],bytes)"
    assert [(each.name, each.indexed) for each in event.parameters] == [
        ("sender", True),
        ("amount", False),
        ("legs", False),
        ("arg3", False),
    ]
    assert event.topics == 2
    assert parse_event("event()").signature == "event()"
    assert parse_event("A(tuple(int x, function f) t)").signature == "A((int256,bytes24))"


def test_the_hashes_that_everybody_knows() -> None:
    known = {
        "erc20.Transfer": "ddf252ad1be2c89b69c2b068fc378daa952ba7f163c4a11628f55a4df523b3ef",
        "erc721.Transfer": "ddf252ad1be2c89b69c2b068fc378daa952ba7f163c4a11628f55a4df523b3ef",
        "erc20.Approval": "8c5be1e5ebec7d5bd14f71427d1e84f3dd0314c0f7b2291e5b200ac8c7c3b925",
        "erc721.ApprovalForAll": "17307eab39ab6107e8899845ad3d59bd9653f200f220920489ca2b5937696c31",
        "erc1155.TransferSingle": "c3d58168c5ae7397731d063d5bbf3d657854427343f4c083240f7aacaa2d0f62",
        "erc1155.TransferBatch": "4a39dc06d4c0dbc64b70af90fd698a233a518aa5d07e595d983b8c0526c8f7fb",
        "erc1155.URI": "6bb7ff708619ba0610cba295a58592e0451dee2622938c8755667688daf3529b",
    }
    assert {name: keccak256(built_in(name).signature.encode()).hex() for name in known} == known


@given(st.binary(max_size=600))
def test_keccak(message: bytes) -> None:
    assert keccak256(message) == ethereum.keccak256(message)


@pytest.mark.parametrize(
    ("written", "said"),
    [
        ("", "name is missing"),
        ("event A", r"'\(' is missing"),
        ("event A(uint256 x", r"'\)' is missing"),
        ("event A(uint256 x) anonymous", "anonymous"),
        ("event A(uint256 x) returns", "follows the end"),
        ("event A(uint7 x)", "no ABI type 'uint7'"),
        ("event A(uint08 x)", "no ABI type 'uint08'"),
        ("event A(bytes33 x)", "no ABI type 'bytes33'"),
        ("event A(IERC20 token)", "of contracts write address"),
        ("event A(uint256[0] x)", "cannot have 0"),
        ("event A(uint256[99999999999] x)", "cannot have"),
        ("event A(uint256[1000000] x)", "fixed words"),
        ("event A(uint256[1000][1000][] x)", "fixed words"),
        ("event A(() x)", "at least one field"),
        ("event A(uint8 x, uint8 X)", "same name"),
        ("event A((uint8 x, uint8 x) t)", "same name"),
        ("event A((uint8 indexed x) t)", "can be indexed"),
        ("event A(uint8 indexed a, uint8 indexed b, uint8 indexed c, uint8 indexed d)", "more than 3 indexed"),
        ("event A(uint8" + "[]" * 20 + " x)", "nested deeper"),
        ("event A(" + "(" * 2000, "nested deeper"),
        ("event A(uint8 x-y)", "does not belong"),
        ("event A(" + "uint8," * 70 + "uint8)", "more than 64 parameters"),
        ("event A(uint8 " + "x" * 4000 + ")", "at most 4000"),
        ({"name": "A"}, None),
        ({"type": "function", "name": "A"}, "needs"),
        ({"name": "A", "anonymous": True}, "anonymous"),
        ({"name": "A", "inputs": [{"type": "tuple"}]}, "at least one field"),
        ({"name": "A", "inputs": [{"type": "uint8[", "name": "x"}]}, "no ABI type"),
        ({"name": "A", "inputs": [{"type": "uint8", "name": "x y"}]}, "name of a parameter"),
        ({"name": "A", "inputs": "uint8"}, "is a list"),
    ],
)
def test_what_is_refused(written: str | dict[str, Any], said: str | None) -> None:
    if said is None:
        assert read_event(written).signature == "A()"
    else:
        with pytest.raises(ValueError, match=said):
            read_event(written)


@pytest.mark.parametrize(
    ("events", "said"),
    [
        (
            ["erc721.Transfer", "Transfer(address indexed a, address indexed b, uint256 indexed c)"],
            "so a log would fit both",
        ),
        (["erc721.Approval", "erc721.ApprovalForAll"], "disagree on the column approved"),
        (["A(uint256 x, bool x_f64)"], "two columns x_f64"),
        (["nothing"], "no built-in event 'nothing'"),
    ],
)
def test_events_that_do_not_go_together(events: list[str | dict[str, Any]], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        DecodeLogsConfig(events=events)


def test_columns() -> None:
    event = parse_event("A(string indexed s, uint64 a, int64 b, int72 c, address address, (bool x, uint256[] y) t)")
    assert all_columns([event]) == [
        ("s_hash", "binary"),
        ("a", "decimal(20,0)"),
        ("b", "bigint"),
        ("c_binary", "binary"),
        ("c_string", "string"),
        ("c_f64", "double"),
        ("arg_address", "binary"),
        ("t", "struct<`x`:boolean,`y`:array<string>>"),
    ]
    assert set(BUILT_IN) == {name for name in BUILT_IN if all_columns([built_in(name)])}


def _json(abi_type: AbiType, name: str) -> dict[str, Any]:
    suffix, inner = "", abi_type
    while isinstance(inner, Array):
        suffix = f"[{inner.length or ''}]{suffix}"
        inner = inner.element
    if isinstance(inner, Tuple):
        parts = [_json(kind, given) for given, kind in zip(inner.names, inner.types, strict=True)]
        return {"name": name, "type": f"tuple{suffix}", "components": parts}
    return {"name": name, "type": f"{inner}{suffix}"}


@given(st.lists(TYPES, max_size=4))
def test_both_forms_mean_the_same(types: list[AbiType]) -> None:
    written = parse_event(f"E({', '.join(f'{kind} p{number}' for number, kind in enumerate(types))})")
    item = {"type": "event", "name": "E", "inputs": [_json(kind, f"p{number}") for number, kind in enumerate(types)]}
    assert written == event_of_json(item)
    assert [parameter.type for parameter in written.parameters] == types


@given(st.text(alphabet="eventA(uint8[]),; indexed1tupl", max_size=60) | st.text(max_size=40))
def test_any_text_is_an_event_or_refused(text: str) -> None:
    try:
        event = parse_event(text)
    except ValueError:
        return
    assert parse_event(event.signature).signature == event.signature
