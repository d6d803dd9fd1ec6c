"""Every command that shows something: for people, for programs, without rows, on narrow terminals, with evil names."""

import ast
import json
import re
import shlex
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

import msgspec
import pytest

from tests.cli import samples
from tests.cli.conftest import Trace
from tests.cli.fake_api import FakeApi
from tests.cli.samples import EVIL, TASK, uuid
from tracelake.cli.build_progress import rejected_words
from tracelake.errors import TraceError
from tracelake.model.dag import CheckKind
from tracelake.wire.audit import AuditPage, AuditRow
from tracelake.wire.base import ErrorBody
from tracelake.wire.checks import CheckResultRow, CheckResultsReply, ChecksReply
from tracelake.wire.dags import DagsReply, DagVersionsReply
from tracelake.wire.datasets import DatasetDetail, DatasetsReply, EventsPage, InputRead, LineageReply, ReadRange
from tracelake.wire.jobs import JobsReply
from tracelake.wire.operators import OperatorRow, OperatorsReply
from tracelake.wire.platform import WhoAmI
from tracelake.wire.sources_view import SourcesReply
from tracelake.wire.tasks import TaskDetail, TasksPage
from tracelake.wire.units import Unit

# The command, the route it asks, the answer, and what a person must find in the table.
VIEWS: list[tuple[str, str, Any, list[str]]] = [
    ("dags", "/v1/dags", samples.dags(), ["pools", "v3", "v4", "3m5s ago", "trace tasks --dag pools --by-error"]),
    (
        "dags pools",
        "/v1/dags/pools/versions",
        samples.versions(),
        ["Building", "Active", "ann", "3 done, 2 open", "trace dags pools --source 4"],
    ),
    (
        "jobs pools",
        "/v1/dags/pools/jobs",
        samples.jobs(),
        [
            "version 3",
            "manual source",
            "prices_out",
            "held",
            "12 events waiting",
            "wait",
            "retry",
            "done",
            "trace trigger pools/blocks",
        ],
    ),
    (
        "sources",
        "/v1/sources",
        samples.sources(),
        [
            "pools/head",
            "always_on",
            "1999",
            "2m",
            "backing off",
            "by ann",
            "2026-01",
            "no such chain",
            str(uuid(41)),
            f"trace retry {uuid(42)}",
        ],
    ),
    (
        "tasks",
        "/v1/tasks",
        samples.TASKS,
        [
            *(str(uuid(number)) for number in range(1, 8)),
            "pools/prices",
            "Retrying (in 1m",
            "Queued, waiting",
            "Failed, skipped",
            "(9, 12]",
        ],
    ),
    (
        f"tasks {TASK}",
        f"/v1/tasks/{TASK}",
        samples.detail(status="Failed", error="no such block"),
        ["Timeout", "w1", "blocks", "prices_out", '{"rows": 12}', "no such block", f"trace retry {TASK}"],
    ),
    ("events", "/v1/events", samples.EVENTS, ["blocks", "1999", "AwaitsCommit", f"{TASK}#2", '{"start": 1}']),
    ("datasets", "/v1/datasets", samples.DATASETS, ["prices_out", "pools/prices", "1000", "building"]),
    (
        "datasets prices_out",
        "/v1/datasets/prices_out",
        samples.dataset(),
        [
            str(uuid(21)),
            str(uuid(22)),
            "115 ranges more",
            "reports/daily",
            "description Prices of pools.",
            "owner data team",
            "blocks 1,000, from 1000 to 2009; 1 gap: 1500-1509",
            "rows 12,345",
            "size 3.3 MiB",
            "price double not null In dollars.",
            "trace query 'SELECT price FROM prices_out LIMIT 10'",
            "reorg",
            "trace lineage prices_out",
        ],
    ),
    (
        "lineage prices_out",
        "/v1/datasets/prices_out/lineage",
        samples.lineage(),
        ["2 units", "pools/prices", "reports/daily", "daily_out", str(TASK), "from blocks 1000-1999", "by hand"],
    ),
    ("audit", "/v1/audit", samples.AUDIT, ["ann", "dag.activate", "pools", '{"version": 3}', str(TASK)]),
    (
        "operators",
        "/v1/operators",
        OperatorsReply(
            operators=[
                OperatorRow(name="broken", summary="", package="acme 2.0", available=False),
                OperatorRow(name="count_rows", summary="Counts rows.", package="acme 2.0"),
                OperatorRow(name="noop", summary="Does nothing."),
            ]
        ),
        ["count_rows acme 2.0 Counts rows.", "could not be loaded", "Not usable: broken.", "noop"],
    ),
    (
        "checks",
        "/v1/checks",
        ChecksReply(checks=samples.dataset().checks),
        ["prices_out", "range_price", "failed", "price at least 0"],
    ),
    ("whoami", "/v1/whoami", WhoAmI(subject="ann", org="acme", roles=["admin"]), ["ann", "acme", "admin"]),
]
NAMES = [command for command, *_ in VIEWS]


