"""Old versions go with what only they have, and routing behaves as if they had stayed."""

import random
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.dispatcher.test_collector import published
from tests.query.batch_support import Person
from tests.retention.test_history import DAY, collect, start
from tests.routing.support import Flow
from tests.support import dags
from tests.support.configs import dispatcher_config
from tests.support.dispatcher import fence
from tracelake.dispatcher.retention import loop
from tracelake.errors import TraceError

CONFIG = dispatcher_config(kept_versions=2, version_retention_days=1)

PIPE = """
name: d
defaults: {{runtime: ecs_platform}}
jobs:
  - {{name: src, activation: source, source: {{kind: manual}}}}
  - {{name: fixed, activation: reactive, operator: noop, inputs: [{{from: {{job: src}}}}]}}
  - name: step
    activation: reactive
    operator: sleep
    config: {{seconds: {seconds}}}
    inputs: [{{from: {{job: src}}}}]
  - {{name: tail, activation: reactive, operator: noop, inputs: [{{from: {{job: step}}}}]}}
  - name: both
    activation: reactive
    operator: noop
    execution_strategy: PerPartition
    inputs: [{{from: {{job: src}}}}, {{from: {{job: step}}}}]
"""
JOBS = ("fixed", "step", "tail", "both")

FILES = """
name: files
defaults: {{runtime: ecs_platform}}
jobs:
  - {{name: src, activation: source, source: {{kind: manual}}}}
  - name: write
    activation: reactive
    operator: spark_sql
    inputs: [{{from: {{job: src}}}}]
    config: {{inputs: {{t: 0}}, query: "SELECT {number} AS number FROM t"}}
publish:
  blocks: {{from: {{job: write}}, storage: s3}}
"""


@pytest.fixture
def worlds(
    fresh_state_dsn: Callable[[], str], fresh_queue_dsn: Callable[[], str], tmp_path: Path
) -> Iterator[list[Flow]]:
    """Two stacks that are told the same; the second one forgets."""
    flows = []
    for name in ("keeps", "forgets"):
        (tmp_path / name).mkdir()
        flows.append(Flow(start(fresh_state_dsn(), fresh_queue_dsn(), tmp_path / name, CONFIG)))
    yield flows
    for flow in flows:
        flow.harness.stop()


def ready(flow: Flow, jobs: tuple[str, ...] = JOBS) -> list[dict[str, Any]]:
    """In an order that does not depend on ids."""
    rows = [task | {"job": job} for job in jobs for task in flow.tasks(job, "Queued") if not task["held"]]
    return sorted(rows, key=lambda task: (task["job"], len(task["unit_key"]), task["unit_key"], task["revision"]))


def settle(flow: Flow) -> None:
    """Builds are cut over, edges that are behind catch up, and everything that is ready is done."""
    for _ in range(50):
        flow.drain()
        tasks = ready(flow)
        for task in tasks:
            flow.pass_on(task["task_id"])
        if not dags.run_builds(flow.harness) and not tasks and not flow.drain():
            return
    raise AssertionError("there is always more to do")


def observe(flow: Flow) -> dict[str, Any]:
    """Everything of the active versions that routing reads or has written, without ids.

    Invalidations have ids that are chosen at random: here they are numbered.
    """
    active = """JOIN dag_version_jobs v USING (job_id) JOIN dags a ON a.active_version = v.dag_version_id"""
    node = f"SELECT j.node_id FROM jobs j {active}"
    rows = {
        "tasks": f"""SELECT n.job_name, t.edge, t.unit_key, t.unit_start, t.unit_end, t.revision, t.status
                     FROM tasks t JOIN nodes n USING (node_id) WHERE node_id IN ({node})""",
        "edges": f"""SELECT n.job_name, e.input_index, e.phase, e.routed, e.position IS NULL AS live, e.failed_units
                     FROM edges e JOIN nodes n USING (node_id) WHERE node_id IN ({node})""",
        "runs": """SELECT d.name, r.unit_size, r.range_start, r.range_end
                   FROM dataset_runs r JOIN datasets d USING (dataset_uuid) WHERE dataset_version = current_version""",
        "revisions": """SELECT d.name, r.unit, r.revision
                        FROM unit_revisions r JOIN datasets d USING (dataset_uuid)
                        WHERE dataset_version = current_version""",
    }
    seen = {what: [tuple(map(str, row)) for row in flow.harness.sql(query)] for what, query in rows.items()}
    return {what: sorted(renumber(table)) for what, table in seen.items()}


INVALIDATION = re.compile("[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")


def renumber(table: list[tuple[str, ...]]) -> list[tuple[str, ...]]:
    """The same rows, with the random ids in them numbered by what the rows that have them say besides."""
    ids = {ident for row in table for cell in row for ident in INVALIDATION.findall(cell)}
    context: dict[str, list[tuple[str, ...]]] = {ident: [] for ident in ids}
    for row in sorted(table, key=lambda row: [INVALIDATION.sub("", cell) for cell in row]):
        for ident in {ident for cell in row for ident in INVALIDATION.findall(cell)}:
            context[ident].append(tuple(INVALIDATION.sub("", cell) for cell in row))
    numbers = {ident: f"#{number}" for number, ident in enumerate(sorted(ids, key=lambda ident: context[ident]))}
    return [tuple(INVALIDATION.sub(lambda match: numbers[match[0]], cell) for cell in row) for row in table]


