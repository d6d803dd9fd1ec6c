"""Deploying documents: versions, definitions, refusals, and deploys that meet each other."""

import asyncio
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import msgspec
import pytest

from tests.api.support import User
from tests.bundles.uploading import push
from tests.deploy.support import Text, chain, dataset, everything, say
from tests.support.dags import ORG, activate, actor, deploy, edge, job, output
from tests.support.dispatcher import DispatcherHarness
from tracelake.dag import KnownBundle, TypedDag
from tracelake.dispatcher.audit import Actor
from tracelake.dispatcher.deploy.deployments import Deployments
from tracelake.dispatcher.deploy.registry import Datasets
from tracelake.errors import TraceError
from tracelake.wire.dags import ActivateRequest, DeployReply


def refused(harness: DispatcherHarness, text: Text | str, **options: Any) -> list[Any]:
    with pytest.raises(TraceError) as error:
        deploy(harness, str(text), **options)
    assert error.value.code == "dag_invalid"
    problems: list[Any] = error.value.details["problems"]
    return problems


def codes(problems: list[Any]) -> list[str]:
    return [problem.code for problem in problems]


def test_a_deploy_makes_an_org_a_version_and_everything_in_it(harness: DispatcherHarness) -> None:
    reply = deploy(harness, str(chain()))
    assert (reply.state, reply.duplicate, reply.plan.version) == ("Active", False, 1)
    assert edge(harness, "d", "a")["dataset_version"] == output(harness, "d", "tick")[1]
    assert edge(harness, "d", "b")["dataset_version"] == output(harness, "d", "a")[1]
    row = edge(harness, "d", "b")
    assert (row["phase"], row["position"], row["drain_until"], row["routed"]) == ("Active", None, None, -1)
    out = dataset(harness, "d_out")
    assert (out["dataset_uuid"], out["current_version"]) == output(harness, "d", "b")
    assert (out["storage"], out["published"], out["dag_name"], out["staged_version"]) == ("postgres", True, "d", None)
    pointers = harness.sql("SELECT dataset_uuid, dataset_version FROM dataset_pointers")
    assert {tuple(row) for row in pointers} == {output(harness, "d", name) for name in ("tick", "a", "b")}
    version = harness.sql("SELECT * FROM dag_versions")[0]
    assert (version["number"], version["created_by"], version["source"]) == (1, "tester", str(chain()))
    assert harness.sql("SELECT routing_epoch FROM orgs")[0]["routing_epoch"] == 1


def test_a_dry_run_answers_the_same_plan_and_writes_nothing(harness: DispatcherHarness) -> None:
    assert deploy(harness, str(chain()), dry_run=True).state == "Planned"
    assert not any(everything(harness).values())
    deploy(harness, str(chain()))
    before = everything(harness)
    edited = str(chain(a=2))
    planned = deploy(harness, edited, dry_run=True)
    assert everything(harness) == before
    assert deploy(harness, edited).plan == planned.plan


def test_the_same_document_is_one_version(harness: DispatcherHarness) -> None:
    first = deploy(harness, str(chain()))
    before = everything(harness)
    again = deploy(harness, "# a comment\n" + str(chain()))
    assert (again.dag_version_id, again.duplicate, again.state) == (first.dag_version_id, True, "Active")
    assert not again.plan.changes
    assert everything(harness) == before


def test_a_version_may_wait_to_be_activated(harness: DispatcherHarness) -> None:
    deploy(harness, str(chain()))
    kept = deploy(harness, str(chain(a=2)), activate=False)
    assert kept.state == "Created"
    assert deploy(harness, str(chain(a=2)), activate=False).state == "Created"
    assert job(harness, "d", "a")["config"] == '{"seconds":1.0}'
    assert not harness.sql("SELECT FROM edges WHERE phase <> 'Active'")
    assert activate(harness, "d", 2).state == "Active"
    assert job(harness, "d", "a")["config"] == '{"seconds":2.0}'