@pytest.mark.parametrize(("command", "path", "answer", "texts"), VIEWS, ids=NAMES)
@pytest.mark.parametrize("columns", [None, 200, 100, 60, 20])
def test_people_see_everything_at_any_width(
    command: str, path: str, answer: Any, texts: list[str], columns: int | None, trace: Trace, api: FakeApi
) -> None:
    api.answers[f"GET {path}"] = answer
    shown = trace(*command.split(), columns=columns)
    assert (shown.status, shown.err) == (0, "")
    # What is folded is still there: compare without the line ends.
    text = " ".join(shown.out.split()) if columns is None or columns > 60 else "".join(shown.out.split())
    for expected in texts:
        if columns is None or columns >= 200:
            assert expected in text
        elif columns == 60:
            assert "".join(expected.split()) in text
    for line in shown.out.splitlines():
        assert line == line.rstrip()
        # An id is never cut; the only lines wider than a terminal are those that carry something to copy.
        copied = "trace " in line or "in Python: " in line
        assert columns is None or len(line) <= columns or columns < 60 or copied
    if columns is None or columns >= 60:
        ids = [word for word in texts if word.startswith("01890000")]
        assert all(word in shown.out for word in ids)


@pytest.mark.parametrize(("command", "path", "answer", "texts"), VIEWS, ids=NAMES)
def test_programs_get_one_document_of_the_wire_type(
    command: str, path: str, answer: Any, texts: list[str], trace: Trace, api: FakeApi
) -> None:
    api.answers[f"GET {path}"] = answer
    shown = trace(*command.split(), "--json")
    assert (shown.status, shown.err, shown.out.count("\n")) == (0, "", 1)
    assert msgspec.json.decode(shown.out, type=type(answer)) == answer


EMPTY: list[tuple[str, str, Any, str]] = [
    ("dags", "/v1/dags", DagsReply(dags=[]), "trace deploy my_project/activity.yaml"),
    ("dags pools", "/v1/dags/pools/versions", DagVersionsReply(dag="pools", versions=[]), "0 versions"),
    ("jobs pools", "/v1/dags/pools/jobs", JobsReply(dag="pools", version=1, jobs=[]), "0 jobs"),
    ("sources", "/v1/sources", SourcesReply(sources=[]), "trace deploy my_project/activity.yaml"),
    ("tasks", "/v1/tasks", TasksPage(tasks=[]), "trace sources"),
    ("tasks --dag pools", "/v1/tasks", TasksPage(tasks=[]), "No task matches the filters."),
    ("events", "/v1/events", EventsPage(events=[]), "no event yet"),
    ("events --dataset blocks", "/v1/events", EventsPage(events=[]), "No event matches the filters."),
    ("datasets", "/v1/datasets", DatasetsReply(datasets=[]), "trace deploy my_project/activity.yaml"),
    (
        "lineage prices_out",
        "/v1/datasets/prices_out/lineage",
        samples.lineage(upstream=[], downstream=[], units=[]),
        "no unit yet",
    ),
    ("audit", "/v1/audit", AuditPage(entries=[]), "The audit log is empty"),
]


@pytest.mark.parametrize(("command", "path", "answer", "text"), EMPTY, ids=[entry[0] for entry in EMPTY])
def test_nothing_is_a_sentence_with_a_next_step(
    command: str, path: str, answer: Any, text: str, trace: Trace, api: FakeApi
) -> None:
    api.answers[f"GET {path}"] = answer
    shown = trace(*command.split(), columns=60)
    assert (shown.status, shown.err) == (0, "")
    assert text in shown.out
    assert msgspec.json.decode(trace(*command.split(), "--json").out, type=type(answer)) == answer


def evil(answer: Any) -> Any:
    """The same answer with a trick at the end of every text that is not one of a few words."""

    def change(value: Any, key: str = "") -> Any:
        if isinstance(value, dict):
            return {name: change(item, name) for name, item in value.items()}
        if isinstance(value, list):
            return [change(item, key) for item in value]
        fixed = ("status", "state", "phase", "change", "partition_key", "kind", "severity")
        plain = isinstance(value, str) and key not in fixed and not value.startswith(("01890000", "20"))
        return value + EVIL if plain else value

    return msgspec.convert(change(msgspec.to_builtins(answer)), type(answer))


