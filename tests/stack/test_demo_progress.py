"""How far the jobs of `trace demo` are: rates, time left, bars on a terminal and lines elsewhere."""

import io

from rich.console import Console

from tests.stack.demo_support import after, task
from tracelake.demo import plan
from tracelake.demo.progress import JobProgress, clock, measure, per_second
from tracelake.demo.screen import DemoScreen


def test_rates_and_time_left() -> None:
    job = JobProgress("ingest", 2, 8, 1000, 4000, began=after(0))
    assert job.rate(after(10)) == 100.0
    assert job.left(after(10)) == 30.0
    assert not job.finished


def test_nothing_is_said_before_something_is_known() -> None:
    waiting = JobProgress("check", 0, 8, 0, 4000)
    begun = JobProgress("check", 0, 8, 0, 4000, began=after(0))
    at_once = JobProgress("check", 1, 8, 500, 4000, began=after(0))
    assert waiting.rate(after(9)) is waiting.left(after(9)) is begun.rate(after(9)) is at_once.rate(after(0)) is None


def test_a_finished_job_keeps_its_rate() -> None:
    job = JobProgress("decode", 8, 8, 4000, 4000, began=after(0), ended=after(20))
    assert job.rate(after(1000)) == 200.0
    assert job.left(after(1000)) == 0.0


def test_progress_is_measured_by_tasks() -> None:
    tasks = [
        task("split", 0, 149, "Completed", 0, 1),
        task("ingest", 0, 49, "Completed", 2, 7),
        task("ingest", 50, 99, "Running", 3),
        task("ingest", 100, 149, "Queued"),
        task("check", 0, 49, "Queued"),
    ]
    jobs = {job.job: job for job in measure(plan.DemoPlan(1, 0, 149, 50), tasks)}
    assert list(jobs) == [plan.SPLIT, *plan.JOBS]
    assert jobs["split"].finished
    ingest = jobs["ingest"]
    assert (ingest.done, ingest.total, ingest.done_blocks, ingest.total_blocks, ingest.running) == (1, 3, 50, 150, 1)
    assert ingest.rate(after(12)) == 5.0
    assert ingest.left(after(12)) == 20.0
    assert (jobs["by_token"].done, jobs["by_token"].total, jobs["by_token"].began) == (0, 3, None)


def test_days_are_counted_as_they_come() -> None:
    chosen = plan.DemoPlan(1, 0, 149, 50)
    (waiting,) = (job for job in measure(chosen, []) if job.job == "summarise")
    assert (waiting.done, waiting.total, waiting.finished, waiting.rate(after(9))) == (0, 1, False, None)
    tasks = [
        task("summarise", 0, 86_399, "Completed", 2, 3),
        task("summarise", 0, 86_399, "Completed", 4, 5),
        task("summarise", 86_400, 172_799, "Queued"),
    ]
    (summary,) = (job for job in measure(chosen, tasks) if job.job == "summarise")
    assert (summary.done, summary.total, summary.finished) == (2, 3, False)


def test_numbers_for_people() -> None:
    assert [clock(value) for value in (None, 0.4, 59.4, 65, 600)] == ["-", "0 s", "59 s", "1:05 min", "10:00 min"]
    assert [per_second(value) for value in (None, 1.25, 1234.5)] == ["-", "1.2 blocks/s", "1,234 blocks/s"]


def test_elsewhere_than_on_a_terminal_lines_are_few() -> None:
    out = io.StringIO()
    seconds = 0.0
    screen = DemoScreen(Console(file=out, width=200), clock=lambda: seconds)
    for step in range(100):
        seconds = step / 2
        screen.show([JobProgress("ingest", step // 10, 10, step * 10, 1000, began=after(-1))], after(seconds))
    seconds = 50.0
    screen.show([JobProgress("ingest", 10, 10, 1000, 1000, began=after(-1), ended=after(50))], after(50))
    lines = out.getvalue().splitlines()
    assert 4 <= len(lines) <= 7
    assert "ingest 10/10" in lines[-1]
    assert "left" in lines[1]


def test_on_a_terminal_there_is_a_bar_for_each_job() -> None:
    out = io.StringIO()
    screen = DemoScreen(Console(file=out, width=100, force_terminal=True, color_system=None))
    jobs = [
        JobProgress("ingest", 2, 8, 1000, 4000, running=2, began=after(0)),
        JobProgress("check", 0, 8, 0, 4000),
    ]
    screen.show(jobs, after(10))
    screen.say("killed worker-1")
    screen.close()
    shown = out.getvalue()
    assert "2 of 8 tasks" in shown
    assert "100 blocks/s" in shown
    assert "30 s left" in shown
    assert "waits" in shown
    assert "killed worker-1" in shown
