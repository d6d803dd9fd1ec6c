"""Packed answers become the same tables as answers whose objects are looked at one by one, or the same error."""

import copy
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.chain import recorded
from tracelake.spark.evm.answer_checks import check_blocks, check_receipts
from tracelake.spark.evm.answers import Block, Receipt
from tracelake.spark.evm.calls import PackingDecoder, answers_of
from tracelake.spark.evm.columns import BadHexError
from tracelake.spark.evm.errors import RpcError, ValueTooLargeError
from tracelake.spark.evm.fetch import make_tables
from tracelake.spark.evm.packed import PackedBlock, PackedReceipts, pack_regular_block, pack_regular_receipts

Json = dict[str, Any]
TABLES = ("blocks", "transactions", "logs")
OTHER = "0x" + "ab" * 32
BLOCKS = [one for one in recorded(300) if any(receipt["logs"] for receipt in one.receipts)][:4]
TYPED = (answers_of(Block), answers_of(list[Receipt]))
PACKED = (
    PackingDecoder(Block, pack_regular_block, least=0),
    PackingDecoder(list[Receipt], pack_regular_receipts, least=0),
)
FORMS = ["", "0x", "0x0", "0x00", "0x1", "0x01", "0xg1", "0x1\n0x2", "0x12\n", "-0x1", "1", "é", "\ud7ff"]
ENDS = ["\n", "\n0", "0x12\n0", "0x12\n00x34", "0x1\n00x2\n0"]
HASHES = [OTHER, OTHER.upper(), OTHER + "00", "0x" + "00" * 20, OTHER[:-2] + "\n0", OTHER[:-1] + "é", OTHER[:-2] + "é"]
TEXTS = st.sampled_from([*FORMS, *ENDS, *HASHES, hex(2**64), hex(2**256), hex(2**256 - 1)])
CHANGES = st.sampled_from(["text", "null", "gone", "twice", "lost", "swapped", "number", "true", "list"])


def outcome(decoders: Any, blocks: list[Json], receipts: list[Any]) -> Any:
    numbers = [one.number for one in BLOCKS]
    decode_blocks, decode_receipts = decoders
    try:
        read = [one.result for one in decode_blocks.decode(_answers(blocks))]
        told = [one.result for one in decode_receipts.decode(_answers(receipts))]
        checked = [check_blocks([number], [block], "node")[0] for number, block in zip(numbers, read, strict=True)]
        fates = [check_receipts(*one, "node") for one in zip(numbers, checked, told, strict=True)]
        made = make_tables(checked, fates, TABLES, 1)
    except (RpcError, BadHexError, ValueTooLargeError, msgspec.ValidationError) as error:
        return type(error), str(error)
    for table in made.values():
        table.validate(full=True)
    return {name: table.to_pylist() for name, table in made.items()}


def _answers(results: list[Any]) -> bytes:
    return msgspec.json.encode([{"id": place, "result": result} for place, result in enumerate(results)])


def _objects(blocks: list[Json], receipts: list[list[Json]]) -> list[tuple[list[Any], int]]:
    """Each with the list that it is in, by its place there."""
    places = [(blocks, place) for place in range(len(blocks))]
    for lists in (
        [block["transactions"] for block in blocks],
        receipts,
        [receipt["logs"] for of_block in receipts for receipt in of_block],
    ):
        places += [(some, place) for some in lists for place in range(len(some))]
    return places


def _change(data: st.DataObject, places: list[tuple[list[Any], int]]) -> None:
    objects, place = data.draw(st.sampled_from(places))
    if place >= len(objects):
        return  # lost before
    one = objects[place]
    kind = data.draw(CHANGES)
    if kind == "twice" and "number" not in one:
        objects.insert(place, copy.deepcopy(one))
    elif kind == "lost" and "number" not in one:
        del objects[place]
    elif kind == "swapped":
        other = data.draw(st.integers(0, len(objects) - 1))
        objects[place], objects[other] = objects[other], objects[place]
    elif kind in ("text", "null", "gone", "number", "true", "list"):
        name = data.draw(st.sampled_from(sorted({*one, "removed"})))
        values = {"text": data.draw(TEXTS), "null": None, "number": 7, "true": True, "list": [data.draw(TEXTS)] * 5}
        if kind == "gone":
            one.pop(name, None)
        else:
            one[name] = values[kind]