@pytest.mark.parametrize(("command", "path", "answer", "texts"), VIEWS, ids=NAMES)
@pytest.mark.parametrize("columns", [None, 60])
def test_names_play_no_tricks(
    command: str, path: str, answer: Any, texts: list[str], columns: int | None, trace: Trace, api: FakeApi
) -> None:
    api.answers[f"GET {path}"] = evil(answer)
    shown = trace(*command.split(), columns=columns)
    assert shown.status == 0
    assert not set(shown.out) & set("\x1b\x07\x9b\u202e")
    if columns is None:
        assert r"\x1b[31m" in shown.out
        assert "[bold]y[/bold]" in shown.out
    assert msgspec.json.decode(trace(*command.split(), "--json").out, type=type(answer)) == evil(answer)


def test_filters_reach_the_server(trace: Trace, api: FakeApi) -> None:
    api.answers |= {"GET /v1/tasks": samples.TASKS, "GET /v1/events": samples.EVENTS}
    api.answers["GET /v1/datasets/prices_out/lineage"] = samples.lineage()
    trace("tasks", "--job", "pools/prices", "--status", "failed", "--since", "2026-01-31", "--until", "2026-02-01")
    assert api.calls[-1].query == {
        "dag": "pools",
        "job": "prices",
        "status": "Failed",
        "since": "2026-01-31T00:00:00Z",
        "until": "2026-02-01T00:00:00Z",
        "limit": "50",
    }
    trace("events", "--dataset", "blocks", "--state", "routed", "--limit", "3", "--cursor", "a b")
    assert api.calls[-1].query == {"dataset": "blocks", "state": "Routed", "limit": "3", "cursor": "a b"}
    trace("lineage", "prices_out", "--range", "1_000-2,000")
    assert api.calls[-1].query == {"start": "1000", "end": "2000", "limit": "20"}
    trace("lineage", "prices_out", "--unit", "a/b")
    assert api.calls[-1].query == {"unit": "a/b", "limit": "20"}


def test_pages_are_collected_up_to_the_limit_and_the_rest_is_named(trace: Trace, api: FakeApi) -> None:
    def page(call: Any) -> TasksPage:
        first = int(call.query.get("cursor", "0"))
        size = min(int(call.query["limit"]), 3)
        rows = [samples.task_row(number) for number in range(first, min(first + size, 8))]
        return TasksPage(tasks=rows, next=str(first + size) if first + size < 8 else None)

    api.answers["GET /v1/tasks"] = page
    everything = msgspec.json.decode(trace("tasks", "--json").out, type=TasksPage)
    assert [row.task_id for row in everything.tasks] == [uuid(number) for number in range(8)]
    assert everything.next is None
    some = msgspec.json.decode(trace("tasks", "--limit", "5", "--json").out, type=TasksPage)
    assert (len(some.tasks), some.next) == (5, "5")
    shown = trace("tasks", "--dag", "pools", "--limit", "5")
    assert "trace tasks --dag pools --limit 5 --cursor 5" in shown.out


def test_a_server_that_repeats_its_cursor_does_not_keep_us(trace: Trace, api: FakeApi) -> None:
    api.answers["GET /v1/audit"] = AuditPage(entries=[AuditRow(
        audit_id=1, at=samples.EARLIER, subject="ann", action="x", target="y")], next="same")  # fmt: skip
    assert trace("audit").status == 0
    assert len(api.calls) == 2


def test_hints_name_the_home_that_was_given(trace: Trace, api: FakeApi) -> None:
    api.answers["GET /v1/dags"] = DagsReply(dags=[])
    assert f"trace deploy my_project/activity.yaml --home {api.home}" in trace("dags", "--home", str(api.home)).out


def test_the_document_of_a_version_is_printed_as_it_is(trace: Trace, api: FakeApi) -> None:
    api.answers["GET /v1/dags/pools/versions/3"] = b"name: pools  # \xc3\xa4\nno end"
    assert trace("dags", "pools", "--source", "3").out == "name: pools  # ä\nno end"


def test_a_job_of_another_version(trace: Trace, api: FakeApi) -> None:
    api.answers["GET /v1/dags/pools/jobs"] = samples.jobs()
    trace("jobs", "pools", "--version", "2")
    assert api.calls[-1].query == {"version": "2"}


@pytest.mark.parametrize(
    ("status", "changes", "step"),
    [
        ("Failed", {}, "trace skip"),
        ("Failed", {"skipped": True}, "trace retry"),
        ("Failed", {"next_retry_at": samples.NOW}, "trace retry"),
        ("Canceled", {}, "trace retry"),
        ("Queued", {}, "trace cancel"),
        ("Completed", {}, "trace datasets prices_out"),
    ],
)
def test_a_task_names_the_next_step(status: str, changes: Any, step: str, trace: Trace, api: FakeApi) -> None:
    api.answers[f"GET /v1/tasks/{TASK}"] = samples.detail(status=status, **changes)
    assert step in trace("tasks", str(TASK)).out


