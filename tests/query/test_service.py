"""The real service, from TLS to the sandboxed engine, with a real Dispatcher and real Postgres data."""

import asyncio
import io
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.http.support import fresh
from tests.monitoring.promql import Scrape
from tests.query.batch_support import COLUMNS, Person, claimed, write_result
from tests.query.support import FILES, ServiceHarness, blocks_table, commit_blocks, parquet, wait_until
from tests.routing.support import Flow
from tests.sink.flow import BufferFlow
from tests.support.dispatcher import DispatcherHarness
from tracelake.model.ids import new_id
from tracelake.query.metrics import QueryMetrics
from tracelake.wire.contract import QUERY_LISTENERS, Listener
from tracelake.wire.routes import routes_of

SLOW = "SELECT count(*) FROM range(100000000) a, range(100000) b"
"""Takes hours."""


def test_the_routers_hold_exactly_the_table(service: ServiceHarness) -> None:
    for listener in QUERY_LISTENERS:
        assert set(service.application.apps[listener].router.routes) == set(routes_of(listener))


def test_a_person_reads_the_published_datasets_of_the_org(service: ServiceHarness, flow: Flow) -> None:
    reply = service.query(
        flow.org,
        "SELECT block_number, hash, value::BIGNUM + 1 AS next FROM blocks WHERE block_number BETWEEN $low AND 11"
        " ORDER BY 1 DESC",
        parameters={"low": {"type": "int64", "value": 9}},
    )
    assert reply.status == 200, reply
    assert reply.body["rows"] == [
        [11, "0x0000000b", str(2**200 + 12)],
        [10, "0x0000000a", str(2**200 + 11)],
        [9, "0x00000009", str(2**200 + 10)],
    ]
    assert [column["type"] for column in reply.body["columns"]] == ["BIGINT", "BLOB", "BIGNUM"]
    assert (reply.body["row_count"], reply.body.get("truncated")) == (3, None)
    dataset = flow.event("files", "write")
    assert reply.body["datasets"] == [dataset | {"name": "blocks"}]
    (entry,) = service.audits(flow.org)
    assert (entry["subject"], entry["outcome"], entry["row_count"]) == ("ann", "ok", 3)
    assert entry["datasets"] == reply.body["datasets"]
    assert entry["bytes_read"] == reply.body["bytes_read"] > 0
    assert service.running == []


def test_the_catalog_lists_columns_with_their_types(service: ServiceHarness, flow: Flow) -> None:
    headers = service.user_headers(flow.org)
    reply = service.call(Listener.QUERY, "GET", "/v1/query/catalog", None, headers)
    relation, results = reply.body["relations"]
    assert (relation["name"], results["name"], results["storage"]) == ("blocks", "_check_results", "system")
    assert {column["name"]: column["type"] for column in relation["columns"]} == {
        "block_number": "BIGINT", "chain_id": "BIGINT", "hash": "BLOB", "value": "VARCHAR",
    }  # fmt: skip


def test_the_catalog_knows_columns_before_anything_is_committed(service: ServiceHarness, flow: Flow) -> None:
    org = Flow(flow.harness, fresh("early"))
    org.deploy(EARLY)
    reply = service.call(Listener.QUERY, "GET", "/v1/query/catalog", None, service.user_headers(org.org))
    relations = {item["name"]: item["columns"] for item in reply.body["relations"]}
    assert relations["sizes"] == [
        {"name": "block_hash", "type": "BLOB"},
        {"name": "size", "type": "BIGINT"},
        {"name": "label", "type": "VARCHAR"},
    ]
    assert {"name": "block_number", "type": "BIGINT"} in relations["blocks"]
    assert service.query(org.org, "SELECT size FROM sizes").code == "dataset_not_committed"


EARLY = """
name: early
defaults: {runtime: ecs_platform}
jobs:
  - {name: src, activation: source, source: {kind: manual}}
  - {name: ingest, activation: reactive, operator: evm_ingest, execution_strategy: PerPartition,
     config: {chain_id: 1}, inputs: [{from: {job: src}}], outputs: 3}
  - name: sizes
    activation: reactive
    operator: spark_sql
    execution_strategy: PerPartition
    inputs: [{from: {job: ingest}}]
    config: {query: "SELECT block_hash, CAST(1 AS BIGINT) AS size, 'x' AS label FROM blocks"}
publish:
  blocks: {from: {job: ingest, output_index: 0}, storage: s3}
  sizes: {from: {job: sizes}, storage: s3}
"""


