"""What people see of buffered datasets: their tables, commits and writers, and what was refused."""

from typing import Any

import msgspec
import pytest

from tests.cli import samples
from tests.cli.conftest import Trace
from tests.cli.fake_api import FakeApi
from tests.cli.samples import uuid
from tracelake.catalogue.tables import type_text
from tracelake.model.dag import Schema
from tracelake.wire.datasets import (
    BufferedTableRow,
    CommitBatch,
    DatasetColumnRow,
    DatasetDetail,
    DatasetsReply,
    EventsPage,
    LineageReply,
    LineageUnit,
)
from tracelake.wire.jobs import JobsReply
from tracelake.wire.pressure import PressureEdgeRow, PressureReply, QueueRow
from tracelake.wire.units import CursorRange, Unit

WIDTHS = pytest.mark.parametrize("columns", [80, 200])
SCHEMA = {
    "columns": [
        {"name": "block_number", "type": "int64", "nullable": False},
        {"name": "token", "type": "bytes", "max_length": 20},
        {"name": "kind", "type": "text", "nullable": False, "enum": ["move", "burn"]},
        {"name": "price", "type": "decimal", "precision": 20, "scale": 6},
    ],
    "unique": ["block_number", "log_index"],
    "indexes": [["token", "at"], ["at"]],
}
TABLE = BufferedTableRow(
    on_conflict="update",
    max_queue_depth=1000,
    max_queue_age_seconds=600,
    table=f"dataset_{uuid(20)}",
    view="org_acme.large_transfers",
    last_commit=15,
    committed_at=samples.EARLIER,
)


def row(**changes: Any) -> Any:
    values = {
        "name": "large_transfers",
        "storage": "buffered",
        "dag": "token_flows",
        "job": None,
        "writers": ["token_flows/by_sender", "token_flows/by_token"],
        "blocks": None,
        "max_cursor": 15,
        "waiting_batches": 0,
        "dead_letters": 0,
    }
    return samples.dataset_row(**(values | changes))


def detail(table: BufferedTableRow | None = TABLE, **changes: Any) -> DatasetDetail:
    known = samples.dataset()
    columns = [
        DatasetColumnRow(name=column.name, type=type_text(column), nullable=column.nullable)
        for column in msgspec.convert(SCHEMA, Schema).columns
    ]
    return msgspec.structs.replace(known, dataset=row(**changes), table=table, schema=SCHEMA, columns=columns)


def batch(number: int, job: str = "by_token", attempt: int = 1) -> CommitBatch:
    unit = Unit(partition_key=f"{number}00-{number}99", start=number * 100, end=number * 100 + 99)
    return CommitBatch(
        publish_id=uuid(500 + number),
        task_id=uuid(600 + number),
        attempt=attempt,
        dag="token_flows",
        job=job,
        unit=unit,
    )


def fits(shown: str, columns: int) -> None:
    assert all(len(line) <= columns or "trace " in line or "in Python: " in line for line in shown.splitlines()), shown


@WIDTHS
def test_one_with_its_table(columns: int, trace: Trace, api: FakeApi) -> None:
    api.answers["GET /v1/datasets/large_transfers"] = detail()
    shown = trace("datasets", "large_transfers", columns=columns).out
    fits(shown, columns)
    text = " ".join(shown.split())
    for part in (
        "written by token_flows/by_sender, token_flows/by_token",
        "last commit 15, ",
        "batches 0 waiting, 0 refused",
        "writers stop at 1000 batches or 10m",
        "on conflict update",
        "view org_acme.large_transfers",
        f"table dataset_{uuid(20)}",
        "unique block_number, log_index",
        "indexes (token, at), (at)",
        "up to commit 1999",
        "trace read large_transfers",
    ):
        assert part in text, part
    assert " up to 15" not in text


def test_one_without_limits_and_commits(trace: Trace, api: FakeApi) -> None:
    table = BufferedTableRow(on_conflict="nothing", table="dataset_x", view="org_acme.large_transfers")
    api.answers["GET /v1/datasets/large_transfers"] = detail(table, max_cursor=None)
    text = " ".join(trace("datasets", "large_transfers").out.split())
    assert "last commit none yet" in text
    assert "writers stop at no limit" in text


@WIDTHS
def test_in_the_list_with_writers_and_commit(columns: int, trace: Trace, api: FakeApi) -> None:
    api.answers["GET /v1/datasets"] = DatasetsReply(datasets=[row(), samples.dataset_row()])
    shown = trace("datasets", columns=columns).out
    fits(shown, columns)
    text = " ".join(shown.split())
    assert "token_flows/by_sender" in text
    assert "commit 15" in text
    assert "pools/prices" in text


@pytest.mark.parametrize(
    ("waiting", "dead", "words"),
    [(3, 0, "3 wait"), (1, 0, "1 waiting"), (1200, 2, "1,200 waiting, 2 refused"), (0, 1, "1 refused")],
)
def test_what_is_not_in_its_table(waiting: int, dead: int, words: str, trace: Trace, api: FakeApi) -> None:
    counts: dict[str, Any] = {"waiting_batches": waiting, "dead_letters": dead}
    api.answers["GET /v1/datasets"] = DatasetsReply(datasets=[row(**counts), samples.dataset_row()])
    api.answers["GET /v1/datasets/large_transfers"] = detail(**counts)
    one = trace("datasets", "large_transfers").out
    assert words in trace("datasets", columns=200).out
    assert words in one
    assert ("trace dlq list --dataset large_transfers" in one) == bool(dead)