@pytest.mark.parametrize("changes", [{"skipped": True}, {"next_retry_at": samples.NOW}])
def test_only_what_failed_for_good_is_offered_to_be_skipped(changes: Any, trace: Trace, api: FakeApi) -> None:
    api.answers[f"GET /v1/tasks/{TASK}"] = samples.detail(status="Failed", **changes)
    shown = trace("tasks", str(TASK)).out
    assert "trace skip" not in shown
    assert "trace datasets" not in shown, "it wrote nothing"


@pytest.mark.parametrize(
    ("command", "path", "error", "text"),
    [
        ("datasets price_out", "/v1/datasets/price_out", "dataset_not_found",
         "no dataset `price_out`. Did you mean `prices_out`? List them: `trace datasets`."),
        ("lineage Prices", "", "dataset_not_found", "no dataset `Prices`."),
        ("lineage zzz", "/v1/datasets/zzz/lineage", "dataset_not_found", "no dataset `zzz`. List them"),
        ("events --dataset price_out", "/v1/events", "dataset_not_found", "Did you mean `prices_out`?"),
        ("tasks --dag pool", "/v1/tasks", "dag_not_found", "no DAG `pool`. Did you mean `pools`?"),
        ("tasks --dag pools --job price", "/v1/tasks", "job_not_found", "no job `price`. Did you mean `prices`?"),
        ("jobs pool", "/v1/dags/pool/jobs", "dag_not_found", "Did you mean `pools`?"),
        ("dags pool", "/v1/dags/pool/versions", "dag_not_found", "Did you mean `pools`?"),
    ],
)  # fmt: skip
def test_a_name_that_nothing_has(command: str, path: str, error: str, text: str, trace: Trace, api: FakeApi) -> None:
    api.answers |= {"GET /v1/datasets": samples.DATASETS, "GET /v1/dags": samples.dags()}
    api.answers |= {"GET /v1/dags/pools/jobs": samples.jobs(), f"GET {path}": TraceError(error)}
    ended = trace(*command.split())
    assert (ended.status, ended.out) == (1, "")
    assert ended.err.startswith(f"error: {error}: There is no ")
    assert text in ended.err


def test_a_dataset_that_nobody_writes_any_more_is_marked(trace: Trace, api: FakeApi) -> None:
    api.answers["GET /v1/datasets"] = DatasetsReply(datasets=[samples.dataset_row(retired_after=2)])
    api.answers["GET /v1/datasets/prices_out"] = samples.dataset(retired_after=2)
    for command in (["datasets"], ["datasets", "prices_out"]):
        assert "pools/prices retired (last written in v2)" in trace(*command).out


def test_commits_are_of_files_and_tables_alone(trace: Trace, api: FakeApi) -> None:
    for storage, shown in (("s3", True), ("buffered", True), ("live", True), ("postgres", False)):
        api.answers["GET /v1/datasets/prices_out"] = samples.dataset(storage=storage)
        assert ("commits" in trace("datasets", "prices_out").out) is shown


@pytest.mark.parametrize("column", ["price_in_dollars_of_the_pool_with_the_longest_history", "at"])
def test_what_is_to_be_copied_is_not_broken_into_lines(column: str, trace: Trace, api: FakeApi) -> None:
    detail = samples.dataset()
    columns = [msgspec.structs.replace(detail.columns[0], name=column)]
    api.answers["GET /v1/datasets/prices_out"] = msgspec.structs.replace(detail, columns=columns)
    lines = trace("datasets", "prices_out", columns=60).out.splitlines()
    name = f'"{column}"' if column == "at" else column
    statement = f"SELECT {name} FROM prices_out LIMIT 10"
    (python,) = [line.removeprefix("in Python: ") for line in lines if line.startswith("in Python: ")]
    assert ast.literal_eval(python[python.index("query(") + len("query") :]) == statement
    assert f"ask it in SQL: trace query {shlex.quote(statement)}" in lines


def test_a_live_dataset_says_where_its_files_end(trace: Trace, api: FakeApi) -> None:
    detail = samples.dataset(storage="live")
    for boundary, content, text in (
        (1_999, detail.content, "files up to block 1,999, a table above"),
        (None, detail.content, "a table, and files of what was there before it"),
        (None, None, "none are committed yet"),
    ):
        shown = msgspec.structs.replace(detail, boundary=boundary, content=content)
        api.answers["GET /v1/datasets/prices_out"] = shown
        out = trace("datasets", "prices_out").out
        assert text in out
        assert "trace read prices_out" in out
        assert "trace query" in out
    api.answers["GET /v1/datasets/prices_out"] = samples.dataset()
    assert "rows are in" not in trace("datasets", "prices_out").out


