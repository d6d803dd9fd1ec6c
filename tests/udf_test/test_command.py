"""`trace udf test`: functions run in their sandbox against samples, and the command tells how it was."""

import json
import zipfile
from pathlib import Path
from typing import Any

import pytest

from tests.cli.conftest import Ended, Trace
from tests.support.rust_program import write_rust_program
from tracelake.udf_test import trial

PROJECT = 'language = "python"\nentrypoint = "main.handle"\nleave_out = ["sample"]\n'
SAMPLE = "block_number,gas_used,miner\n7,100,ann\n8,200,bob\n9,300,ann\n"
WHOLE = """
import io
from tracelake.sdk import handler

@handler
def handle(task):
    least = task.config["least"]
    rows = task.query("SELECT block_number, gas_used FROM blocks WHERE gas_used >= $least ORDER BY 1", {"least": least})
    assert task.query_arrow("SELECT * FROM blocks").startswith(b"\\xff\\xff\\xff\\xff")
    assert task.publish(rows, key="block_number", output="busy") == 2
    assert task.publish(rows, key="block_number", output="busy") == 2  # the same batch
    assert task.heartbeat()["cancel"] is False
    address = task.put("notes/a.txt", b"hello")
    assert task.get("notes/a.txt") == task.get(address) == b"hello"
    unit = task.inputs[0].unit
    task.publish_files({"part.parquet": b"PAR1"}, output="files")
    task.emit(output="done")
    print("unit", unit["partition_key"])
    task.log("found", blocks=len(rows), token=task._token)
"""
OUTPUTS = """
[test]
config = { least = 200 }
[[test.outputs]]
name = "busy"
key = ["block_number"]
columns = { block_number = "int64", gas_used = "int64" }
[[test.outputs]]
name = "files"
kind = "s3"
[[test.outputs]]
name = "done"
kind = "none"
"""


def write(directory: Path, source: str, *, project: str = PROJECT, sample: str | None = None) -> Path:
    directory.mkdir(exist_ok=True)
    (directory / "trace-udf.toml").write_text(project)
    (directory / "main.py").write_text(source)
    if sample is not None:
        (directory / "sample").mkdir(exist_ok=True)
        (directory / "sample" / "blocks.csv").write_text(sample)
    return directory


def report(ended: Ended) -> Any:
    return json.loads(ended.out)


def test_a_function_does_all_that_it_can(trace: Trace, tmp_path: Path) -> None:
    function = write(tmp_path / "f", WHOLE, project=PROJECT + OUTPUTS, sample=SAMPLE)
    ended = trace("udf", "test", str(function), "--json")
    assert ended.status == 0, ended
    told = report(ended)
    assert (told["completed"], told["ending"], told["problems"], told["refused"]) == (True, "completed", [], [])
    busy, files, done = told["outputs"]
    assert (busy["rows"], busy["batches"]) == (2, 1)
    assert busy["first_rows"] == [{"block_number": 8, "gas_used": 200}, {"block_number": 9, "gas_used": 300}]
    assert [file["location"].rpartition("/")[2] for file in files["files"]] == ["_SUCCESS", "part.parquet"]
    assert (done["kind"], done["files"]) == ("none", [])
    assert [(file["location"].rpartition("/1/")[2], file["size_bytes"]) for file in told["files"]] == [
        ("notes/a.txt", 5)
    ]
    assert {(event["output"], event["partition_key"]) for event in told["events"]} == {
        ("files", "7-9"),
        ("done", "7-9"),
    }
    assert told["stdout"] == "unit 7-9\n"
    assert told["heartbeats"] == 1
    assert json.loads(told["stderr"])["token"] == "[redacted]"
    assert 0 < told["peak_bytes"] < 256 * 2**20
    shown = trace("udf", "test", str(function)).out
    for text in ("completed in", "busy: 2 rows in 1 batch", "gas_used", "part.parquet", "notes/a.txt", "unit 7-9"):
        assert text in shown


