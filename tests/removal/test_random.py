"""Deploys, removals, restorations, purges, triggers and retention in any order: no DAG that lives loses a unit, nothing
of a purged one is left, and no row is without what it belongs to."""

import random
from dataclasses import dataclass, field

import pytest

from tests.removal.support import Removal, find_orphans
from tests.routing.support import Flow
from tests.support import dags
from tracelake.errors import TraceError

DAY = 24 * 3600
NAMES = ("base", "reader", "alone")
ACTIONS = (
    *("deploy",) * 2,
    *("trigger",) * 3,
    *("remove", "purge", "delete") * 2,
    *("settle", "restore", "advance"),
)

DOCUMENT = """
name: {name}
defaults: {{runtime: ecs_platform}}
jobs:
  - {{name: {name}_src, activation: source, source: {{kind: manual}}}}
  - name: {name}_step
    activation: reactive
    operator: sleep
    config: {{seconds: {seconds}}}
    inputs: [{{from: {{job: {name}_src}}}}]
{more}
publish:
  {name}_steps: {{from: {{job: {name}_step}}, storage: postgres}}
"""
READS = "  - {name: reader_read, activation: reactive, operator: noop, inputs: [{from: {dataset: base_steps}}]}"


@dataclass
class Model:
    """What should be true. `units` are those that were triggered since the DAG was made."""

    state: dict[str, str] = field(default_factory=dict)
    units: dict[str, set[int]] = field(default_factory=dict)
    reads: bool = False
    """Whether the last deployed version of `reader` reads `base`."""
    cursor: int = 0
    """The last one: a cursor below an earlier one is no news."""
    gone: list[str] = field(default_factory=list)
    """Ids of purged DAGs."""


def settle(flow: Flow) -> None:
    jobs = [f"{name}_{job}" for name in NAMES for job in ("step", "read")]
    for _ in range(60):
        flow.drain()
        done = flow.run_all(*jobs)
        if not dags.run_builds(flow.harness) and not done and not flow.drain():
            return
    raise AssertionError("there is always more to do")


def act(flow: Flow, removal: Removal, model: Model, choice: random.Random) -> None:
    what = choice.choice(
        [
            "deploy",
            "deploy",
            "trigger",
            "trigger",
            "trigger",
            "settle",
            "remove",
            "remove",
            "restore",
            "purge",
            "advance",
            "delete",
        ]
    )
    name, cursor = choice.choice(NAMES), model.cursor + 1
    state = model.state.get(name, "absent")
    reads = name == "reader" and choice.random() < 0.6
    try:
        if what == "deploy":
            text = DOCUMENT.format(name=name, seconds=choice.randrange(3), more=READS if reads else "")
            flow.deploy(text)
            model.state[name] = "live"
            model.units.setdefault(name, set())
            if name == "reader":
                model.reads = reads
            settle(flow)
        elif what == "trigger":
            flow.trigger(name, f"{name}_src", cursor=cursor)
            model.units[name].add(cursor)
            model.cursor = cursor
        elif what == "settle":
            settle(flow)
        elif what == "remove":
            removal.remove(name)
            model.state[name] = "removed" if state != "purging" else state
        elif what == "restore":
            removal.restore(name)
            model.state[name] = "live"
        elif what == "purge":
            removal.purge(name)
            model.state[name] = "purging"
        elif what == "advance":
            flow.harness.advance(choice.choice((1, 8)) * DAY)
        else:
            delete(flow, removal, model)
    except TraceError as error:
        expect(error.code, what, name, state, model, reads=reads)


def expect(code: str, what: str, name: str, state: str, model: Model, *, reads: bool) -> None:
    """Every refusal has its reason in the model."""
    base_is_live = model.state.get("base") == "live"
    reasons = {
        ("deploy", "dag_removed"): state in ("removed", "purging"),
        ("deploy", "dag_invalid"): reads and not base_is_live,
        ("trigger", "dag_not_found"): state != "live",
        ("remove", "dag_not_found"): state == "absent",
        ("remove", "dag_in_use"): name == "base" and model.state.get("reader") == "live" and model.reads,
        ("restore", "dag_not_found"): state == "absent",
        ("restore", "dag_purged"): state == "purging",
        ("restore", "dataset_removed"): name == "reader" and model.reads and not base_is_live,
        ("purge", "dag_not_found"): state == "absent",
        ("purge", "dag_not_removed"): state == "live",
    }
    assert reasons.get((what, code)), (what, code, name, model.state, model.reads)


def delete(flow: Flow, removal: Removal, model: Model) -> None:
    """A round of retention: what is due goes, whole."""
    due = {
        row["dag_name"]
        for row in flow.harness.sql(
            "SELECT dag_name FROM dags WHERE purged_at IS NOT NULL OR restorable_until <= trace_now()"
        )
    }
    ids = [one for name in due for one in removal.ids(name)]
    removal.delete_all()
    for name in due:
        model.state[name] = "absent"
        model.units.pop(name, None)
        assert removal.names(name) == {}, name
    model.gone += ids


@pytest.mark.parametrize("seed", range(5))
def test_whatever_happens_in_whatever_order(flow: Flow, removal: Removal, seed: int) -> None:
    run_random(flow, removal, f"removal.{seed}", steps=150)


@pytest.mark.soak
@pytest.mark.timeout(3600)
def test_for_long(flow: Flow, removal: Removal) -> None:
    run_random(flow, removal, str(random.random()), steps=1000)


def run_random(flow: Flow, removal: Removal, seed: str, steps: int) -> None:
    model, choice = Model(), random.Random(seed)
    for _ in range(steps):
        act(flow, removal, model, choice)
    assert model.gone, "something was purged on the way"
    delete(flow, removal, model)
    for name in NAMES:  # `base` comes first
        if model.state.get(name) == "removed":
            if name == "reader" and model.reads and model.state.get("base") != "live":
                continue
            removal.restore(name)
            model.state[name] = "live"
    settle(flow)
    for name in NAMES:
        if model.state.get(name) != "live":
            continue
        rows = flow.harness.sql(
            """SELECT DISTINCT t.unit_key FROM tasks t JOIN jobs j USING (job_id) JOIN dag_version_jobs v USING (job_id)
               JOIN dags d ON d.active_version = v.dag_version_id
               WHERE j.name = $1 AND t.status = 'Completed'""",
            f"{name}_step",
        )
        assert {row["unit_key"] for row in rows} == {f"c:{cursor}" for cursor in model.units[name]}, name
    assert find_orphans(flow.harness) == {}
    left = removal.leftovers(model.gone) if model.gone else {}
    assert left.keys() <= {"removed_tables", "tasks"}, left
    if "tasks" in left:
        inputs = """SELECT count(*) AS n FROM tasks WHERE inputs::text ~ ANY($1)"""
        assert flow.harness.sql(inputs, model.gone)[0]["n"] == left["tasks"], "what a task of another DAG has read"