def test_an_error_that_is_not_retried_is_told_from_the_last_attempt(trace: Trace, api: FakeApi) -> None:
    def show(**changes: Any) -> str:
        found = samples.detail(status="Failed", error="no such block", **changes)
        attempts = [found.attempts[0], msgspec.structs.replace(found.attempts[1], outcome="Failed")]
        api.answers[f"GET /v1/tasks/{TASK}"] = msgspec.structs.replace(found, attempts=attempts)
        return " ".join(trace("tasks", str(TASK)).out.split())

    words = "not retried: another attempt would fail in the same way"
    assert f"attempt 2/5, {words}" in show()
    assert words not in show(attempt=5)
    assert words not in show(next_retry_at=samples.EARLIER), "it will be retried"


def test_published_datasets_come_first(trace: Trace, api: FakeApi) -> None:
    rows = [
        samples.dataset_row(name=name, published=not name.startswith("a__")) for name in ("a__head_3", "b", "c", "d")
    ]
    api.answers["GET /v1/datasets"] = DatasetsReply(datasets=rows)
    lines = trace("datasets").out.splitlines()
    assert [line.split()[0] for line in lines[1:5]] == ["b", "c", "d", "a__head_3"]
    assert "trace datasets b" in lines[5]


def test_a_build_with_failed_tasks_names_the_ways_out(trace: Trace, api: FakeApi) -> None:
    failed = msgspec.structs.replace(samples.BUILD, failed=1)
    api.answers["GET /v1/dags/pools/versions"] = samples.versions(samples.version(4, "Building", build=failed))
    shown = trace("dags", "pools").out
    many = "--dag pools --version 4 --failed"
    for step in (f"trace retry {many}", f"trace skip {many}", "trace deploy FILE", "trace activate pools 4 --now"):
        assert step in shown


def test_rejected_batches_of_a_build_are_told_with_commands_that_can_be_copied(trace: Trace, api: FakeApi) -> None:
    build = msgspec.structs.replace(samples.BUILD, dead_letters=2, old_dead_letters=1, rejected_datasets=["prices"])
    api.answers["GET /v1/dags/pools/versions"] = samples.versions(samples.version(4, "Building", build=build))
    shown = " ".join(trace("dags", "pools").out.split())
    text = (
        "Version 4 cannot become active: 2 batches of its rows were rejected by the sink, 1 of them before this deploy."
    )
    assert text in shown
    assert "trace dlq replay --dataset prices" in shown
    old = msgspec.structs.replace(build, old_dead_letters=2)
    assert rejected_words(old) == "2 batches of its rows were rejected before this deploy"


def test_units_are_a_line_each_in_order_of_blocks(trace: Trace, api: FakeApi) -> None:
    (made, _) = samples.lineage().units
    units = [
        msgspec.structs.replace(made, unit=Unit(partition_key=f"{start}-{start + 9}", start=start, end=start + 9))
        for start in (30, 100, 20)
    ]
    for order, title in (
        (units, "newest 3 units"),
        (sorted(units, key=lambda row: row.unit.start or 0), "first 3 units"),
    ):
        api.answers["GET /v1/datasets/prices_out/lineage"] = samples.lineage(units=order, next="more")
        shown = trace("lineage", "prices_out", "--limit", "3").out
        assert title in shown
        lines = [line for line in shown.splitlines() if str(TASK) in line and "trace " not in line]
        assert [line.split()[1] for line in lines] == ["20-29", "30-39", "100-109"]
        assert all("from blocks 1000-1999" in line for line in lines)


READ = ReadRange(input_index=0, dataset="blocks", start=0, end=499, revision=3, as_of=samples.EARLIER)


@pytest.mark.parametrize(
    ("ranges", "read", "words"),
    [
        ([READ], {"ranges": 1}, "0-499@3"),
        ([READ], {"ranges": 4}, "0-499@3, and 3 more ranges"),
        ([READ], {"ranges": 1, "looked_to": 499}, "0-499@3, and units above 499 that are not listed"),
        ([READ], {"ranges": 1, "reads_table": True, "table_above": 499}, "0-499@3, rows above 499 of the table"),
        ([], {"reads_table": True}, "rows of the table"),
        ([], {}, "nothing"),
        ([], {"read_known": False}, "not recorded (asked 1000-1999)"),
        (
            [READ],
            {"ranges": 1, "read_known": False, "deleted_units": 2},
            "0-499@3, and 2 units whose revision is not recorded any more",
        ),
    ],
)
def test_lineage_tells_what_was_read_and_what_is_not_known(
    trace: Trace, api: FakeApi, ranges: list[ReadRange], read: dict[str, Any], words: str
) -> None:
    (made, _) = samples.lineage().units
    values: dict[str, Any] = {"input_index": 0, "dataset": "blocks", "read_known": True} | read
    units = [msgspec.structs.replace(made, read=ranges, input_reads=[InputRead(**values)])]
    api.answers["GET /v1/datasets/prices_out/lineage"] = samples.lineage(units=units)
    lines = trace("lineage", "prices_out").out.splitlines()
    assert any(line.rstrip().endswith(f"from blocks {words}") for line in lines), lines


