"""What commands call units: windows of time are dates, and deliveries are no blocks."""

from msgspec.structs import replace

from tests.cli import samples
from tests.cli.conftest import Trace
from tests.cli.fake_api import FakeApi
from tests.cli.samples import TASK
from tests.cli.test_log_subjects import RUNS, run
from tests.cli.test_logs import log
from tracelake.wire.datasets import DatasetsReply, EventsPage, LineageReply
from tracelake.wire.run_logs import JobRuns
from tracelake.wire.units import Unit

START, END, DATE = 1_772_496_000, 1_772_582_399, "2026-03-03"
DAY = Unit(partition_key=f"{START}-{END}", start=START, end=END)
DAY_INPUT = replace(samples.INPUT, unit=DAY, window=DATE)


def check_dates(trace: Trace, *command: str) -> str:
    shown = trace(*command, columns=200)
    assert shown.status == 0, shown.err
    assert DATE in shown.out
    assert str(START) not in shown.out
    assert str(END) not in shown.out
    return shown.out


def test_datasets(trace: Trace, api: FakeApi) -> None:
    row = samples.dataset_row(name="daily", blocks=4 * 86400, windows=f"2026-03-01..{DATE}", max_cursor=None)
    api.answers["GET /v1/datasets"] = DatasetsReply(datasets=[row])
    out = check_dates(trace, "datasets")
    assert "345600" not in out
    assert "blocks" not in out
    detail = samples.dataset()
    first = detail.generations[0]
    runs = [replace(first.ranges[0], start=START, end=END, window=DATE)]
    invalidations = [replace(detail.invalidations[0], start=START, end=END, window=DATE)]
    generations = [replace(first, ranges=runs, range_count=1)]
    api.answers["GET /v1/datasets/daily"] = replace(
        detail, dataset=row, generations=generations, invalidations=invalidations
    )
    assert check_dates(trace, "datasets", "daily").count(DATE) >= 2


def test_events_tasks_and_lineage(trace: Trace, api: FakeApi) -> None:
    event = samples.event(cursor=None, partition_key=DAY.partition_key, window=DATE)
    api.answers["GET /v1/events"] = EventsPage(events=[event])
    check_dates(trace, "events")
    detail = samples.detail()
    api.answers[f"GET /v1/tasks/{TASK}"] = replace(
        detail, task=replace(detail.task, unit=DAY, window=DATE), inputs=[DAY_INPUT], events=[event]
    )
    assert check_dates(trace, "tasks", str(TASK)).count(DATE) == 3
    lineage: LineageReply = samples.lineage()
    units = [replace(unit, unit=DAY, window=DATE, inputs=[DAY_INPUT], read=[]) for unit in lineage.units[:1]]
    api.answers["GET /v1/datasets/prices_out/lineage"] = replace(lineage, units=units)
    assert f"blocks {DATE}" in check_dates(trace, "lineage", "prices_out")


def test_logs(trace: Trace, api: FakeApi) -> None:
    api.answers[f"GET /v1/tasks/{TASK}/log"] = log(unit=DAY, window=DATE)
    check_dates(trace, "logs", str(TASK))
    api.answers[f"GET {RUNS}"] = JobRuns(runs=[run(unit=DAY, window=DATE)])
    check_dates(trace, "logs", "moves/work")


def test_deliveries_are_no_blocks_and_given_up_units_are_gaps(trace: Trace, api: FakeApi) -> None:
    row = samples.dataset_row(name="hooks", blocks=2, of_deliveries=True, max_cursor=None)
    detail = samples.dataset()
    assert detail.content is not None
    content = replace(detail.content, first_block=0, last_block=1, gap_count=0, gaps=[])
    api.answers["GET /v1/datasets/hooks"] = replace(detail, dataset=row, content=content)
    lines = [" ".join(line.split()) for line in trace("datasets", "hooks", columns=200).out.splitlines()]
    assert "deliveries 2, from 0 to 1" in lines
    assert "newest delivery 1" in lines
    assert not any(line.startswith(("blocks", "newest block")) for line in lines)
    api.answers["GET /v1/datasets/hooks"] = replace(detail, dataset=row, content=content, given_up=[], given_up_count=0)
    assert "2, from 0 to 1, no gaps" in trace("datasets", "hooks", columns=200).out
    api.answers["GET /v1/datasets"] = DatasetsReply(datasets=[row])
    header = trace("datasets", columns=200).out.splitlines()[0]
    assert "deliveries" in header
    assert "blocks" not in header
