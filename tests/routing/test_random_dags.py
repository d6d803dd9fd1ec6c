"""Random DAGs, random arrivals, run to their end in a random order: exactly the tasks that must follow, none left over.

What must follow is computed from the shape of the DAG alone. A partition goes wherever it can; a join has what all its
inputs have. Which cursors get a unit of their own depends on the order, but each is read, once, without a gap.
"""

import asyncio
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from random import Random
from typing import Any

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.routing.model import Unit
from tests.routing.world import World
from tests.support.dispatcher import DispatcherHarness, fence
from tests.support.postgres import TestCluster

Address = tuple[str, int]
SOURCES = ("src0", "src1")


@dataclass(frozen=True)
class Shape:
    """A job: `dag` 1 reads what `dag` 0 publishes."""

    name: str
    dag: int
    per_partition: bool
    inputs: tuple[Address, ...]
    outputs: int
    limit: int | None
    says: str
    """The revision of a first time: a join's has a place for each of its inputs."""

    @property
    def joins(self) -> bool:
        return self.per_partition and len(self.inputs) > 1


@st.composite
def shapes(draw: st.DrawFn) -> list[Shape]:
    made: list[Shape] = []
    there: dict[Address, tuple[int, str]] = {(source, 0): (0, "") for source in SOURCES}
    for number in range(draw(st.integers(2, 8))):
        dag = draw(st.integers(0, 1)) if made else 0
        readable = sorted(
            address
            for address, (home, _) in there.items()
            if home <= dag and (home == dag or address[0] not in SOURCES)
        )
        if not readable:
            continue
        inputs = draw(st.lists(st.sampled_from(readable), min_size=1, max_size=3, unique=True))
        per_partition = draw(st.booleans())
        said = [there[address][1] for address in inputs]
        if (
            not per_partition and len(set(said)) > 1
        ):  # one unit in several revisions: which of them meet is a matter of time
            inputs, said = inputs[:1], said[:1]
        says = ("|".join(said) if any(said) else "") if per_partition else said[0]
        limit = draw(st.sampled_from([None, None, 1, 2]))
        shape = Shape(f"job{number}", dag, per_partition, tuple(inputs), draw(st.integers(1, 2)), limit, says)
        made.append(shape)
        there |= {(shape.name, index): (dag, says) for index in range(shape.outputs)}
    return made


def text(dag: int, jobs: list[Shape]) -> str:
    mine = [job for job in jobs if job.dag == dag]
    homes = {job.name: job.dag for job in jobs} | dict.fromkeys(SOURCES, 0)

    def source(address: Address) -> dict[str, Any]:
        job, index = address
        return {"job": job, "output_index": index} if homes[job] == dag else {"dataset": f"{job}_{index}"}

    document: dict[str, Any] = {"name": f"dag{dag}", "defaults": {"runtime": "ecs_platform"}, "jobs": []}
    if dag == 0:
        document["jobs"] += [{"name": name, "activation": "source", "source": {"kind": "manual"}} for name in SOURCES]
        document["publish"] = {
            f"{job.name}_{index}": {"from": {"job": job.name, "output_index": index}, "storage": "postgres"}
            for job in mine
            for index in range(job.outputs)
        }
    for job in mine:
        document["jobs"].append(
            {
                "name": job.name,
                "activation": "reactive",
                "operator": "noop",
                "execution_strategy": "PerPartition" if job.per_partition else "PerUpdate",
                "inputs": [{"from": source(address)} for address in job.inputs],
                "outputs": job.outputs,
            }
            | ({"scaling": {"max_concurrency": job.limit}} if job.limit else {})
        )
    return yaml.safe_dump(document, sort_keys=False)


UNITS = st.one_of(
    st.builds(lambda cursor: Unit(cursor=cursor), st.integers(0, 12)),
    st.sampled_from([Unit(span=span) for span in ((0, 9), (10, 19), (0, 19), (5, 5))]),
    st.sampled_from([Unit(name="eu"), Unit(name="us")]),
)
ARRIVALS = st.lists(st.tuples(st.sampled_from(SOURCES), UNITS), min_size=1, max_size=10)


class Run:
    """One DAG of one org, from its deploy to the last of its tasks."""

    def __init__(self, world: World, jobs: list[Shape]) -> None:
        self.world, self.jobs = world, jobs
        world.begin()
        for dag in (0, 1):
            if any(job.dag == dag for job in jobs):
                world.deploy(text(dag, jobs))

    def arrive(self, arrivals: list[tuple[str, Unit]], random: Random) -> None:
        for number, (source, unit) in enumerate(arrivals):
            self.world.trigger("dag0", source, unit, f"k{number}")
            if random.random() < 0.3:
                self.wave(random)

    def wave(self, random: Random) -> int:
        """Some of what is ready, claimed at once and completed in any order."""
        ready = [row["task_id"] for row in self.world.tasks() if row["status"] == "Queued" and not row["held"]]
        random.shuffle(ready)
        ready = ready[: random.randint(1, 8)]
        harness = self.world.harness
        claims = [{"task_id": str(task_id), "worker_id": "w"} for task_id in ready]
        if not claims:
            return 0
        answers = harness.worker("POST", "/internal/task-claim-batch", {"claims": claims}).body["answers"]
        calls = []
        for task_id, answer in zip(ready, answers, strict=True):
            lease = answer["body"]
            assert lease["status"] == "Claimed", lease
            unit = lease["task"]["inputs"][0]["unit"]
            said = {"cursor": unit["cursor"]["to"]} if "cursor" in unit else unit
            names = ("dataset_uuid", "dataset_version")
            events = [{name: out[name] for name in names} | said for out in lease["task"]["outputs"]]
            body = fence(str(task_id), lease, status="Completed", events=events)
            calls.append({"call": "complete", "capability_token": lease["capability_token"], "body": body})
        random.shuffle(calls)
        replies = harness.task_batch(calls)
        assert {reply["status"] for reply in replies} == {200}
        return len(calls)

    def finish(self, random: Random) -> None:
        while self.wave(random):
            pass
        rows = self.world.tasks()
        assert {row["status"] for row in rows} <= {"Completed"}, "something is stranded"
        assert all(used == 0 for _, used in self.world.limits().values())
        assert self.world.drain() == 0
        assert self.world.reconcile() == 0

    def done(self) -> dict[str, list[tuple[int, str, str]]]:
        """By job: edge, unit and revision of every task."""
        found: dict[str, list[tuple[int, str, str]]] = {job.name: [] for job in self.jobs}
        for row in self.world.tasks():
            found[row["job_name"]].append((row["edge"], row["unit_key"], row["revision"]))
        return found


