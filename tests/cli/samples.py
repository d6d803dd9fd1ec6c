"""Answers of the user API for tests: believable, complete, and some with names that try to play tricks."""

from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

from tracelake.model.dag import CheckKind
from tracelake.wire.audit import AuditPage, AuditRow
from tracelake.wire.checks import CheckRow
from tracelake.wire.dags import (
    BuildProgress,
    DagRow,
    DagsReply,
    DagVersionRow,
    DagVersionsReply,
    DatasetChange,
    DeployReply,
    FieldChange,
    JobChange,
    Plan,
)
from tracelake.wire.datasets import (
    ConsumerRow,
    DatasetColumnRow,
    DatasetContent,
    DatasetDetail,
    DatasetRow,
    DatasetsReply,
    EventRow,
    EventsPage,
    GapRow,
    GenerationRow,
    GivenUpUnit,
    InvalidationRow,
    LineageEdge,
    LineageReply,
    LineageUnit,
    PointerRow,
    RunRow,
)
from tracelake.wire.jobs import EdgeRow, JobOutputRow, JobRow, JobsReply
from tracelake.wire.overview import JobLoad, OverviewReply
from tracelake.wire.pressure import PressureEdgeRow, QueueRow
from tracelake.wire.sources_view import PauseReply, SourceRow, SourcesReply
from tracelake.wire.tasks import AttemptRow, TaskDetail, TaskRow, TasksPage
from tracelake.wire.units import CursorRange, PayloadInput, Unit

EVIL = "x\x1b[31m\x07[bold]y[/bold]\u202e\x9b2J"
"""Terminal escapes, rich markup, a right-to-left override and a C1 control character."""

NOW = datetime.now(UTC)
EARLIER = NOW - timedelta(minutes=3, seconds=5)


def uuid(number: int) -> UUID:
    return UUID(f"01890000-0000-7000-8000-{number:012d}")


TASK = uuid(1)
UNIT = Unit(partition_key="1000-1999", start=1000, end=1999)
BUILD = BuildProgress(done=3, open=2, failed=0, draining_edges=1)


def task_row(number: int = 1, **changes: Any) -> TaskRow:
    values: dict[str, Any] = {
        "task_id": uuid(number),
        "dag": "pools",
        "job": "prices",
        "operator": "noop",
        "status": "Running",
        "attempt": 2,
        "max_attempts": 5,
        "unit": UNIT,
        "created_at": EARLIER,
    }
    return TaskRow(**(values | changes))


def edge(**changes: Any) -> EdgeRow:
    values: dict[str, Any] = {
        "input_index": 0,
        "dataset": "blocks",
        "dataset_version": uuid(11),
        "phase": "Active",
        "state": "live",
        "routed_cursor": 1999,
        "backlog": 0,
        "failed_units": 0,
    }
    return EdgeRow(**(values | changes))


def event(**changes: Any) -> EventRow:
    values: dict[str, Any] = {
        "event_id": 7,
        "dataset": "blocks",
        "dataset_version": uuid(11),
        "cursor": 1999,
        "state": "Routed",
        "producer": str(TASK),
        "attempt": 2,
        "created_at": EARLIER,
    }
    return EventRow(**(values | changes))


OUTPUT = JobOutputRow(
    output_index=0, dataset="prices_out", dataset_uuid=uuid(20), dataset_version=uuid(21), storage="s3"
)
INPUT = PayloadInput(
    input_index=0,
    dataset_uuid=uuid(10),
    dataset_version=uuid(11),
    name="blocks",
    unit=UNIT,
    revision="r1",
    where={"chain": "eth"},
)


def dags(name: str = "pools", **changes: Any) -> DagsReply:
    values: dict[str, Any] = {
        "name": name,
        "active_version": 3,
        "building_version": 4,
        "versions": 4,
        "jobs": 2,
        "activated_at": EARLIER,
        "open_tasks": 5,
        "failed_tasks": 1,
    }
    return DagsReply(dags=[DagRow(**(values | changes))])


def version(number: int, state: Any, **changes: Any) -> DagVersionRow:
    values: dict[str, Any] = {
        "number": number,
        "dag_version_id": uuid(100 + number),
        "state": state,
        "created_by": "ann",
        "created_at": EARLIER,
        "jobs": 2,
    }
    return DagVersionRow(**(values | changes))


def versions(*rows: DagVersionRow) -> DagVersionsReply:
    return DagVersionsReply(
        dag="pools", versions=list(rows) or [version(4, "Building", build=BUILD), version(3, "Active")]
    )


