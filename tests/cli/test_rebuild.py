"""`trace rebuild`."""

import msgspec
import pytest

from tests.cli import samples
from tests.cli.conftest import Trace
from tests.cli.fake_api import FakeApi
from tracelake.errors import TraceError
from tracelake.wire.jobs import RebuildReply

PATH = "POST /v1/dags/pools/jobs/blocks/rebuild"
REPLY = RebuildReply(dag="pools", job="blocks", because="headers")


def test_stale_outputs_are_made_again_once(trace: Trace, api: FakeApi) -> None:
    api.answers[PATH] = [REPLY, msgspec.structs.replace(REPLY, duplicate=True)]
    first = trace("rebuild", "pools/blocks")
    assert (first.status, first.err) == (0, "")
    assert "The outputs of pools/blocks are computed again, from the current headers." in first.out
    assert "trace tasks --dag pools --job blocks" in first.out
    assert "are being computed again already" in trace("rebuild", "pools/blocks").out
    shown = trace("rebuild", "pools/blocks", "--json")
    assert msgspec.json.decode(shown.out, type=RebuildReply).duplicate
    assert [call.body for call in api.calls] == [b""] * 3


@pytest.mark.parametrize("target", ["blocks", "pools/", "/blocks"])
def test_half_a_name_is_none(target: str, trace: Trace, api: FakeApi) -> None:
    shown = trace("rebuild", target)
    assert (shown.status, api.calls) == (2, [])
    assert "DAG/JOB" in shown.err


def test_the_nearest_name_is_said(trace: Trace, api: FakeApi) -> None:
    api.answers |= {"GET /v1/dags/pools/jobs": samples.jobs()}
    api.answers["POST /v1/dags/pools/jobs/block/rebuild"] = TraceError("job_not_found")
    shown = trace("rebuild", "pools/block")
    assert shown.status == 1
    assert "There is no job `block`. Did you mean `blocks`?" in shown.err


def test_outputs_that_are_not_stale_are_left_alone(trace: Trace, api: FakeApi) -> None:
    api.answers[PATH] = TraceError("trigger_invalid", "The outputs of the job are not stale.", field="job")
    shown = trace("rebuild", "pools/blocks")
    assert (shown.status, shown.out) == (1, "")
    assert "The outputs of the job are not stale." in shown.err