def test_lineage_with_a_circle_ends(trace: Trace, api: FakeApi) -> None:
    edges = [("b", "a"), ("c", "b"), ("a", "c"), ("b", "b")]
    upstream = [{"from_dataset": start, "dag": "d", "job": f"j{end}", "to_dataset": end} for start, end in edges]
    answer = msgspec.to_builtins(samples.lineage(dataset="a")) | {"upstream": upstream}
    api.answers["GET /v1/datasets/a/lineage"] = msgspec.convert(answer, LineageReply)
    shown = trace("lineage", "a").out
    assert shown.count("(see above)") == 2


def test_a_dataset_is_expanded_where_it_is_named_first(trace: Trace, api: FakeApi) -> None:
    edges = [("b", "a"), ("c", "a"), ("c", "b"), ("d", "c")]
    upstream = [{"from_dataset": start, "dag": "d", "job": f"j{end}", "to_dataset": end} for start, end in edges]
    answer = msgspec.to_builtins(samples.lineage(dataset="a")) | {"upstream": upstream, "downstream": []}
    api.answers["GET /v1/datasets/a/lineage"] = msgspec.convert(answer, LineageReply)
    lines = [line.strip("│├└─ ") for line in trace("lineage", "a").out.splitlines()]
    drawn = lines[lines.index("a is computed from") + 1 : lines.index("a is read by")]
    assert drawn == ["d/ja", "b", "d/jb", "c", "d/jc", "d", "c (see above)"]


def test_a_huge_lineage_is_cut_in_the_drawing_alone(trace: Trace, api: FakeApi) -> None:
    upstream = [{"from_dataset": f"s{n}", "dag": "d", "job": f"j{n}", "to_dataset": "a"} for n in range(2000)]
    answer = msgspec.to_builtins(samples.lineage(dataset="a")) | {"upstream": upstream}
    api.answers["GET /v1/datasets/a/lineage"] = msgspec.convert(answer, LineageReply)
    shown = trace("lineage", "a").out
    assert "see --json" in shown
    assert shown.count("d/j") == 500
    assert len(msgspec.json.decode(trace("lineage", "a", "--json").out)["upstream"]) == 2000


@pytest.mark.parametrize(
    "command",
    [
        "tasks nonsense",
        f"tasks {TASK} --dag pools",
        f"tasks {TASK} --watch",
        "tasks --dag other --job pools/prices",
        "tasks --since tomorrow",
        "tasks --limit 0",
        "tasks --status Gone",
        "dags --source 3",
        "dags pools --source 3 --json",
        "dags --watch --json",
        "lineage prices_out --range 9-3",
        "whoami --token-file missing.token",
        "lineage prices_out --range 1-3 --unit x",
        "jobs",
    ],
)
def test_what_makes_no_sense_is_refused_before_anything_is_sent(command: str, trace: Trace, api: FakeApi) -> None:
    ended = trace(*command.split())
    assert (ended.status, ended.out) == (2, "")
    assert "Error: " in ended.err
    assert not api.calls


@pytest.mark.parametrize("command", [*NAMES, "dags pools --source 3"])
def test_errors_are_one_line_on_standard_error(command: str, trace: Trace, api: FakeApi) -> None:
    for call in VIEWS:
        api.answers[f"GET {call[1]}"] = TraceError("internal", f"Broken {EVIL}.")
    api.answers["GET /v1/dags/pools/versions/3"] = TraceError("internal", f"Broken {EVIL}.")
    for words in (command.split(), [*command.split(), "--json"]):
        if "--source" in words and "--json" in words:
            continue
        ended = trace(*words)
        assert ended.status == 1
        if "--json" in words:
            info = msgspec.json.decode(ended.out, type=ErrorBody).error
            assert (info.code, info.message) == ("internal", f"Broken {EVIL}.")
        else:
            assert ended.out == ""
        assert ended.err.startswith("error: internal: Broken x")
        assert ended.err.endswith("Report it with the time of the call.\n")
        assert not set(ended.err) & set("\x1b\x07\x9b\u202e")