def test_a_function_that_raises(trace: Trace, tmp_path: Path) -> None:
    source = "from tracelake.sdk import handler\ndef deep():\n    raise ValueError('on purpose \\x1b[31m')\n"
    function = write(tmp_path / "f", source + "@handler\ndef handle(task):\n    deep()\n")
    ended = trace("udf", "test", str(function))
    assert ended.status == 1
    assert "failed (error)" in ended.out
    assert "a stack would try again" in ended.out
    assert "ValueError: on purpose \\x1b[31m" in ended.out
    assert "in deep" in ended.out
    frames = report(trace("udf", "test", str(function), "--json"))["error"]["stack"]
    assert frames, "its own"
    assert all("/var/task/main.py" in frame for frame in frames), "and no others"
    source = "from tracelake.sdk import NonRetryable\ndef handle(event, context):\n    raise NonRetryable('never')\n"
    told = trace("udf", "test", str(write(tmp_path / "f", source)), "--json")
    assert (told.status, report(told)["retryable"], report(told)["error"]["type"]) == (1, False, "NonRetryable")


HOSTILE = """
import http.client, json, os, socket
def ask(method, path, host=None, body=b"", headers={}):
    connection = http.client.HTTPConnection("127.0.0.1", 9002, timeout=20)
    connection.putrequest(method, path, skip_host=True)
    for name, value in {"host": host or "127.0.0.1:9002", "content-length": str(len(body)), **headers}.items():
        connection.putheader(name, value)
    connection.endheaders(body)
    return connection.getresponse().status

def handle(event, context):
    seen = [ask("GET", "/", host="example.com"), ask("GET", "/trace-datasets/elsewhere/x")]
    seen.append(ask("POST", "/internal/jwks"))
    token = {"x-trace-task-capability": event["capability_token"]}
    fence = {"task_id": event["task_id"], "attempt": 1, "lease_token": event["lease_token"]}
    seen.append(ask("POST", "/v1/task/heartbeat", body=json.dumps(fence | {"attempt": 2}).encode(), headers=token))
    stale = fence | {"lease_token": event["task_id"]}
    seen.append(ask("POST", "/v1/task/heartbeat", body=json.dumps(stale).encode(), headers=token))
    seen.append(ask("POST", "/v1/task/complete", body=json.dumps(fence).encode(), headers=token))
    unsigned = "/" + event["outputs"][0]["storage"]["buffer_prefix"].removeprefix("s3://") + "x"
    seen.append(ask("PUT", unsigned, body=b"x"))
    try:
        socket.create_connection(("192.0.2.1", 80), timeout=5)
    except OSError:
        seen.append("no network")
    print(json.dumps([seen, os.path.exists("HOME"), sorted(os.environ)]))
"""


def test_what_a_hostile_function_reaches(trace: Trace, tmp_path: Path) -> None:
    source = HOSTILE.replace('"HOME"', repr(str(tmp_path)))
    told = report(trace("udf", "test", str(write(tmp_path / "f", source)), "--json"))
    assert told["completed"], told
    seen, sees_home, names = json.loads(told["stdout"])
    assert seen == [403, 403, 403, 403, 409, 404, 403, "no network"]
    assert not sees_home
    assert "TRACE_HOME" not in names
    reasons = {(row["code"], row["message"].rpartition(": ")[2]) for row in told["refused"]}
    assert {("egress_refused", reason) for reason in ("host", "prefix", "path", "task")} < reasons
    assert {"fenced", "route_not_found", "AccessDenied"} < {code for code, _ in reasons}
    shown = trace("udf", "test", str(tmp_path / "f")).out
    assert "refused requests" in shown
    assert "GET /trace-datasets/elsewhere/x" in shown


