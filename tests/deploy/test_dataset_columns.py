"""Columns that a deploy records with generations: for other DAGs, for people, and in the plan of a change."""

import msgspec
import pytest
import yaml

from tests.api.support import User
from tests.dag.test_columns import document, sql
from tests.deploy.support import Text, say
from tests.support.dags import ORG, deploy, output
from tests.support.dispatcher import DispatcherHarness
from tracelake.errors import TraceError
from tracelake.wire.datasets import DatasetDetail

QUERY = "SELECT block_number, author,\n       gas_used * 2 AS twice\nFROM t0\n"


def flows(query: str = QUERY, **publish: object) -> str:
    entry = {"from": {"job": "flows"}, "storage": "s3", **publish}
    return document(sql("flows", query, {"job": "ingest"}), flows=entry)


def show(harness: DispatcherHarness, name: str) -> DatasetDetail:
    reply = User(harness, ORG, "reader").get(f"/v1/datasets/{name}")
    return msgspec.convert(reply, DatasetDetail)


def columns(detail: DatasetDetail) -> dict[str, str]:
    return {column.name: column.type for column in detail.columns}


def test_columns_are_recorded_shown_and_described(harness: DispatcherHarness) -> None:
    text = flows(description="Gas.", owner="data team", columns={"twice": "Twice the gas."})
    deploy(harness, text)
    detail = show(harness, "flows")
    assert columns(detail) == {"block_number": "bigint", "author": "binary", "twice": "decimal(22,0)"}
    assert (detail.columns_complete, detail.description, detail.owner) == (True, "Gas.", "data team")
    assert [column.description for column in detail.columns] == ["", "", "Twice the gas."]
    assert detail.content is None
    # Another description is another version, and nothing is made anew.
    reply = deploy(harness, flows(description="Gas of blocks."))
    assert (reply.plan.version, reply.plan.needs_build, reply.plan.rebuilds) == (2, False, [])
    assert show(harness, "flows").description == "Gas of blocks."


def test_what_was_deployed_before_is_unknown_until_the_next_deploy(harness: DispatcherHarness) -> None:
    deploy(harness, flows())
    harness.sql("UPDATE dataset_versions SET columns = NULL")
    assert (columns(show(harness, "flows")), show(harness, "flows").columns_complete) == ({}, False)
    reader = sql("reads", "SELECT nothing_known AS x FROM t0", {"dataset": "flows"})
    ask = {"name": "ask", "activation": "source", "source": {"kind": "manual"}}
    other = yaml.safe_dump({"name": "other", "jobs": [ask, reader]})
    assert deploy(harness, other, dry_run=True).plan.new_version
    assert deploy(harness, flows()).duplicate
    assert columns(show(harness, "flows"))["twice"] == "decimal(22,0)"
    with pytest.raises(TraceError) as refused:
        deploy(harness, other)
    (problem,) = refused.value.details["problems"]
    assert (problem.code, problem.message) == ("unknown_column", "There is no column `nothing_known`.")


def test_a_deploy_is_refused_with_all_mistakes(harness: DispatcherHarness) -> None:
    with pytest.raises(TraceError) as refused:
        deploy(harness, flows("SELECT blok_number, hour(timestamp) AS h, author + 1 AS x FROM t0"))
    codes = [problem.code for problem in refused.value.details["problems"]]
    assert codes == ["unknown_column", "type_mismatch", "type_mismatch"]
    assert not harness.sql("SELECT FROM dag_versions")


def test_a_changed_query_is_a_diff(harness: DispatcherHarness) -> None:
    deploy(harness, flows())
    plan = deploy(harness, flows(QUERY.replace("* 2", "* 3")), dry_run=True).plan
    (change,) = [job for job in plan.jobs if job.change == "changed"]
    (text,) = change.texts
    assert text.field == "config.query"
    assert text.diff[1:] == [
        " SELECT block_number, author,",
        "-       gas_used * 2 AS twice",
        "+       gas_used * 3 AS twice",
        " FROM t0",
    ]


def test_a_change_says_how_many_units_it_makes_anew(harness: DispatcherHarness) -> None:
    text = Text().source().job("a", "tick").job("b", "a").published("d_out", "b")
    deploy(harness, str(text))
    for name in ("tick", "a", "b"):
        for number in range(3):
            say(harness, output(harness, "d", name), number)
    plan = deploy(harness, str(text.copy().job("a", "tick", seconds=1)), dry_run=True).plan
    assert [(item.job, item.units, item.more) for item in plan.rebuilds] == [("a", 3, False), ("b", 3, False)]
    assert plan.rebuild_tasks == 6
    plan = deploy(harness, str(text.copy().job("c", "b")), dry_run=True).plan
    assert [(item.job, item.units) for item in plan.rebuilds] == [("c", 3)]
    assert deploy(harness, str(text), dry_run=True).plan.rebuilds == []


def test_a_writer_of_a_table_computes_the_units_of_its_inputs(harness: DispatcherHarness) -> None:
    """Events of a table are commits: of several units at once, and of all writers."""
    text = Text().source().job("w", "tick").job("other", "tick")
    schema = {"columns": [{"name": "k", "type": "text", "nullable": False}], "unique": ["k"]}
    writers = [{"job": "w"}, {"job": "other"}]
    text.publish["rows"] = {"from": writers, "storage": "postgres", "write_mode": "buffered", "schema": schema}
    deploy(harness, str(text))
    for number in range(4):
        say(harness, output(harness, "d", "tick"), number)
    say(harness, output(harness, "d", "w"), 0)
    changed = str(text.copy().job("w", "tick", seconds=1))
    assert [(item.job, item.units) for item in deploy(harness, changed, dry_run=True).plan.rebuilds] == [("w", 4)]
