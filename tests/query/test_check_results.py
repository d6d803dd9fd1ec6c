"""The relation `_check_results`: who reads which results, how many, and that nothing takes its name."""

import json

import pytest

from tests.http.support import fresh
from tests.query.support import FILES, ServiceHarness, wait_until
from tests.routing.support import Flow
from tests.support.dispatcher import DispatcherHarness, fence
from tracelake.errors import TraceError
from tracelake.query.check_results import COLUMNS, MOST_RESULTS, NAME
from tracelake.query.gate.check import QueryGate
from tracelake.wire.contract import Listener

CHECKED = FILES.replace(
    "storage: s3}", "storage: s3, checks: [{not_null: hash}, {row_count: {min: 1}, severity: warn}]}"
)
RESULT = {"output_index": 0, "severity": "error", "rows": 10, "offending_rows": 0}
BAD = RESULT | {
    "name": "not_null_hash",
    "kind": "not_null",
    "passed": False,
    "offending_rows": 3,
    "message": "hash is null in 3 of 10 rows",
    "sample": [{"hash": None, "block_number": "7"}],
}
WARNED = RESULT | {"name": "row_count", "kind": "row_count", "severity": "warn", "passed": False}
FAILURE = {"status": "Failed", "retryable": False, "error_code": "check_failed", "error_message": "check_failed: hash"}


@pytest.fixture
def checked(harness: DispatcherHarness) -> Flow:
    """An org with one task of `write`, which failed a check of error and one of warn."""
    flow = Flow(harness, fresh("checked"))
    flow.deploy(CHECKED)
    flow.trigger("files", "src", range={"start": 0, "end": 9})
    task = flow.tasks("write", "Queued")[0]["task_id"]
    lease = flow.claim(task)
    body = fence(str(task), lease, **FAILURE, checks=[BAD, WARNED])
    assert flow.harness.task("complete", lease["capability_token"], body).status == 200
    return flow


def add_results(flow: Flow, number: int) -> None:
    """As many results, ten of each minute, newer than those that are there."""
    flow.harness.sql(
        """INSERT INTO check_results (task_id, attempt, output_index, name, org_id, dataset_uuid, dataset_version, unit,
                                      kind, severity, passed, rows, offending_rows, message, sample, checked_at)
           SELECT r.task_id, 1, 0, 'added_' || i, r.org_id, r.dataset_uuid, r.dataset_version, r.unit, r.kind,
                  r.severity, true, 1, 0, '', '[]', r.checked_at + (i + 10) / 10 * interval '1 minute'
           FROM check_results r JOIN orgs o USING (org_id), generate_series(1, $2::int) i
           WHERE o.name = $1 AND r.name = 'row_count'""",
        flow.org,
        number,
    )


def test_results_can_be_queried_with_their_samples(service: ServiceHarness, checked: Flow) -> None:
    reply = service.query(
        checked.org,
        f"SELECT dataset, job, unit, check_name, kind, severity, verdict, checked_rows, offending_rows, message,"
        f" sample_rows, attempt, checked_at > '2020-01-01' AS recent FROM {NAME} ORDER BY check_name",
    )
    assert reply.status == 200, reply
    first, second = reply.body["rows"]
    sample = json.loads(first.pop(10))
    assert sample == BAD["sample"]
    assert first == [
        "blocks", "files/write", "0-9", "not_null_hash", "not_null", "error", "failed", 10, 3, BAD["message"], 1, True,
    ]  # fmt: skip
    assert second[3:7] == ["row_count", "row_count", "warn", "warned"]
    nulls = f"SELECT count(*) FROM {NAME}, json_each(sample_rows) r WHERE json_extract(r.value, '$.hash') = 'null'"
    assert service.rows(checked.org, nulls) == [[1]]
    (entry, _) = service.audits(checked.org)
    assert [dataset["name"] for dataset in entry["datasets"]] == [NAME], "who read samples is recorded"


def test_results_join_datasets_and_the_catalog_has_their_columns(service: ServiceHarness, flow: Flow) -> None:
    rows = service.rows(
        flow.org, f"SELECT count(*), count(c.unit) FROM blocks LEFT JOIN {NAME} c ON c.dataset = 'blocks'"
    )
    assert rows == [[20, 0]], "there are no results yet"
    reply = service.call(Listener.QUERY, "GET", "/v1/query/catalog", None, service.user_headers(flow.org))
    relation = next(item for item in reply.body["relations"] if item["name"] == NAME)
    assert [column["name"] for column in relation["columns"]] == [column.name for column in COLUMNS]
    assert {"name": "checked_at", "type": "TIMESTAMP WITH TIME ZONE"} in relation["columns"]


