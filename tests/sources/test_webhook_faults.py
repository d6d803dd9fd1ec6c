"""Webhooks when things go wrong: crashes on either side of the commit, two Dispatchers, deploys meanwhile, no store."""

import asyncio
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import asyncpg
import msgspec
import pytest

from tests.faults.crash_driver import PATIENCE, CrashDriver
from tests.sources.webhook_support import BODY, Hook, dag_text, running, send_together
from tests.support.configs import USER_TOKEN_RULES
from tests.support.dispatcher import DispatcherHarness, Reply
from tests.support.postgres import TestCluster
from tracelake.adapters.shared_secrets import utc_now
from tracelake.client.errors import DispatcherUnavailableError
from tracelake.stack.credentials import user_token
from tracelake.wire.webhooks import DeliveryReply, signature_header

POINTS = ["before commit", "after commit", "before reply"]


@pytest.fixture(scope="module")
def both(cluster: TestCluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[DispatcherHarness]]:
    with running(cluster, tmp_path_factory.mktemp("home"), dispatchers=2) as dispatchers:
        yield dispatchers


# --- crashes


async def _deliver(driver: CrashDriver, path: str, secret: str, delivery: str) -> DeliveryReply:
    """As a sender does: the same delivery until it is answered."""
    body = delivery.encode()
    signature = signature_header([secret], int(utc_now().timestamp()), delivery, body)
    head = [("x-trace-delivery", delivery), ("x-trace-signature", signature)]
    async with asyncio.timeout(PATIENCE):
        while True:
            try:
                reply = await driver.clients["public"].request("POST", path, body=body, headers=head)
            except DispatcherUnavailableError:
                await asyncio.sleep(0.02)
                continue
            if reply.status != 503:
                assert reply.status == 200, reply
                return msgspec.json.decode(reply.body, type=DeliveryReply)


async def _crash(home: Path, state_dsn: str, queue_dsn: str) -> None:
    async with CrashDriver(home, state_dsn, queue_dsn) as driver:
        state = await asyncpg.connect(state_dsn)
        token = user_token(
            driver.credentials.user_keys, USER_TOKEN_RULES, subject="me", org="acme", roles=["admin"], now=utc_now()
        )
        await driver.arm("never", 0)
        deployed = await driver.clients["public"].request(
            "POST",
            "/v1/dags/alerts/versions?activate=true",
            body=dag_text("crash/test").encode(),
            headers=[("authorization", f"Bearer {token}")],
            content_type="application/yaml",
        )
        assert deployed.status == 200, deployed
        org_id = await state.fetchval("SELECT org_id FROM orgs")
        secret = driver.credentials.webhooks.secret(org_id, "alerts", "hook", 1)
        for number, point in enumerate(POINTS, start=1):
            async with asyncio.timeout(PATIENCE):  # the relay's commits are not the ones that this is about
                while await state.fetchval("SELECT count(*) FROM outbox"):
                    await asyncio.sleep(0.02)
            await driver.arm(point, 1)
            reply = await _deliver(driver, "/v1/webhooks/crash/test", secret, f"d{number}")
            assert driver.crashes == 1, point
            assert reply.number == number
            # Before the commit nothing was there; after it the sender is told what was.
            assert reply.duplicate == (point != "before commit"), point
        rows = await state.fetch("SELECT delivery_id, number, body FROM webhook_deliveries ORDER BY number")
        assert [tuple(row) for row in rows] == [(f"d{n}", n, b"d%d" % n) for n in (1, 2, 3)]
        events = await state.fetch("SELECT producer, cursor FROM events ORDER BY cursor")
        assert [tuple(row) for row in events] == [(f"webhook:d{n}", n) for n in (1, 2, 3)]
        assert await state.fetchval("SELECT count(*) FROM tasks") == 3
        await state.close()


def test_a_crash_on_either_side_of_the_commit(cluster: TestCluster, tmp_path: Path) -> None:
    dsns = cluster.fresh("state"), cluster.fresh("queue")
    try:
        asyncio.run(_crash(tmp_path, *dsns))
    finally:
        for dsn in dsns:
            asyncio.run(cluster.drop(dsn))


# --- two Dispatchers


def test_two_dispatchers_take_a_delivery_once(both: list[DispatcherHarness]) -> None:
    hook = Hook(both[0]).deploy()
    replies = send_together(both, hook, [("one", BODY)] * 20)
    assert {reply.status for reply in replies} == {200}
    assert sum(not reply.body.get("duplicate", False) for reply in replies) == 1
    assert len({tuple(reply.body["event_ids"]) for reply in replies}) == 1
    assert (len(hook.events()), len(hook.tasks())) == (1, 1)


