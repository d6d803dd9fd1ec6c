"""Which files a service is told: by uuid or name, of any generation, and all pages as of the moment of the first."""

from typing import Any
from uuid import UUID, uuid4

import msgspec
import pytest

from tests.http.support import fresh
from tests.routing.support import Flow
from tests.routing.test_files import FILES, FIRST, SECOND, THIRD, ask, names, write
from tests.support.dags import activate
from tests.support.dispatcher import DispatcherHarness, Reply
from tracelake.client import InternalClient
from tracelake.dispatcher.views import files as view
from tracelake.wire import routes
from tracelake.wire.platform import DatasetFilesRequest

WHERE = "/internal/dataset-files"
FROM = "inputs: [{from: {job: src}}]"


def service(flow: Flow, **fields: Any) -> Reply:
    body = {"org": flow.org, "name": "blocks"} | fields
    return flow.harness.service("POST", WHERE, {key: value for key, value in body.items() if value is not None})


def write_again(flow: Flow, start: int, end: int, name: str) -> None:
    """Another revision of a unit that is there."""
    flow.trigger("files", "write", range={"start": start, "end": end})
    task = next(task["task_id"] for task in flow.tasks("write", "Queued"))
    lease = flow.claim(task)
    prefix = lease["task"]["outputs"][0]["storage"]["write_prefix"]
    for file in (name, "_SUCCESS"):
        flow.harness.run(flow.harness.objects.put(prefix + file, b"x"))
    bucket, _, key = prefix.removeprefix("s3://").partition("/")
    ref = {"scheme": "s3", "bucket": bucket, "prefix": key, "glob": "*.parquet"}
    published = flow.event("files", "write", range_start=start, range_end=end) | {"storage_ref": ref}
    flow.complete(task, lease, datasets_published=[published])


def all_pages(flow: Flow, first: Reply, **fields: Any) -> list[Any]:
    found, reply = names(first), first
    while "next" in reply.body:
        reply = service(flow, page=reply.body["next"], **fields)
        assert reply.body["dataset_version"] == first.body["dataset_version"]
        found += names(reply)
    return found


@pytest.fixture
def flow(harness: DispatcherHarness) -> Flow:
    return Flow(harness, fresh("files"))


@pytest.fixture
def dataset(flow: Flow) -> dict[str, Any]:
    """`blocks` with three units."""
    flow.deploy(FILES)
    write(flow, 0, 9, "blocks_0_4.parquet", "blocks_5_9.parquet")
    write(flow, 10, 19, "blocks_10_19.parquet")
    write(flow, 30, 39, "blocks_30_39.parquet")
    return flow.event("files", "write")


def test_the_same_answer_as_a_task_gets(flow: Flow, dataset: dict[str, Any]) -> None:
    task = flow.tasks("read", "Queued")[0]["task_id"]
    lease = flow.claim(task)
    for blocks in ({}, {"start": 12, "end": 30}, {"start": 20, "end": 29}):
        reply = service(flow, **blocks)
        assert reply.body == dataset | {"units": ask(flow, task, lease, **blocks).body["units"]}
        assert service(flow, org=None, name=None, **dataset, **blocks).body == reply.body
        by_uuid = {"dataset_uuid": dataset["dataset_uuid"]}
        assert service(flow, org=None, name=None, **by_uuid, **blocks).body == reply.body


def test_what_there_is_not(flow: Flow, dataset: dict[str, Any]) -> None:
    nobody = str(uuid4())
    unknown: list[dict[str, Any]] = [
        {"name": "nothing"},
        {"org": "nobody"},
        {"org": None, "name": None, "dataset_uuid": nobody},
        {"dataset_version": nobody},
        {"page": {"dataset_version": nobody, "after": 1, "as_of": "2026-01-01T00:00:00Z"}},
    ]
    for fields in unknown:
        reply = service(flow, **fields)
        assert (reply.status, reply.code) == (404, "dataset_not_found"), fields
    elsewhere = Flow(flow.harness, fresh("files"))
    elsewhere.deploy(FILES)
    empty = service(elsewhere)
    assert (empty.status, empty.code) == (404, "dataset_not_committed")
    assert names(service(flow)) == [FIRST, SECOND, THIRD]
    hot = FILES.replace("name: files", "name: hot").replace("blocks: {from: {job: write}, storage: s3}", "{}")
    flow.deploy(hot.replace("decode_logs", "noop"))
    reply = service(flow, name="hot__write_0")
    assert (reply.status, reply.code) == (422, "dataset_without_rows")
    assert reply.body["error"]["message"] == "hot__write_0 publishes events only and holds no rows."
    (dataset_uuid,) = [
        row["dataset_uuid"] for row in flow.harness.sql("SELECT * FROM datasets WHERE name = $1", "hot__write_0")
    ]
    by_uuid = service(flow, org=None, name=None, dataset_uuid=str(dataset_uuid))
    assert by_uuid.body == reply.body, "also where only its id is named"


