"""Every alert is silent while all is well, and fires when what it is about happens: on a real Dispatcher.

The expressions are evaluated by `tests.monitoring.promql`; where there is a `promtool`, it evaluates the rules
themselves over the same samples, with their `for`.
"""

import re
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml

from tests.monitoring.files import ALERTS, PROMETHEUS, rules
from tests.monitoring.promql import Labels, Scrape, Window
from tests.monitoring.situations import HEAD, SITUATIONS, Stage
from tests.monitoring.test_files import selectors
from tests.support.configs import dispatcher_config
from tests.support.dispatcher import DispatcherHarness

PROMTOOL = shutil.which("promtool")
MINUTES = 300
"""Of quiet, and of trouble: longer than every `for` and every range."""

FED = (
    HEAD
    + """
  - {name: slow, activation: reactive, runtime: ecs_platform, operator: noop, inputs: [{from: {job: head}}],
     max_queue_depth: 5}
"""
)


def test_there_is_a_situation_for_every_alert() -> None:
    assert set(SITUATIONS) == set(rules())


@pytest.mark.parametrize("name", rules())
def test_an_alert_fires_when_it_happens_and_not_before(name: str, harness: DispatcherHarness, tmp_path: Path) -> None:
    stage = Stage(harness)
    trouble = SITUATIONS[name](stage)
    next(trouble)
    start = stage.scrape()
    next(trouble)
    quiet = stage.scrape()
    next(trouble, None)
    late = stage.scrape()
    text = rules()[name]["expr"]
    assert not Window(start, quiet).evaluate(text), "all was well"
    assert Window(quiet, late).evaluate(text)
    if PROMTOOL is not None:
        evaluate(PROMTOOL, name, (start, quiet, late), tmp_path)


def test_a_source_that_dies_at_the_longest_waits_keeps_its_alert() -> None:
    """An attempt that lives longer than the longest wait is a healthy one; all others come at least this often."""
    found = re.search(r"trace_always_on_attempts\[(\d+)h\]\)\) > (\d+)", rules()["TraceSourceRestarts"]["expr"])
    assert found is not None
    hours, bound = map(int, found.groups())
    period = 2 * dispatcher_config().retry.max_seconds
    assert hours * 3600 / period - 1 > bound, "one attempt may lie beside each end of the window"


def test_a_source_that_never_said_anything_is_silent(harness: DispatcherHarness) -> None:
    stage = Stage(harness)
    stage.flow.claim(stage.head())
    assert not silent(stage)
    stage.harness.advance(1000)
    assert silent(stage)


def test_a_source_that_a_full_queue_stops_is_not_silent(harness: DispatcherHarness) -> None:
    stage = Stage(harness)
    stage.flow.deploy(FED)
    harness.run(harness.dispatcher.monitor.run_once())
    (run,) = stage.flow.tasks("head")
    lease = stage.flow.claim(run["task_id"])
    stage.flow.say(run["task_id"], lease, *(stage.flow.event("d", "head", cursor=cursor) for cursor in range(10)))
    harness.advance(1000)
    harness.run(harness.dispatcher.pressure.run_once())
    assert not silent(stage), "it was told to be"
    for task in stage.flow.tasks("slow", "Queued"):
        stage.flow.complete(task["task_id"], stage.flow.claim(task["task_id"]))
    harness.run(harness.dispatcher.pressure.run_once())
    assert silent(stage)


def silent(stage: Stage) -> bool:
    page = stage.scrape()
    return bool(Window(page, page).evaluate(rules()["TraceSourceSilent"]["expr"]))


@pytest.mark.skipif(PROMTOOL is None, reason="there is no promtool")
def test_promtool_takes_the_files(tmp_path: Path) -> None:
    assert PROMTOOL is not None
    for file in (ALERTS, PROMETHEUS):
        (tmp_path / file.name).write_text(file.read_text(encoding="utf-8"), encoding="utf-8")
    (tmp_path / "ca.pem").touch()
    for kind, file in (("rules", ALERTS), ("config", PROMETHEUS)):
        subprocess.run([PROMTOOL, "check", kind, file.name], cwd=tmp_path, check=True, capture_output=True)


def evaluate(promtool: str, name: str, scrapes: tuple[Scrape, Scrape, Scrape], directory: Path) -> None:
    """Hours of what the first two scrapes differ in, then hours of what the last two differ in."""
    expression = rules()[name]["expr"]
    wanted = {selector.name for selector in selectors(expression) if selector.name}
    series = [
        {"series": _spell(metric, labels), "values": _values(expression, metric, labels, scrapes)}
        for metric in sorted(wanted)
        for labels in scrapes[2].samples.get(metric, {}) | scrapes[1].samples.get(metric, {})
    ]
    firing = f'count(ALERTS{{alertname="{name}",alertstate="firing"}}) > bool 0 or vector(0)'
    checks = [
        {"expr": firing, "eval_time": f"{minute}m", "exp_samples": [{"labels": "{}", "value": value}]}
        for minute, value in ((MINUTES - 1, 0), (2 * MINUTES - 1, 1))
    ]
    test = {"interval": "1m", "input_series": series, "promql_expr_test": checks}
    file = directory / "test.yaml"
    file.write_text(yaml.safe_dump({"rule_files": [str(ALERTS)], "evaluation_interval": "1m", "tests": [test]}))
    done = subprocess.run([promtool, "test", "rules", str(file)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def _spell(metric: str, labels: Labels) -> str:
    """With the labels of the target, where the metric has none of that name."""
    named = {"job": "trace", "instance": "a"} | dict(labels)
    return metric + "{" + ",".join(f'{key}="{value}"' for key, value in sorted(named.items())) + "}"


def _values(expression: str, metric: str, labels: Labels, scrapes: tuple[Scrape, Scrape, Scrape]) -> str:
    """What rises goes on rising by as much each minute; everything else stays as it is."""
    start, quiet, late = (scrape.samples.get(metric, {}).get(labels) for scrape in scrapes)
    rises = metric.endswith(("_total", "_bucket", "_count")) or f"delta({metric}" in expression
    if not rises:
        return " ".join("_" if value is None else f"{value:g}x{MINUTES - 1}" for value in (quiet, late)).replace(
            "_", f"_x{MINUTES}"
        )
    first = (quiet or 0) - (start or 0)
    second = (late or 0) - (quiet or 0)
    reached = first * MINUTES
    return f"0+{first:g}x{MINUTES - 1} {reached:g}+{second:g}x{MINUTES - 1}"
