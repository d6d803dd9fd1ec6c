"""Files that user code wrote: a broken or strange one is an error of queries that read it, and of nothing else."""

import json

import pyarrow as pa

from tests.http.support import fresh
from tests.query.support import FILES, ServiceHarness, blocks_table, commit_blocks, parquet
from tests.routing.support import Flow
from tests.support.dispatcher import DispatcherHarness
from tracelake.wire.contract import Listener


def make_flow(harness: DispatcherHarness, *contents: bytes) -> Flow:
    """An org whose dataset `blocks` has these files, of ten blocks each."""
    flow = Flow(harness, fresh("hostile"))
    flow.deploy(FILES)
    for number, content in enumerate(contents):
        commit_blocks(flow, 10 * number, 10 * number + 9, content)
    return flow


def test_a_broken_file_is_an_error_only_where_it_is_read(service: ServiceHarness, harness: DispatcherHarness) -> None:
    flow = make_flow(harness, b"PAR1" + bytes(1000) + b"PAR1")
    for sql in ("SELECT * FROM blocks", "SELECT hash FROM blocks", "SELECT count(*) FROM blocks b WHERE b.gone > 1"):
        assert service.query(flow.org, sql).code == "query_file_invalid", sql
    for sql in ("SELECT 'blocks'", "SELECT 1 AS blocks", "WITH blocks AS (SELECT 'x') SELECT 'blocks' FROM blocks"):
        assert service.query(flow.org, sql).status == 200, sql
    catalog = service.call(Listener.QUERY, "GET", "/v1/query/catalog", None, service.user_headers(flow.org))
    columns = {item["name"]: item["columns"] for item in catalog.body["relations"]}
    assert columns.keys() == {"blocks", "_check_results"}
    assert columns["blocks"] == []


def test_a_dataset_without_a_commit_says_so_whatever_is_selected(
    service: ServiceHarness, harness: DispatcherHarness
) -> None:
    flow = make_flow(harness)
    for sql in ("SELECT count(*) FROM blocks", "SELECT hash FROM blocks", "SELECT b.hash + 1 FROM blocks b"):
        assert service.query(flow.org, sql).code == "dataset_not_committed", sql


def test_files_of_different_columns_are_an_error(service: ServiceHarness, harness: DispatcherHarness) -> None:
    table = blocks_table(10, 19)
    others = {
        "missing": table.drop_columns(["hash"]),
        "text": table.set_column(2, "hash", pa.array(["zz"] * 10)),
        "struct": table.set_column(2, "hash", pa.array([{"a": 1}] * 10)),
    }
    for name, other in others.items():
        flow = make_flow(harness, parquet(blocks_table(0, 9)), parquet(other))
        reply = service.query(flow.org, "SELECT max(hash), count(*) FROM blocks")
        # Text is what bytes can be read from; anything else has no such column.
        expected = (200, None) if name == "text" else (422, "query_")
        assert reply.status == expected[0], (name, reply)
        assert expected[1] is None or reply.code.startswith(expected[1])
        assert service.rows(flow.org, "SELECT count(hash) FROM blocks WHERE block_number < 10") == [[10]]


def test_names_and_types_of_a_file_are_no_sql(service: ServiceHarness, harness: DispatcherHarness) -> None:
    names = ['a"); DROP TABLE x; --', "select", "$1", "ä\u202e", "x" * 300, "a b", "A", "a"]
    nested = pa.struct([('f" INTEGER); CREATE TABLE evil (i INT); --', pa.int64()), ("b", pa.list_(pa.int32()))])
    columns = {name: pa.array([number], pa.int64()) for number, name in enumerate(names)}
    flow = make_flow(harness, parquet(pa.table(columns | {"nested": pa.array([None], nested)})))
    reply = service.query(flow.org, "SELECT * FROM blocks")
    assert reply.status == 200, reply
    assert reply.body["rows"] == [[*range(len(names)), None]]
    # Nothing is left in the processes that check queries, which other orgs use too.
    assert service.query(flow.org, "SELECT * FROM evil").code == "query_unknown_relation"
    assert service.rows(fresh("other"), "WITH evil AS (SELECT 1) SELECT * FROM evil") == [[1]]
    empty = service.query(flow.org, 'SELECT nested FROM blocks WHERE "a b" > 100')
    assert (empty.status, empty.body["rows"]) == (200, [])


def test_bytes_that_changed_after_the_commit_are_an_error(service: ServiceHarness, harness: DispatcherHarness) -> None:
    flow = make_flow(harness, parquet(blocks_table(0, 9)))
    content = parquet(blocks_table(10, 19))
    uri = commit_blocks(flow, 10, 19, content)
    forged = content[:100] + bytes([content[100] ^ 0xFF]) + content[101:]
    harness.run(harness.objects.put(uri, forged))
    reply = service.query(flow.org, "SELECT count(*) FROM blocks")
    assert reply.code in ("content_mismatch", "artifact_missing"), reply
    assert uri.rpartition("/")[0] not in json.dumps(reply.body)
    assert service.rows(flow.org, "SELECT count(*) FROM blocks WHERE block_number < 10") == [[10]]
