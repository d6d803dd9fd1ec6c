"""What a good document means: every field, defaults, and one value for texts that mean the same."""

from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

from tests.dag.support import GOOD, HEAD, SURROUNDINGS, TICK, WORK, problems_of, read
from tracelake.dag import KnownDataset, canonical, document_hash
from tracelake.model.dag import (
    Activation,
    CatchUp,
    Column,
    ColumnType,
    Dag,
    Input,
    JobDocument,
    OutputAddress,
    Publish,
    Schema,
    Source,
    SourceKind,
    Strategy,
    Udf,
)

FULL = (Path(__file__).parent / "full.yaml").read_text(encoding="utf-8")
EXAMPLES = sorted((Path(__file__).parents[2] / "examples").rglob("*.yaml"))
# That of the template runs an operator that the person who copies it adds.
EXAMPLES = [path for path in EXAMPLES if path.parent.name != "operator_template"]
# Those of functions get the ids of bundles when they are deployed: tests/stack/test_demo_functions.py.
EXAMPLES = [path for path in EXAMPLES if "functions" not in path.parts]
# Recipes publish what token_flows does: tests/windows/test_recipe_documents.py.
EXAMPLES = [path for path in EXAMPLES if path.parent.name != "recipes"]
# A new project publishes the blocks of the same chain: tests/stack/test_first_dag.py.
EXAMPLES = [path for path in EXAMPLES if path.name != "activity.yaml"]

EXPECTED = Dag(
    name="everything",
    jobs=(
        JobDocument(
            name="follow",
            activation=Activation.SOURCE,
            runtime="ecs_platform",
            operator="sleep",
            unique_key=("id",),
            source=Source(kind=SourceKind.ALWAYS_ON),
            config={"seconds": 1.0},
            secrets=("API_KEY", "RPC_URL"),
            max_concurrency=4,
            timeout_seconds=300,
            heartbeat_timeout_seconds=60,
            max_attempts=5,
            priority="bulk",
            max_queue_depth=1000,
            max_queue_age_seconds=300,
        ),
        JobDocument(
            name="hook",
            activation=Activation.SOURCE,
            source=Source(kind=SourceKind.WEBHOOK, webhook_path="alerts/exchange-1"),
            priority="bulk",
        ),
        JobDocument(
            name="hourly",
            activation=Activation.SOURCE,
            outputs=3,
            source=Source(
                kind=SourceKind.CRON,
                schedule="0 */2 * * mon-fri",
                time_zone="Europe/Berlin",
                catch_up=CatchUp.NONE,
            ),
            priority="bulk",
        ),
        JobDocument(
            name="fast",
            activation=Activation.REACTIVE,
            runtime="dispatcher",
            operator="noop",
            inputs=(
                Input(output=OutputAddress(job="hourly", output_index=2)),
                Input(output=OutputAddress(job="hook", output_index=0)),
            ),
            execution_strategy=Strategy.PER_PARTITION,
            max_concurrency=4,
            timeout_seconds=300,
            heartbeat_timeout_seconds=60,
            max_attempts=5,
            max_queue_depth=1000,
            max_queue_age_seconds=300,
        ),
        JobDocument(
            name="score",
            activation=Activation.REACTIVE,
            runtime="lambda",
            operator="udf",
            outputs=2,
            inputs=(
                Input(output=OutputAddress(job="follow"), where={"block": [1, 2, 3], "open": True, "severity": "low"}),
                Input(dataset="alert_events", where={"severity": "critical", "block": 7}),
            ),
            update_strategy="append",
            unique_key=("id",),
            config={"text": "yes", "list": [1, 2.5, True, None, {"a": "b"}], "date": "2024-01-01"},
            udf=Udf(bundle_id="py", entrypoint="score.handler"),
            timeout_seconds=900,
            heartbeat_timeout_seconds=60,
            max_attempts=5,
            priority="bulk",
            max_queue_depth=1000,
            max_queue_age_seconds=300,
            reset_outputs=True,
        ),
        JobDocument(
            name="rust",
            activation=Activation.REACTIVE,
            runtime="lambda",
            operator="udf",
            outputs=0,
            inputs=(Input(output=OutputAddress(job="score", output_index=0)),),
            execution_strategy=Strategy.PER_PARTITION,
            update_strategy="append",
            udf=Udf(bundle_id="rs"),
            max_concurrency=4,
            timeout_seconds=300,
            heartbeat_timeout_seconds=60,
            max_attempts=5,
            priority="bulk",
            max_queue_depth=1000,
            max_queue_age_seconds=300,
        ),
    ),
    publish=(
        Publish(
            name="alerts",
            sources=(OutputAddress(job="score"), OutputAddress(job="score", output_index=1)),
            storage="postgres",
            write_mode="buffered",
            schema=Schema(
                columns=(
                    Column(name="id", type=ColumnType.TEXT, nullable=False, max_length=100),
                    Column(name="amount", type=ColumnType.DECIMAL, precision=38, scale=18),
                    Column(name="whole", type=ColumnType.DECIMAL, precision=5, scale=0),
                    Column(name="body", type=ColumnType.JSON),
                ),
                unique=("id",),
            ),
        ),
        Publish(
            name="scored_units",
            sources=(OutputAddress(job="follow"),),
            storage="postgres",
            schema=Schema(
                columns=(
                    Column(name="id", type=ColumnType.TEXT, nullable=False, max_length=20),
                    Column(name="block", type=ColumnType.INT64, nullable=False),
                    Column(name="open", type=ColumnType.BOOL),
                    Column(name="severity", type=ColumnType.TEXT, max_length=10, enum=("low", "high")),
                    Column(name="price", type=ColumnType.DECIMAL, precision=38, scale=18),
                    Column(name="hash", type=ColumnType.BYTES, max_length=32),
                ),
                unique=("id",),
                indexes=(("block", "open"), ("severity",)),
            ),
        ),
    ),
)