@pytest.mark.parametrize(
    ("ending", "body", "options"),
    [
        ("timeout", "while True: pass", ("--timeout", "1")),
        ("memory", "x = [b'x' * 2**20 for _ in range(400)]; print(len(x))", ("--memory-mb", "64")),
        ("exit", "import os; os._exit(3)", ()),
        ("output", "while True: print('x' * 2**16)", ()),
    ],
)
def test_limits(trace: Trace, tmp_path: Path, ending: str, body: str, options: tuple[str, ...]) -> None:
    function = write(tmp_path / "f", f"def handle(event, context):\n    {body}\n")
    ended = trace("udf", "test", str(function), "--json", *options)
    told = report(ended)
    assert (ended.status, told["ending"]) == (1, ending), ended
    assert ending != "timeout" or "within 1 s" in told["message"], told


def test_queries_are_checked_as_on_a_stack(trace: Trace, tmp_path: Path) -> None:
    source = """
from tracelake.sdk import CallError, handler
@handler
def handle(task):
    files = "SELECT * FROM read_csv('/etc/passwd')"
    for sql in ("SELECT gas FROM blocks", "SELECT * FROM nothing", "DROP TABLE blocks", files):
        try:
            task.query(sql)
        except CallError as error:
            print(error.code, error.status)
    task.query("SELECT gas_usd FROM blocks")
"""
    ended = trace("udf", "test", str(write(tmp_path / "f", source, sample=SAMPLE)), "--json")
    told = report(ended)
    assert (ended.status, told["error"]["type"]) == (1, "CallError")
    codes = told["stdout"].split("\n")[:-1]
    assert codes[0] == "query_unknown_column 422"
    assert len(codes) == 4, codes
    assert {row["target"] for row in told["refused"]} == {"/v1/task/query"}
    assert any("gas_used" in row["message"] for row in told["refused"]), "a name that may be meant"


def test_unstable_keys_and_bad_rows_are_told(trace: Trace, tmp_path: Path) -> None:
    publish = "from tracelake.sdk import handler\n@handler\ndef handle(task):\n    task.publish([ROW], key='k')\n"
    function = write(tmp_path / "f", publish.replace("ROW", "{'k': f'{task.task_id}-{task.attempt}'}"))
    ended = trace("udf", "test", str(function), "--json")
    assert (ended.status, report(ended)["error"]["type"]) == (1, "UnstableKeyError")
    # Code that does without the check of the SDK is told afterwards.
    test = '[[test.outputs]]\nname = "rows"\nkey = ["k"]\ncolumns = { k = "text", n = "int32" }\n'
    source = publish.replace("    task.publish", "    task._keys.check = lambda *_: None\n    task.publish")
    for row, problem in (
        ("{'k': f'attempt {task.attempt}'}", "the number of the attempt"),
        ("{'k': 'a', 'n': 'seven'}", "a sink would refuse the batch: line 1"),
        ("{'k': 'a', 'other': 1}", "a sink would refuse the batch: line 1"),
    ):
        function = write(tmp_path / "f", source.replace("ROW", row), project=PROJECT + test)
        ended = trace("udf", "test", str(function))
        assert ended.status == 1
        assert "a stack would refuse the results" in ended.out
        assert problem in ended.out


def test_what_cannot_be_used_is_refused_with_the_next_step(trace: Trace, tmp_path: Path) -> None:
    function = write(tmp_path / "f", "def handle(event, context): pass\n")

    def refusal(*options: str) -> str:
        ended = trace("udf", "test", str(function), *options)
        assert (ended.status, ended.out) == (1, ""), ended
        return ended.err

    assert "write it, or name another" in refusal("--input", f"blocks={tmp_path / 'none.csv'}")
    (tmp_path / "blocks.txt").write_text("x")
    assert "expected a file of rows" in refusal("--input", f"blocks={tmp_path / 'blocks.txt'}")
    (tmp_path / "broken.parquet").write_text("x")
    assert "cannot be read as parquet" in refusal("--input", f"blocks={tmp_path / 'broken.parquet'}")
    event = tmp_path / "event.json"
    event.write_text('{"inputs": [{"name": "blocks"}]}')
    assert "add --input blocks=FILE" in refusal("--event", str(event))
    event.write_text('{"inpts": []}')
    assert "unknown field `inpts`" in refusal("--event", str(event))
    event.write_text("{")
    assert "the event is not JSON" in refusal("--event", str(event))
    (function / "trace-udf.toml").write_text(PROJECT + '[test]\nmemory_mb = "much"\n')
    assert "$.test.memory_mb" in refusal()
    (function / "trace-udf.toml").write_text("language = \n")
    assert "is not TOML" in refusal()
    assert "expected NAME=FILE" in trace("udf", "test", str(function), "--input", "blocks").err
    unusable = trace("udf", "test", str(write(tmp_path / "f", "")), "--json", "--input", "blocks=none.csv")
    assert (unusable.status, report(unusable)["error"]["code"]) == (1, "unusable_input")