def test_a_change_of_limits_moves_no_data(harness: DispatcherHarness) -> None:
    deploy(harness, str(chain()))
    before, was = edge(harness, "d", "a"), job(harness, "d", "a")
    generations = {name: output(harness, "d", name) for name in ("a", "b")}
    deploy(harness, str(chain(max_attempts=7, scaling={"max_concurrency": 4})))
    now = job(harness, "d", "a")
    assert now["job_id"] != was["job_id"]
    assert (now["node_id"], now["max_attempts"], now["max_concurrency"]) == (was["node_id"], 7, 4)
    assert dict(edge(harness, "d", "a")) == dict(before) | {"job_id": now["job_id"]}
    assert {name: output(harness, "d", name) for name in ("a", "b")} == generations
    limit = harness.sql("SELECT limit_key, max_running FROM limits")
    assert [tuple(row) for row in limit] == [(f"job:{now['org_id']}:d:a", 4)]
    deploy(harness, str(chain(max_attempts=8)))
    assert harness.sql("SELECT max_running FROM limits")[0]["max_running"] is None


def function_of(harness: DispatcherHarness) -> dict[str, Any]:
    return {"bundle_id": push(User(harness, ORG, "writer")), "entrypoint": "trace.handler"}


def test_rows_of_jobs_have_every_default(harness: DispatcherHarness) -> None:
    text = chain().job("f", "tick", runtime="lambda", operator="udf", udf=function_of(harness), config={})
    text.source("feed", runtime="ecs_platform", operator="noop", source={"kind": "always_on"})
    deploy(harness, str(text))

    def limits(name: str) -> tuple[Any, ...]:
        row = job(harness, "d", name)
        return (row["runtime"], row["operator"], row["lease_seconds"], row["timeout_seconds"], row["max_attempts"])

    assert limits("a") == ("ecs_platform", "sleep", 120, 1800, 3)
    assert limits("f") == ("lambda", "udf", 60, 60, 3)
    assert limits("feed") == ("ecs_platform", "noop", 120, None, None)
    assert limits("tick")[:2] == ("dispatcher", "noop")
    document = msgspec.json.decode(job(harness, "d", "a")["document"])
    assert (document["name"], document["config"]) == ("a", {"seconds": 1})
    assert dataset(harness, "d__f_0")["storage"] == "s3"
    assert dataset(harness, "d__feed_0")["storage"] == "none"


def test_a_document_of_another_name_is_refused(harness: DispatcherHarness) -> None:
    call = harness.dispatcher.deployments.deploy(
        actor(harness), "other", str(chain()).encode(), dry_run=False, activate=True
    )
    with pytest.raises(TraceError) as error:
        harness.run(call)
    assert [(item.code, item.path) for item in error.value.details["problems"]] == [("invalid_value", "name")]


def test_problems_of_a_document_are_answered_with_their_places(harness: DispatcherHarness) -> None:
    problems = refused(harness, str(chain()).replace("sleep", "slep"))
    assert codes(problems) == ["unknown_operator", "unknown_operator"]
    assert all(problem.line > 1 and problem.suggestion for problem in problems)
    assert not any(everything(harness).values())


def test_a_dataset_has_one_owner(harness: DispatcherHarness) -> None:
    deploy(harness, str(chain()))
    thief = chain("thief").published("d_out", "b")
    del thief.publish["thief_out"]
    assert codes(refused(harness, thief)) == ["dataset_owned"]
    assert deploy(harness, str(thief), org="elsewhere").state == "Active"


def test_a_dataset_of_jobs_without_a_dag_is_not_taken_over(harness: DispatcherHarness) -> None:
    harness.make_job(outputs=[{"name": "d_out", "storage": "postgres"}])
    assert codes(refused(harness, chain())) == ["dataset_owned"]


def test_a_dataset_keeps_its_storage(harness: DispatcherHarness) -> None:
    deploy(harness, str(chain()))
    assert codes(refused(harness, chain().published("d_out", "b", "none"))) == ["dataset_storage"]


def test_one_job_cannot_write_a_dataset_twice(harness: DispatcherHarness) -> None:
    schema = {"columns": [{"name": "k", "type": "text", "nullable": False}], "unique": ["k"]}
    text = chain(outputs=2)
    writers = [{"job": "a"}, {"job": "a", "output_index": 1}]
    text.publish["rows"] = {"from": writers, "storage": "postgres", "write_mode": "buffered", "schema": schema}
    assert len(refused(harness, text)) == 1


