"""Helpers of the invoke tests: jobs that the Dispatcher starts itself, and an invoker that does as it is told."""

from collections.abc import Sequence
from typing import Any

from tests.support.dispatcher import DispatcherHarness
from tracelake.wire.claims import Invocation


class ScriptedInvoker:
    """Remembers what it was given; raises what the test put into `raises`, one each time."""

    def __init__(self, *raises: Exception) -> None:
        self.raises = list(raises)
        self.given: list[Invocation] = []

    async def invoke(self, invocation: Invocation) -> None:
        self.given.append(invocation)
        if self.raises:
            raise self.raises.pop(0)

    async def close(self) -> None:
        pass


def source(harness: DispatcherHarness, name: str = "source") -> dict[str, Any]:
    """A dataset to read: `dataset_uuid` and `dataset_version`."""
    job = harness.make_job(f"makes_{name}", outputs=[{"name": name}])
    return {key: job["outputs"][0][key] for key in ("dataset_uuid", "dataset_version")}


def task_input(dataset: dict[str, Any], unit: dict[str, Any], **fields: Any) -> dict[str, Any]:
    return dataset | {"input_index": 0, "unit": unit} | fields


def blocks(start: int, end: int) -> dict[str, Any]:
    return {"partition_key": f"{start}-{end}", "start": start, "end": end}


def own_task(
    harness: DispatcherHarness,
    operator: str = "noop",
    *,
    unit: dict[str, Any] | None = None,
    dataset: dict[str, Any] | None = None,
    runtime: str = "dispatcher",
    config: dict[str, Any] | None = None,
    outputs: Sequence[str] = ("none",),
    name: str = "own",
    limits: dict[str, Any] | None = None,
) -> str:
    """A task of a job that the Dispatcher starts itself, with one input when there is a unit."""
    job = harness.make_job(
        name,
        runtime=runtime,
        operator=operator,
        config=config or {},
        outputs=[{"name": f"{name}_{index}", "storage": storage} for index, storage in enumerate(outputs)],
        limits=limits or {},
    )
    inputs = [] if unit is None else [task_input(dataset or source(harness), unit)]
    return harness.make_task(job["job_id"], inputs=inputs)


def rows_waiting(harness: DispatcherHarness) -> int:
    waiting: int = harness.sql("SELECT count(*) FROM outbox WHERE kind = 'task_invoke'")[0][0]
    return waiting


def duplicate_row(harness: DispatcherHarness, task_id: str, runtime: str = "dispatcher") -> None:
    harness.sql("INSERT INTO outbox (kind, queue, key) VALUES ('task_invoke', $1, $2)", runtime, task_id)


def events_of(harness: DispatcherHarness, task_id: str) -> list[tuple[Any, ...]]:
    """`(dataset name, cursor, partition_key, start, end, revision)`, in order."""
    found = harness.sql(
        """SELECT d.name, e.cursor, e.partition_key, e.range_start, e.range_end, e.revision
           FROM events e JOIN datasets d USING (dataset_uuid) WHERE e.producer = $1
           ORDER BY e.range_start, e.cursor, d.name""",
        task_id,
    )
    return [tuple(row) for row in found]


def outcomes(harness: DispatcherHarness, runtime: str) -> dict[str, float]:
    """The counter of invocations, by outcome."""
    return {
        sample.labels["outcome"]: sample.value
        for metric in harness.dispatcher.metrics.invocations.collect()
        for sample in metric.samples
        if sample.name.endswith("_total") and sample.labels["runtime"] == runtime
    }