def invalidate(flow: Flow, start: int, end: int) -> None:
    """The task of a unit of `step` says that blocks were wrong."""
    tasks = ready(flow, ("step",))
    if not tasks:
        return
    task = tasks[0]
    lease = flow.claim(task["task_id"])
    unit = lease["task"]["inputs"][0]["unit"]
    said = {"cursor": unit["cursor"]["to"]} if "cursor" in unit else unit
    output = lease["task"]["outputs"][0]
    event = {"dataset_uuid": output["dataset_uuid"], "dataset_version": output["dataset_version"]} | said
    wrong = {"start": start, "end": end, "reason": "reorg"}
    flow.complete(task["task_id"], lease, events=[event | {"invalidates": wrong}])


def act(flow: Flow, choice: random.Random, number: int) -> str:
    """One step, the same in both worlds; answers how it ended."""
    what = choice.choice(["deploy", "deploy", "back", "range", "wrong", "settle", "cursor", "cursor"])
    cursor, width = choice.randrange(1, 60), choice.choice((5, 10))
    low = choice.randrange(0, 60)
    if what == "deploy":
        flow.deploy(PIPE.format(seconds=number))
        if choice.random() < 0.8:
            settle(flow)
        flow.harness.advance(2 * DAY)
    elif what == "back":
        try:
            return dags.activate(flow.harness, "d", now=True).state
        except TraceError as error:
            return error.code
    elif what == "range":
        flow.trigger("d", "src", range={"start": 100 + width * cursor, "end": 100 + width * cursor + width - 1})
    elif what == "wrong":
        flow.trigger("d", "src", cursor=cursor)
        invalidate(flow, low, low + 20)
    elif what == "settle":
        settle(flow)
    else:
        flow.trigger("d", "src", cursor=cursor)
    return ""


@pytest.mark.parametrize("seed", range(3))
def test_routing_is_the_same_after_old_versions_went(worlds: list[Flow], seed: int) -> None:
    removed: dict[str, int] = {}
    for flow in worlds:
        flow.deploy(PIPE.format(seconds=0))
    for number in range(1, 25):
        ends = [act(flow, random.Random(f"{seed}.{number}"), number) for flow in worlds]
        assert ends[0] == ends[1]
        if number % 4 == 0:
            removed.update(collect(worlds[1]))
            assert observe(worlds[0]) == observe(worlds[1]), number
    for flow in worlds:
        settle(flow)
        flow.harness.advance(40 * DAY)
    removed.update(collect(worlds[1]))
    for flow in worlds:
        for cursor in (1, 17, 59, 70):
            flow.trigger("d", "src", cursor=cursor)
        invalidate(flow, 0, 60)
        settle(flow)
    assert observe(worlds[0]) == observe(worlds[1])
    assert removed.get("versions"), "something went on the way"
    assert removed.get("rows_of_versions")


def write_unit(flow: Flow, job: str) -> str:
    """The files of a unit, committed; answers where."""
    task = flow.tasks(job, "Queued")[-1]["task_id"]
    lease = flow.claim(task)
    prefix: str = lease["task"]["outputs"][0]["storage"]["write_prefix"]
    for name in ("blocks_0_9.parquet", "_SUCCESS"):
        flow.harness.run(flow.harness.objects.put(prefix + name, b"x"))
    output = lease["task"]["outputs"][0]
    said = published(flow, prefix)
    for item in (*said["datasets_published"], *said["events"]):
        item |= {"dataset_uuid": output["dataset_uuid"], "dataset_version": output["dataset_version"]}
    reply = flow.harness.task("complete", lease["capability_token"], fence(task, lease, status="Completed", **said))
    assert reply.status == 200, reply
    return prefix


@pytest.fixture
def flow(state_dsn: str, queue_dsn: str, tmp_path: Path) -> Iterator[Flow]:
    flow = Flow(start(state_dsn, queue_dsn, tmp_path, CONFIG))
    yield flow
    flow.harness.stop()


def generations(flow: Flow, number: int) -> list[str]:
    """So many versions, each with a committed unit of a generation of its own; where their files are."""
    return generations_after(flow, 0, number)


def generations_after(flow: Flow, first: int, number: int) -> list[str]:
    prefixes = []
    for version in range(first, number):
        flow.deploy(FILES.format(number=version))
        if not version:
            flow.trigger("files", "src", range={"start": 0, "end": 9})
        flow.drain()
        prefixes.append(write_unit(flow, "write"))
        dags.run_builds(flow.harness)
        flow.harness.advance(60)
    return prefixes