def test_several_writers_share_a_buffered_generation(harness: DispatcherHarness) -> None:
    schema = {"columns": [{"name": "k", "type": "text", "nullable": False}], "unique": ["k"]}
    text = Text().source().job("w1", "tick").job("w2", "tick", seconds=2).job("reader", "dataset.rows")
    entry = {"from": [{"job": "w1"}, {"job": "w2"}], "storage": "postgres", "write_mode": "buffered", "schema": schema}
    text.publish["rows"] = entry
    deploy(harness, str(text))
    shared = output(harness, "d", "w1")
    assert output(harness, "d", "w2") == shared
    assert (edge(harness, "d", "reader")["dataset_uuid"], edge(harness, "d", "reader")["dataset_version"]) == shared
    reader = job(harness, "d", "reader")["node_id"]
    text.job("w2", "tick", seconds=3)
    reply = deploy(harness, str(text))
    assert output(harness, "d", "w2") == shared
    assert job(harness, "d", "reader")["node_id"] == reader
    assert {item.change for item in reply.plan.datasets} == {"unchanged"}


def test_a_table_that_grows_starts_nobody_anew(harness: DispatcherHarness) -> None:
    key: dict[str, Any] = {"name": "k", "type": "text", "nullable": False}
    text = Text().source().job("w", "tick").job("reader", "dataset.rows")
    entry = {"from": [{"job": "w"}], "storage": "postgres", "write_mode": "buffered"}
    text.publish["rows"] = {**entry, "schema": {"columns": [{**key, "max_length": 5}], "unique": ["k"]}}
    deploy(harness, str(text))
    rows = output(harness, "d", "w")
    say(harness, output(harness, "d", "tick"), 1)
    nodes = {name: job(harness, "d", name)["node_id"] for name in ("w", "reader")}
    wider = {"columns": [{**key, "max_length": 9}], "unique": ["k"], "indexes": [["k"]]}
    text.publish["rows"] = {**entry, "schema": wider}
    reply = deploy(harness, str(text))
    assert (reply.state, reply.plan.needs_build, reply.plan.new_version) == ("Active", False, True)
    (change,) = [item for item in reply.plan.datasets if item.table]
    assert (change.dataset, change.change, len(change.table)) == ("rows", "unchanged", 2)
    assert output(harness, "d", "w") == rows
    assert {name: job(harness, "d", name)["node_id"] for name in nodes} == nodes
    (shown,) = harness.sql("SELECT schema FROM dataset_versions WHERE dataset_version = $1", rows[1])
    assert '"max_length":9' in shown["schema"]


def test_what_a_source_emitted_keeps_its_events_under_a_new_name(harness: DispatcherHarness) -> None:
    deploy(harness, str(chain()))
    ticks = output(harness, "d", "tick")
    say(harness, ticks, 1)
    deploy(harness, str(chain().published("ticks", "tick")))
    row = dataset(harness, "ticks")
    assert (row["dataset_uuid"], row["current_version"], row["published"]) == (*ticks, True)
    assert edge(harness, "d", "a")["dataset_version"] == ticks[1]
    deploy(harness, str(chain("x").job("c", "dataset.ticks")))
    assert edge(harness, "x", "c")["dataset_version"] == ticks[1]
    activate(harness, "d", 1)
    assert output(harness, "d", "tick") == ticks
    assert not dataset(harness, "ticks")["published"]


def test_a_source_is_named_once(harness: DispatcherHarness) -> None:
    deploy(harness, str(chain().published("ticks", "tick")))
    assert codes(refused(harness, chain().published("tocks", "tick"))) == ["duplicate_publish"]
    deploy(harness, str(chain("e")))
    assert codes(refused(harness, chain("e").published("d_out", "tick"))) == ["dataset_owned"]
    text = chain("e").published("more", "a", "postgres")
    deploy(harness, str(text))
    del text.publish["more"]
    assert codes(refused(harness, text.published("more", "tick"))) == ["dataset_storage"]


def test_datasets_that_nobody_published_are_of_no_concern_to_others(harness: DispatcherHarness) -> None:
    deploy(harness, str(chain()))
    assert codes(refused(harness, Text("x").source().job("a", "dataset.d__a_0"))) == ["unknown_dataset"]
    assert codes(refused(harness, chain("x").published("d__a_0", "a"))) == ["dataset_owned"]


def test_an_operator_of_another_kind_of_output_gets_a_dataset_of_its_own(harness: DispatcherHarness) -> None:
    deploy(harness, str(chain()))
    assert dataset(harness, "d__a_0")["storage"] == "none"
    text = chain().job("a", "tick", runtime="lambda", operator="udf", udf=function_of(harness), config={})
    deploy(harness, str(text))
    assert dataset(harness, "d__a_0_s3")["storage"] == "s3"
    activate(harness, "d", 1)
    assert output(harness, "d", "a")[0] == dataset(harness, "d__a_0")["dataset_uuid"]