def test_a_document_with_everything() -> None:
    dag = read(FULL)
    assert [job.name for job in dag.jobs] == [job.name for job in EXPECTED.jobs]
    for job in EXPECTED.jobs:
        assert dag.job(job.name) == job
    assert dag == EXPECTED


def test_the_canonical_form_decodes_to_the_same_dag() -> None:
    dag = read(FULL)
    assert msgspec.json.decode(canonical(dag), type=Dag) == dag
    assert document_hash(dag).startswith("sha256:")


FILTERED = GOOD.replace("{job: tick}", "{dataset: raw_blocks}, where: {a: [1, 2], b: x}")
SLEEPING = GOOD.replace("operator: noop", "operator: sleep, config: {seconds: 2}")
SAME = {
    "order of jobs": (GOOD, HEAD + WORK + TICK),
    "order of keys": (GOOD, GOOD.replace("name: work, activation: reactive", "activation: reactive, name: work")),
    "comments": (GOOD, "# one\n" + GOOD + "# two\n"),
    "byte order mark": (GOOD, "\ufeff" + GOOD),
    "line ends": (GOOD, GOOD.replace("\n", "\r\n")),
    "an index": (GOOD, GOOD.replace("job: tick", "job: tick, output_index: 0")),
    "empty maps": (GOOD, GOOD + "publish: {}\ndefaults: {}\n"),
    "no outputs said": (GOOD, GOOD.replace("operator: noop", "operator: noop, outputs: 1")),
    "empty lists": (GOOD, GOOD.replace("operator: noop", "operator: noop, config: {}, secrets: [], unique_key: []")),
    "words": (GOOD, GOOD.replace("operator: noop", "operator: noop, priority: normal, update_strategy: replace")),
    "a source runs nothing": (GOOD, GOOD.replace("{kind: manual}", "{kind: manual}, operator: noop, max_attempts: 5")),
    "where as SQL": (FILTERED, FILTERED.replace("{a: [1, 2], b: x}", "\"b = 'x' AND a IN (2, 1, 2)\"")),
    "config": (SLEEPING, SLEEPING.replace("{seconds: 2}", "{fail_attempts: 0, seconds: 2.0}")),
}


@pytest.mark.parametrize(("one", "other"), SAME.values(), ids=SAME)
def test_equal_meaning_is_equal_value(one: str, other: str) -> None:
    assert read(one) == read(other)
    assert canonical(read(one)) == canonical(read(other))


@pytest.mark.parametrize(
    "change",
    [
        ("name: d", "name: e"),
        ("operator: noop", "operator: noop, outputs: 2"),
        ("operator: noop", "operator: noop, priority: bulk"),
        ("operator: noop", "operator: noop, bootstrap: {reset_outputs: true}"),
        ("kind: manual", "kind: webhook, webhook_path: a"),
        ("{job: tick}", "{job: tick}, where: {a: 1}"),
    ],
)
def test_other_meaning_is_another_hash(change: tuple[str, str]) -> None:
    assert document_hash(read(GOOD)) != document_hash(read(GOOD.replace(*change)))


