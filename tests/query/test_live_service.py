"""Queries of people and tasks on a live dataset, from TLS to the sandboxed engine, with real Postgres data.

The Dispatcher is real but for the registry: the dataset `blocks` of the org, which is files there, is a live one here.
"""

from collections.abc import Iterator
from contextlib import closing
from typing import Any
from uuid import UUID

import msgspec
import pytest

from tests.direct.support import BLOCKS, direct_table
from tests.query.support import ServiceHarness
from tests.routing.support import Flow
from tests.support.live_dataset import LiveDataset, columns_of
from tracelake.dispatcher import service as dispatcher_service
from tracelake.dispatcher.views import relations
from tracelake.wire.contract import Listener
from tracelake.wire.platform import DatasetFilesReply, DatasetFilesRequest
from tracelake.wire.query import InputRelation, RelationsReply


@pytest.fixture
def dataset(flow: Flow, data_dsn: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[LiveDataset]:
    """History 0 to 4, a table from 5 on; the unit 5-9 is in files too, 10-14 is final, 15-17 is not."""
    uuid, version = (UUID(flow.event("files", "write")[name]) for name in ("dataset_uuid", "dataset_version"))
    table = msgspec.structs.replace(direct_table(BLOCKS), dataset_uuid=uuid)
    live = LiveDataset(data_dsn, flow.harness.home / "objects", table_start=5, table=table)
    published, inputs = relations.list_published, relations.list_inputs

    def change(relation: Any) -> Any:
        if relation.dataset_uuid != uuid:
            return relation
        return msgspec.structs.replace(relation, storage="live", columns=columns_of(BLOCKS))

    async def list_published(*arguments: Any) -> RelationsReply:
        return RelationsReply(relations=[change(item) for item in (await published(*arguments)).relations])

    async def list_inputs(*arguments: Any) -> list[InputRelation]:
        # The document selects by a column that this table does not have.
        changed = [change(item) for item in await inputs(*arguments)]
        return [
            msgspec.structs.replace(
                item, selections=[msgspec.structs.replace(part, where=None) for part in item.selections]
            )
            for item in changed
        ]

    async def list_files(_connection: Any, request: DatasetFilesRequest) -> DatasetFilesReply:
        assert request.dataset_version == version
        return live.list_files(request)

    for function in (list_published, list_inputs):
        monkeypatch.setattr(dispatcher_service, function.__name__, function)
    monkeypatch.setattr(dispatcher_service, "list_dataset_files", list_files)
    with closing(live):
        live.ingest(0, 4)
        live.append(13)
        live.seal()
        live.seal()
        live.compact((5, 9))
        yield live


def test_a_live_dataset_is_one_relation(service: ServiceHarness, flow: Flow, dataset: LiveDataset) -> None:
    rows = "SELECT block_number, block_hash, gas_used FROM blocks ORDER BY 1"
    reply = service.query(flow.org, rows)
    assert reply.status == 200, reply
    assert [column["type"] for column in reply.body["columns"]] == ["BIGINT", "BLOB", "DECIMAL(20,0)"]
    assert [row[0] for row in reply.body["rows"]] == list(range(18))
    assert reply.body["rows"][4] == [4, "0x6834", "4"]
    assert reply.body["rows"][17] == [17, "0x613137", "17"]
    assert reply.body["datasets"][0]["name"] == "blocks"
    assert service.rows(flow.org, "SELECT count(*), sum(gas_used) FROM blocks") == [[18, str(sum(range(18)))]]
    dataset.remove()
    assert service.query(flow.org, rows).body["rows"] == reply.body["rows"]
    described = service.query(flow.org, "SELECT * FROM blocks LIMIT 0").body["columns"]
    for low, high in ((0, 3), (6, 8), (16, 17), (100, 200)):
        sql = f"SELECT * FROM blocks WHERE block_number BETWEEN {low} AND {high}"
        assert service.query(flow.org, sql).body["columns"] == described, "files alone, a table alone, nothing"


def test_the_catalog_has_the_columns_of_the_table(service: ServiceHarness, flow: Flow, dataset: LiveDataset) -> None:
    reply = service.call(Listener.QUERY, "GET", "/v1/query/catalog", None, service.user_headers(flow.org))
    relation = reply.body["relations"][0]
    assert (relation["name"], relation["storage"]) == ("blocks", "live")
    assert [column["type"] for column in relation["columns"]] == ["BIGINT", "BLOB", "DECIMAL(20,0)"]


def test_bytes_are_read_where_the_blocks_are(service: ServiceHarness, flow: Flow, dataset: LiveDataset) -> None:
    def ask(condition: str) -> tuple[Any, int]:
        body = service.query(flow.org, f"SELECT count(*) FROM blocks WHERE {condition}").body
        return body["rows"][0][0], body["bytes_read"]

    unit = dataset.units[5, 9].files[0].size
    assert ask("block_number BETWEEN 5 AND 9") == (5, unit), "no byte of the table"
    count, size = ask("block_number >= 10")
    assert count == 8
    assert 0 < size < unit, "no file"
    assert ask("block_number > 100") == (0, 0)


def test_a_task_reads_its_unit_on_both_sides(service: ServiceHarness, flow: Flow, dataset: LiveDataset) -> None:
    units = []
    for task in flow.tasks("read", "Queued"):
        lease = flow.claim(task["task_id"])
        reply = service.query_as_task(task["task_id"], lease, "SELECT block_number FROM blocks ORDER BY 1")
        assert reply.status == 200, reply
        units.append([row[0] for row in reply.body["rows"]])
    assert sorted(units) == [list(range(10)), list(range(10, 18))], "of files alone, and of the table alone"


def test_a_query_fails_if_rows_move_without_end(service: ServiceHarness, flow: Flow, dataset: LiveDataset) -> None:
    def move() -> None:
        dataset.append(5)
        dataset.seal()
        dataset.compact(dataset.compactable[0])
        dataset.remove()

    dataset.between = move
    reply = service.query(flow.org, "SELECT count(*) FROM blocks")
    assert (reply.status, reply.code) == (503, "boundary_moved")
    dataset.between = lambda: None
    assert service.rows(flow.org, "SELECT count(*) FROM blocks") == [[len(dataset.expected)]]
    assert service.running == []
