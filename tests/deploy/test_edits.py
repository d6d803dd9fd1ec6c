"""Random edits of random DAGs: the registry shows exactly what the plan said, and nothing else has moved.

The oracle knows nothing of hashes. It compares what a job is made of, as a tree of plain values, all the way up.
"""

from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.deploy.support import Text, say
from tests.support.configs import dispatcher_config
from tests.support.dags import activate, deploy
from tests.support.dispatcher import DispatcherHarness
from tests.support.postgres import TestCluster
from tracelake.model.quota import Quotas
from tracelake.wire.dags import DeployReply

NAMES = ["j0", "j1", "j2", "j3", "j4"]
LIMITS = ("max_attempts", "priority")


@pytest.fixture(scope="module")
def shared(cluster: TestCluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[DispatcherHarness]:
    """One Dispatcher for all examples; each has a DAG of its own."""
    home: Path = tmp_path_factory.mktemp("home")
    config = dispatcher_config(quotas=Quotas(deploys_per_hour=0, dry_runs_per_minute=0))
    running = DispatcherHarness.start(cluster.fresh("state"), cluster.fresh("queue", role="trace_queue"), home, config)
    try:
        yield running
    finally:
        running.stop()


numbers = count()

jobs = st.fixed_dictionaries(
    {
        "seconds": st.integers(0, 2),
        "reads": st.sets(st.integers(-1, 3), min_size=1, max_size=2),
        "max_attempts": st.integers(1, 2),
        "priority": st.sampled_from(["normal", "bulk"]),
        "published": st.booleans(),
        "there": st.sampled_from([True, True, True, False]),
    }
)
documents = st.lists(jobs, min_size=len(NAMES), max_size=len(NAMES))


@st.composite
def histories(draw: st.DrawFn) -> list[list[dict[str, Any]]]:
    """A document, and edits of it; some go back to what was before."""
    made = [draw(documents)]
    for _ in range(draw(st.integers(1, 5))):
        if draw(st.booleans()) and len(made) > 1:
            made.append(made[draw(st.integers(0, len(made) - 2))])
            continue
        now = [dict(job) for job in made[-1]]
        edited = now[draw(st.integers(0, len(now) - 1))]
        field = draw(st.sampled_from(sorted(edited)))
        edited[field] = draw(jobs)[field]
        made.append(now)
    return made


def sources_of(document: list[dict[str, Any]], index: int) -> list[str]:
    """Jobs read jobs before them that are there, or else the source."""
    there = [number for number in sorted(document[index]["reads"]) if 0 <= number < index and document[number]["there"]]
    return [NAMES[number] for number in there] or ["tick"]


def text_of(name: str, document: list[dict[str, Any]]) -> Text:
    text = Text(name).source()
    for index, job in enumerate(document):
        if job["there"]:
            limits = {key: job[key] for key in LIMITS}
            text.job(NAMES[index], *sources_of(document, index), seconds=job["seconds"], **limits)
            if job["published"]:
                text.published(f"{name}_{NAMES[index]}", NAMES[index])
    return text


def made_of(document: list[dict[str, Any]]) -> dict[str, Any]:
    """Of each job: everything that its data depends on."""
    trees: dict[str, Any] = {"tick": "tick"}
    for index, job in enumerate(document):
        if job["there"]:
            reads = [trees[name] for name in sources_of(document, index)]
            trees[NAMES[index]] = (NAMES[index], job["seconds"], job["published"], reads)
    return trees


def limits_of(document: list[dict[str, Any]]) -> dict[str, Any]:
    return {NAMES[index]: [job[key] for key in LIMITS] for index, job in enumerate(document) if job["there"]}


def registry(harness: DispatcherHarness, dag: str) -> dict[str, Any]:
    """Of each job of the active version: its dataset's name, its generation, and whether that is what counts."""
    rows = harness.sql(
        """SELECT j.name AS job, s.name, o.dataset_version, s.current_version = o.dataset_version AS counts
           FROM dags d JOIN dag_version_jobs v ON v.dag_version_id = d.active_version JOIN jobs j USING (job_id)
           JOIN job_outputs o USING (job_id) JOIN datasets s USING (dataset_uuid) WHERE d.dag_name = $1""",
        dag,
    )
    assert all(row["counts"] for row in rows)
    return {row["job"]: (row["name"], row["dataset_version"]) for row in rows}


def check_edges(harness: DispatcherHarness, dag: str, document: list[dict[str, Any]], now: dict[str, Any]) -> None:
    rows = harness.sql(
        """SELECT j.name, e.input_index, e.dataset_version, e.job_id IN (
               SELECT v.job_id FROM dags d JOIN dag_version_jobs v ON v.dag_version_id = d.active_version
               WHERE d.dag_name = $1) AS of_version
           FROM edges e JOIN jobs j USING (job_id) WHERE j.dag_name = $1 AND e.phase = 'Active'""",
        dag,
    )
    wanted = {
        (NAMES[index], number): now[name][1]
        for index, job in enumerate(document)
        if job["there"]
        for number, name in enumerate(sources_of(document, index))
    }
    assert {(row["name"], row["input_index"]): row["dataset_version"] for row in rows} == wanted
    assert all(row["of_version"] for row in rows)


def check_plan(
    reply: DeployReply, before: tuple[list[dict[str, Any]], dict[str, Any]] | None, after: Any, past: dict[str, Any]
) -> None:
    """`before` and `after` are documents with what the registry shows for them; `past` what counted ever."""
    document, now = after
    old, was = before if before is not None else ([], {})
    trees, old_trees = made_of(document), made_of(old) if before else {}
    changes = {item.job: item.change for item in reply.plan.jobs}
    told = {item.dataset: item.change for item in reply.plan.datasets}
    for job, tree in trees.items():
        name, version = now[job]
        if job not in old_trees:
            assert changes[job] == "added"
        elif old_trees[job] == tree:
            same_limits = limits_of(old).get(job) == limits_of(document).get(job)
            assert changes[job] == ("unchanged" if same_limits else "limits")
        else:
            assert changes[job] == "changed"
        if old_trees.get(job) == tree:
            assert (told[name], was[job]) == ("unchanged", (name, version))
        elif repr(tree) in past:
            assert (told[name], version) == ("restored", past[repr(tree)])
        else:
            assert version not in past.values()
            assert told[name] == ("rebuilt" if name in {item[0] for item in was.values()} else "added")
    gone = {name for name, _ in was.values()} - {name for name, _ in now.values()}
    assert {name for name, change in told.items() if change == "removed"} == gone
    assert {job for job, change in changes.items() if change == "removed"} == set(old_trees) - set(trees)
    assert set(told) == {name for name, _ in now.values()} | gone


@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(history=histories(), busy=st.booleans())
def test_the_registry_shows_what_the_plan_said(
    shared: DispatcherHarness, history: list[list[dict[str, Any]]], busy: bool
) -> None:
    dag = f"d{next(numbers)}"
    before: tuple[list[dict[str, Any]], dict[str, Any]] | None = None
    past: dict[str, Any] = {}
    for document in history:
        text = str(text_of(dag, document))
        planned = deploy(shared, text, dry_run=True)
        reply = deploy(shared, text)
        assert reply.plan == planned.plan
        if reply.state == "Building":
            assert reply.plan.needs_build
            assert before is not None
            assert registry(shared, dag) == before[1]
            reply = activate(shared, dag, reply.plan.version, now=True)
        now = registry(shared, dag)
        check_plan(planned, before, (document, now), past)
        check_edges(shared, dag, document, now)
        past |= {repr(tree): now[job][1] for job, tree in made_of(document).items()}
        before = (document, now)
        if busy:
            dataset = shared.sql("SELECT dataset_uuid FROM dataset_versions WHERE dataset_version = $1", now["tick"][1])
            say(shared, (dataset[0][0], now["tick"][1]), next(numbers))
