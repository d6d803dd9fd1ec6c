"""What Spark did for a job group: from the store in which the driver's Java keeps the last jobs and stages.

Asked when the work is done, at once: the store forgets (`spark.ui.retainedStages`), and events reach it a moment after
the work. What cannot be had in a moment is not said: nobody's task fails for it, and nobody waits for long.
"""

import logging
import time
from typing import TYPE_CHECKING, Any

from tracelake.wire.task_calls import SparkMetrics

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

logger = logging.getLogger(__name__)

_PATIENCE_SECONDS = 2.0
_LOOK_SECONDS = 0.005
_FIGURES = {
    "tasks": "numTasks",
    "failed_tasks": "numFailedTasks",
    "run_ms": "executorRunTime",
    "input_rows": "inputRecords",
    "input_bytes": "inputBytes",
    "shuffle_read_bytes": "shuffleReadBytes",
    "shuffle_write_bytes": "shuffleWriteBytes",
    "spilled_memory_bytes": "memoryBytesSpilled",
    "spilled_disk_bytes": "diskBytesSpilled",
}


def measure(session: "SparkSession", group: str) -> SparkMetrics | None:
    """None over Spark Connect, which says nothing of this, and where Java does not answer."""
    deadline = time.monotonic() + _PATIENCE_SECONDS
    try:
        return _measure(session.sparkContext, group, deadline)
    except Exception as error:
        logger.info("Spark does not say what it did", extra={"error": type(error).__name__})
        return None


def _measure(context: Any, group: str, deadline: float) -> SparkMetrics:
    jobs = list(context.statusTracker().getJobIdsForGroup(group))
    store = context._jsc.sc().statusStore()
    sums = dict.fromkeys(_FIGURES, 0)
    stages: set[int] = set()
    for job in jobs:
        stages.update(_stages_of(store, job, deadline))
    ran = 0
    for stage in sorted(stages):
        data = _stage(store, stage)
        if data is None:
            continue
        ran += 1
        for name, figure in _FIGURES.items():
            sums[name] += max(0, int(getattr(data, figure)()))
        _keep_to(deadline)
    return SparkMetrics(jobs=len(jobs), stages=ran, **sums)


def _stages_of(store: Any, job: int, deadline: float) -> list[int]:
    """Waits until the store has heard that the job has ended: what it knows of its stages is then complete."""
    while True:
        _keep_to(deadline)
        data = store.job(job)
        if data.status().toString() != "RUNNING":
            return [int(stage) for stage in _items(data.stageIds())]
        time.sleep(_LOOK_SECONDS)


def _stage(store: Any, stage: int) -> Any:
    """None for one that never ran, or that the store has forgotten."""
    from py4j.protocol import Py4JJavaError

    try:
        data = store.lastStageAttempt(stage)
    except Py4JJavaError:
        return None
    return None if data.status().toString() in ("SKIPPED", "PENDING") else data


def _keep_to(deadline: float) -> None:
    """Half of a sum is worse than none."""
    if time.monotonic() > deadline:
        raise TimeoutError


def _items(sequence: Any) -> Any:
    return (sequence.apply(index) for index in range(sequence.size()))