@settings(max_examples=150, deadline=None)
@given(st.data(), st.integers(0, 3))
def test_whatever_a_node_says(data: st.DataObject, changes: int) -> None:
    blocks = copy.deepcopy([one.block for one in BLOCKS])
    receipts = copy.deepcopy([one.receipts for one in BLOCKS])
    places = _objects(blocks, receipts)
    for _ in range(changes):
        _change(data, places)
    assert outcome(PACKED, blocks, receipts) == outcome(TYPED, blocks, receipts)


@pytest.mark.parametrize(
    ("of", "name", "value"),
    [
        ("block", "hash", OTHER),
        ("transaction", "blockHash", OTHER),
        ("transaction", "transactionIndex", "0x1f"),
        ("transaction", "hash", OTHER),
        ("transaction", "hash", OTHER[:-2]),
        ("receipt", "blockHash", OTHER),
        ("receipt", "blockHash", ""),
        ("receipt", "transactionHash", OTHER),
        ("receipt", "status", "0x2"),
        ("log", "blockHash", OTHER),
        ("log", "logIndex", "0x7"),
        ("log", "transactionHash", OTHER),
        ("log", "removed", True),
        ("log", "topics", [OTHER] * 5),
        ("log", "topics", [OTHER + "00"]),
        ("log", "data", "0x1"),
    ],
)
def test_each_check_by_itself(of: str, name: str, value: Any) -> None:
    """All objects of a kind are wrong alike, in one block, so that nothing but this check can notice."""
    blocks = copy.deepcopy([one.block for one in BLOCKS])
    receipts = copy.deepcopy([one.receipts for one in BLOCKS])
    objects = {
        "block": [blocks[-1]],
        "transaction": blocks[-1]["transactions"],
        "receipt": receipts[-1],
        "log": [log for receipt in receipts[-1] for log in receipt["logs"]],
    }
    for one in objects[of]:
        one[name] = value
    outcomes = [outcome(decoders, blocks, receipts) for decoders in (PACKED, TYPED)]
    assert outcomes[0] == outcomes[1]
    assert isinstance(outcomes[0], tuple)


def test_regular_answers_are_packed() -> None:
    """Or the test above would compare nothing."""
    blocks, receipts = [one.block for one in BLOCKS], [one.receipts for one in BLOCKS]
    assert {type(one.result) for one in PACKED[0].decode(_answers(blocks))} == {PackedBlock}
    assert {type(one.result) for one in PACKED[1].decode(_answers(receipts))} == {PackedReceipts}
    assert isinstance(outcome(PACKED, blocks, receipts), dict)


def test_small_answers_are_not_packed_and_large_ones_are_looked_at_by_themselves() -> None:
    block = BLOCKS[0].block
    raw = _answers([block, None, block])
    small, large = PackingDecoder(Block, pack_regular_block), PackingDecoder(Block, pack_regular_block, least=1)
    assert [type(one.result) for one in small.decode(raw, 3)] == [Block, type(None), Block]
    assert [type(one.result) for one in large.decode(raw, 3)] == [PackedBlock, type(None), PackedBlock]
    single = msgspec.json.encode({"id": 1, "result": block})
    assert type(small.decode_single(single)[0].result) is Block
    assert type(large.decode_single(single)[0].result) is PackedBlock
    mixed: list[Any] = [*small.decode(_answers([block])), *large.decode(_answers([block]))]
    told = _answers([BLOCKS[0].receipts])
    receipts: list[Any] = [*PACKED[1].decode(told), *TYPED[1].decode(told)]
    made = make_tables([one.result for one in mixed], [one.result for one in receipts], TABLES, 1)
    for table in made.values():
        half = table.num_rows // 2
        assert table.slice(0, half).to_pylist() == table.slice(half).to_pylist()