def test_errors_of_the_way_there_are_one_line_too(
    trace: Trace, api: FakeApi, monkeypatch: pytest.MonkeyPatch, tmp_path: Any
) -> None:
    monkeypatch.setenv("TRACE_TOKEN", "wrong")
    assert trace("dags").err.startswith("error: credential_invalid: ")
    monkeypatch.setenv("TRACE_TOKEN", "")
    calls = len(api.calls)
    assert trace("dags").err.startswith("error: credential_missing: TRACE_TOKEN is set, but empty")
    assert len(api.calls) == calls, "nobody becomes the admin by a variable that is empty"
    monkeypatch.delenv("TRACE_TOKEN")
    (api.home / "mine").write_text("wrong-too")
    assert trace("dags", "--token-file", str(api.home / "mine")).err.startswith("error: credential_invalid: ")
    as_json = trace("dags", "--json", "--home", str(tmp_path / "nowhere"))
    assert (as_json.status, msgspec.json.decode(as_json.out, type=ErrorBody).error.code) == (1, "no_stack")
    nobody = trace("dags", "--home", str(tmp_path / "nowhere"))
    assert "no stack runs in" in nobody.err
    assert "trace up" in nobody.err
    stack = (api.home / "stack.json").read_bytes()
    for ca_file in (api.home / "missing.pem", api.home / "admin.token"):
        (api.home / "stack.json").write_bytes(
            msgspec.json.encode(msgspec.json.decode(stack) | {"ca_file": str(ca_file)})
        )
        assert "holds no CA certificate" in trace("dags").err
    (api.home / "stack.json").write_bytes(
        msgspec.json.encode(msgspec.json.decode(stack) | {"public_url": "https://127.0.0.1:1"})
    )
    assert re.fullmatch(r"error: store_unavailable: [^.]+\. Repeat the same call .*\n", trace("dags").err)


def test_the_detail_types_are_complete() -> None:
    """The samples use every list of the detail views, or the tests above would not see them."""
    for sample in (samples.detail(), samples.dataset(), samples.lineage()):
        assert isinstance(sample, TaskDetail | DatasetDetail | LineageReply)
        for name in sample.__struct_fields__:
            value = getattr(sample, name)
            assert not isinstance(value, list) or value, name


def test_a_task_shows_what_it_wrote(trace: Trace, api: FakeApi) -> None:
    report = {
        "dataset_uuid": str(samples.OUTPUT.dataset_uuid),
        "row_count": 12345,
        "file_count": 2,
        "size_bytes": 67890,
    }
    api.answers[f"GET /v1/tasks/{TASK}"] = msgspec.structs.replace(samples.detail(), result=[report])
    shown = trace("tasks", "show", str(TASK)).out
    assert shown == trace("tasks", str(TASK)).out
    assert "12,345" in shown
    assert "67,890" in shown
    assert "row_count" not in shown


def test_a_task_shows_what_spark_did_for_each_attempt(trace: Trace, api: FakeApi) -> None:
    did = {"jobs": 2, "stages": 31, "tasks": 1234, "run_ms": 65400, "spilled_disk_bytes": 7654321}
    detail = samples.detail()
    attempts = [detail.attempts[0], msgspec.structs.replace(detail.attempts[1], spark=did)]
    api.answers[f"GET /v1/tasks/{TASK}"] = msgspec.structs.replace(detail, attempts=attempts)
    shown = trace("tasks", str(TASK)).out
    for said in ("Spark", "stages", "31", "1,234", "65.4 s", "spill on disk", "7,654,321"):
        assert said in shown
    assert "shuffle" not in shown, "what is nothing is not shown"
    assert msgspec.json.decode(trace("tasks", str(TASK), "--json").out)["attempts"][1]["spark"] == did


LONG = "ethereum_mainnet_token_transfers_by_token"
"""Forty-one characters: names of real projects are long."""


def wide_jobs() -> JobsReply:
    (_, job) = samples.jobs().jobs
    inputs = [samples.edge(dataset=LONG), samples.edge(dataset="other", state="held", failed_units=1)]
    rows = [
        msgspec.structs.replace(job, name=name, inputs=inputs, done=10_000, done_more=True, gaps=2, more=True)
        for name in ("prices", LONG[:35])
    ]
    return JobsReply(dag="pools", version=3, jobs=rows)


@pytest.mark.parametrize("columns", [80, 100, 120, 200])
def test_jobs_are_a_table_that_fits(columns: int, trace: Trace, api: FakeApi) -> None:
    api.answers["GET /v1/dags/pools/jobs"] = wide_jobs()
    lines = trace("jobs", "pools", columns=columns).out.splitlines()
    hints = [line for line in lines if ": trace " in line]
    assert all(len(line) <= columns for line in lines if line not in hints)
    (heading,) = [line for line in lines if "done" in line and line.startswith("job")]
    (row,) = [line for line in lines if line.startswith("prices ") and "10000+" in line]
    assert row.index("10000+") + len("10000+") == heading.index("done") + len("done"), "below its heading"
    assert "gaps" in heading
    assert ("operator, inputs, outputs" in " ".join(lines)) is (columns < 200), "the second table of a narrow terminal"
    assert LONG in "".join(lines).replace(" ", "")