def jobs(dag: str = "pools", name: str = "prices") -> JobsReply:
    none: dict[str, Any] = {"queued": 0, "running": 0, "held": 0, "retrying": 0, "failed": 0}
    source = JobRow(
        dag=dag,
        name="blocks",
        job_id=uuid(30),
        activation="source",
        strategy="PerUpdate",
        source="manual",
        **none,
    )
    reactive = JobRow(
        dag=dag,
        name=name,
        job_id=uuid(31),
        activation="reactive",
        runtime="ecs_platform",
        operator="noop",
        strategy="PerPartition",
        inputs=[edge(), edge(input_index=1, dataset="other", state="held", backlog=12, failed_units=1)],
        outputs=[OUTPUT],
        queued=1,
        running=2,
        held=3,
        retrying=4,
        failed=0,
    )
    return JobsReply(dag=dag, version=3, jobs=[source, reactive])


def sources() -> SourcesReply:
    """One in every state."""
    always: dict[str, Any] = {"dag": "pools", "kind": "always_on", "attempt": 3}
    return SourcesReply(
        sources=[
            SourceRow(
                dag="pools", job="every_hour", kind="cron", state="waiting", last_cursor=7, last_event_at=EARLIER
            ),
            SourceRow(job="starting", state="starting", **always),
            SourceRow(
                job="head",
                state="running",
                task_id=uuid(41),
                last_cursor=1999,
                last_event_at=EARLIER,
                lag_seconds=130.0,
                **always,
            ),
            SourceRow(job="flaky", state="backing_off", until=NOW, error="connection\nreset", **always),
            SourceRow(job="quiet", state="paused", paused_by="ann", paused_at=EARLIER, **always),
            SourceRow(job="ended", state="ended", last_partition="2026-01", last_event_at=EARLIER, **always),
            SourceRow(job="broken", state="dead", task_id=uuid(42), error="no such chain", **always),
        ]
    )


def load(job: str = "prices", **changes: Any) -> JobLoad:
    counts = dict.fromkeys(("made", "events", "ready", "running", "held", "retrying", "failed"), 0)
    values: dict[str, Any] = {"dag": "pools", "job": job, "job_id": uuid(30)} | counts
    return JobLoad(**(values | changes))


FULL_QUEUE = QueueRow(
    dag="pools", job="prices", state="stopped", depth=1200, max_depth=1000, age_seconds=400, since=EARLIER
)
STOPPED_INPUT = PressureEdgeRow(
    dag="pools", job="fetch", input_index=0, dataset="blocks", state="stopped", queue="pools/prices", depth=1200,
    age_seconds=400, backlog=77, because="pools/prices has 1,200 of 1,000 queued tasks",
)  # fmt: skip


def overview(*jobs: JobLoad, at: float = 0.0, since: float = -10.0, **changes: Any) -> OverviewReply:
    """`at` and `since` are seconds from now."""
    values: dict[str, Any] = {
        "now": NOW + timedelta(seconds=at),
        "since": NOW + timedelta(seconds=since),
        "serving_since": EARLIER,
        "jobs": list(jobs),
        "queues": [FULL_QUEUE],
        "stopped": [STOPPED_INPUT],
        "sources": sources().sources,
    }
    return OverviewReply(**(values | changes))


def paused(*, paused: bool = True, duplicate: bool = False) -> PauseReply:
    return PauseReply(dag="pools", job="head", paused=paused, duplicate=duplicate)


def detail(**changes: Any) -> TaskDetail:
    return TaskDetail(
        task=task_row(**changes),
        runtime="ecs_platform",
        inputs=[INPUT],
        outputs=[OUTPUT],
        result={"rows": 12},
        attempts=[
            AttemptRow(attempt=1, outcome="Timeout", worker_id="w1", claimed_at=EARLIER, error="went\naway"),
            AttemptRow(attempt=2, worker_id="w2", claimed_at=EARLIER),
        ],
        events=[event()],
    )


def plan(**changes: Any) -> Plan:
    values: dict[str, Any] = {
        "dag": "pools",
        "version": 4,
        "new_version": True,
        "active_version": 3,
        "jobs": [
            JobChange(job="blocks", change="unchanged"),
            JobChange(
                job="prices",
                change="changed",
                fields=["config", "upstream"],
                values=[FieldChange(field="config.size", before=1000, after=2000)],
            ),
            JobChange(job="fresh", change="added"),
            JobChange(job="slow", change="limits", fields=["timeout_seconds"]),
            JobChange(job="gone", change="removed"),
        ],
        "datasets": [
            DatasetChange(dataset="prices_out", change="rebuilt", job="prices", because="config"),
            DatasetChange(dataset="older", change="restored", job="fresh", output_index=1),
        ],
        "subscribers": ["reports/daily"],
        "needs_build": True,
    }
    return Plan(**(values | changes))


def deployed(state: Any = "Active", **changes: Any) -> DeployReply:
    return DeployReply(plan=plan(**changes), dag_version_id=uuid(104), state=state)


