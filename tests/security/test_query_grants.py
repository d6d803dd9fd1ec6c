"""Queries reach exactly the grant of their credential: the listener, the org, and the rows of a task's input."""

import json
from base64 import urlsafe_b64encode
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from tests.http.support import fresh
from tests.query.service_fixtures import data_dsn, flow, service
from tests.query.support import FILES, ServiceHarness
from tests.routing.support import Flow
from tests.security.test_capability_tokens import parts
from tests.support.dispatcher import Reply
from tracelake.stack.credentials import user_token
from tracelake.wire.contract import Listener

__all__ = ["data_dsn", "flow", "service"]

_ALL = "SELECT count(*) FROM blocks"
AROUND = {
    # The task's unit is 0-9, its `where` is chain 1: five of the twenty rows.
    "SELECT count(*) FROM blocks": 5,
    'SELECT count(*) FROM "blocks"': 5,
    'SELECT count(*) FROM "BLOCKS" AS b': 5,
    "FROM BLOCKS SELECT count(*)": 5,
    "SELECT count(*) FROM (SELECT * FROM blocks) AS x": 5,
    "SELECT count(*) FROM blocks a JOIN blocks b USING (block_number)": 5,
    "SELECT count(*) FROM blocks a, blocks b": 25,
    "SELECT count(*) FROM blocks a FULL JOIN blocks b ON a.block_number = b.block_number + 10": 10,
    "SELECT count(block_number) FROM (VALUES (3), (11), (12)) v(n) LEFT JOIN blocks ON block_number = n": 0,
    "SELECT count(*) FROM blocks WHERE block_number > 9 OR chain_id = 10 OR true": 5,
    "SELECT count(*) FROM blocks WHERE block_number > 9": 0,
    "SELECT count(*) FROM blocks WHERE chain_id <> 1 OR chain_id IS NULL": 0,
    "SELECT (SELECT max(block_number) FROM blocks)": 8,
    "SELECT count(*) FROM blocks a WHERE EXISTS (SELECT 1 FROM blocks b WHERE b.block_number = a.block_number + 1)": 0,
    "WITH b AS (SELECT * FROM blocks) SELECT count(*) FROM b": 5,
    "WITH blocks AS (SELECT 1 AS block_number) SELECT count(*) FROM blocks": 1,
    "WITH b AS MATERIALIZED (FROM blocks), c AS (FROM b) SELECT count(*) FROM c, b": 25,
    "WITH RECURSIVE r AS (SELECT block_number AS n FROM blocks UNION SELECT b.block_number FROM blocks b, r"
    " WHERE b.block_number = r.n + 1) SELECT count(*) FROM r": 5,
    "SELECT count(*) FROM blocks USING SAMPLE 100 PERCENT (bernoulli)": 5,
    "SELECT max(n) FROM (SELECT block_number AS n FROM blocks UNION ALL SELECT block_number FROM BLOCKS)": 8,
    # A condition that fails on rows that are not granted would tell of them.
    "SELECT count(*) FROM blocks WHERE CAST(CASE WHEN chain_id = 10 THEN 'x' ELSE '1' END AS INTEGER) = 1": 5,
    "SELECT count(*) FROM blocks WHERE CAST(CASE WHEN block_number > 9 THEN 'x' ELSE '1' END AS INTEGER) = 1": 5,
    "SELECT count(1 // (chain_id - 10)) FROM blocks": 5,
}
REFUSED = (
    "SELECT count(*) FROM main.blocks",
    "SELECT count(*) FROM memory.main.blocks",
    "SELECT count(*) FROM '/in/0/0.parquet'",
    'SELECT count(*) FROM "/in/0/0.parquet"',
    "SELECT count(*) FROM read_parquet('/in/0/0.parquet')",
    "SELECT count(*) FROM blocks__0",
    "SELECT count(*) FROM _source_0",
    "SELECT count(*) FROM blocks_1",
    "SELECT rowid FROM blocks",
    "SELECT filename FROM blocks",
    "SELECT file_row_number FROM blocks",
    "SELECT count(*) FROM query_table('blocks')",
    "SELECT count(*) FROM query('FROM blocks')",
    "WITH blocks AS (SELECT * FROM main.blocks) SELECT count(*) FROM blocks",
    "CREATE OR REPLACE VIEW blocks AS SELECT 1",
)


