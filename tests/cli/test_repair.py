"""`trace repair`: what is sent, and what is said."""

from uuid import UUID

import msgspec
import pytest

from tests.cli import samples
from tests.cli.conftest import Trace
from tests.cli.fake_api import FakeApi
from tracelake.errors import TraceError
from tracelake.wire.sources_view import RepairReply

PATH = "/v1/dags/mainnet/jobs/eth_head/repair"
TARGET = "mainnet/eth_head"


def permitted(from_block: int | None = None) -> RepairReply:
    return RepairReply(dag="mainnet", job="eth_head", from_block=from_block, task_id=UUID(int=7))


def test_the_source_finds_the_files_that_changed(trace: Trace, api: FakeApi) -> None:
    api.answers[f"POST {PATH}"] = permitted()
    shown = trace("repair", TARGET)
    assert (shown.status, shown.err) == (0, "")
    assert "mainnet/eth_head: follows the nodes, and has files that changed read again." in shown.out
    assert "trace sources" in shown.out
    (call,) = api.asked(PATH)
    assert call.json == {"from_block": None}


@pytest.mark.parametrize("block", [0, 18_000_000])
def test_files_are_read_again_from_a_block_on(block: int, trace: Trace, api: FakeApi) -> None:
    api.answers[f"POST {PATH}"] = permitted(block)
    shown = trace("repair", TARGET, "--from", str(block))
    assert (shown.status, shown.err) == (0, "")
    assert f"has files from block {block} on read again." in shown.out
    (call,) = api.asked(PATH)
    assert call.json == {"from_block": block}


def test_the_reply_for_programs(trace: Trace, api: FakeApi) -> None:
    api.answers[f"POST {PATH}"] = permitted(50)
    shown = trace("repair", TARGET, "--from", "50", "--json")
    assert msgspec.json.decode(shown.out, type=RepairReply) == permitted(50)


def test_the_dag_may_be_left_out(trace: Trace, api: FakeApi) -> None:
    api.answers |= {"GET /v1/dags": samples.dags(), "GET /v1/dags/pools/jobs": samples.jobs()}
    api.answers["POST /v1/dags/pools/jobs/blocks/repair"] = RepairReply(dag="pools", job="blocks")
    shown = trace("repair", "blocks")
    assert (shown.status, shown.err) == (0, "")
    assert "pools/blocks: follows the nodes" in shown.out


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (("mainnet/",), "DAG/JOB"),
        (("/eth_head",), "DAG/JOB"),
        ((TARGET, "--from", "-1"), "--from"),
        ((TARGET, "--from", "latest"), "--from"),
        ((), "DAG/JOB"),
    ],
)
def test_wrong_arguments_are_refused_here(arguments: tuple[str, ...], text: str, trace: Trace, api: FakeApi) -> None:
    shown = trace("repair", *arguments)
    assert (shown.status, api.calls) == (2, [])
    assert text in shown.err


@pytest.mark.parametrize("code", ["job_not_repairable", "job_not_found"])
def test_a_job_that_cannot_be_repaired(code: str, trace: Trace, api: FakeApi) -> None:
    api.answers[f"POST {PATH}"] = TraceError(code)
    shown = trace("repair", TARGET)
    assert shown.status == 1
    assert code in shown.err