def test_another_org_has_nothing_of_it_and_hears_nothing_of_it(service: ServiceHarness, flow: Flow) -> None:
    stranger = Flow(flow.harness, fresh("stranger"))
    stranger.deploy(FILES.replace("blocks:", "own:"))
    theirs = service.query(stranger.org, "SELECT * FROM blocks")
    nobodys = service.query(stranger.org, "SELECT * FROM clocks")
    assert (theirs.status, theirs.code) == (nobodys.status, nobodys.code) == (422, "query_unknown_relation")
    assert "suggestions" not in theirs.body["error"]["details"]
    reply = service.call(Listener.QUERY, "GET", "/v1/query/catalog", None, service.user_headers(stranger.org))
    assert [relation["name"] for relation in reply.body["relations"]] == ["own", "_check_results"]
    assert service.query(stranger.org, "SELECT * FROM own").code == "dataset_not_committed"
    assert service.query(fresh("nobody"), "SELECT 1").body["rows"] == [[1]]


def test_only_units_that_can_matter_are_fetched(service: ServiceHarness, flow: Flow) -> None:
    whole = service.query(flow.org, "SELECT count(*) FROM blocks").body
    part = service.query(flow.org, "SELECT count(*) FROM blocks WHERE block_number < 5").body
    none = service.query(flow.org, "SELECT count(*), max(hash) FROM blocks WHERE block_number > 100").body
    assert (whole["rows"], part["rows"], none["rows"]) == ([[20]], [[5]], [[0, None]])
    assert whole["bytes_read"] > part["bytes_read"] > none["bytes_read"] == 0


def test_a_task_reads_its_unit_and_its_where_and_no_more(service: ServiceHarness, flow: Flow) -> None:
    task = flow.tasks("read", "Queued")[0]["task_id"]
    lease = flow.claim(task)
    reply = service.query_as_task(task, lease, "SELECT block_number FROM blocks ORDER BY 1")
    assert reply.status == 200, reply
    assert reply.body["rows"] == [[0], [2], [4], [6], [8]], "blocks 0 to 9 of chain 1"
    assert service.audits(flow.org)[-1]["subject"] == f"task:{task}"

    other = flow.claim(flow.tasks("read", "Queued")[0]["task_id"])
    stolen = service.query_as_task(task, other | {"lease_token": lease["lease_token"]}, "SELECT 1")
    assert (stolen.status, stolen.code) == (403, "token_mismatch")
    wrong = service.query_as_task(task, lease | {"lease_token": str(new_id())}, "SELECT 1")
    assert (wrong.status, wrong.code) == (409, "fenced")
    flow.complete(task, lease)
    flow.harness.run(_forget_inputs(service))
    assert service.query_as_task(task, lease, "SELECT 1").code == "fenced"


async def _forget_inputs(service: ServiceHarness) -> None:
    """As if the seconds had passed for which an answer is kept."""
    service.application.control._inputs.clear()


def test_credentials_open_their_own_listener_alone(service: ServiceHarness, flow: Flow) -> None:
    task = flow.tasks("read", "Queued")[0]["task_id"]
    lease = flow.claim(task)
    user = service.user_headers(flow.org)
    capability = {"x-trace-task-capability": lease["capability_token"]}
    body: dict[str, Any] = {"sql": "SELECT 1"}
    assert service.call(Listener.QUERY, "POST", "/v1/query", body, capability).status == 401
    assert service.call(Listener.QUERY_TASK, "POST", "/v1/task/query", body, user).status == 401
    assert service.call(Listener.QUERY_TASK, "POST", "/v1/query", body, user).status == 404
    assert service.call(Listener.QUERY, "POST", "/v1/task/query", body, capability).status == 404
    broken = {"authorization": user["authorization"][:-4] + "AAAA"}
    assert service.call(Listener.QUERY, "POST", "/v1/query", body, broken).status == 401
    assert (
        service.call(Listener.QUERY, "POST", "/v1/query", body, service.user_headers(flow.org, role="x")).status == 403
    )


def test_refused_queries_are_recorded_without_their_text(service: ServiceHarness, flow: Flow) -> None:
    for secret in ("'secret one'", "'secret two'"):
        assert service.query(flow.org, f"SELECT * FROM read_csv({secret})").status == 422
    entries = wait_until(lambda: (listed := service.audits(flow.org)) and len(listed) == 2 and listed)
    assert entries[0]["outcome"].startswith("query_")
    assert entries[0]["sql_sha256"] == entries[1]["sql_sha256"], "values are not in the hash"
    assert "secret" not in msgspec.json.encode(entries).decode()


