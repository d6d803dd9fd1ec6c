"""Every query leaves exactly one record, however it ends; none has a text or a value of it."""

import asyncio
from typing import Any

import msgspec

from tests.query.support import ServiceHarness, wait_until
from tests.routing.support import Flow
from tests.support.dispatcher import DispatcherHarness
from tracelake.model.ids import new_id
from tracelake.wire.contract import Listener

SLOW = "SELECT count(*), 'canary' FROM range(100000000) a, range(100000) b"


def outcomes(service: ServiceHarness, org: str, count: int) -> list[str]:
    """Of the queries in the order of their start, once so many are recorded and none waits for it."""
    wait_until(lambda: not service.application.control._unrecorded)
    entries = wait_until(lambda: (listed := service.audits(org)) and len(listed) >= count and listed)
    assert "canary" not in msgspec.json.encode(entries).decode()
    return [entry["outcome"] for entry in entries]


def test_refusals_before_the_engine_leave_one_record_each(service: ServiceHarness, flow: Flow) -> None:
    queries: list[tuple[str, dict[str, Any], str]] = [
        ("SELECT 'canary' FROM blocks", {}, "ok"),
        ("SELECT FROM canary WHERE", {}, "query_syntax"),
        ("DROP TABLE canary", {}, "query_not_allowed"),
        ("SELECT * FROM canary", {}, "query_unknown_relation"),
        ("SELECT canary FROM blocks", {}, "query_unknown_column"),
        ("SELECT canary(1)", {}, "query_unknown_function"),
        ("SELECT 'canary'::INTEGER FROM blocks", {}, "query_value_invalid"),
        ("SELECT $canary", {}, "query_parameter"),
        ("SELECT $n", {"parameters": {"n": {"type": "int64", "value": "canary"}}}, "query_parameter"),
        (SLOW, {"timeout_seconds": 1}, "query_timeout"),
        ("SELECT " + "'canary'," * 10_000 + "1", {}, "query_too_complex"),
    ]
    answers = [service.query(flow.org, sql, **fields) for sql, fields, _ in queries]
    codes = ["ok" if answer.status == 200 else answer.code for answer in answers]
    assert codes == [code for _, _, code in queries]
    assert outcomes(service, flow.org, len(queries)) == codes


def test_a_second_query_of_the_same_id_and_one_too_many_leave_records(service: ServiceHarness, flow: Flow) -> None:
    headers = service.user_headers(flow.org)
    ids = [str(new_id()) for _ in range(4)]

    async def ask(query_id: str) -> Any:
        body = {"sql": SLOW, "query_id": query_id}
        return await service.ask_async(Listener.QUERY, "POST", "/v1/query", body, headers)

    async def run() -> list[str]:
        tasks = [asyncio.create_task(ask(query_id)) for query_id in ids]
        while len(service.application.service._running) < len(ids):
            await asyncio.sleep(0.01)
        refused = [await ask(ids[0]), await ask(str(new_id()))]
        for query_id in ids:
            await service.ask_async(Listener.QUERY, "DELETE", f"/v1/query/{query_id}", None, headers)
        replies = refused + [await task for task in tasks]
        return [msgspec.json.decode(reply.body)["error"]["code"] for reply in replies]

    codes = service.dispatcher.run(run())
    assert codes == ["query_id_taken", "rate_limited", *["query_canceled"] * 4]
    assert sorted(outcomes(service, flow.org, 6)) == sorted(codes)


def test_attempts_that_are_not_current_leave_records(service: ServiceHarness, flow: Flow) -> None:
    task, other = (item["task_id"] for item in flow.tasks("read", "Queued")[:2])
    lease, others = flow.claim(task), flow.claim(other)
    assert service.query_as_task(task, lease, "SELECT 'canary' FROM blocks").status == 200
    stolen = service.query_as_task(task, others | {"lease_token": lease["lease_token"]}, "SELECT 'canary'")
    guessed = service.query_as_task(task, lease | {"lease_token": str(new_id())}, "SELECT 'canary'")
    flow.complete(task, lease)
    service.application.control._inputs.clear()  # as if the seconds had passed for which an answer is kept
    stale = service.query_as_task(task, lease, "SELECT 'canary'")
    assert [reply.code for reply in (stolen, guessed, stale)] == ["token_mismatch", "fenced", "fenced"]
    assert outcomes(service, flow.org, 4) == ["ok", "token_mismatch", "fenced", "fenced"]
    subjects = [entry["subject"] for entry in service.audits(flow.org)]
    assert subjects == [f"task:{task}", f"task:{other}", f"task:{task}", f"task:{task}"], "whose token it was"


def test_a_record_needs_an_org_that_is(harness: DispatcherHarness) -> None:
    record = {
        "run_id": str(new_id()), "query_id": str(new_id()), "subject": "task:1", "duration_ms": 1, "outcome": "fenced",
        "sql_sha256": "0" * 64,
    }  # fmt: skip
    for fields in ({}, {"token_org_id": str(new_id())}):
        assert harness.service("POST", "/internal/query-audit", record | fields).status == 422
