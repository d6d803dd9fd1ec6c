"""Batches of logs: each log of an event is decoded or rejected, never both, never neither, whatever its bytes."""

from typing import Any

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from tests.spark.abi.encoder import encode, encode_all, values_of
from tracelake.catalogue.abi import Array, Event, Plain, parse_event
from tracelake.catalogue.decode import TOKEN_TRANSFERS, TRANSFER_COLUMNS, built_in, parameter_columns
from tracelake.spark.abi.logs import EventDecoder, EventTable, arrow_type
from tracelake.spark.abi.tokens import TransferTable, transfer_decoders
from tracelake.spark.abi.values import UndecodableError, column_value, decode_values, plain_value
from tracelake.spark.evm.keccak import keccak256

Row = dict[str, Any]
UINT = Plain("uint", 256)
NUMBERS = Array(UINT, None)
EVENTS = [
    parse_event(text)
    for text in (
        "Static(address indexed who, int72 indexed level, uint64 a, int64 b, bool c, bytes4 d, int256 e)",
        "Static(address who, int72 indexed level, uint64 a, int64 b, bool c, bytes4 d, int256 e)",
        "Nothing()",
        "Hashed(string indexed name, uint256[] indexed numbers, uint40 at)",
        "Moving(uint256 indexed number, string text, uint256[] list, (bool yes, bytes raw, uint64[2] pair)[] pairs)",
        "Fixed(uint256[2] two, (address who, int256 what) one, uint256 three)",
    )
]
NAMES = ("block_number", "log_index", "address", "topic0", "topic1", "topic2", "topic3", "data")
LOGS = pa.schema(
    [("block_number", pa.int64()), ("log_index", pa.int64()), *((name, pa.binary()) for name in NAMES[2:])]
)
ARROW = {"binary": pa.binary(), "string": pa.string(), "double": pa.float64(), "int": pa.int32()}


def _topic0(event: Event) -> bytes:
    return keccak256(event.signature.encode())


def _fields(event: Event) -> list[tuple[str, pa.DataType]]:
    found = []
    for parameter in event.parameters:
        columns = parameter_columns(parameter)
        if len(columns) == 1 and not columns[0][0].endswith("_hash"):
            found.append((columns[0][0], arrow_type(parameter.type)))
        else:
            found += [(name, ARROW[kind]) for name, kind in columns]
    return found


SCHEMA = pa.schema(
    {"block_number": pa.int64(), "log_index": pa.int64(), "event": pa.string()}
    | {name: kind for event in EVENTS for name, kind in _fields(event)}
)
TABLE = EventTable([EventDecoder(event, _topic0(event)) for event in EVENTS], SCHEMA)
TRANSFERS = TransferTable(
    transfer_decoders({name: _topic0(built_in(name)) for name in TOKEN_TRANSFERS}),
    pa.schema(
        [("block_number", pa.int64()), ("log_index", pa.int64()), *((n, ARROW[kind]) for n, kind in TRANSFER_COLUMNS)]
    ),
)


@st.composite
def logs_of(draw: st.DrawFn, events: list[Event]) -> tuple[Row, Event, dict[str, Any]]:
    """A log as it should be, and what it says."""
    event = draw(st.sampled_from(events))
    values = {parameter.name: draw(values_of(parameter.type)) for parameter in event.parameters}
    topics = [_topic0(event)]
    for parameter in event.indexed:
        if isinstance(parameter.type, Plain):
            topics.append(encode(parameter.type, values[parameter.name]))
        else:
            values[parameter.name] = draw(st.binary(min_size=32, max_size=32))
            topics.append(values[parameter.name])
    data = encode_all([each.type for each in event.plain], [values[each.name] for each in event.plain])
    row = {f"topic{number}": topics[number] if number < len(topics) else None for number in range(4)}
    return row | {"data": data, "address": b"\x05" * 20}, event, values