def test_results_in_every_format(service: ServiceHarness, flow: Flow) -> None:
    sql = "SELECT block_number, hash FROM blocks WHERE block_number < 2 ORDER BY 1"
    expected = [{"block_number": 0, "hash": b"\0\0\0\0"}, {"block_number": 1, "hash": b"\0\0\0\x01"}]
    arrow = service.raw(flow.org, sql, format="arrow")
    with pa.ipc.open_stream(arrow.body) as reader:
        assert reader.read_all().to_pylist() == expected
    file = service.raw(flow.org, sql, format="parquet")
    assert pq.read_table(io.BytesIO(file.body)).to_pylist() == expected
    text = service.raw(flow.org, sql, format="csv")
    assert text.body.decode().splitlines() == ["block_number,hash", "0,0x00000000", "1,0x00000001"]
    for reply in (arrow, file, text):
        summary = msgspec.json.decode(reply.summary)
        assert (summary["row_count"], summary["rows"]) == (2, [])


def test_a_large_result_is_cut_and_exported(service: ServiceHarness, flow: Flow) -> None:
    sql = "SELECT a.block_number AS n FROM blocks a, blocks b, blocks c, blocks d ORDER BY 1"
    reply = service.query(flow.org, sql)
    assert reply.status == 200, reply
    assert (len(reply.body["rows"]), reply.body["row_count"], reply.body["truncated"]) == (10_000, 160_000, True)
    download = reply.body["download"]
    path = download["url"].removeprefix("https://store.test/").partition("?")[0]
    exported = flow.harness.run(flow.harness.objects.get(f"s3://{path}"))
    assert exported is not None
    assert pq.read_table(io.BytesIO(exported)).num_rows == 160_000
    assert len(exported) == download["size_bytes"]

    limited = service.query(flow.org, sql, limit=7).body
    assert (limited["rows"], limited.get("truncated")) == ([[0]] * 7, None)

    task = flow.tasks("read", "Queued")[0]["task_id"]
    lease = flow.claim(task)
    big = "SELECT 1 FROM blocks a, blocks b, blocks c, blocks d, blocks e, blocks f WHERE a.block_number >= 0"
    exported_to = service.query_as_task(task, lease, big).body["output_location"]
    assert exported_to.startswith(f"s3://trace-scratch/scratch/{task}/1/") or str(task) in exported_to


def test_a_result_that_only_json_makes_too_large_is_exported_too(service: ServiceHarness, flow: Flow) -> None:
    sql = "SELECT repeat(chr(1), 1500) AS text FROM range(2000)"  # six characters each in JSON
    reply = service.query(flow.org, sql)
    assert reply.status == 200, reply
    assert (reply.body["row_count"], reply.body["truncated"]) == (2000, True)
    assert 0 < len(reply.body["rows"]) < 2000
    path = reply.body["download"]["url"].removeprefix("https://store.test/").partition("?")[0]
    exported = flow.harness.run(flow.harness.objects.get(f"s3://{path}"))
    assert exported is not None
    assert pq.read_table(io.BytesIO(exported)).num_rows == 2000


AMOUNT = 2**255 + 5


@pytest.fixture
def tables(harness: DispatcherHarness, data_dsn: str) -> BufferFlow:
    """An org with the buffered dataset `large`, which has 256-bit integers, and with `blocks`."""
    flow = BufferFlow(harness, data_dsn, org=fresh("buffered"))
    flow.deploy("name: amount, type: uint256")
    flow.flow.deploy(FILES)
    commit_blocks(flow.flow, 0, 9, parquet(blocks_table(0, 9)))
    return flow


def test_tables_are_joined_with_files_exactly(service: ServiceHarness, tables: BufferFlow) -> None:
    assert service.rows(tables.org, "SELECT count(*), max(amount) FROM large") == [[0, None]], "no table is there yet"
    rows = [{"key": key, "value": f"v'{key}", "amount": str(AMOUNT + key)} for key in range(5)]
    tables.publish(rows)
    tables.sink()
    joined = service.query(
        tables.org,
        "SELECT l.key, l.amount + 1 AS more, b.hash FROM large l JOIN blocks b ON b.block_number = l.key"
        " WHERE l.key >= 3 ORDER BY 1",
    )
    assert joined.status == 200, joined
    assert joined.body["rows"] == [
        [3, str(AMOUNT + 4), "0x00000003"],
        [4, str(AMOUNT + 5), "0x00000004"],
    ]
    assert service.rows(tables.org, "SELECT sum(amount) FROM large") == [[str(5 * AMOUNT + 10)]]
    assert service.rows(tables.org, "SELECT key FROM large WHERE value = 'v''2'") == [[2]]
    assert service.rows(tables.org, "SELECT count(*) FROM large") == [[5]]


