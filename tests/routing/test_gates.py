"""A check as a gate, with the DAG that the page of `integrity_check` shows: what failed it goes no further."""

import re
from typing import Any

from tools.docs import ROOT

from tests.routing.support import Flow, block

PAGE = ROOT / "docs/operators/integrity_check.md"
DAG = "checked_transfers"


def example() -> str:
    found = re.search(rf"^```yaml\n(name: {DAG}\n.*?)^```", PAGE.read_text(), re.DOTALL | re.MULTILINE)
    assert found is not None
    return found[1]


def do(flow: Flow, job: str, start: int, end: int) -> None:
    """The unit's task of the job, with a file for each output, committed."""
    (task,) = (task["task_id"] for task in flow.tasks(job, "Queued") if task["unit"] == block(start, end))
    lease = flow.claim(task)
    published: list[dict[str, Any]] = []
    events: list[dict[str, Any]] = []
    for index, output in enumerate(lease["task"]["outputs"]):
        prefix = output["storage"]["write_prefix"]
        for name in (f"data_{start}_{end}.parquet", "_SUCCESS"):
            flow.harness.run(flow.harness.objects.put(prefix + name, name.encode()))
        bucket, _, key = prefix.removeprefix("s3://").partition("/")
        ref = {"scheme": "s3", "bucket": bucket, "prefix": key, "glob": "*.parquet"}
        published.append(flow.event(DAG, job, index, range_start=start, range_end=end) | {"storage_ref": ref})
        events.append(flow.event(DAG, job, index, **block(start, end)))
    flow.complete(task, lease, datasets_published=published, events=events)


def units(flow: Flow, job: str) -> list[str]:
    return sorted(task["unit"]["partition_key"] for task in flow.tasks(job))


def test_a_unit_that_fails_its_check_goes_no_further(flow: Flow) -> None:
    flow.deploy(example())
    for start, end in ((0, 9), (10, 19)):
        flow.trigger(DAG, "backfill", range={"start": start, "end": end})
        do(flow, "chain", start, end)
    assert units(flow, "check") == ["0-9", "10-19"]
    assert units(flow, "transfers") == [], "it waits for the check"
    (bad,) = (task["task_id"] for task in flow.tasks("check", "Queued") if task["unit"] == block(0, 9))
    flow.fail(bad)
    do(flow, "check", 10, 19)
    assert units(flow, "transfers") == ["10-19"], "the other unit goes on; the one with findings does not"
    flow.person("retry", bad)
    do(flow, "check", 0, 9)
    assert units(flow, "transfers") == ["0-9", "10-19"], "once the check is content, so is the gate"