def _batch(rows: list[Row]) -> pa.RecordBatch:
    numbered = [{"block_number": 7, "log_index": number, **row} for number, row in enumerate(rows)]
    return pa.RecordBatch.from_pylist(numbered, LOGS)


def _expected(event: Event, values: dict[str, Any]) -> Row:
    found: Row = {"event": event.name}
    for parameter in event.parameters:
        value, columns = values[parameter.name], [name for name, _ in parameter_columns(parameter)]
        if len(columns) == 3:
            found |= zip(columns, (encode(parameter.type, value), str(value), float(value)), strict=True)
        else:
            hashed = columns[0].endswith("_hash")
            found[columns[0]] = value if hashed else column_value(parameter.type, value)
    return found


@given(st.lists(logs_of(EVENTS), max_size=8), st.integers(0, 3))
def test_every_event_says_what_was_put_into_it(cases: list[tuple[Row, Event, dict[str, Any]]], skipped: int) -> None:
    batch = _batch([row for row, _, _ in cases]).slice(skipped)
    decoded = [row for found in TABLE.decode(iter([batch])) for row in found.to_pylist()]
    by_number = {row["log_index"]: row for row in decoded}
    for number, (_, event, values) in list(enumerate(cases))[skipped:]:
        expected = _expected(event, values)
        row = {name: value for name, value in by_number[number].items() if value is not None or name in expected}
        assert row == {"block_number": 7, "log_index": number, **expected}
    assert len(decoded) == batch.num_rows
    assert list(TABLE.reject(iter([batch]))) == []


TOPIC = st.none() | st.binary(max_size=40) | st.binary(min_size=20, max_size=20).map(lambda each: each.rjust(32, b"\0"))


@st.composite
def damaged(draw: st.DrawFn, events: list[Event]) -> Row:
    row, _, _ = draw(logs_of(events))
    for name in draw(st.lists(st.sampled_from(NAMES[4:]), max_size=2)):
        if name == "data":
            raw = bytearray((row["data"] or b"") + draw(st.binary(max_size=40)))
            for _ in range(draw(st.integers(0, 2))):
                if raw:
                    raw[draw(st.integers(0, len(raw) - 1))] = draw(st.integers(0, 255))
            row["data"] = draw(st.sampled_from([None, bytes(raw), bytes(raw[: draw(st.integers(0, len(raw)))])]))
        else:
            row[name] = draw(TOPIC)
    if draw(st.integers(0, 9)) == 0:
        row["topic0"] = draw(st.sampled_from([None, b"", bytes(32)]))
    return row


def _slowly(row: Row, events: list[Event]) -> Event | None:
    """The event that the log is one of, found by the decoder for single values."""
    topics = [row[f"topic{number}"] for number in (1, 2, 3)]
    count = 1 + sum(topic is not None for topic in topics)
    for event in events:
        if event.topics == count and None not in topics[: count - 1] and _topic0(event) == row["topic0"]:
            try:
                for parameter, topic in zip(event.indexed, topics, strict=False):
                    if len(topic) != 32:
                        return None
                    if isinstance(parameter.type, Plain):
                        plain_value(parameter.type, topic)
                decode_values([each.type for each in event.plain], row["data"] or b"")
            except UndecodableError:
                return None
            return event
    return None


@given(st.lists(damaged(EVENTS), max_size=8))
def test_damaged_logs_are_decoded_or_rejected(rows: list[Row]) -> None:
    topics = set(map(_topic0, EVENTS))
    decoded = {row["log_index"]: row for found in TABLE.decode(iter([_batch(rows)])) for row in found.to_pylist()}
    rejected = {row["log_index"]: row for found in TABLE.reject(iter([_batch(rows)])) for row in found.to_pylist()}
    for number, row in enumerate(rows):
        event = _slowly(row, EVENTS)
        assert (number in decoded) == (event is not None)
        assert (number in rejected) == (event is None and row["topic0"] in topics)
        if event is not None:
            assert decoded[number]["event"] == event.name
    for number, row in rejected.items():
        assert row.pop("reason")
        assert row.pop("detail")
        assert row == {"block_number": 7, "log_index": number, **rows[number]}


