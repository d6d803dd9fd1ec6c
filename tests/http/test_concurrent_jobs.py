"""Registrations that meet: the same definition is one job, shared datasets never make two of them wait in a circle."""

import asyncio
from typing import Any

from tests.http.support import SERVICE, fresh
from tests.support.dispatcher import DispatcherHarness, Reply


def register(harness: DispatcherHarness, definitions: list[dict[str, Any]]) -> list[Reply]:
    headers = {SERVICE: harness.service_token}

    async def together() -> list[Reply]:
        calls = (harness.call_async("internal", "POST", "/internal/jobs", body, headers) for body in definitions)
        return await asyncio.gather(*calls)

    return harness.run(together())


def definition(org: str, **fields: Any) -> dict[str, Any]:
    return {"org": org, "dag": "dag", "name": "job", "runtime": "ecs_platform", "operator": "noop"} | fields


def test_the_same_definition_at_once_is_one_job(harness: DispatcherHarness) -> None:
    body = definition(fresh(), outputs=[{"name": "a"}, {"name": "b", "storage": "s3"}])
    replies = register(harness, [body] * 20)
    assert {reply.status for reply in replies} == {200}
    assert len({reply.body["job_id"] for reply in replies}) == 1
    assert sorted(reply.body["duplicate"] for reply in replies) == [False] + [True] * 19
    assert all(reply.body["outputs"] == replies[0].body["outputs"] for reply in replies)


def test_shared_datasets_in_every_order(harness: DispatcherHarness) -> None:
    names = [f"d{number}" for number in range(6)]
    for _ in range(5):
        org = fresh()
        harness.make_job(org=org)  # a new org would let them in one by one
        orders = [names[turn:] + names[:turn] for turn in range(6)] + [names[::-1]]
        bodies = [
            definition(org, name=f"job_{n}", outputs=[{"name": name} for name in order])
            for n, order in enumerate(orders)
        ]
        replies = register(harness, bodies)
        assert {reply.status for reply in replies} == {200}
        for order, reply in zip(orders, replies, strict=True):
            assert [output["name"] for output in reply.body["outputs"]] == order
            assert [output["output_index"] for output in reply.body["outputs"]] == list(range(6))
        uuids = {(output["name"], output["dataset_uuid"]) for reply in replies for output in reply.body["outputs"]}
        assert len(uuids) == 6