NONSENSE: list[dict[str, Any]] = [
    {"start": 1},
    {"end": 1},
    {"start": 2, "end": 1},
    {"start": -1, "end": 1},
    {"name": None},
    {"org": None},
    {"org": None, "name": None},
    {"dataset_uuid": str(UUID(int=1))},
    {"page": {"dataset_version": str(UUID(int=1)), "after": 1, "as_of": "2026-01-01T00:00:00"}},
    {
        "dataset_version": str(UUID(int=2)),
        "page": {"dataset_version": str(UUID(int=1)), "after": 1, "as_of": "2026-01-01T00:00:00Z"},
    },
]


def test_a_question_that_makes_no_sense(flow: Flow) -> None:
    for fields in NONSENSE:
        reply = service(flow, **fields)
        assert (reply.status, reply.code) == (422, "body_invalid"), fields


def test_only_services_may_ask(flow: Flow, dataset: dict[str, Any]) -> None:
    task = flow.tasks("read", "Queued")[0]["task_id"]
    lease = flow.claim(task)
    tokens = {
        "x-trace-worker-token": flow.harness.worker_token,
        "x-trace-task-capability": lease["capability_token"],
        "x-trace-service-token": flow.harness.worker_token,
    }
    for header, token in tokens.items():
        reply = flow.harness.call("internal", "POST", WHERE, dataset, {header: token})
        assert reply.status == 401, header
        assert "units" not in reply.body
    assert flow.harness.call("task", "POST", WHERE, dataset, tokens).status == 404


def test_pages_are_of_one_generation_though_another_is_cut_over_between_them(
    flow: Flow, dataset: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(view, "PAGE", 1)
    first = service(flow)
    flow.deploy(FILES.replace(f"decode_logs, {FROM}", f"decode_logs, config: {{events: [erc20.Transfer]}}, {FROM}"))
    activate(flow.harness, "files", 2, now=True, org=flow.org)
    other = flow.event("files", "write")
    assert other["dataset_version"] != dataset["dataset_version"]
    assert service(flow).code == "dataset_not_committed", "the new generation is the current one, and has nothing yet"
    assert all_pages(flow, first) == [FIRST, SECOND, THIRD]
    assert names(service(flow, dataset_version=dataset["dataset_version"])) == [FIRST, SECOND]


def test_pages_are_of_one_moment_though_units_are_written_between_them(
    flow: Flow, dataset: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(view, "PAGE", 1)
    write(flow, 50, 59, "blocks_50_59.parquet")
    fourth = (50, 59, ["blocks_50_59.parquet"])
    first = service(flow)
    assert names(first) == [FIRST, SECOND]
    write_again(flow, 10, 19, "again_10.parquet")
    write_again(flow, 30, 39, "again_30.parquet")
    write(flow, 40, 49, "blocks_40_49.parquet")
    assert all_pages(flow, first) == [FIRST, SECOND, THIRD, fourth]
    now = [FIRST, (10, 19, ["again_10.parquet"]), (30, 39, ["again_30.parquet"])]
    assert all_pages(flow, service(flow)) == [*now, (40, 49, ["blocks_40_49.parquet"]), fourth]
    ranged = service(flow, start=5, end=39)
    assert all_pages(flow, ranged, start=5, end=39) == now, "the end of the range holds on every page"


def test_by_the_client(flow: Flow, dataset: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(view, "PAGE", 1)
    harness = flow.harness

    class Token:
        def current(self) -> str:
            return harness.service_token

        def newer_than(self, token: str) -> str | None:
            return None

    client = InternalClient(harness.clients["internal"], service=Token())
    request = DatasetFilesRequest(org=flow.org, name="blocks")
    first = harness.run(client.call(routes.LIST_DATASET_FILES, request))
    assert first.next is not None
    second = harness.run(client.call(routes.LIST_DATASET_FILES, msgspec.structs.replace(request, page=first.next)))
    assert [unit.start for page in (first, second) for unit in page.units] == [0, 10, 30]
