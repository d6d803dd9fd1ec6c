"""What a deploy records of a table that tasks write directly, and what it refuses."""

import pytest

from tests.api.support import User
from tests.deploy.support import say
from tests.support.dags import ORG, deploy, output
from tests.support.dispatcher import DispatcherHarness
from tracelake.errors import TraceError
from tracelake.wire.dags import DeployReply

DOCUMENT = """\
name: d
jobs:
- {name: tick, activation: source, source: {kind: manual}}
- {name: w, activation: reactive, runtime: ecs_platform, operator: %s, inputs: [{from: {job: tick}}]}
publish:
  hot:
    from: {job: w}
    storage: postgres
    write_mode: direct
    schema: {columns: [{name: block_number, type: int64}%s], unique: [block_number]}
"""


def test_a_table_is_recorded_and_grows_within_its_generation(harness: DispatcherHarness) -> None:
    deploy(harness, DOCUMENT % ("noop", ""))
    (first,) = harness.sql("SELECT dataset_uuid, schema, changed_at FROM direct_tables")
    versions = harness.sql("SELECT dataset_version FROM dataset_versions WHERE schema IS NOT NULL")
    deploy(harness, DOCUMENT % ("noop", ", {name: fee, type: int64}"))
    (grown,) = harness.sql("SELECT dataset_uuid, schema, changed_at FROM direct_tables")
    assert grown["dataset_uuid"] == first["dataset_uuid"]
    assert "fee" in grown["schema"]
    assert grown["changed_at"] > first["changed_at"]
    assert harness.sql("SELECT dataset_version FROM dataset_versions WHERE schema IS NOT NULL") == versions


def test_a_column_cannot_be_taken_away(harness: DispatcherHarness) -> None:
    deploy(harness, DOCUMENT % ("noop", ", {name: fee, type: int64}"))
    with pytest.raises(TraceError) as refused:
        deploy(harness, DOCUMENT % ("noop", ""))
    assert "table_change" in str(refused.value.details)


def test_an_operator_that_runs_text_of_users_may_not_write_directly(harness: DispatcherHarness) -> None:
    with pytest.raises(TraceError) as refused:
        deploy(harness, DOCUMENT % ('spark_sql, config: {query: "SELECT 1 AS block_number"}', ""))
    assert "operator_storage" in str(refused.value.details)
    assert harness.sql("SELECT 1 FROM direct_tables") == []


LIVE = """\
name: usdc
chains:
- name: usdc
  chain_id: 1
  start: 100
  runtime: ecs_platform
  filter: {addresses: ["0x1111111111111111111111111111111111111111"]}
  publish: {blocks: usdc_blocks, logs: usdc_logs}
"""
OLD_ROWS_STAY = (
    "WARNING: old rows stay: blocks that are there are not read again, though %s changed. "
    "Publish under another name to read all of them"
)


def shown_tables(reply: DeployReply) -> dict[str, list[str]]:
    return {change.dataset: change.table for change in reply.plan.datasets if change.table}


@pytest.mark.parametrize(
    ("old", "new", "writers"),
    [
        ('111"]', '111", "0x2222222222222222222222222222222222222222"]', "`usdc_head` and `usdc_history`"),
        ("start: 100", "start: 50", "`usdc_head`"),
        (
            "runtime:",
            "columns: {logs: [block_hash]}\n  runtime:",
            "`usdc_compact`, `usdc_head` and `usdc_history`",
        ),
    ],
)
def test_the_plan_warns_that_blocks_are_not_read_again(
    harness: DispatcherHarness, old: str, new: str, writers: str
) -> None:
    deploy(harness, LIVE)
    texts = shown_tables(deploy(harness, LIVE.replace(old, new)))
    assert texts.keys() == {"usdc_blocks", "usdc_logs"}
    assert {dataset: lines[-1] for dataset, lines in texts.items()} == dict.fromkeys(texts, OLD_ROWS_STAY % writers)


def test_a_change_reads_no_block_again(harness: DispatcherHarness) -> None:
    """The follower and the history go on where they were; what is made of the chain is computed again."""
    model = LIVE + (
        "jobs:\n- {name: all_logs, activation: reactive, runtime: ecs_platform, operator: spark_sql,"
        ' config: {query: "SELECT block_number FROM usdc_logs"}, inputs: [{from: {dataset: usdc_logs}}]}\n'
        "publish:\n  all_logs: {from: {job: all_logs}, storage: s3}\n"
    )
    deploy(harness, model)
    for index in range(4):  # blocks, logs, ranges of history, sealed units
        say(harness, output(harness, "usdc", "usdc_head", index), 1)
    changed = model.replace("runtime:", "columns: {logs: [block_hash]}\n  runtime:", 1)
    plan = deploy(harness, changed, dry_run=True).plan
    assert [item.job for item in plan.rebuilds] == ["all_logs"]


def test_the_run_that_a_change_ends_is_no_gap(harness: DispatcherHarness) -> None:
    deploy(harness, LIVE)
    harness.run(harness.dispatcher.monitor.run_once())
    deploy(harness, LIVE.replace("runtime:", "columns: {logs: [block_hash]}\n  runtime:"))
    harness.run(harness.dispatcher.monitor.run_once())
    assert [row["status"] for row in harness.sql("SELECT status FROM tasks ORDER BY task_id")] == ["Canceled", "Queued"]
    user = User(harness, ORG)
    assert "given_up" not in user.get("/v1/datasets/usdc_logs")
    reply = user.get("/v1/why/dataset/usdc_logs")
    assert "units_given_up" not in {reason["code"] for reason in reply["reasons"]}


def test_the_plan_warns_of_a_table_without_files(harness: DispatcherHarness) -> None:
    deploy(harness, DOCUMENT % ("noop", ""))
    changed = DOCUMENT % ("noop, bootstrap: {reset_outputs: true}", "")
    assert shown_tables(deploy(harness, changed)) == {"hot": [OLD_ROWS_STAY % "`w`"]}


def test_a_change_that_reads_the_same_blocks_warns_of_nothing(harness: DispatcherHarness) -> None:
    deploy(harness, LIVE)
    tuning = "batch_size: 7\n  poll_max_seconds: 3\n  finality_depth_blocks: 70\n  runtime:"
    assert shown_tables(deploy(harness, LIVE.replace("runtime:", tuning))) == {}


def test_a_table_gets_no_rows_of_another_chain(harness: DispatcherHarness) -> None:
    deploy(harness, LIVE)
    other = LIVE.replace("chain_id: 1", "chain_id: 2")
    with pytest.raises(TraceError) as refused:
        deploy(harness, other)
    assert [(problem.code, problem.message) for problem in refused.value.details["problems"]] == [
        (
            "table_change",
            f"`chain_id` of `usdc_head` cannot become 2: `{dataset}` has rows of chain 1."
            " Publish under another name instead.",
        )
        for dataset in ("usdc_blocks", "usdc_logs")
    ]
    others = other.replace("usdc_blocks", "other_blocks").replace("usdc_logs", "other_logs")
    assert shown_tables(deploy(harness, others)).keys() == {"other_blocks", "other_logs"}