def test_unit_and_where_of_an_input_cannot_be_got_around(service: ServiceHarness, flow: Flow) -> None:
    assert service.rows(flow.org, _ALL) == [[20]], "a person reads all of it"
    task = flow.tasks("read", "Queued")[0]["task_id"]
    lease = flow.claim(task)
    counts = {}
    for sql in AROUND:
        reply = service.query_as_task(task, lease, sql)
        assert reply.status == 200, (sql, reply)
        counts[sql] = reply.body["rows"][0][0]
    assert counts == AROUND
    for sql in REFUSED:
        reply = service.query_as_task(task, lease, sql)
        assert (reply.status, reply.code.partition("_")[0]) == (422, "query"), (sql, reply)


def ask(service: ServiceHarness, listener: Listener, path: str, headers: dict[str, str], body: Any) -> Reply:
    return service.call(listener, "POST", path, body, headers)


def test_user_tokens_of_another_time_audience_issuer_or_key_are_refused(service: ServiceHarness, flow: Flow) -> None:
    harness = service.dispatcher
    keys, rules, now = harness.credentials.user_keys, harness.config.user_tokens, datetime.now(UTC)

    def status(**changes: Any) -> int:
        fields: dict[str, Any] = {"subject": "ann", "org": flow.org, "roles": ["reader"], "now": now}
        chosen_keys, chosen_rules = changes.pop("keys", keys), changes.pop("rules", rules)
        token = user_token(chosen_keys, chosen_rules, **fields | changes)
        return ask(service, Listener.QUERY, "/v1/query", {"authorization": f"Bearer {token}"}, {"sql": _ALL}).status

    assert status() == 200
    assert status(now=now - timedelta(days=2), life=timedelta(hours=1)) == 401
    assert status(rules=replace(rules, audience="trace.task")) == 401
    assert status(rules=replace(rules, issuer="https://elsewhere.test")) == 401
    assert status(keys=harness.credentials.task_keys) == 401
    assert status(roles=["nobody"]) == 403
    assert status(org=fresh("elsewhere")) == 422, "an org that has no such dataset"


def test_capability_tokens_of_another_time_audience_task_or_listener_are_refused(
    service: ServiceHarness, flow: Flow
) -> None:
    tasks = [item["task_id"] for item in flow.tasks("read", "Queued")[:2]]
    lease, other = (flow.claim(task) for task in tasks)
    header, claims, _ = parts(lease["capability_token"])
    body = {"task_id": str(tasks[0]), "attempt": lease["attempt"], "lease_token": lease["lease_token"], "sql": _ALL}

    def encode(data: dict[str, Any]) -> str:
        return urlsafe_b64encode(json.dumps(data).encode()).rstrip(b"=").decode()

    def status(token: str | None = None, **changes: Any) -> int:
        if token is None:
            text = f"{encode(header)}.{encode(claims | changes)}"
            signature = service.dispatcher.credentials.task_keys.sign(header["kid"], text.encode())
            token = f"{text}.{urlsafe_b64encode(signature).rstrip(b'=').decode()}"
        headers = {"x-trace-task-capability": token}
        return ask(service, Listener.QUERY_TASK, "/v1/task/query", headers, body).status

    assert status() == 200
    assert status(exp=claims["iat"] - 1) == 401
    assert status(nbf=claims["exp"] + 3600) == 401
    assert status(aud="trace") == 401
    assert status(iss="https://elsewhere.test") == 401
    assert status(attempt=lease["attempt"] + 1) == 403
    assert status(other["capability_token"]) == 403
    assert status(lease["capability_token"][:-4] + "AAAA") == 401
    # Signed and current, but of no dataset: its relations are the token's, whatever the Dispatcher lists.
    assert status(datasets=[]) == 422
    user = service.user_headers(flow.org)["authorization"].removeprefix("Bearer ")
    assert status(user) == 401
    bearer = {"authorization": f"Bearer {lease['capability_token']}"}
    assert ask(service, Listener.QUERY, "/v1/query", bearer, {"sql": _ALL}).status == 401


@pytest.mark.parametrize("name", ["blocks", "BLOCKS", '"blocks"'])
def test_a_dataset_of_another_org_is_no_relation_under_any_spelling(
    service: ServiceHarness, flow: Flow, name: str
) -> None:
    stranger = Flow(flow.harness, fresh("stranger"))
    stranger.deploy(FILES.replace("blocks:", "own:"))
    for sql in (f"SELECT * FROM {name}", f"SELECT * FROM own, {name}", f"WITH x AS (FROM {name}) SELECT 1"):
        reply = service.query(stranger.org, sql)
        assert reply.code == "query_unknown_relation", reply
        assert flow.org not in json.dumps(reply.body)
