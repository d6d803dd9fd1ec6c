"""The results of a demo: its datasets, figures of the work, and whether they are right.

The registry names the files of a dataset; they are read with pyarrow, by ETag. The summary and the table are
recomputed here from the decoded transfers, without Spark.
"""

import asyncio
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tracelake.adapters.s3.access import WORKING, read_access
from tracelake.cli.text import count
from tracelake.client.stack import LocalStack
from tracelake.client.user import UserClient
from tracelake.demo.checks import Check, verify_functions
from tracelake.demo.function_runs import DemoFunctions
from tracelake.demo.live import LiveStory
from tracelake.demo.plan import BLOCK_JOBS, DATASETS, FLOWS, SPLIT, SUMMARY, TABLE, DemoPlan
from tracelake.demo.questions import QuestionReply
from tracelake.demo.table import DemoTable, Row
from tracelake.demo.watch import Story
from tracelake.settings.home import Home
from tracelake.stack.dataset_rows import list_files, read_files
from tracelake.wire import routes
from tracelake.wire.datasets import DatasetRow, LineageReply
from tracelake.wire.platform import DatasetFilesRequest
from tracelake.wire.task_calls import DataFile
from tracelake.wire.tasks import TaskDetail, TaskRow

_HOUR = 3600
_TRANSFER_COLUMNS = [
    "block_number",
    "log_index",
    "transaction_hash",
    "token",
    "standard",
    "from_address",
    "to_address",
    "amount_f64",
    "amount_string",
]
_LARGEST_OF_TOKEN = 20
_MOST_DAYS = 100
_SAME = 1e-9
"""Sums of doubles depend on the order in which they are added up."""


@dataclass(frozen=True, slots=True)
class Made:
    """The size of one dataset."""

    name: str
    rows: int
    files: int | None
    """None: it is a table of Postgres."""
    bytes: int


@dataclass(frozen=True, slots=True)
class Flow:
    hour: int
    """Seconds since 1970."""
    token: str
    standard: str
    transfers: int
    amount: float


@dataclass(frozen=True, slots=True)
class Results:
    made: list[Made]
    flows: list[Flow]
    """The flows by token and hour."""
    findings: int
    checks: list[Check]
    tasks: int
    attempts: int
    lost: int
    """Attempts whose lease ran out."""
    failed: int
    """Attempts that failed by themselves."""
    lineage: LineageReply
    answers: list[QuestionReply] = field(default_factory=list)
    """Of the questions that were asked in SQL."""
    live: LiveStory | None = None
    """None if there were too few blocks to follow."""

    @property
    def all_checks(self) -> list[Check]:
        return self.checks if self.live is None else [*self.checks, *self.live.checks]

    @property
    def right(self) -> bool:
        return all(check.right for check in self.all_checks)


async def collect(
    stack: LocalStack, client: UserClient, plan: DemoPlan, story: Story, table: DemoTable, functions: DemoFunctions
) -> Results:
    details = [await client.call(routes.SHOW_TASK, task_id=task.task_id) for task in story.tasks]
    datasets = {row.name: row for row in (await client.call(routes.LIST_DATASETS)).datasets}
    files = {
        name: await list_files(stack, DatasetFilesRequest(dataset_uuid=datasets[name].dataset_uuid))
        for name in DATASETS
    }
    access = read_access(Home(Path(stack.home)).object_store_file)

    async def read(name: str, columns: list[str]) -> pa.Table:
        return await asyncio.to_thread(lambda: pa.concat_tables(read_files(access, files[name], columns, WORKING)))

    blocks = await read("blocks", ["block_number", "timestamp"])
    transfers = await read("transfers", _TRANSFER_COLUMNS)
    rows = await table.rows()
    flows = listed(await read(FLOWS, ["hour", "token", "standard", "transfers", "amount"]))
    findings = await read("findings", ["check"])
    outputs = [_made(name, datasets[name], details, files[name]) for name in DATASETS]
    checks = verify(plan, story, blocks, transfers, flows, outputs) + verify_table(plan, story, transfers, rows)
    outputs.append(Made(TABLE, len(rows), None, await table.size()))
    published = await functions.settle()
    outputs += [Made(name, len(content.rows), None, content.bytes) for name, content in published.items()]
    checks += verify_functions(plan, functions.story, transfers, published)
    outcomes = [attempt.outcome for detail in details for attempt in detail.attempts]
    return Results(
        made=outputs,
        flows=flows,
        findings=findings.num_rows,
        checks=checks,
        tasks=len(details),
        attempts=len(outcomes),
        lost=outcomes.count("Timeout"),
        failed=outcomes.count("Failed"),
        lineage=await client.call(routes.SHOW_LINEAGE, name=FLOWS, limit=_MOST_DAYS),
    )


def _made(name: str, dataset: DatasetRow, details: Sequence[TaskDetail], files: Sequence[DataFile]) -> Made:
    newest = {_unit(detail.task): detail for detail in sorted(details, key=lambda detail: detail.task.created_at)}
    reports = [
        report
        for detail in newest.values()
        if isinstance(detail.result, list)
        for report in detail.result
        if report.get("dataset_uuid") == str(dataset.dataset_uuid)
    ]
    return Made(
        name,
        rows=sum(report.get("row_count") or 0 for report in reports),
        files=len(files),
        bytes=sum(file.size for file in files),
    )


def _unit(task: TaskRow) -> tuple[str, str | None]:
    return task.job, None if task.unit is None else task.unit.partition_key