def test_nothing_runs_on_a_machine_that_does_not_isolate(
    trace: Trace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def find_none(*_: object) -> str:
        return "user namespaces are switched off: set user.max_user_namespaces"

    monkeypatch.setattr(trial, "check_isolation", find_none)
    mark = tmp_path / "mark"
    function = write(tmp_path / "f", f"open({str(mark)!r}, 'w')\ndef handle(event, context): pass\n")
    ended = trace("udf", "test", str(function))
    assert ended.status != 0
    assert "user namespaces are switched off" in ended.err
    assert not mark.exists()


def test_a_function_in_rust(trace: Trace, tmp_path: Path) -> None:
    steps = [
        {"call": "copy", "arguments": {"sql": "SELECT block_number FROM blocks", "key": "block_number"}},
        {"call": "put", "arguments": {"location": "a", "data": "hello"}},
        {"call": "heartbeat", "arguments": {}},
    ]
    event = tmp_path / "event.json"
    event.write_text(json.dumps({"config": {"steps": steps}}))
    function = write(
        tmp_path / "f", "", project='language = "rust"\nleave_out = ["sample", "main.py"]\n', sample=SAMPLE
    )
    assert "(archive_empty). Build it first: cargo build" in trace("udf", "test", str(function)).err
    write_rust_program(function)
    told = report(trace("udf", "test", str(function), "--event", str(event), "--json"))
    assert told["completed"], told
    assert told["outputs"][0]["first_rows"] == [{"block_number": number} for number in (7, 8, 9)]
    assert (len(told["files"]), told["heartbeats"]) == (1, 1)
    event.write_text(json.dumps({"config": {"steps": [{"call": "fail_for_good", "arguments": {"text": "no"}}]}}))
    told = report(trace("udf", "test", str(function), "--event", str(event), "--json"))
    assert (told["completed"], told["retryable"], told["error"]["message"]) == (False, False, "no"), told


def test_archives_and_real_events(trace: Trace, tmp_path: Path) -> None:
    archive = tmp_path / "f.zip"
    with zipfile.ZipFile(archive, "w") as file:
        file.writestr(
            "main.py", "def handle(event, context):\n    print(event['config'], event['outputs'][0]['name'])\n"
        )
    assert "needs --language" in trace("udf", "test", str(archive)).err
    event = {
        "task_id": "0199a0de-0000-7000-8000-000000000000",
        "attempt": 3,
        "config": {"least": 5},
        "outputs": [{"output_index": 0, "name": "rows", "storage": {"kind": "buffered", "buffer_prefix": "s3://a/b/"}}],
        "lease_token": "x",
    }
    (tmp_path / "event.json").write_text(json.dumps(event))
    options = ("--language", "python", "--entrypoint", "main.handle", "--event", str(tmp_path / "event.json"))
    ended = trace("udf", "test", str(archive), *options)
    assert (ended.status, "{'least': 5} rows" in ended.out) == (0, True), ended
    archive.write_bytes(b"no archive")
    assert "(not_a_zip)" in trace("udf", "test", str(archive), *options).err
