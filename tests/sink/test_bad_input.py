"""What producers can do wrong, or on purpose, by both ways of loading: that batch is a dead letter that says why, and
every other batch of the same round is in the table."""

import hashlib
import json
from typing import Any

import pytest

from tests.sink.conftest import MakeFlow
from tests.sink.flow import BufferFlow

COLUMNS = (
    "name: whole, type: int32",
    "name: large, type: uint256",
    "name: ratio, type: float64",
    "name: price, type: 'decimal(20,6)'",
    "name: at, type: timestamp",
    "name: kind, type: text, enum: [low, high]",
    "name: more, type: json",
)
DEEP = b'{"key": 1, "more": ' + b'{"a":' * 65 + b"1" + b"}" * 66

BAD: dict[str, tuple[bytes, str]] = {
    "bad UTF-8": (b'{"key": 1, "value": "\xff"}', "the line is not UTF-8"),
    "text for a number": (b'{"key": "1"}', "key: is text instead of int64"),
    "number for a text": (b'{"key": 1, "value": 1}', "value: is a whole number instead of text"),
    "null where none may be": (b'{"key": null}', "key: must not be null"),
    "missing field": (b'{"value": "x"}', "key: required column is missing"),
    "unknown field": (b'{"key": 1, "other": 1}', "other: is not a column of the schema"),
    "unknown field with a zero character": (b'{"key": 1, "o\\u0000": 1}', "o\\x00: is not a column of the schema"),
    "zero character": (b'{"key": 1, "value": "a\\u0000"}', "value: holds a zero character"),
    "NaN": (b'{"key": 1, "ratio": NaN}', "the line is not JSON"),
    "Infinity": (b'{"key": 1, "ratio": 1e999}', "ratio: Number out of range"),
    "decimal that is none": (b'{"key": 1, "price": "NaN"}', "price: is not a number in decimal digits"),
    "decimal over its range": (b'{"key": 1, "price": "1e1000000"}', "price: has more than 14 digits before"),
    "int32 over its range": (b'{"key": 1, "whole": 2147483648}', "whole: does not fit int32"),
    "int64 over its range": (b'{"key": 9223372036854775808}', "key: "),
    "uint256 over its range": (b'{"key": 1, "large": "%d"}' % 2**256, "large: does not fit uint256"),
    "number of 100,000 digits": (b'{"key": 1, "large": ' + b"9" * 100_000 + b"}", "large: does not fit uint256"),
    "time without a zone": (b'{"key": 1, "at": "2026-01-01T00:00:00"}', "at: is not a time with a zone"),
    "time before all times": (b'{"key": 1, "at": "0001-01-01T00:00:00+14:00"}', "at: is not a valid time"),
    "value that is not in the enum": (b'{"key": 1, "kind": "x"}', "kind: 'x' is not one of "),
    "deep nesting": (DEEP, "more: is nested deeper than 64"),
    "very deep nesting": (b'{"key": 1, "more": ' + b'{"a":' * 20_000 + b"1" + b"}" * 20_001, ""),
    "no object": (b"[1]", "the line is a list, not an object"),
    "no JSON": (b"{", "the line is not JSON"),
    "empty line": (b"", "the line is empty"),
    "an org_id that lies": (
        b'{"key": 1, "org_id": "00000000-0000-0000-0000-000000000001"}',
        "org_id: is not the org of the publisher",
    ),
    "a line of 10 MB": (b'{"key": 1, "other": "' + b"x" * 10_000_000 + b'"}', "other: is not a column of the schema"),
}


def spoil(flow: BufferFlow, published: dict[str, Any], data: bytes | None) -> None:
    if data is None:
        flow.harness.run(flow.harness.objects.delete(published["uri"]))
    else:
        flow.harness.run(flow.harness.objects.put(published["uri"], data))