def test_two_dispatchers_share_the_numbers(both: list[DispatcherHarness]) -> None:
    hook = Hook(both[0]).deploy()
    replies = send_together(both, hook, [(f"d{number}", b"%d" % number) for number in range(30)])
    assert sorted(reply.body["number"] for reply in replies) == list(range(1, 31))
    assert sorted(event["cursor"] for event in hook.events()) == list(range(1, 31))
    assert len(hook.deliveries()) == 30


def test_a_rotation_by_one_holds_for_the_other(both: list[DispatcherHarness]) -> None:
    hook = Hook(both[0]).deploy()
    first = hook.secret()
    hook.user("POST", "/webhook/rotate")
    hook.user("POST", "/webhook/rotate")
    other = Hook(both[1], org=hook.org, path=hook.path)
    assert other.send(secrets=[first]).code == "signature_invalid"
    assert other.send(secrets=[hook.secret()]).status == 200


def test_deliveries_while_the_webhook_moves(both: list[DispatcherHarness]) -> None:
    """Each is taken or not there; what was taken has its event and its task, whoever deployed in between."""
    hook = Hook(both[0]).deploy()
    first = hook.path
    sender = Hook(both[1], org=hook.org, path=first)

    def move() -> None:
        for number in range(6):
            hook.path = first if number % 2 else f"{first}-moved"
            hook.deploy()

    with ThreadPoolExecutor(1) as threads:
        moving = threads.submit(move)
        statuses: dict[str, int] = {}
        secret = sender.quiet_secret()
        while not moving.done():
            delivery = f"d{len(statuses)}"
            statuses[delivery] = sender.send(delivery=delivery, secrets=[secret]).status
        moving.result()
    assert set(statuses.values()) <= {200, 401, 404, 503}
    taken = {row["delivery_id"] for row in hook.deliveries()}
    assert {delivery for delivery, status in statuses.items() if status == 200} <= taken
    assert {delivery for delivery, status in statuses.items() if status in (401, 404)} & taken == set()
    assert len(hook.events()) == len(hook.tasks()) == len(taken)


def test_a_delivery_that_a_deploy_overtakes_is_not_taken(both: list[DispatcherHarness]) -> None:
    """It has found its webhook, and waits for the lock of a deploy after which the webhook is gone."""
    hook = Hook(both[0]).deploy()
    head = hook.head()

    async def overtake() -> Reply:
        deploy = await asyncpg.connect(both[0].state_dsn)
        try:
            async with deploy.transaction():
                org_id = await deploy.fetchval("SELECT org_id FROM orgs WHERE name = $1", hook.org)
                await deploy.execute("SELECT pg_advisory_xact_lock(routing_lock_key($1))", org_id)
                sent = asyncio.create_task(both[0].call_async("public", "POST", hook.where, BODY, head))
                async with asyncio.timeout(PATIENCE):
                    while not both[0].dispatcher.ports.store.is_waited_for(org_id):
                        assert not sent.done(), sent
                        await asyncio.sleep(0.001)
                await deploy.execute("UPDATE dags SET active_version = NULL WHERE org_id = $1", org_id)
            return await sent
        finally:
            await deploy.close()

    reply = both[0].run(overtake())
    assert (reply.status, reply.code) == (404, "webhook_not_found")
    assert (hook.deliveries(), hook.events()) == ([], [])


# --- no store


def test_without_the_store_nothing_is_taken_and_it_may_be_repeated(cluster: TestCluster, tmp_path: Path) -> None:
    with running(cluster, tmp_path) as (harness,):
        hook = Hook(harness).deploy()
        head = hook.head()
        database = harness.state_dsn.split("@/", 1)[1].split("?", 1)[0]
        asyncio.run(_refuse(cluster, database, refuse=True))
        try:
            reply = harness.call("public", "POST", hook.where, BODY, head)
            assert (reply.status, reply.code) == (503, "store_unavailable")
        finally:
            asyncio.run(_refuse(cluster, database, refuse=False))
        assert hook.deliveries() == []
        assert harness.call("public", "POST", hook.where, BODY, head).body["number"] == 1


async def _refuse(cluster: TestCluster, database: str, *, refuse: bool) -> None:
    connection = await asyncpg.connect(cluster.cluster.superuser_dsn())
    try:
        await connection.execute(f'ALTER DATABASE "{database}" ALLOW_CONNECTIONS {not refuse}')
        if refuse:
            await connection.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = $1", database
            )
    finally:
        await connection.close()