def test_dags_show_what_is_missing(trace: Trace, api: FakeApi) -> None:
    row = {"failed_tasks": 10_000, "more": True, "gaps": 3, "dead_letters": 2, "failed_building": 4}
    api.answers["GET /v1/dags"] = samples.dags("pools", **row)
    shown = trace("dags", columns=100).out
    heading, line, *_ = shown.splitlines()
    assert " ".join(heading.split()) == "dag active building versions jobs open failed gaps refused activated"
    assert line.split()[:10] == ["pools", "v3", "v4,", "4", "failed", "4", "2", "5+", "10000+", "3"]
    assert "trace tasks --dag pools --by-error" in shown
    api.answers["GET /v1/dags"] = samples.dags("pools", failed_tasks=0, dead_letters=2)
    assert "trace dlq list" in trace("dags").out


def test_rows_of_tables_are_about_so_many(trace: Trace, api: FakeApi) -> None:
    detail = samples.dataset(storage="buffered")
    assert detail.content is not None
    content = msgspec.structs.replace(detail.content, estimated=True)
    api.answers["GET /v1/datasets/prices_out"] = msgspec.structs.replace(detail, content=content)
    words = " ".join(trace("datasets", "prices_out").out.split())
    assert "rows about 12,345" in words
    assert "size about 3.3 MiB" in words
    assert '"estimated":true' in trace("datasets", "prices_out", "--json").out.replace(" ", "")


def test_a_dataset_without_rows_is_shown_as_events_only(trace: Trace, api: FakeApi) -> None:
    api.answers["GET /v1/datasets"] = DatasetsReply(datasets=[samples.dataset_row(storage="none")])
    listed = trace("datasets", columns=200)
    assert "events only" in listed.out
    assert "none" not in listed.out
    for is_published, text in ((True, "storage events only"), (False, "storage events only, not published")):
        api.answers["GET /v1/datasets/prices_out"] = samples.dataset(storage="none", published=is_published)
        shown = trace("datasets", "prices_out")
        assert text in [" ".join(line.split()) for line in shown.out.splitlines()]
        assert "trace read" not in shown.out + shown.err
    assert '"storage":"none"' in trace("datasets", "prices_out", "--json").out.replace(" ", "")
    detail = samples.detail()
    outputs = [msgspec.structs.replace(samples.OUTPUT, storage="none")]
    api.answers[f"GET /v1/tasks/{TASK}"] = msgspec.structs.replace(detail, outputs=outputs)
    assert "events only" in trace("tasks", str(TASK), columns=200).out


def check_result(number: int, day: int, **changes: Any) -> CheckResultRow:
    values: dict[str, Any] = {
        "name": "not_null_a",
        "kind": CheckKind.NOT_NULL,
        "severity": "error",
        "passed": True,
        "checked_at": datetime(2026, 1, day, 12, 0, 0, number % 1_000_000, UTC),
        "task_id": UUID(int=number),
        "attempt": 1,
        "dataset_version": UUID(int=1),
    }
    return CheckResultRow(**(values | changes))


def test_checks_over_time_read_all_pages(trace: Trace, api: FakeApi) -> None:
    first = [check_result(number, 31) for number in range(499)]
    first.append(check_result(499, 31, passed=False, offending_rows=7))
    until = first[-1].checked_at
    second = [check_result(600, 30, passed=False, severity="warn", offending_rows=2)]
    pages = iter(2 * [CheckResultsReply(results=first, next=until), CheckResultsReply(results=second)])
    api.answers["GET /v1/datasets/prices_out/check-results"] = lambda _: next(pages)
    lines = [line.split() for line in trace("checks", "prices_out", "--over-time", "--since", "7d").out.splitlines()]
    assert lines[-2:] == [
        ["2026-01-30", "not_null_a", "1", "0", "1", "2"],
        ["2026-01-31", "not_null_a", "500", "1", "0", "7"],
    ]
    assert {"limit", "since"} <= set(api.calls[0].query)
    assert "until" not in api.calls[0].query
    assert "until" in api.calls[1].query
    days = json.loads(trace("checks", "prices_out", "--over-time", "--json").out)["days"]
    assert [(day["day"], day["evaluated"]) for day in days] == [("2026-01-30", 1), ("2026-01-31", 500)]
    assert trace("checks", "--over-time").status == 2