def test_another_org_sees_its_own_results_only(service: ServiceHarness, checked: Flow) -> None:
    other = Flow(checked.harness, fresh("other"))
    other.deploy(CHECKED)
    for org in (other.org, fresh("nobody")):
        assert service.rows(org, f"SELECT count(*) FROM {NAME}") == [[0]]
    assert service.rows(checked.org, f"SELECT count(*) FROM {NAME}") == [[2]]


def test_the_newest_results_are_there_each_once(service: ServiceHarness, checked: Flow) -> None:
    add_results(checked, 2_500)
    count = f"SELECT count(*), count(DISTINCT check_name), max(attempt) FROM {NAME}"
    assert service.rows(checked.org, count) == [[2_502, 2_502, 1]]
    checked.harness.sql("DELETE FROM check_results WHERE name LIKE 'added%'")
    add_results(checked, MOST_RESULTS + 5)
    assert service.rows(checked.org, count)[0][0] == MOST_RESULTS
    oldest = f"SELECT count(*) FROM {NAME} WHERE check_name IN ('row_count', 'not_null_hash', 'added_1')"
    assert service.rows(checked.org, oldest) == [[0]]


def test_the_newest_are_those_of_the_dataset_and_the_check_that_is_asked_for(
    service: ServiceHarness, checked: Flow
) -> None:
    add_results(checked, MOST_RESULTS + 5)
    checked.deploy(FILES.replace("name: files", "name: more").replace("blocks:", "more_blocks:"))
    checked.harness.sql(
        """UPDATE check_results r SET dataset_uuid = d.dataset_uuid FROM datasets d JOIN orgs o USING (org_id)
           WHERE o.name = $1 AND d.name = 'more_blocks' AND r.org_id = o.org_id AND r.name = 'row_count'""",
        checked.org,
    )

    def names(condition: str) -> list[str]:
        return [name for (name,) in service.rows(checked.org, f"SELECT check_name FROM {NAME} WHERE {condition}")]

    assert names("check_name = 'not_null_hash'") == ["not_null_hash"]
    assert names("dataset = 'more_blocks'") == ["row_count"]
    assert names("dataset = 'more_blocks' AND check_name = 'not_null_hash'") == []
    assert names("dataset = 'nothing'") == []
    assert names("dataset = 'more_blocks' OR check_name = 'added_2'") == []
    ((count,),) = service.rows(checked.org, f"SELECT count(*) FROM {NAME} WHERE dataset = 'blocks'")
    assert count == MOST_RESULTS


def test_tasks_and_batch_queries_do_not_have_it(service: ServiceHarness, flow: Flow) -> None:
    task = flow.tasks("read", "Queued")[0]["task_id"]
    reply = service.query_as_task(task, flow.claim(task), f"SELECT * FROM {NAME}")
    assert (reply.status, reply.code) == (422, "query_unknown_relation")
    reply = service.query(flow.org, f"SELECT * FROM {NAME}", mode="batch")
    assert (reply.status, reply.code) == (422, "query_unknown_relation")


def test_a_query_ends_if_the_dispatcher_does_not_list_results(service: ServiceHarness, checked: Flow) -> None:
    checked.harness.sql("ALTER TABLE check_results RENAME TO hidden")
    try:
        assert service.query(checked.org, f"SELECT * FROM {NAME}").status >= 500
        assert service.rows(checked.org, "SELECT 1") == [[1]]
    finally:
        checked.harness.sql("ALTER TABLE hidden RENAME TO check_results")
    wait_until(lambda: service.running == [])


def test_no_dataset_can_have_the_name(harness: DispatcherHarness) -> None:
    with pytest.raises(TraceError) as refused:
        Flow(harness, fresh("shadow")).deploy(FILES.replace("blocks:", f"{NAME}:"))
    (problem,) = refused.value.details["problems"]
    assert NAME in problem.message


@pytest.mark.parametrize(
    ("sql", "relations"),
    [
        (f"SELECT sample_rows FROM {NAME}", {NAME}),
        (f'SELECT "{NAME}".kind FROM "{NAME}" JOIN blocks ON true', {NAME, "blocks"}),
        (f"SELECT kind FROM {NAME.upper()}", {NAME}),
        (f"WITH {NAME} AS (SELECT 1 AS kind) SELECT kind FROM {NAME}", set()),
    ],
)
def test_the_gate_knows_it_as_any_other_relation(sql: str, relations: set[str]) -> None:
    granted = {
        "blocks": {"block_number": "BIGINT"},
        NAME: {"kind": "VARCHAR", "sample_rows": "VARCHAR"},
    }
    assert QueryGate().check(sql, {}, granted).relations == relations
