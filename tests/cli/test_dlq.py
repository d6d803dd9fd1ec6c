"""`trace dlq`: what people see of batches that could not be taken, and what they send."""

import json
from uuid import UUID

import msgspec
import pytest

from tests.cli import samples
from tests.cli.conftest import Trace
from tests.cli.fake_api import FakeApi
from tracelake.errors import TraceError
from tracelake.wire.buffers import DeadBatch, DeadBatchesChanged, DeadBatchesReply

BATCH = UUID(int=7)
LETTER = DeadBatch(
    publish_id=BATCH,
    publish_seq=12,
    dataset="large",
    task_id=samples.TASK,
    attempt=2,
    dag="pools",
    job="prices",
    unit=samples.UNIT,
    code="row_invalid",
    reason="value: does not fit uint256",
    line=3,
    excerpt='{"value": -1, "note": "\x1b[31m"}',
    batch_uri="s3://scratch/x",
    size_bytes=100,
    published_at=samples.EARLIER,
    died_at=samples.EARLIER,
)


def test_the_list(trace: Trace, api: FakeApi) -> None:
    api.answers["GET /v1/dlq"] = DeadBatchesReply(total=1, letters=[LETTER])
    shown = trace("dlq", "list", "--dataset", "large")
    assert shown.status == 0
    for part in (str(BATCH), "large", "value: does not fit uint256", f"trace dlq show {BATCH}"):
        assert part in shown.out
    assert api.asked("/v1/dlq")[-1].query["dataset"] == "large"
    assert json.loads(trace("dlq", "list", "--json").out)["letters"][0]["line"] == 3
    api.answers["GET /v1/dlq"] = DeadBatchesReply(total=0, letters=[])
    assert trace("dlq", "list").out == "There are no dead letters.\n"


def test_one_of_them(trace: Trace, api: FakeApi) -> None:
    api.answers[f"GET /v1/dlq/{BATCH}"] = LETTER
    shown = trace("dlq", "show", str(BATCH))
    for part in ("line 3: value: does not fit uint256", '{"value": -1', str(samples.TASK), f"trace dlq replay {BATCH}"):
        assert part in shown.out
    assert "\x1b[31m" not in shown.out, "what somebody wrote does not colour the terminal"
    api.answers[f"GET /v1/dlq/{BATCH}"] = TraceError("publish_not_found")
    missing = trace("dlq", "show", str(BATCH))
    assert (missing.status, missing.out) == (1, "")
    assert "trace dlq list" in missing.err


def test_replay_and_drop(trace: Trace, api: FakeApi) -> None:
    for verb in ("replay", "drop"):
        api.answers[f"POST /v1/dlq-{verb}"] = DeadBatchesChanged(changed=1)
    assert "1 batch replayed." in trace("dlq", "replay", str(BATCH)).out
    assert api.asked("/v1/dlq-replay")[-1].json == {"publish_ids": [str(BATCH)], "dataset": None}
    assert "1 batch dropped." in trace("dlq", "drop", "--dataset", "large", "--yes").out
    assert api.asked("/v1/dlq-drop")[-1].json == {"publish_ids": None, "dataset": "large"}
    calls = len(api.calls)
    for arguments in (("replay",), ("replay", str(BATCH), "--dataset", "large"), ("drop", "--yes")):
        refused = trace("dlq", *arguments)
        assert refused.status == 2
        assert "Give the ids of batches" in refused.err
    assert len(api.calls) == calls


def test_a_call_takes_a_thousand_and_says_when_there_may_be_more(trace: Trace, api: FakeApi) -> None:
    api.answers["POST /v1/dlq-replay"] = DeadBatchesChanged(changed=1000)
    assert "trace dlq replay --dataset large" in trace("dlq", "replay", "--dataset", "large").out
    api.answers["POST /v1/dlq-replay"] = DeadBatchesChanged(changed=999)
    assert "trace dlq replay" not in trace("dlq", "replay", "--dataset", "large").out
    api.answers["GET /v1/dlq"] = DeadBatchesReply(total=2, letters=[LETTER], next="12")
    assert (
        "trace dlq list --dataset large --limit 1 --cursor 12"
        in trace("dlq", "list", "--dataset", "large", "--limit", "1").out
    )


REASON = (
    "the column amount: 115792089237316195423570985008687907853269984665640564039457584007913129639936 is too large"
)


@pytest.mark.parametrize("columns", [80, 120, 200])
def test_reasons_are_readable_and_writers_named_at_any_width(columns: int, trace: Trace, api: FakeApi) -> None:
    letter = msgspec.structs.replace(
        LETTER, dataset="large_transfers", reason="the sink could not take it: " + "a word of it " * 4
    )
    api.answers["GET /v1/dlq"] = DeadBatchesReply(total=1, letters=[letter])
    shown = trace("dlq", "list", columns=columns).out
    assert "pools/prices 1000-1999" in shown
    assert "the sink could not take it: a word of it" in shown, "a sentence is read in a line"
    assert all(len(line) <= columns for line in shown.splitlines())


def test_what_was_written_stays_below_its_heading(trace: Trace, api: FakeApi) -> None:
    letter = msgspec.structs.replace(LETTER, excerpt='{"value": ' + "9" * 300 + "}", reason=REASON)
    api.answers[f"GET /v1/dlq/{BATCH}"] = letter
    for columns in (80, 200):
        shown = trace("dlq", "show", str(BATCH), columns=columns).out
        lines = [line for line in shown.splitlines() if "trace " not in line]
        assert all(line.startswith("  ") for line in lines[1:]), shown
        assert all(len(line) <= columns for line in lines)
        assert "by pools/prices 1000-1999" in shown
        assert f"trace dlq drop {BATCH}" in shown


def test_a_dataset_that_is_not_buffered_has_none_and_says_so(trace: Trace, api: FakeApi) -> None:
    api.answers["GET /v1/dlq"] = DeadBatchesReply(total=0, letters=[], buffered=False)
    shown = trace("dlq", "list", "--dataset", "blocks")
    assert shown.status == 0
    assert "blocks is not a buffered dataset" in shown.out
    assert "There are no dead letters" not in shown.out


def test_after_a_replay_the_outcome_is_a_command_away(trace: Trace, api: FakeApi) -> None:
    api.answers["POST /v1/dlq-replay"] = DeadBatchesChanged(changed=1, datasets=["large"])
    assert "trace dlq list --dataset large" in trace("dlq", "replay", str(BATCH)).out
    api.answers["POST /v1/dlq-replay"] = DeadBatchesChanged(changed=0)
    assert "trace dlq" not in trace("dlq", "replay", "--dataset", "large").out
    api.answers["GET /v1/dlq"] = DeadBatchesReply(total=1, letters=[LETTER])
    shown = trace("dlq", "list", "--dataset", "large").out
    assert "trace dlq replay --dataset large" in shown
    assert "trace dlq drop --dataset large" in shown