def together(harness: DispatcherHarness, *texts: Text) -> list[DeployReply | BaseException]:
    who = actor(harness)

    async def both() -> list[Any]:
        calls = (
            harness.dispatcher.deployments.deploy(who, text.name, str(text).encode(), dry_run=False, activate=True)
            for text in texts
        )
        return await asyncio.gather(*calls, return_exceptions=True)

    return harness.run(both())


def test_the_same_deploy_twice_at_once_is_one_version(harness: DispatcherHarness) -> None:
    replies = together(harness, *[chain()] * 5)
    assert all(isinstance(reply, DeployReply) for reply in replies), replies
    assert sorted(reply.duplicate for reply in replies if isinstance(reply, DeployReply)) == [False] + [True] * 4
    assert len(harness.sql("SELECT FROM dag_versions")) == len(harness.sql("SELECT FROM activations")) == 1
    assert len(harness.sql("SELECT FROM edges")) == 2


def test_deploys_at_once_are_numbered_one_after_the_other(harness: DispatcherHarness) -> None:
    replies = together(harness, *(chain(a=seconds) for seconds in range(5)))
    plans = sorted(
        (reply.plan.version, reply.plan.active_version) for reply in replies if isinstance(reply, DeployReply)
    )
    assert plans == [(1, None), (2, 1), (3, 2), (4, 3), (5, 4)]
    assert len(harness.sql("SELECT FROM activations WHERE state = 'Active'")) == 1
    assert len(harness.sql("SELECT FROM edges WHERE phase = 'Active'")) == 2


def test_two_dags_that_want_one_dataset_at_once(harness: DispatcherHarness) -> None:
    one, two = (Text(name).source().job("a", "tick").published("wanted", "a") for name in ("one", "two"))
    replies = together(harness, one, two)
    won = [reply for reply in replies if isinstance(reply, DeployReply)]
    lost = [reply for reply in replies if isinstance(reply, TraceError)]
    assert (len(won), len(lost)) == (1, 1)
    assert codes(lost[0].details["problems"]) == ["dataset_owned"]
    assert dataset(harness, "wanted")["dag_name"] == won[0].plan.dag
    assert len(harness.sql("SELECT FROM dag_versions")) == 1


class Overtaken(Deployments):
    """Somebody else deploys between the reading of a document and its transaction."""

    other: Text | None = None

    async def _read(
        self,
        org: str,
        dag: str,
        text: bytes,
        datasets: Datasets,
        bundles: Mapping[str, KnownBundle],
        taken: Mapping[str, str] = MappingProxyType({}),
    ) -> TypedDag:
        document = await super()._read(org, dag, text, datasets, bundles, taken)
        if self.other is not None:
            other, self.other = self.other, None
            who = Actor(subject="other", org="acme", org_id=None)
            await self.deploy(who, other.name, str(other).encode(), dry_run=False, activate=True)
        return document


def test_a_document_is_read_again_when_what_it_names_has_changed(harness: DispatcherHarness) -> None:
    column = {"name": "k", "type": "text", "nullable": False}
    both = {"columns": [column, {"name": "v", "type": "int64"}]}
    upstream = chain()
    upstream.publish["d_out"]["schema"] = both
    deploy(harness, str(upstream))
    dispatcher = harness.dispatcher
    deployments = Overtaken(dispatcher.ports.store, harness.config, lambda: None, dispatcher.documents)
    deployments.other = upstream.copy()
    deployments.other.publish["d_out"]["schema"] = {"columns": [column]}
    reader = Text("x").source("unused").job("a", "dataset.d_out")
    reader.jobs["a"]["inputs"][0]["where"] = {"v": 1}
    call = deployments.deploy(actor(harness), "x", str(reader).encode(), dry_run=False, activate=True)
    with pytest.raises(TraceError) as error:
        harness.run(call)
    assert codes(error.value.details["problems"]) == ["where_unknown_field"]