def files(flow: Flow, prefix: str) -> int:
    return len(flow.harness.run(flow.harness.objects.list(prefix)))


def test_files_go_after_their_rows_and_a_crash_in_between_is_made_good(
    flow: Flow, monkeypatch: pytest.MonkeyPatch
) -> None:
    prefixes = generations(flow, 5)
    assert collect(flow).get("versions") is None, "not before its time"
    flow.harness.advance(2 * DAY)
    plan = flow.harness.service("GET", "/internal/gc").body
    assert [version["version"] for version in plan["versions"]] == [1, 2, 3]

    async def crash(_uri: str) -> None:
        raise RuntimeError("killed")

    with monkeypatch.context() as patch:
        patch.setattr(flow.harness.objects, "delete", crash)
        assert flow.harness.service("POST", "/internal/gc").status == 500
    assert [files(flow, prefix) for prefix in prefixes] == [2] * 5
    left = flow.harness.sql("SELECT count(*) AS n FROM dataset_units u JOIN manifests USING (manifest_id)")[0]["n"]
    assert left == 2, "what is readable has its files, what has lost its rows is not readable"
    assert collect(flow)["files"] == 6
    assert [files(flow, prefix) for prefix in prefixes] == [0, 0, 0, 2, 2]
    assert not flow.harness.sql("SELECT FROM removed_prefixes")
    assert not flow.harness.sql("SELECT FROM nodes WHERE retired_at IS NOT NULL")
    assert collect(flow) == {}


def test_a_generation_stays_while_a_batch_query_reads_it(flow: Flow) -> None:
    first = generations(flow, 1)
    ann = Person(flow)
    query, _ = ann.submitted()
    prefixes = first + generations_after(flow, 1, 5)
    flow.harness.advance(2 * DAY)
    collect(flow)
    assert [files(flow, prefix) for prefix in prefixes] == [2, 0, 0, 2, 2]
    ann.cancel(query)
    collect(flow)
    assert files(flow, prefixes[0]) == 0


def test_one_can_go_back_to_what_is_kept_and_build_anew_what_is_gone(flow: Flow) -> None:
    generations(flow, 5)
    flow.harness.advance(2 * DAY)
    collect(flow)
    numbers = [row["number"] for row in flow.harness.sql("SELECT number FROM dag_versions ORDER BY number")]
    assert numbers == [4, 5]
    assert dags.activate(flow.harness, "files").state == "Active"
    audit = flow.harness.sql("SELECT target FROM audit_log WHERE action = 'dag.retire'")
    assert len(audit) == 3
    again = flow.deploy(FILES.format(number=0))
    assert (again.plan.version, again.duplicate) == (6, False), "a new version, with data of its own"
    flow.drain()
    assert [row["status"] for row in flow.tasks("write")].count("Queued") == 1, "the unit is made again"


TABLE = """
name: tables
defaults: {{runtime: ecs_platform}}
jobs:
  - {{name: src, activation: source, source: {{kind: manual}}}}
  - name: write
    activation: reactive
    operator: sleep
    config: {{seconds: {number}}}
    inputs: [{{from: {{job: src}}}}]
publish:
  rows:
    from: {{job: write}}
    storage: postgres
    write_mode: buffered
    on_change: {rule}
    schema: {{columns: [{{name: k, type: int64, nullable: false}}], unique: [k]}}
"""


@pytest.mark.parametrize("rule", ["rebuild", "keep"])
def test_sinks_hear_of_writers_whose_rows_nobody_can_bring_back(flow: Flow, rule: str) -> None:
    nodes = []
    for number in range(5):
        flow.deploy(TABLE.format(number=number, rule=rule))
        (table,) = flow.harness.run(flow.harness.dispatcher.buffers.list()).datasets
        nodes += table.writers
    flow.harness.advance(2 * DAY)
    collect(flow)
    kept = [row["number"] for row in flow.harness.sql("SELECT number FROM dag_versions ORDER BY number")]
    (table,) = flow.harness.run(flow.harness.dispatcher.buffers.list()).datasets
    assert table.writers == nodes[4:]
    if rule == "rebuild":
        assert (kept, sorted(table.retired)) == ([4, 5], sorted(nodes[:3]))
    else:
        assert (kept, table.retired) == ([1, 2, 3, 4, 5], []), "their rows are visible"


def test_a_round_is_short_however_much_there_is(flow: Flow, monkeypatch: pytest.MonkeyPatch) -> None:
    generations(flow, 5)
    flow.harness.advance(2 * DAY)
    monkeypatch.setattr(loop, "BATCH", 1)
    monkeypatch.setattr(loop, "ROUND_SECONDS", 0.0)
    rounds = 0
    while flow.harness.service("POST", "/internal/gc").body["more"]:
        rounds += 1
    assert rounds > 10
    assert [row["number"] for row in flow.harness.sql("SELECT number FROM dag_versions ORDER BY number")] == [4, 5]
    assert not flow.harness.sql("SELECT FROM nodes WHERE retired_at IS NOT NULL")