TOKEN_EVENTS = [built_in(name) for name in TOKEN_TRANSFERS]


@given(st.lists(damaged(TOKEN_EVENTS), max_size=8))
def test_transfers_of_damaged_logs(rows: list[Row]) -> None:
    decoded = [row for found in TRANSFERS.decode(iter([_batch(rows)])) for row in found.to_pylist()]
    rejected = [row for found in TRANSFERS.reject(iter([_batch(rows)])) for row in found.to_pylist()]
    for number, row in enumerate(rows):
        event = _slowly(row, TOKEN_EVENTS)
        mine = [each for each in decoded if each["log_index"] == number]
        reasons = [each["reason"] for each in rejected if each["log_index"] == number]
        known = row["topic0"] in set(map(_topic0, TOKEN_EVENTS))
        if event is None:
            assert (mine, len(reasons)) == ([], int(known))
        elif event.name != "TransferBatch":
            assert (len(mine), reasons) == (1, [])
        else:
            ids, values = decode_values([NUMBERS, NUMBERS], row["data"])
            if len(ids) == len(values) > 0:
                assert reasons == []
                assert [int(each["token_id_string"]) for each in mine] == ids
                assert [int(each["amount_string"]) for each in mine] == values
                assert [each["batch_index"] for each in mine] == list(range(len(ids)))
            else:
                assert (mine, reasons) == ([], ["batch_lengths" if len(ids) != len(values) else "empty_batch"])


def _reasons(rows: list[Row]) -> list[str | None]:
    """Of each log of tokens; None: it was decoded."""
    decoded = {row["log_index"] for found in TRANSFERS.decode(iter([_batch(rows)])) for row in found.to_pylist()}
    rejected = {
        row["log_index"]: row["reason"] for found in TRANSFERS.reject(iter([_batch(rows)])) for row in found.to_pylist()
    }
    assert not decoded & set(rejected)
    assert len(decoded) + len(rejected) == len(rows)
    return [rejected.get(number) for number in range(len(rows))]


def _log(event: str, topics: list[bytes | None], words: list[int]) -> Row:
    found: list[bytes | None] = [_topic0(built_in(event)), *topics, None, None, None]
    data = b"".join(encode(UINT, word) for word in words)
    return {f"topic{number}": found[number] for number in range(4)} | {"data": data, "address": bytes(20)}


def test_topics_with_a_hole() -> None:
    who = bytes(12) + b"\x01" * 20
    rows = [
        _log("erc20.Transfer", [who, who], [5]),
        _log("erc20.Transfer", [None, who, who], [5]),
        _log("erc20.Transfer", [who, None, who], [5]),
        _log("erc721.Transfer", [who, who, bytes(32)], []),
        _log("erc721.Transfer", [who, who, bytes(31)], []),
        _log("erc721.Transfer", [], []),
    ]
    assert _reasons(rows) == [None, "topic_count", "topic_count", None, "topic_length", "topic_count"]


def test_batches() -> None:
    who = bytes(12) + b"\x01" * 20
    cases: list[tuple[list[int], str | None]] = [
        ([64, 128, 1, 7, 1, 9], None),
        ([64, 64, 1, 7], "overlap"),
        ([64, 64, 1, 7, 0, 0], None),  # as strange as it is, it says no more than its bytes
        ([64, 96, 0, 0], "empty_batch"),
        ([64, 128, 1, 7, 0], "batch_lengths"),
        ([64, 128, 2**255, 7, 1, 9], "length"),
        ([2**255, 128, 1, 7, 1, 9], "offset"),
        ([64, 192, 1, 7, 1, 9], "data_length"),
        ([64, 128, 1], "data_length"),
    ]
    rows = [_log("erc1155.TransferBatch", [who, who, who], words) for words, _ in cases]
    assert _reasons(rows) == [reason for _, reason in cases]