def test_aliases_repeat_what_they_name() -> None:
    text = GOOD.replace("inputs: [{from: {job: tick}}]", "inputs: &in [{from: {job: tick}}]")
    text += "- {name: more, activation: reactive, runtime: ecs_platform, operator: noop, inputs: *in}\n"
    dag = read(text)
    assert dag.job("more").inputs == dag.job("work").inputs


def test_a_buffered_dataset_is_one_thing_whichever_writer_is_named() -> None:
    jobs = WORK.replace("operator: noop", "operator: noop, outputs: 2")
    publish = "publish: {x: {from: [{job: work, output_index: 1}, {job: work}], storage: postgres, "
    publish += "write_mode: buffered, schema: {columns: {a: text}, unique: [a]}}}\n"
    reader = WORK.replace("name: work", "name: reader")
    dags = [
        read(HEAD + TICK + jobs + reader.replace("{job: tick}", origin) + publish)
        for origin in ("{dataset: x}", "{job: work}", "{job: work, output_index: 1}")
    ]
    assert dags[0] == dags[1] == dags[2]
    both = reader.replace("{from: {job: tick}}", "{from: {job: work}}, {from: {job: work, output_index: 1}}")
    assert [problem.code for problem in problems_of(HEAD + TICK + jobs + both + publish)] == ["duplicate_input"]


def test_writers_of_a_dataset_are_all_upstream_of_its_readers() -> None:
    writer = WORK.replace("name: work", "name: back").replace("job: tick", "job: reader")
    reader = WORK.replace("name: work", "name: reader").replace("{job: tick}", "{dataset: x}")
    publish = "publish: {x: {from: [{job: work}, {job: back}], storage: postgres, "
    publish += "write_mode: buffered, schema: {columns: {a: text}, unique: [a]}}}\n"
    (problem,) = problems_of(HEAD + TICK + WORK + reader + writer + publish)
    assert problem.code == "cycle"
    assert "`reader` -> `back` -> `reader`" in problem.message


def test_a_source_of_events_may_be_published() -> None:
    dag = read(HEAD + TICK + "publish: {mine_ticks: {from: {job: tick}, storage: postgres}}\n")
    assert dag.publish[0].name == "mine_ticks"


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.name)
def test_the_examples_are_good(path: Path) -> None:
    """Each beside those that publish and read nothing of others."""
    datasets: dict[str, KnownDataset] = {}
    for example in EXAMPLES:
        text = example.read_bytes()
        if example != path and b"dataset:" not in text:
            dag = read(text)
            datasets |= {item.name: KnownDataset(dag.name, item.schema, item.storage) for item in dag.publish}
    assert problems_of(path.read_bytes(), replace(SURROUNDINGS, datasets=datasets)) == []


def test_what_a_schedule_does_not_say_has_a_default() -> None:
    cron = HEAD + "- {name: tick, activation: source, source: {kind: cron, schedule: '0 * * * *'%s}}\n"
    plain, spelled = read(cron % ""), read(cron % ", time_zone: UTC, catch_up: last")
    assert document_hash(plain) == document_hash(spelled)
    assert b"time_zone" not in canonical(spelled)
    assert document_hash(plain) != document_hash(read(cron % ", time_zone: Asia/Tokyo"))
    assert document_hash(plain) != document_hash(read(cron % ", catch_up: all"))


@pytest.mark.parametrize(
    ("name", "suggestion"),
    [
        ("europe/berlin", "Did you mean `Europe/Berlin`?"),
        ("America/New York", "Did you mean `America/New_York`?"),
        ("Factory", "Use a name of the IANA database: `Europe/Berlin`."),
        ("../../etc/localtime", "Use a name of the IANA database: `Europe/Berlin`."),
    ],
)
def test_a_time_zone_that_there_is_not(name: str, suggestion: str) -> None:
    source = f"{{kind: cron, schedule: '0 * * * *', time_zone: {name}}}"
    (problem,) = problems_of(HEAD + f"- {{name: tick, activation: source, source: {source}}}\n")
    assert (problem.code, problem.suggestion) == ("unknown_time_zone", suggestion)