def dataset_row(**changes: Any) -> DatasetRow:
    values: dict[str, Any] = {
        "name": "prices_out",
        "dataset_uuid": uuid(20),
        "storage": "s3",
        "published": True,
        "dag": "pools",
        "job": "prices",
        "current_version": uuid(21),
        "staged_version": uuid(22),
        "generations": 2,
        "blocks": 1000,
        "max_cursor": 1999,
        "updated_at": EARLIER,
    }
    return DatasetRow(**(values | changes))


def dataset(**changes: Any) -> DatasetDetail:
    return DatasetDetail(
        dataset=dataset_row(**changes),
        description="Prices of pools.",
        owner="data team",
        columns=[DatasetColumnRow(name="price", type="double", nullable=False, description="In dollars.")],
        columns_complete=True,
        checks=[
            CheckRow(
                dataset="prices_out",
                name="range_price",
                kind=CheckKind.RANGE,
                severity="error",
                job="prices/fetch",
                expected="price at least 0",
                state="failed",
                checked_at=EARLIER,
                units=3,
                failing_units=1,
                message="price is not at least 0 in 1 of 10 rows",
            )
        ],
        content=DatasetContent(
            units=100,
            rows=12_345,
            bytes=3_500_000,
            first_block=1000,
            last_block=2009,
            gap_count=1,
            gaps=[GapRow(start=1500, end=1509, text="1500-1509")],
            committed_at=EARLIER,
        ),
        given_up=[GivenUpUnit(job="pools/prices", unit="1500-1509", task_id=uuid(1), state="skipped", at=EARLIER)],
        given_up_count=1,
        schema={"columns": [{"name": "price", "type": "float64", "nullable": False}], "unique": ["price"]},
        generations=[
            GenerationRow(
                dataset_version=uuid(21),
                state="current",
                created_at=EARLIER,
                ranges=[RunRow(start=number * 10, end=number * 10 + 9, unit_size=10) for number in range(7)],
                range_count=120,
                partition_keys=0,
                commits=70,
            ),
            GenerationRow(
                dataset_version=uuid(22),
                state="staged",
                created_at=EARLIER,
                range_count=0,
                partition_keys=4,
                commits=0,
            ),
        ],
        pointers=[PointerRow(dataset_version=uuid(21), since=EARLIER, dag_version=3)],
        consumers=[ConsumerRow(dag="reports", job="daily", edge=edge(dataset="prices_out"))],
        invalidations=[
            InvalidationRow(invalidation_id="i1", start=5, end=9, reason="reorg", producer="ann", created_at=EARLIER)
        ],
    )


def lineage(**changes: Any) -> LineageReply:
    values: dict[str, Any] = {
        "dataset": "prices_out",
        "dataset_version": uuid(21),
        "upstream": [
            LineageEdge(from_dataset="blocks", dag="pools", job="prices", to_dataset="prices_out"),
            LineageEdge(dag="pools", job="blocks", to_dataset="blocks"),
        ],
        "downstream": [LineageEdge(from_dataset="prices_out", dag="reports", job="daily", to_dataset="daily_out")],
        "units": [
            LineageUnit(
                unit=UNIT,
                revision="r1",
                dataset_version=uuid(21),
                at=EARLIER,
                producer=str(TASK),
                task_id=TASK,
                attempt=2,
                dag="pools",
                job="prices",
                inputs=[INPUT],
                files=1,
            ),
            LineageUnit(
                unit=Unit(cursor=CursorRange(after=1, to=2)), dataset_version=uuid(21), at=EARLIER, producer="by hand"
            ),
        ],
    }
    return LineageReply(**(values | changes))


TASKS = TasksPage(
    tasks=[
        task_row(1),
        task_row(2, status="Failed", error="ValueError: no such block\ntraceback"),
        task_row(3, status="Failed", next_retry_at=NOW + timedelta(seconds=90)),
        task_row(4, status="Queued", held=True, unit=Unit(cursor=CursorRange(after=9, to=12)), attempt=0),
        task_row(5, status="Completed"),
        task_row(6, status="Failed", skipped=True),
        task_row(7, cancel_requested=True, max_attempts=None),
    ]
)
DATASETS = DatasetsReply(datasets=[dataset_row(), dataset_row(name="pools__x_0", published=False, staged_version=None)])
EVENTS = EventsPage(
    events=[
        event(),
        event(event_id=8, cursor=None, partition_key="1000-1999", state="AwaitsCommit", invalidates={"start": 1}),
    ]
)
AUDIT = AuditPage(
    entries=[
        AuditRow(audit_id=2, at=EARLIER, subject="ann", action="dag.activate", target="pools", details={"version": 3}),
        AuditRow(audit_id=1, at=EARLIER, subject="bob", action="task.cancel", target=str(TASK)),
    ]
)