def test_every_change_is_in_the_audit_log(harness: DispatcherHarness) -> None:
    deploy(harness, str(chain()))
    deploy(harness, str(chain()))
    deploy(harness, str(chain(a=2)), activate=False)
    activate(harness, "d", 2)
    activate(harness, "d", 2)
    activate(harness, "d", "previous")
    rows = harness.sql("SELECT subject, action, target, details FROM audit_log ORDER BY audit_id")
    assert [(row["action"], msgspec.json.decode(row["details"])["version"]) for row in rows] == [
        ("dag.deploy", 1),
        ("dag.deploy", 2),
        ("dag.activate", 2),
        ("dag.rollback", 1),
    ]
    assert {(row["subject"], row["target"]) for row in rows} == {("tester", "d")}


@pytest.mark.parametrize(
    ("dag", "version", "code"),
    [("none", 1, "dag_not_found"), ("d", 9, "dag_version_not_found"), ("d", "previous", "dag_version_not_found")],
)
def test_what_is_not_there_cannot_be_activated(harness: DispatcherHarness, dag: str, version: Any, code: str) -> None:
    with pytest.raises(TraceError) as error:
        activate(harness, dag, version)
    assert error.value.code == "dag_not_found"
    deploy(harness, str(chain()))
    with pytest.raises(TraceError) as error:
        activate(harness, dag, version)
    assert error.value.code == code


def test_dags_of_another_org_are_not_there(harness: DispatcherHarness) -> None:
    deploy(harness, str(chain()))
    deploy(harness, str(chain("e")), org="elsewhere")
    call = harness.dispatcher.deployments.activate(actor(harness, "elsewhere"), "d", ActivateRequest(version=1))
    with pytest.raises(TraceError) as error:
        harness.run(call)
    assert error.value.code == "dag_not_found"


def test_a_large_dag(harness: DispatcherHarness) -> None:
    text = Text().source()
    for index in range(300):
        text.job(f"j{index}", "tick" if index < 10 else f"j{index - 10}")
    reply = deploy(harness, str(text))
    assert len(reply.plan.jobs) == 301
    assert len(harness.sql("SELECT FROM edges WHERE position IS NULL")) == 300


def test_dags_cannot_feed_each_other_in_a_circle(harness: DispatcherHarness) -> None:
    first = """
name: first
defaults: {runtime: ecs_platform}
jobs:
  - {name: src, activation: source, source: {kind: manual}}
  - {name: make, activation: reactive, operator: noop, inputs: [{from: {job: src}}]}
  - {name: other, activation: reactive, operator: noop, inputs: [{from: {job: src}}]}
publish: {x: {from: {job: make}, storage: postgres}}
"""
    second = """
name: second
defaults: {runtime: ecs_platform}
jobs:
  - {name: step, activation: reactive, operator: noop, inputs: [{from: {dataset: x}}]}
  - {name: turn, activation: reactive, operator: noop, inputs: [{from: {job: step}}]}
publish: {y: {from: {job: turn}, storage: postgres}}
"""
    deploy(harness, first)
    deploy(harness, second)
    harmless = _reads_y(first, "other")
    assert deploy(harness, harmless, dry_run=True).plan.changes
    circle = _reads_y(first, "make")
    with pytest.raises(TraceError) as refused:
        deploy(harness, circle, dry_run=True)
    assert [problem.code for problem in refused.value.details["problems"]] == ["cycle"]


def test_a_rollback_cannot_close_a_circle(harness: DispatcherHarness) -> None:
    source = "{name: src, activation: source, source: {kind: manual}}"

    def dag(name: str, publishes: str, reads: str) -> str:
        return f"""
name: {name}
defaults: {{runtime: ecs_platform}}
jobs:
  - {source}
  - {{name: make, activation: reactive, operator: noop, inputs: [{{from: {reads}}}]}}
publish: {{{publishes}: {{from: {{job: make}}, storage: postgres}}}}
"""

    deploy(harness, dag("b", "pb", "{job: src}"))
    deploy(harness, dag("a", "pa", "{dataset: pb}"))
    deploy(harness, dag("a", "pa", "{job: src}"))
    deploy(harness, dag("b", "pb", "{dataset: pa}"))
    with pytest.raises(TraceError) as refused:
        activate(harness, "a", 1)
    assert [problem.code for problem in refused.value.details["problems"]] == ["cycle"]


def _reads_y(text: str, job: str) -> str:
    head = f"{{name: {job}, activation: reactive, operator: noop, inputs: [{{from: "
    assert head in text
    return text.replace(head + "{job: src}", head + "{dataset: y}")