def test_a_task_reads_the_commits_of_its_unit(service: ServiceHarness, tables: BufferFlow) -> None:
    for key in (1, 2):
        tables.publish([{"key": key, "value": "x"}])
        tables.sink()
    read = []
    for task in tables.flow.tasks("reader", "Queued"):
        lease = tables.flow.claim(task["task_id"])
        reply = service.query_as_task(task["task_id"], lease, "SELECT key FROM large")
        assert reply.status == 200, reply
        read.append(reply.body["rows"])
    assert read == [[[1]], [[2]]]


def test_a_cancelled_query_ends_and_leaves_nothing(service: ServiceHarness, flow: Flow) -> None:
    query_id, headers = str(new_id()), service.user_headers(flow.org)
    other = service.user_headers(flow.org, "bob")

    async def run() -> tuple[Any, Any, Any]:
        ask = service.ask_async(Listener.QUERY, "POST", "/v1/query", {"sql": SLOW, "query_id": query_id}, headers)
        task = asyncio.create_task(ask)
        while not service.application.service._running:
            await asyncio.sleep(0.01)
        assert service.application.metrics.running_queries._value.get() == 1
        path = f"/v1/query/{query_id}"
        twice = await service.ask_async(
            Listener.QUERY, "POST", "/v1/query", {"sql": "SELECT 1", "query_id": query_id}, headers
        )
        assert msgspec.json.decode(twice.body)["error"]["code"] == "query_id_taken"
        foreign = await service.ask_async(Listener.QUERY, "DELETE", path, None, other)
        return foreign, await service.ask_async(Listener.QUERY, "DELETE", path, None, headers), await task

    foreign, canceled, reply = service.dispatcher.run(run())
    assert foreign.status == 404, "somebody else's query is not there"
    assert msgspec.json.decode(canceled.body) == {"query_id": query_id, "canceled": True}
    assert msgspec.json.decode(reply.body)["error"]["code"] == "query_canceled"
    assert service.running == []
    assert wait_until(lambda: [entry for entry in service.audits(flow.org) if entry["outcome"] == "query_canceled"])


def test_a_caller_that_hangs_up_takes_its_query_along(service: ServiceHarness, flow: Flow) -> None:
    headers = service.user_headers(flow.org)

    async def hang_up() -> None:
        ask = asyncio.create_task(service.ask_async(Listener.QUERY, "POST", "/v1/query", {"sql": SLOW}, headers))
        while not service.application.service._running:
            await asyncio.sleep(0.01)
        ask.cancel()
        await asyncio.wait({ask})

    service.dispatcher.run(hang_up())
    wait_until(lambda: not service.application.service._running)
    assert service.running == []
    assert wait_until(lambda: [entry for entry in service.audits(flow.org) if entry["outcome"] == "query_canceled"])


def test_a_query_ends_at_its_time_limit(service: ServiceHarness, flow: Flow) -> None:
    reply = service.query(flow.org, SLOW, timeout_seconds=1)
    assert (reply.status, reply.code) == (422, "query_timeout")
    assert service.running == []


def test_a_query_that_would_read_too_much_is_told_of_batch_mode(service: ServiceHarness, flow: Flow) -> None:
    limits = service.application.service.limits
    small = type(limits)(**{name: getattr(limits, name) for name in limits.__slots__} | {"max_input_bytes": 100})
    service.application.service.limits = small
    try:
        reply = service.query(flow.org, "SELECT count(*) FROM blocks")
    finally:
        service.application.service.limits = limits
    assert reply.code == "query_too_large"
    assert reply.body["error"]["details"]["suggestion"] == "mode: batch"


def test_an_object_that_is_gone_or_replaced_is_an_error_and_no_crash(service: ServiceHarness, flow: Flow) -> None:
    objects = flow.harness.objects
    gone = commit_blocks(flow, 20, 29, parquet(blocks_table(20, 29)))
    flow.harness.run(objects.delete(gone))
    reply = service.query(flow.org, "SELECT count(*) FROM blocks WHERE block_number > 20")
    assert reply.status in (422, 503), reply
    assert gone not in msgspec.json.encode(reply.body).decode()
    assert service.rows(flow.org, "SELECT count(*) FROM blocks WHERE block_number < 20") == [[20]]


