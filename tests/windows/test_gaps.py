"""Units that were given up are gaps that people see; a unit without rows is none."""

import io
import json
from pathlib import Path
from typing import Any
from unittest.mock import ANY
from uuid import UUID

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.api.support import User
from tests.cli.conftest import run_trace
from tests.cli.fake_api import write_stack
from tests.http.support import user_token
from tests.windows.support import WindowFlow
from tests.windows.test_windows import deploy

WINDOWS = "units: {by: blocks, size: 20}\n    inputs: [{from: {job: blocks}}]"
DAYS = "units: {by: time, grain: day, when: updated}\n    inputs: [{from: {job: blocks}}]"


def announce(windows: WindowFlow, start: int, end: int) -> UUID:
    windows.trigger("w", "src", range={"start": start, "end": end})
    (task,) = (task for task in windows.tasks("blocks", "Queued") if task["unit_key"] == f"p:{start}-{end}")
    task_id: UUID = task["task_id"]
    return task_id


def skip(windows: WindowFlow, start: int, end: int) -> UUID:
    task_id = announce(windows, start, end)
    windows.fail(task_id)
    windows.person("skip", task_id)
    return task_id


def show(windows: WindowFlow, name: str) -> Any:
    return User(windows.harness, windows.org).get(f"/v1/datasets/{name}")


def listed(windows: WindowFlow) -> dict[str, tuple[int, int]]:
    rows = User(windows.harness, windows.org).get("/v1/datasets")["datasets"]
    return {row["name"]: (row.get("gap_count", 0), row.get("given_up_units", 0)) for row in rows if row["published"]}


def why(windows: WindowFlow, name: str) -> tuple[str, dict[str, Any]]:
    """The state of a dataset, and its reasons by code."""
    reply = User(windows.harness, windows.org).get(f"/v1/why/dataset/{name}")
    return reply["state"], {item["code"]: item for item in reply["reasons"]}


def test_a_skipped_unit_is_a_gap_of_its_dataset_and_of_what_is_made_from_it(windows: WindowFlow) -> None:
    deploy(windows, WINDOWS)
    windows.finish(announce(windows, 0, 19), "a")
    task_id = skip(windows, 20, 39)
    windows.finish(announce(windows, 40, 59), "c")
    windows.run_windows("model")
    assert list(windows.rows("model")) == [(0, 19), (40, 59)]
    for name in ("blocks", "model"):
        detail = show(windows, name)
        assert detail["content"]["gaps"] == [{"start": 20, "end": 39, "text": "20-39"}]
        (unit,) = detail["given_up"]
        assert (unit["job"], unit["unit"], unit["state"], unit["task_id"]) == (
            "w/blocks",
            "20-39",
            "skipped",
            str(task_id),
        )
        assert detail["given_up_count"] == 1
        state, reasons = why(windows, name)
        assert (state, list(reasons)) == ("blocked", ["units_given_up"]), "a dataset with a gap is not up to date"
        reason = reasons["units_given_up"]
        assert reason["text"].startswith("It has 1 gap: unit 20-39 of w/blocks was skipped ")
        assert [step["command"] for step in reason["steps"]] == [f"trace retry {task_id}"]
    assert listed(windows) == {"blocks": (1, 1), "model": (1, 0)}

    windows.person("retry", task_id)
    assert "given_up" not in show(windows, "blocks"), "it may still be completed"
    windows.finish(task_id, "b")
    windows.run_windows("model")
    assert listed(windows) == {"blocks": (0, 0), "model": (0, 0)}
    assert why(windows, "model") == ("fine", {"fresh": ANY})


def test_a_canceled_unit_is_one_and_a_rewrite_that_was_skipped_is_not(windows: WindowFlow) -> None:
    deploy(windows, WINDOWS)
    windows.finish(announce(windows, 0, 19), "a")
    rewrite = windows.trigger("w", "blocks", range={"start": 0, "end": 19}).task_id
    assert rewrite is not None
    windows.fail(rewrite)
    windows.person("skip", rewrite)
    assert "given_up" not in show(windows, "blocks"), "the unit is there, in an older revision"
    windows.person("cancel", announce(windows, 20, 39))
    (unit,) = show(windows, "blocks")["given_up"]
    assert (unit["unit"], unit["state"]) == ("20-39", "canceled")


def test_windows_of_time_are_told_as_dates_and_empty_ones_are_not_missing(windows: WindowFlow) -> None:
    deploy(windows, DAYS)
    windows.times = lambda start, _end: (start * 3 * 8640, start * 3 * 8640 + 100)
    for start in (0, 10):  # the days 0 and 3, without a block between them
        windows.finish(announce(windows, start, start + 9), "x")
    ready = sorted((task["unit"]["start"], task["task_id"]) for task in windows.tasks("model", "Queued"))
    assert [start // 86_400 for start, _ in ready] == [0, 1, 2, 3], "days without blocks are computed too"
    for start, task_id in ready:
        if start == 86_400:
            windows.fail(task_id)
            windows.person("skip", task_id)
        else:
            windows.run(task_id)
    content = show(windows, "model")["content"]
    assert content["windows"] == "1970-01-01 to 1970-01-04"
    assert [gap["text"] for gap in content["gaps"]] == ["1970-01-02"]
    assert content["units"] == 3, "a window without blocks is a unit"
    assert [item["unit"] for item in show(windows, "model")["given_up"]] == ["1970-01-02"]


def test_commands(
    windows: WindowFlow, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    harness = windows.harness
    write_stack(tmp_path, f"https://{harness.clients['public']._authority}", harness.tls.ca)
    (tmp_path / "admin.token").write_text(user_token(harness, org=windows.org) + "\n")
    monkeypatch.setenv("TRACE_HOME", str(tmp_path))
    trace = run_trace(monkeypatch, capsys)
    deploy(windows, WINDOWS)
    windows.finish(announce(windows, 0, 19), "a", file=parquet(1, 2))
    skip(windows, 20, 39)
    windows.finish(announce(windows, 40, 59), "c", file=parquet())

    assert "1 (1 given up)" in trace("datasets", columns=200).out
    shown = trace("datasets", "blocks", columns=200).out
    assert "1 gap: 20-39" in shown
    assert "unit 20-39 of w/blocks (skipped)" in shown
    assert "1 gap: unit 20-39 of w/blocks was skipped" in trace("why", "blocks", columns=200).out
    note = "1 gap: unit 20-39 of w/blocks was skipped.\n"
    read = trace("read", "blocks", "--range", "20-39")
    assert (read.out, read.err, read.status) == ("No unit of blocks covers this range.\n", note, 0)
    read = trace("read", "blocks", "--range", "40-59")
    assert (read.out, read.err, read.status) == ("It has no rows.\n", "", 0), "computed and empty is no gap"
    written = trace("read", "blocks", "--output", str(tmp_path / "rows.jsonl"), "--json")
    assert json.loads(written.out) | {"file": ""} == {"file": "", "rows": 2, "gaps": [note[7:-2]]}
    assert written.err == note
    assert trace("read", "blocks", "--range", "60-99").err == "", "nobody gave up what was never asked for"


def parquet(*numbers: int) -> bytes:
    file = io.BytesIO()
    pq.write_table(pa.table({"block_number": pa.array(numbers, pa.int64())}), file)
    return file.getvalue()