@pytest.mark.parametrize("large", [False, True])
def test_every_kind_of_bad_batch(make_flow: MakeFlow, large: bool) -> None:
    flow = make_flow(large=large, batches=100)
    flow.deploy(*COLUMNS)
    good = b'{"key": 100, "value": "before"}\n'
    wanted: dict[str, tuple[str, int | None, str]] = {}
    for line, reason in BAD.values():
        reply = flow.publish(good + line + b"\n" + good)
        wanted[reply["publish_id"]] = ("row_invalid", 2, reason)
    two = b'{"key": 101}\n{"key": 102}\n'
    for count in (1, 3):
        reply = flow.publish(two, record_count=count)
        wanted[reply["publish_id"]] = ("record_count_wrong", None, f"expected {count} records")
    for data in (two.replace(b"1", b"2"), two[:-5], b"", None):
        reply = flow.publish(two)
        spoil(flow, reply, data)
        wanted[reply["publish_id"]] = ("artifact_changed", None, "the artifact is gone, or not what was published")
    # As if the store had other bytes of the same size under the same ETag.
    reply = flow.publish(two, batch_sha256=hashlib.sha256(two[::-1]).hexdigest())
    wanted[reply["publish_id"]] = ("content_mismatch", None, "the artifact does not have the SHA-256")
    flow.publish(b"", record_count=0, batch_sha256=hashlib.sha256().hexdigest())
    empty = flow.publish(b"", record_count=0)
    mine = flow.publish(json.dumps({"key": 1, "value": "x" * 10_000_000, "org_id": str(flow.org_id())}).encode())
    flow.publish([{"key": 2, "value": "first"}, {"key": 2, "value": "second"}], record_count=2)
    flow.publish([{"key": 2, "value": "third"}, {"key": 3, "value": "c"}])
    assert flow.sink() == len(wanted) + 5
    found = {str(letter["publish_id"]): letter for letter in flow.letters()}
    assert found.keys() == wanted.keys()
    for publish_id, (code, line_number, reason) in wanted.items():
        letter = found[publish_id]
        assert (letter["dead_code"], letter["dead_line"]) == (code, line_number), letter["dead_reason"]
        assert letter["dead_reason"].startswith(reason)
        assert len(letter["dead_excerpt"] or "") <= 1000
    assert flow.rows("key", "length(value)") == [(1, 10_000_000), (2, 5), (3, 1)]
    assert {empty["publish_seq"], mine["publish_seq"]} < flow.commits().keys(), "no rows are rows enough"
    assert flow.open_batches() == 0


def test_an_org_of_its_own_in_the_row_never_wins(make_flow: MakeFlow) -> None:
    """Two orgs with a dataset of one name: tables, keys and dead letters of one are not the other's."""
    mine, theirs = make_flow(), make_flow()
    theirs.publish([{"key": 1, "value": "theirs"}])
    mine.publish([{"key": 1, "value": "x", "org_id": str(theirs.org_id())}])
    mine.publish([{"key": 1, "value": "mine", "org_id": str(mine.org_id())}])
    assert (mine.sink(), theirs.sink()) == (2, 1)
    assert mine.rows("org_id::text", "value") == [(str(mine.org_id()), "mine")]
    assert theirs.rows("org_id::text", "value") == [(str(theirs.org_id()), "theirs")]
    assert (len(mine.letters()), theirs.letters()) == (1, [])


def test_a_dataset_of_another_org_takes_nothing(make_flow: MakeFlow) -> None:
    mine, theirs = make_flow(), make_flow()
    task_id, lease = mine.attempt("left")
    for fields in ({"dataset_uuid": str(theirs.dataset.dataset_uuid)}, {"dedupe_scope": "transfers__head_0"}):
        reply = mine.try_publish(task_id, lease, [{"key": 1}], **fields)
        assert (reply.status, reply.code) == (403, "dataset_forbidden")
    uri = lease["task"]["outputs"][0]["storage"]["buffer_prefix"] + "batch.jsonl"
    other_task, other = theirs.attempt("left")
    reply = theirs.try_publish(other_task, other, [{"key": 1}], dedupe_scope="large", batch_uri=uri)
    assert (reply.status, reply.code) == (403, "prefix_forbidden")
    assert mine.open_batches() == theirs.open_batches() == 0


def test_a_reader_that_fails_costs_that_batch_alone(flow: BufferFlow, monkeypatch: pytest.MonkeyPatch) -> None:
    flow.publish([{"key": 1, "value": "a"}])
    flow.publish([{"key": 2, "value": "trap"}])
    from tracelake.rows.reader import BatchReader

    read = BatchReader.read

    def trapped(self: BatchReader, data: bytes, **about: Any) -> Any:
        if b"trap" in data:
            raise ZeroDivisionError
        return read(self, data, **about)

    monkeypatch.setattr(BatchReader, "read", trapped)
    assert flow.sink() == 2
    assert [letter["dead_code"] for letter in flow.letters()] == ["reader_failed"]
    monkeypatch.undo()
    assert flow.replay() == 1
    flow.sink()
    assert flow.rows() == [(1, "a"), (2, "trap")]
