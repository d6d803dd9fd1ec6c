"""What a plan says for each kind of change. No database: the plan is a function of documents and the registry."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any
from uuid import UUID, uuid5

import pytest

from tests.deploy.support import Text, chain
from tests.support.configs import dispatcher_config
from tracelake.dag import KnownDataset, Surroundings, read_dag
from tracelake.dispatcher.deploy.definition import define
from tracelake.dispatcher.deploy.hashes import data_hashes, schema_hash
from tracelake.dispatcher.deploy.outputs import Generation, KnownNode, StoredDataset
from tracelake.dispatcher.deploy.plan import ActiveVersion, JobHashes, Registry, Standing, make_plan
from tracelake.errors import TraceError
from tracelake.model.dag import Dag
from tracelake.wire.dags import Plan

CONFIG = dispatcher_config()
SPACE = UUID("00000000-0000-0000-0000-000000000001")
FIRST, SECOND = uuid5(SPACE, "v1"), uuid5(SPACE, "v2")
OTHER = StoredDataset(uuid5(SPACE, "prices"), "prices", "markets", "s3", True, uuid5(SPACE, "prices-1"))
SCHEMA = {"columns": [{"name": "k", "type": "text", "nullable": False}], "unique": ["k"]}


def read(text: Text) -> Dag:
    known = {OTHER.name: KnownDataset(owner_dag="markets", schema=None, storage="s3")}
    return read_dag(str(text).encode(), Surroundings(runtimes=CONFIG.runtimes, datasets=known, bundles={}))


def hashes(dag: Dag, version: UUID) -> dict[str, JobHashes]:
    data = data_hashes(dag, {OTHER.name: OTHER.dataset_uuid}, version)
    return {
        job.name: JobHashes(data[job.name], define(job, data[job.name], CONFIG).definition_hash) for job in dag.jobs
    }


def empty(new: Dag) -> Registry:
    return Registry(
        number=1,
        new_version=True,
        hashes=hashes(new, FIRST),
        active=None,
        nodes={},
        datasets={OTHER.name: OTHER},
        tables={},
        counted=frozenset(),
        with_events=frozenset(),
        subscribers={},
    )


def after(old: Dag, new: Dag) -> Registry:
    """The registry as the deploy of `old` leaves it, for a plan of `new`."""
    before = make_plan(old, empty(old))
    datasets = {OTHER.name: OTHER}
    nodes: dict[tuple[str, str], KnownNode] = {}
    outputs: dict[tuple[str, int], tuple[str, Generation]] = {}
    for job in before.jobs:
        name, data = job.document.name, job.hashes.data
        bound: dict[int, Generation] = {}
        for item in job.outputs:
            key = item.name if item.shared else f"{name}/{data}/{item.output_index}"
            generation = (uuid5(SPACE, item.name), uuid5(SPACE, f"{key}/{item.schema_hash}"))
            bound[item.output_index] = generation
            outputs[name, item.output_index] = (item.name, generation)
            datasets[item.name] = StoredDataset(
                generation[0], item.name, old.name, item.storage, item.published, generation[1]
            )
        nodes[name, data] = KnownNode(uuid5(SPACE, data), True, bound)
    return replace(
        empty(new),
        number=2,
        hashes=hashes(new, SECOND),
        active=ActiveVersion(1, old, hashes(old, FIRST), outputs),
        nodes=nodes,
        datasets=datasets,
        counted=frozenset(generation for _, generation in outputs.values()),
    )


def plan(old: Text, new: Text) -> Plan:
    return make_plan(read(new), after(read(old), read(new))).wire


def jobs(found: Plan) -> dict[str, str]:
    return {item.job: " ".join([item.change, *item.fields]) for item in found.jobs}


def datasets(found: Plan) -> dict[str, str]:
    return {item.dataset: item.change for item in found.datasets}


def edit(change: Callable[[Text], object], base: Text | None = None) -> tuple[Text, Text]:
    old = base or chain()
    new = old.copy()
    change(new)
    return old, new


def set_fields(name: str, **fields: object) -> Callable[[Text], object]:
    return lambda text: text.jobs[name].update(fields)


def test_a_first_version_adds_everything() -> None:
    found = make_plan(read(chain()), empty(read(chain()))).wire
    assert jobs(found) == {"tick": "added", "a": "added", "b": "added"}
    assert datasets(found) == {"d__tick_0": "added", "d__a_0": "added", "d_out": "added"}
    assert (found.version, found.new_version, found.active_version, found.needs_build) == (1, True, None, False)


def test_the_same_document_changes_nothing() -> None:
    found = plan(chain(), chain())
    assert set(jobs(found).values()) == {"unchanged"}
    assert set(datasets(found).values()) == {"unchanged"}


def test_single_values_are_told_before_and_after() -> None:
    base = chain()
    base.jobs["a"].update({"operator": "sleep", "config": {"seconds": 1}})
    _, new = edit(set_fields("a", config={"seconds": 2}, max_attempts=9), base)
    found = next(item for item in plan(base, new).jobs if item.job == "a")
    assert [(item.field, item.before, item.after) for item in found.values] == [
        ("config.seconds", 1.0, 2.0),
        ("max_attempts", None, 9),
    ]
    # A list is named and not repeated.
    _, keyed = edit(set_fields("a", secrets=["x"]), base)
    found = next(item for item in plan(base, keyed).jobs if item.job == "a")
    assert (found.fields, found.values) == (["secrets"], [])


LIMITS = [
    ({"timeout_seconds": 77}, "timeout_seconds"),
    ({"heartbeat_timeout_seconds": 7}, "heartbeat_timeout_seconds"),
    ({"max_attempts": 9}, "max_attempts"),
    ({"priority": "bulk"}, "priority"),
    ({"scaling": {"max_concurrency": 2}}, "max_concurrency"),
    ({"max_queue_depth": 5}, "max_queue_depth"),
    ({"max_queue_age": "5m"}, "max_queue_age_seconds"),
]


@pytest.mark.parametrize(("fields", "name"), LIMITS, ids=[name for _, name in LIMITS])
def test_limits_rebuild_nothing(fields: dict[str, object], name: str) -> None:
    found = plan(*edit(set_fields("a", **fields)))
    assert jobs(found) == {"tick": "unchanged", "a": f"limits {name}", "b": "unchanged"}
    assert set(datasets(found).values()) == {"unchanged"}


DATA = [
    ({"config": {"seconds": 5}}, "config"),
    ({"operator": "noop", "config": {}}, "operator config"),
    ({"execution_strategy": "PerPartition"}, "execution_strategy"),
    ({"secrets": ["KEY"]}, "secrets"),
    ({"outputs": 2}, "outputs"),
    ({"inputs": [{"from": {"job": "tick"}, "where": {"kind": "x"}}]}, "inputs"),
    ({"inputs": [{"from": {"dataset": "prices"}}]}, "inputs"),
]


@pytest.mark.parametrize(("fields", "names"), DATA, ids=[names for _, names in DATA[:-1]] + ["another input"])
def test_data_is_rebuilt_from_the_edit_onward(fields: dict[str, object], names: str) -> None:
    found = plan(*edit(set_fields("a", **fields)))
    assert jobs(found)["tick"] == "unchanged"
    assert sorted(jobs(found)["a"].split()) == sorted(f"changed {names}".split())
    assert jobs(found)["b"] == "changed upstream"
    assert datasets(found)["d__tick_0"] == "unchanged"
    assert datasets(found)["d__a_0"] == datasets(found)["d_out"] == "rebuilt"
    assert {item.because.split(":")[0] for item in found.datasets if item.change == "rebuilt"} == {"a changed"}


def test_the_edit_of_the_last_job_leaves_what_is_before_it() -> None:
    found = plan(*edit(set_fields("b", config={"seconds": 9})))
    assert datasets(found) == {"d__tick_0": "unchanged", "d__a_0": "unchanged", "d_out": "rebuilt"}


def test_branches_that_the_edit_does_not_reach_stay() -> None:
    base = chain().job("side", "tick")
    found = plan(*edit(set_fields("a", config={"seconds": 5}), base))
    assert jobs(found)["side"] == "unchanged"
    assert datasets(found)["d__side_0"] == "unchanged"


def test_what_a_source_emits_outlives_its_schedule_and_its_kind() -> None:
    old = chain().source("tick", source={"kind": "cron", "schedule": "0 * * * *"})
    for source in ({"kind": "cron", "schedule": "5 * * * *"}, {"kind": "webhook", "webhook_path": "tick"}):
        found = plan(*edit(set_fields("tick", source=source), old))
        assert jobs(found) == {"tick": "limits source", "a": "unchanged", "b": "unchanged"}
        assert set(datasets(found).values()) == {"unchanged"}


def test_jobs_come_and_go() -> None:
    old, new = edit(lambda text: text.job("c", "b"))
    assert jobs(plan(old, new))["c"] == "added"
    assert datasets(plan(old, new))["d__c_0"] == "added"
    assert jobs(plan(new, old))["c"] == "removed"
    assert datasets(plan(new, old))["d__c_0"] == "removed"


def test_a_new_name_is_another_dataset() -> None:
    old, new = edit(lambda text: text.publish.update(other=text.publish.pop("d_out")))
    found = plan(old, new)
    assert jobs(found)["b"] == "changed publish"
    assert datasets(found) == {"d__tick_0": "unchanged", "d__a_0": "unchanged", "other": "added", "d_out": "removed"}


def test_a_published_schema_is_part_of_the_data() -> None:
    found = plan(*edit(lambda text: text.publish["d_out"].update(schema=SCHEMA)))
    assert jobs(found)["b"] == "changed publish"
    assert datasets(found)["d_out"] == "rebuilt"


def test_a_source_takes_its_events_along_to_a_new_name() -> None:
    old, new = edit(lambda text: text.published("ticks", "tick"))
    found = plan(old, new)
    assert set(jobs(found).values()) == {"unchanged"}
    assert datasets(found)["ticks"] == "unchanged"
    assert "d__tick_0" not in datasets(found)
    assert next(item.because for item in found.datasets if item.dataset == "ticks") == "it was called d__tick_0"


def buffered(*writers: str, schema: dict[str, object] | None = None) -> Text:
    text = Text().source()
    for index, name in enumerate(writers):
        text.job(name, "tick", seconds=index)
    entry = {"from": [{"job": name} for name in writers], "storage": "postgres", "write_mode": "buffered"}
    text.publish["rows"] = entry | {"schema": schema or SCHEMA}
    return text.job("reader", "dataset.rows")


def test_a_buffered_dataset_does_not_depend_on_its_writers() -> None:
    found = plan(buffered("w1"), buffered("w1", "w2"))
    assert jobs(found) == {"tick": "unchanged", "w1": "unchanged", "w2": "added", "reader": "unchanged"}
    assert datasets(found)["rows"] == "unchanged"
    changed = buffered("w1")
    changed.jobs["w1"]["config"] = {"seconds": 3}
    found = plan(buffered("w1"), changed)
    assert jobs(found)["w1"] == "changed config"
    assert (jobs(found)["reader"], datasets(found)["rows"]) == ("unchanged", "unchanged")


def tables(found: Plan) -> dict[str, list[str]]:
    return {item.dataset: item.table for item in found.datasets if item.table}


def test_the_plan_says_what_becomes_of_rows_of_writers_that_change() -> None:
    before = buffered("w1", "w2")
    assert tables(plan(before, buffered("w1", "w2"))) == {
        "rows": ["create the table (1 columns)"]
    }  # none in the registry
    for name, fields in (("config", {"config": {"seconds": 9}}), ("reset", {"bootstrap": {"reset_outputs": True}})):
        changed = before.copy()
        changed.jobs["w1"].update(fields)
        (texts,) = tables(plan(before, changed)).values()
        assert texts[1:] == ["rebuild the rows of `w1`: the new ones replace the old ones at the cutover"], name
    both = before.copy()
    both.jobs["w1"]["config"] = both.jobs["w2"]["config"] = {"seconds": 9}
    (texts,) = tables(plan(before, both)).values()
    assert texts[1:] == ["rebuild the rows of `w1` and `w2`: the new ones replace the old ones at the cutover"]
    (texts,) = tables(plan(before, buffered("w1"))).values()
    assert texts[1:] == ["remove the rows of `w2`, which no longer writes it, at the cutover"]
    (texts,) = tables(plan(buffered("w1"), before)).values()
    assert not texts[1:], "what is new has left nothing behind"
    files = chain()
    assert tables(plan(*edit(set_fields("a", config={"seconds": 7}), files))) == {}


def test_a_table_follows_its_schema_and_its_writers_go_on() -> None:
    columns = [*SCHEMA["columns"], {"name": "v", "type": "int64"}]  # type: ignore[misc]
    found = plan(buffered("w1"), buffered("w1", schema={"columns": columns, "unique": ["k"]}))
    assert (jobs(found)["w1"], datasets(found)["rows"]) == ("unchanged", "unchanged")
    assert jobs(found)["reader"] == "changed upstream", "it sees another column"


def test_readers_of_a_table_do_not_see_its_indexes_and_limits() -> None:
    key = {"name": "k", "type": "text", "nullable": False, "max_length": 100}
    schema = {"columns": [key], "unique": ["k"], "indexes": [["k"]]}
    found = plan(buffered("w1"), buffered("w1", schema=schema))
    assert set(jobs(found).values()) == {"unchanged"}


def test_reset_outputs_starts_anew_with_each_version() -> None:
    base = chain(bootstrap={"reset_outputs": True})
    found = plan(*edit(lambda text: text.job("c", "b"), base))
    assert jobs(found)["a"] == "changed reset_outputs"
    assert datasets(found) == {
        "d__tick_0": "unchanged",
        "d__a_0": "rebuilt",
        "d_out": "rebuilt",
        "d__c_0": "added",
    }


def test_a_generation_of_an_earlier_version_is_restored() -> None:
    old, new = edit(set_fields("b", config={"seconds": 9}))
    registry = after(read(old), read(new))
    was = next(node for (name, _), node in registry.nodes.items() if name == "b")
    back = replace(registry, nodes={**registry.nodes, ("b", registry.hashes["b"].data): was})
    found = make_plan(read(new), replace(back, active=replace(back.active, outputs={})))  # type: ignore[type-var]
    assert {item.document.name: item.standing for item in found.jobs}["b"] is Standing.RESTORED
    assert datasets(found.wire)["d_out"] == "restored"


def test_a_build_is_needed_when_a_fresh_job_has_history_to_read() -> None:
    old, new = edit(set_fields("a", config={"seconds": 5}))
    registry = after(read(old), read(new))
    assert not make_plan(read(new), registry).wire.needs_build
    assert registry.active is not None
    history = frozenset({registry.active.outputs["tick", 0][1]})
    assert make_plan(read(new), replace(registry, with_events=history)).wire.needs_build
    only_downstream = frozenset({registry.active.outputs["a", 0][1]})
    assert not make_plan(read(new), replace(registry, with_events=only_downstream)).wire.needs_build
    # The first version has nothing beside which it could be built.
    assert not make_plan(read(new), replace(registry, with_events=history, active=None)).wire.needs_build


def test_subscribers_are_named_when_what_they_read_moves() -> None:
    old, new = edit(set_fields("b", config={"seconds": 9}))
    for target, told in ((new, ["x/reader"]), (old, [])):
        registry = after(read(old), read(target))
        readers = {registry.datasets["d_out"].dataset_uuid: ["x/reader"]}
        assert make_plan(read(target), replace(registry, subscribers=readers)).wire.subscribers == told


def problems_of(text: Text, registry: Registry) -> list[str]:
    with pytest.raises(TraceError) as refused:
        make_plan(read(text), registry)
    assert refused.value.code == "dag_invalid"
    return [problem.code for problem in refused.value.details["problems"]]


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"dag": "another"}, "dataset_owned"),
        ({"dag": None}, "dataset_owned"),
        ({"storage": "s3"}, "dataset_storage"),
    ],
)
def test_a_dataset_that_cannot_be_had_is_refused(fields: dict[str, Any], code: str) -> None:
    registry = empty(read(chain()))
    taken = StoredDataset(uuid5(SPACE, "x"), "d_out", "d", "postgres", True, uuid5(SPACE, "x-1"))
    row = replace(taken, **fields)
    assert problems_of(chain(), replace(registry, datasets={"d_out": row})) == [code]


def test_an_automatic_name_gives_way() -> None:
    registry = empty(read(chain()))
    for fields in ({"dag": "other"}, {"storage": "postgres"}, {"published": True}):
        row = replace(StoredDataset(uuid5(SPACE, "x"), "d__a_0", "d", "none", False, uuid5(SPACE, "y")), **fields)
        found = make_plan(read(chain()), replace(registry, datasets={"d__a_0": row}))
        assert "d__a_0_none" in datasets(found.wire)


def test_long_names_are_shortened_and_stay_apart() -> None:
    names = ["j" * 120, "j" * 119 + "k"]
    text = Text("d" * 120).source()
    for name in names:
        text.job(name, "tick")
    found = datasets(make_plan(read(text), empty(read(text))).wire)
    assert len(found) == 3
    assert all(len(name) <= 128 for name in found)


def test_hashes_do_not_depend_on_the_order_of_jobs() -> None:
    text = chain()
    turned = chain()
    turned.jobs = dict(reversed(text.jobs.items()))
    assert hashes(read(text), FIRST) == hashes(read(turned), FIRST)
    assert schema_hash(None) is None


def test_a_very_long_chain_is_hashed() -> None:
    text = Text().source("j0")
    for index in range(1, 1000):
        text.job(f"j{index}", f"j{index - 1}")
    text.jobs = dict(reversed(text.jobs.items()))
    assert len({item.data for item in hashes(read(text), FIRST).values()}) == 1000
