"""`trace dlq`: what people see of batches that could not be taken, and what they send."""

import json
from uuid import UUID

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
    assert "1 batch will be tried again." in trace("dlq", "replay", str(BATCH)).out
    assert api.asked("/v1/dlq-replay")[-1].json == {"publish_ids": [str(BATCH)], "dataset": None}
    assert "1 batch dropped." in trace("dlq", "drop", "--dataset", "large", "--yes").out
    assert api.asked("/v1/dlq-drop")[-1].json == {"publish_ids": None, "dataset": "large"}
    calls = len(api.calls)
    for arguments in (("replay",), ("replay", str(BATCH), "--dataset", "large"), ("drop", "--yes")):
        refused = trace("dlq", *arguments)
        assert refused.status == 2
        assert "Name batches, or a dataset" in refused.err
    assert len(api.calls) == calls


def test_a_call_takes_a_thousand_and_says_when_there_may_be_more(trace: Trace, api: FakeApi) -> None:
    api.answers["POST /v1/dlq-replay"] = DeadBatchesChanged(changed=1000)
    assert "trace dlq replay --dataset large" in trace("dlq", "replay", "--dataset", "large").out
    api.answers["POST /v1/dlq-replay"] = DeadBatchesChanged(changed=999)
    assert "trace dlq" not in trace("dlq", "replay", "--dataset", "large").out
    api.answers["GET /v1/dlq"] = DeadBatchesReply(total=2, letters=[LETTER], next="12")
    assert (
        "trace dlq list --dataset large --limit 1 --cursor 12"
        in trace("dlq", "list", "--dataset", "large", "--limit", "1").out
    )