def test_a_hostile_file_is_an_error_and_no_crash(service: ServiceHarness, flow: Flow) -> None:
    commit_blocks(flow, 20, 29, b"PAR1" + b"\xff" * 1000 + b"PAR1")
    reply = service.query(flow.org, "SELECT count(*) FROM blocks WHERE block_number > 19")
    assert (reply.status, reply.code) == (422, "query_file_invalid")
    assert service.rows(flow.org, "SELECT count(*) FROM blocks WHERE block_number < 20") == [[20]]


def test_nothing_is_answered_while_the_dispatcher_is_away(service: ServiceHarness, flow: Flow) -> None:
    calls = service.application.control._calls
    assert service.rows(flow.org, "SELECT count(*) FROM blocks") == [[20]]

    class Away:
        async def call(self, *_: Any, **__: Any) -> Any:
            from tracelake.client import DispatcherUnavailableError

            raise DispatcherUnavailableError("no answer")

    service.application.control._calls = Away()
    try:
        reply = service.query(flow.org, "SELECT 1")
    finally:
        service.application.control._calls = calls
    assert (reply.status, reply.code) == (503, "store_unavailable")
    assert wait_until(lambda: [entry for entry in service.audits(flow.org) if entry["outcome"] == "store_unavailable"])


def test_every_metric_of_queries_moves(service: ServiceHarness, flow: Flow) -> None:
    """Except what tests of cancelled queries, of slots and of alerts see."""
    before = Scrape(service.application.metrics.render().decode())
    service.rows(flow.org, "SELECT count(*) FROM blocks")
    now = Scrape(service.application.metrics.render().decode())
    names = {family.name for family in QueryMetrics().registry.collect() if family.name.startswith("trace_quer")}
    constant = {"trace_query_cache_limit_bytes", "trace_query_cache_evicted_bytes"}
    gauges = {"trace_queries_running", "trace_queries_waiting"}  # as before, when the query has ended
    assert {name for name in names - constant - gauges if before.family(name) == now.family(name)} == set()
    assert now.family("trace_query_cache_limit_bytes")[frozenset()] == service.config.cache_bytes


def test_probes_and_metrics(service: ServiceHarness) -> None:
    for path in ("/healthz", "/readyz"):
        assert service.call(Listener.QUERY, "GET", path, None, {}).body["status"] == "ok"
    raw = service.dispatcher.run(service.ask_async(Listener.QUERY, "GET", "/metrics", None, {}))
    assert b"trace_queries_total" in raw.body


def test_a_batch_query_is_accepted_followed_and_downloaded_by_its_owner(service: ServiceHarness, flow: Flow) -> None:
    def call(method: str, path: str, subject: str = "ann", role: str = "reader", org: str = flow.org) -> Any:
        return service.call(Listener.QUERY, method, path, None, service.user_headers(org, subject, role))

    sql = "SELECT count(*) AS n FROM blocks WHERE block_number > $low"
    low = {"low": {"type": "int64", "value": 5}}
    accepted = service.query(flow.org, sql, mode="batch", parameters=low)
    assert (accepted.status, accepted.body["state"]) == (202, "queued")
    path = f"/v1/query/{accepted.body['query_id']}"
    ann = Person(flow)
    task = ann.task_of(accepted.body["query_id"])
    write_result(ann, task, claimed(ann, task))
    done = call("GET", path).body
    assert (done["state"], done["row_count"], done["columns"]) == ("done", 7, COLUMNS)
    (download,) = done["downloads"]
    assert download["url"].startswith("https://store.test/")
    assert f"/{task}/1/" in download["url"]

    assert call("GET", path, "bob").code == call("DELETE", path, "bob").code == "query_forbidden"
    assert call("GET", path, "bob", "admin").status == 200
    for method in ("GET", "DELETE"):
        assert call(method, path, "ann", "admin", org=fresh("stranger")).code == "query_not_found"
    assert [item["query_id"] for item in call("GET", "/v1/query").body["queries"]] == [done["query_id"]]
    assert call("GET", "/v1/query", "bob").body["queries"] == []
    assert call("DELETE", path).body == {"query_id": done["query_id"], "canceled": False}

    refusals: dict[str, dict[str, Any]] = {
        "query_not_allowed": {"sql": "DROP TABLE blocks"},
        "query_unknown_relation": {"sql": "SELECT * FROM block"},
        "query_parameter": {"sql": sql},
        "body_invalid": {"sql": sql, "parameters": low, "format": "arrow"},
    }
    for code, fields in refusals.items():
        refused = service.query(flow.org, mode="batch", **fields)
        assert (refused.status, refused.code) == (422, code)
    outcomes = wait_until(lambda: len(listed := service.audits(flow.org)) == 6 and [item["outcome"] for item in listed])
    assert outcomes == ["submitted", "ok", *refusals]