def listed(flows: pa.Table) -> list[Flow]:
    """The flows of the dataset, row by row: an hour of a token that is there twice stays twice."""
    hours = pc.cast(pc.cast(flows["hour"], pa.timestamp("s")), pa.int64())
    columns = (hours, flows["token"], flows["standard"], flows["transfers"], flows["amount"])
    return _sorted(Flow(*row) for row in zip(*(column.to_pylist() for column in columns), strict=True))


def recomputed(blocks: pa.Table, transfers: pa.Table, first: int) -> list[Flow]:
    """The same flows, computed from the decoded transfers."""
    times = np.zeros(blocks.num_rows, dtype=np.int64)
    times[blocks["block_number"].to_numpy().astype(np.int64) - first] = blocks["timestamp"].to_numpy()
    hours = times[transfers["block_number"].to_numpy().astype(np.int64) - first] // _HOUR * _HOUR
    tokens = pa.array([token.hex() for token in transfers["token"].to_pylist()], pa.string())
    once = pa.array(np.ones(transfers.num_rows, dtype=np.int64))
    columns = [pa.array(hours), tokens, transfers["standard"], once, transfers["amount_f64"]]
    table = pa.table(columns, names=["hour", "token", "standard", "n", "amount"])
    groups = table.group_by(["hour", "token", "standard"]).aggregate([("n", "sum"), ("amount", "sum")])
    return _sorted(
        Flow(row["hour"], row["token"], row["standard"], row["n_sum"], row["amount_sum"]) for row in groups.to_pylist()
    )


def _sorted(flows: Iterable[Flow]) -> list[Flow]:
    return sorted(flows, key=lambda flow: (flow.hour, flow.token, flow.standard))


def verify(
    plan: DemoPlan, story: Story, blocks: pa.Table, transfers: pa.Table, flows: Sequence[Flow], outputs: Sequence[Made]
) -> list[Check]:
    numbers = sorted(blocks["block_number"].to_pylist())
    whole = numbers == list(range(plan.first, plan.last + 1))
    done = [_unit(task) for task in story.tasks if task.status == "Completed" and task.job in (SPLIT, *BLOCK_JOBS)]
    once = len(done) == len(set(done)) == len(BLOCK_JOBS) * plan.units + 1
    checks = [
        Check(f"each of the {plan.blocks:,} blocks is there once", whole),
        Check(f"each unit of blocks was done by one task of each job ({len(done)} tasks)", once),
        Check("rows in the files are as many as the tasks said", _counted(outputs, blocks, transfers, flows)),
    ]
    if whole:
        same = _same(flows, recomputed(blocks, transfers, plan.first))
        days = len({_unit(task) for task in story.tasks if task.job == SUMMARY})
        recomputation = f"recomputed from {transfers.num_rows:,} transfers"
        checks.append(Check(f"{recomputation}, the {len(flows):,} flows of {count(days, 'day')} are the same", same))
    return checks


def _counted(outputs: Sequence[Made], blocks: pa.Table, transfers: pa.Table, flows: Sequence[Flow]) -> bool:
    rows = {each.name: each.rows for each in outputs}
    expected = {"blocks": blocks.num_rows, "transfers": transfers.num_rows, FLOWS: len(flows)}
    return all(rows[name] == number for name, number in expected.items())


def _same(ours: Sequence[Flow], theirs: Sequence[Flow]) -> bool:
    return len(ours) == len(theirs) and all(
        (one.hour, one.token, one.standard, one.transfers) == (other.hour, other.token, other.standard, other.transfers)
        and abs(one.amount - other.amount) <= _SAME * max(abs(one.amount), abs(other.amount))
        for one, other in zip(ours, theirs, strict=True)
    )


def verify_table(plan: DemoPlan, story: Story, transfers: pa.Table, rows: Sequence[Row]) -> list[Check]:
    """Checks that the table has each row once, whichever of its writers came last."""
    expected = large_transfers(plan, transfers)
    actual = {(row.block_number, row.log_index): row for row in rows}
    once = len(rows) == len(actual) and actual.keys() == expected.keys()
    once = once and all(row.amount == expected[key][0] and row.found in expected[key][1] for key, row in actual.items())
    twice = sum(len(hashes) > 1 for _, hashes in expected.values())
    return [
        Check(f"each of {len(expected):,} large transfers is there once; {twice:,} were found by both jobs", once),
        Check(f"all {story.table.batches} batches are in the table, none is a dead letter", story.table.dead == 0),
    ]


def large_transfers(plan: DemoPlan, transfers: pa.Table) -> dict[tuple[int, int], tuple[str, set[str]]]:
    """The amount of each large transfer and the jobs whose queries find it, by block and log."""
    transfers_by_key: dict[tuple[int, int], tuple[str, set[str]]] = {}
    places: Counter[tuple[object, ...]] = Counter()
    tokens = transfers.filter(pc.equal(transfers["standard"], "erc20"))
    order = [("amount_f64", "descending"), ("block_number", "ascending"), ("log_index", "ascending")]
    for row in tokens.sort_by(order).to_pylist():
        unit, key = row["block_number"] // plan.unit, (row["block_number"], row["log_index"])
        groups: dict[str, tuple[tuple[object, ...], int]] = {"by_token": ((unit, row["token"]), _LARGEST_OF_TOKEN)}
        if any(row["from_address"]):  # nobody sends what is minted
            groups["by_sender"] = ((unit, row["token"], row["from_address"]), 1)
        for job, (group, most) in groups.items():
            places[group] += 1
            if places[group] <= most:
                transfers_by_key.setdefault(key, (row["amount_string"], set()))[1].add(job)
    return transfers_by_key
