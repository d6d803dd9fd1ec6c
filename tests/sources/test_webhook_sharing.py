"""Orgs share the way in for deliveries: who cannot sign takes no place, and one org's deliveries wait for their own."""

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any

from tests.sources.webhook_support import Hook, running
from tests.support.configs import dispatcher_config
from tests.support.dispatcher import Reply
from tests.support.postgres import TestCluster
from tracelake.dispatcher.sources.webhook_deliveries import OF_ONE_ORG
from tracelake.dispatcher.sources.webhook_paths import Webhook
from tracelake.wire.webhooks import signature_header

WAITING = 4
CONFIG = replace(dispatcher_config(), webhook_rate_per_second=1_000_000, webhook_rate_burst=WAITING)


def test_a_busy_org_leaves_the_way_in_to_others(cluster: TestCluster, tmp_path: Path) -> None:
    with running(cluster, tmp_path, CONFIG) as (harness,):
        busy, other = Hook(harness).deploy(), Hook(harness).deploy()
        now, secrets = busy.now(), {hook.org: hook.secret() for hook in (busy, other)}
        deliveries = harness.dispatcher.deliveries
        take = deliveries._take
        gates: dict[str, asyncio.Event] = {}

        async def take_slowly(webhook: Webhook, *rest: Any) -> Any:
            if webhook.path == busy.path:
                await gates["busy"].wait()
            return await take(webhook, *rest)

        async def send(hook: Hook, delivery: str, secret: str | None = None) -> Reply:
            signature = signature_header([secret or secrets[hook.org]], now, delivery, b"{}")
            head = {"x-trace-delivery": delivery, "x-trace-signature": signature}
            return await harness.call_async("public", "POST", hook.where, b"{}", head)

        async def main() -> None:
            gates["busy"] = asyncio.Event()
            deliveries._take = take_slowly  # type: ignore[method-assign, assignment]
            loop = asyncio.get_running_loop()
            sent = [loop.create_task(send(busy, f"d{number}")) for number in range(OF_ONE_ORG + WAITING + 2)]
            try:
                async with asyncio.timeout(30):
                    while sum(task.done() for task in sent) < 2:
                        await asyncio.sleep(0.005)
                    assert (await send(busy, "x", "guessed")).status == 401
                    assert (await send(other, "one")).status == 200
                for task in sent:
                    if task.done():
                        reply = task.result()
                        assert (reply.status, reply.code) == (429, "rate_limited")
                        assert reply.body["error"]["details"]["retry_after_seconds"] >= 1
            finally:
                gates["busy"].set()
            statuses = sorted(reply.status for reply in await asyncio.gather(*sent))
            assert statuses == [200] * (OF_ONE_ORG + WAITING) + [429] * 2

        harness.run(main())


def test_paths_that_nobody_has_wait_for_each_other_alone(cluster: TestCluster, tmp_path: Path) -> None:
    with running(cluster, tmp_path, CONFIG) as (harness,):
        hook = Hook(harness).deploy()
        assert hook.send().status == 200
        deliveries = harness.dispatcher.deliveries

        async def held() -> Reply:
            # As a flood on made-up paths would hold it.
            async with deliveries._look_ups.slot(None), asyncio.timeout(30):
                signature = signature_header([secret], now, "two", b"{}")
                head = {"x-trace-delivery": "two", "x-trace-signature": signature}
                return await harness.call_async("public", "POST", hook.where, b"{}", head)

        secret, now = hook.secret(), hook.now()
        assert harness.run(held()).status == 200