def test_the_list_says_nothing_of_batches_when_everything_is_there(trace: Trace, api: FakeApi) -> None:
    api.answers["GET /v1/datasets"] = DatasetsReply(datasets=[row()])
    assert "batches" not in trace("datasets", columns=200).out


def lineage(*batches: CommitBatch, number: int | None = None) -> LineageReply:
    unit = LineageUnit(
        unit=Unit(cursor=CursorRange(after=14, to=15)),
        dataset_version=uuid(21),
        at=samples.EARLIER,
        producer=f"publish:{uuid(501)}",
        batches=list(batches),
        batch_count=number or len(batches),
    )
    return samples.lineage(dataset="large_transfers", units=[unit])


@WIDTHS
def test_a_commit_leads_to_the_tasks_that_wrote_it(columns: int, trace: Trace, api: FakeApi) -> None:
    path = "GET /v1/datasets/large_transfers/lineage"
    api.answers[path] = lineage(batch(1), batch(2, "by_sender", attempt=2), batch(3), batch(4), number=12)
    shown = trace("lineage", "large_transfers", columns=columns).out
    fits(shown, columns)
    for part in ("commit 15", "12 batches", "token_flows/by_token 100-199", "and 9 more", f"trace tasks {uuid(601)}"):
        assert part in shown, part
    for number in (1, 2, 3):
        assert str(uuid(600 + number)) in shown
    assert str(uuid(604)) not in shown
    assert "publish:" not in shown
    one = trace("lineage", "large_transfers", "--unit", "15", columns=columns).out
    assert str(uuid(604)) in one, "more of one"
    assert "and 8 more" in one


@WIDTHS
def test_events_name_the_task_of_a_commit(columns: int, trace: Trace, api: FakeApi) -> None:
    known = {"dataset": "large_transfers", "cursor": 15, "attempt": None, "producer": f"publish:{uuid(501)}"}
    api.answers["GET /v1/events"] = EventsPage(
        events=[
            samples.event(batches=[batch(1), batch(2)], batch_count=3, **known),
            samples.event(event_id=6, batches=[batch(3)], batch_count=1, **known),
            samples.event(event_id=5, **known),
        ]
    )
    shown = trace("events", columns=columns).out
    fits(shown, columns)
    text = " ".join(shown.split())
    for part in (f"{uuid(601)}#1 and 2 more", f"{uuid(603)}#1", f"publish:{uuid(501)}"):
        assert part in text


@WIDTHS
def test_jobs_say_what_was_refused_of_their_outputs(columns: int, trace: Trace, api: FakeApi) -> None:
    def answer(letters: int) -> JobsReply:
        known = samples.jobs()
        changed = msgspec.structs.replace(samples.OUTPUT, storage="buffered", dead_letters=letters)
        return msgspec.structs.replace(
            known, jobs=[known.jobs[0], msgspec.structs.replace(known.jobs[1], outputs=[changed])]
        )

    api.answers["GET /v1/dags/pools/jobs"] = answer(3)
    shown = trace("jobs", "pools", columns=columns).out
    fits(shown, columns)
    assert "prices_out 3 refused" in " ".join(shown.split())
    assert "see 3 dead letters of prices_out: trace dlq list --dataset prices_out" in shown
    api.answers["GET /v1/dags/pools/jobs"] = answer(0)
    shown = trace("jobs", "pools", columns=columns).out
    assert "refused" not in shown
    assert "dlq" not in shown


@WIDTHS
def test_pressure_says_what_could_stop_an_input_and_how(columns: int, trace: Trace, api: FakeApi) -> None:
    name = "token_flows/large_transfers"
    known: dict[str, Any] = {"dag": "token_flows", "input_index": 0, "dataset": "transfers", "state": "open"}
    known |= {"queue": name, "queue_is_backlog": True, "queues": [name], "depth": 0, "age_seconds": 0.0, "backlog": 0}
    api.answers["GET /v1/pressure"] = PressureReply(
        queues=[
            QueueRow(
                dag="token_flows",
                job="large_transfers",
                backlog=True,
                state="open",
                depth=0,
                max_depth=9,
                age_seconds=0,
            )
        ],
        edges=[
            PressureEdgeRow(job="by_token", **known),
            PressureEdgeRow(job="summarise", queues_of_writers=[name], **known),
        ],
    )
    shown = trace("pressure", columns=columns).out
    fits(shown, columns)
    writer, beside = (" ".join(shown.split()).partition(f"token_flows/{job}")[2] for job in ("by_token", "summarise"))
    assert "feeds" not in shown
    assert "could be stopped by" in shown
    assert f"{name} (backlog) through its writers" in beside
    assert "through its writers" not in writer.partition("token_flows/summarise")[0]


def test_columns_are_shown_as_a_document_writes_them(trace: Trace, api: FakeApi) -> None:
    api.answers["GET /v1/datasets/large_transfers"] = detail()
    shown = " ".join(trace("datasets", "large_transfers").out.split())
    for words in (
        "block_number int64 not null token bytes(20)",
        "kind text not null; one of move, burn",
        "price decimal(20,6)",
    ):
        assert words in shown