def partitions(jobs: list[Shape], arrivals: list[tuple[str, Unit]]) -> dict[str, Counter[tuple[int, str, str]]]:
    """The tasks of partitions that there must be, from the sources on."""
    there = {(source, 0): {unit.key for name, unit in arrivals if name == source} for source in SOURCES}
    wanted: dict[str, Counter[tuple[int, str, str]]] = {}
    for job in jobs:
        inputs = [{key for key in there[address] if key.startswith("p:")} for address in job.inputs]
        if job.per_partition:
            keys = set.intersection(*inputs)
            wanted[job.name] = Counter((-1, key, job.says) for key in keys)
        else:
            keys = set.union(*inputs)
            wanted[job.name] = Counter((index, key, job.says) for index, item in enumerate(inputs) for key in item)
        for index in range(job.outputs):
            there[job.name, index] = keys
    return wanted


def check_cursors(
    jobs: list[Shape], arrivals: list[tuple[str, Unit]], done: dict[str, list[tuple[int, str, str]]], rows: list[Any]
) -> None:
    """Each job against what the jobs before it have announced."""
    there = {
        (source, 0): {unit.cursor for name, unit in arrivals if name == source and unit.cursor is not None}
        for source in SOURCES
    }
    for job in jobs:
        made = [(edge, int(key[2:]), revision) for edge, key, revision in done[job.name] if key.startswith("c:")]
        assert len(made) == len(set(made))
        if job.per_partition:
            common = set.intersection(*(there[address] for address in job.inputs))
            assert sorted(made) == sorted((-1, cursor, job.says) for cursor in common)
        else:
            for index, address in enumerate(job.inputs):
                own = {cursor for edge, cursor, _ in made if edge == index}
                assert own <= there[address]
                if job.says:
                    assert own == there[address], "a revision is always news"
                else:
                    check_chain(
                        [row for row in rows if row["job_name"] == job.name and row["edge"] == index], there[address]
                    )
        for index in range(job.outputs):
            there[job.name, index] = {cursor for _, cursor, _ in made}


def check_chain(rows: list[Any], announced: set[int]) -> None:
    """Every cursor up to the highest is read by one unit."""
    units = sorted(
        (unit["cursor"]["after"], unit["cursor"]["to"])
        for unit in (yaml.safe_load(row["unit"]) for row in rows)
        if "cursor" in unit
    )
    assert [after for after, _ in units] == [-1, *(to for _, to in units)][: len(units)]
    assert max((to for _, to in units), default=None) == max(announced, default=None)


@pytest.fixture(scope="module")
def world(cluster: TestCluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    dsns = cluster.fresh("state"), cluster.fresh("queue")
    harness = DispatcherHarness.start(*dsns, tmp_path_factory.mktemp("random"))
    yield World(harness)
    harness.stop()
    for dsn in dsns:
        asyncio.run(cluster.drop(dsn))


def check(world: World, jobs: list[Shape], arrivals: list[tuple[str, Unit]], seed: int) -> None:
    random = Random(seed)
    wanted = partitions(jobs, arrivals)
    for order in (arrivals, random.sample(arrivals, len(arrivals))):
        run = Run(world, jobs)
        run.arrive(order, random)
        run.finish(random)
        done = run.done()
        for job in jobs:
            found = Counter(task for task in done[job.name] if task[1].startswith("p:"))
            assert found == wanted[job.name], job
        check_cursors(jobs, arrivals, done, world.tasks())


QUICK = settings(max_examples=15, deadline=None, suppress_health_check=list(HealthCheck), print_blob=True)


@QUICK
@given(jobs=shapes(), arrivals=ARRIVALS, seed=st.integers(0, 2**16))
def test_every_event_leads_to_exactly_its_tasks(
    world: World, jobs: list[Shape], arrivals: list[tuple[str, Unit]], seed: int
) -> None:
    check(world, jobs, arrivals, seed)


@pytest.mark.soak
@pytest.mark.timeout(7200)
@settings(QUICK, max_examples=1000, derandomize=False)
@given(jobs=shapes(), arrivals=ARRIVALS, seed=st.integers(0, 2**16))
def test_random_dags_with_volume(world: World, jobs: list[Shape], arrivals: list[tuple[str, Unit]], seed: int) -> None:
    check(world, jobs, arrivals, seed)
