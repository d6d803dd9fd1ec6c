"""`trace udf`: new functions whose tests pass, archives that are always the same, and uploads."""

import hashlib
import json
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from uuid import UUID

import msgspec
import pytest

from tests.cli import samples
from tests.cli.conftest import Trace
from tests.cli.fake_api import Call, FakeApi
from tracelake.cli.udf_templates import TESTS
from tracelake.errors import TraceError
from tracelake.wire.bundles import BundleDetail, BundleNotice, BundleRow, BundlesPage, BundleUpload

BUNDLE = UUID(int=9)
PATH = f"/v1/udf/bundles/{BUNDLE}"
ROW = BundleRow(
    bundle_id=BUNDLE,
    status="ready",
    created_at=samples.EARLIER,
    created_by="ann",
    size_bytes=100,
    language="python",
    entrypoint="main.handle",
    sha256="0" * 64,
)


class _Uploads(HTTPServer):
    """Takes what is sent with PUT; answers with the statuses of the test, the last one again and again."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _UploadHandler)
        self.statuses = [200]
        self.bodies: list[bytes] = []
        self.heads: list[dict[str, str]] = []


class _UploadHandler(BaseHTTPRequestHandler):
    server: _Uploads

    def do_PUT(self) -> None:
        self.server.bodies.append(self.rfile.read(int(self.headers["content-length"])))
        self.server.heads.append({name.lower(): value for name, value in self.headers.items()})
        statuses = self.server.statuses
        self.send_response(statuses.pop(0) if len(statuses) > 1 else statuses[0])
        self.end_headers()

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def uploads() -> Iterator[_Uploads]:
    server = _Uploads()
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    yield server
    server.shutdown()
    server.server_close()


@pytest.fixture
def function(trace: Trace, tmp_path: Path) -> Path:
    directory = tmp_path / "function"
    assert trace("udf", "new", "--language", "python", str(directory)).status == 0
    return directory


def offer(api: FakeApi, uploads: _Uploads) -> None:
    """The API as it answers a push; the archive is finalized with what the call names."""

    def opened(call: Call) -> BundleUpload:
        url = f"http://127.0.0.1:{uploads.server_port}/upload?secret=1"
        headers = {"if-none-match": "*", "content-length": str(call.json["size_bytes"])}
        return BundleUpload(bundle_id=BUNDLE, url=url, headers=headers, expires_at=samples.NOW)

    def finalized(call: Call) -> BundleDetail:
        detail = msgspec.convert(msgspec.to_builtins(ROW), BundleDetail)
        notice = BundleNotice(code="shadows_standard_library", entry="json.py", message="hides json")
        return msgspec.structs.replace(detail, sha256=call.json["sha256"], notices=[notice])

    api.answers["GET /v1/udf/bundles"] = BundlesPage(bundles=[])
    api.answers["POST /v1/udf/bundles"] = opened
    api.answers[f"POST {PATH}/finalize"] = finalized


# A function in Rust is built with the crates of its SDK, which takes a minute of CPU time.
@pytest.mark.parametrize("language", ["python", "node", pytest.param("rust", marks=pytest.mark.system)])
def test_the_test_of_a_new_function_passes(trace: Trace, tmp_path: Path, language: str) -> None:
    directory = tmp_path / "made"
    assert trace("udf", "new", "--language", language, str(directory)).status == 0
    program, *arguments = TESTS[language].split()  # type: ignore[index]
    if program == "python":
        program = sys.executable
    if shutil.which(program) is None or subprocess.run([program, "--version"], check=False).returncode:
        pytest.skip(f"this machine has no {program}, or one that does not start for this user")
    offline = ["--offline"] if program == "cargo" else []
    ended = subprocess.run(
        [program, *arguments, *offline], cwd=directory, capture_output=True, timeout=600, check=False
    )
    if offline and b"--offline" in ended.stderr and b"no matching package" in ended.stderr:
        pytest.skip("cargo has not fetched the crates of the SDK on this machine, and tests do not use its registry")
    assert ended.returncode == 0, ended.stdout + ended.stderr
    if language == "rust":
        build = ["cargo", "build", *offline]
        subprocess.run(build, cwd=directory, capture_output=True, timeout=600, check=True)
        shutil.copy(directory / "target" / "debug" / "bootstrap", directory)
    trial = trace("udf", "test", str(directory), "--json")
    assert trial.status == 0, trial
    report = json.loads(trial.out)
    assert (report["problems"], report["refused"]) == ([], [])
    (output,) = report["outputs"]
    assert (output["name"], [row["block_number"] for row in output["first_rows"]]) == ("busy_blocks", [101, 103])
    again = trace("udf", "new", "--language", language, str(directory))
    assert (again.status, "exists and is not empty" in again.err) == (1, True)


@pytest.mark.parametrize("language", ["python", "node"])
def test_builds_are_reproducible(trace: Trace, tmp_path: Path, language: str) -> None:
    archives = []
    for number in range(2):
        directory, target = tmp_path / f"made_{number}", tmp_path / f"{number}.zip"
        trace("udf", "new", "--language", language, str(directory))
        built = trace("udf", "build", str(directory), "--output", str(target))
        assert hashlib.sha256(target.read_bytes()).hexdigest() in built.out
        archives.append(target.read_bytes())
    assert archives[0] == archives[1]
    assert b"test" not in archives[0], "tests stay at home"


def test_a_push_uploads_finalizes_and_names_the_id(
    trace: Trace, api: FakeApi, uploads: _Uploads, function: Path
) -> None:
    offer(api, uploads)
    pushed = trace("udf", "push", str(function))
    assert pushed.status == 0, pushed.err
    assert f"udf: {{ bundle_id: {BUNDLE}, entrypoint: main.handle }}" in pushed.out
    assert "json.py: hides json" in pushed.out
    (body,) = uploads.bodies
    assert uploads.heads[0]["if-none-match"] == "*"
    finalized = api.asked(f"{PATH}/finalize")[0].json
    assert finalized == {
        "sha256": hashlib.sha256(body).hexdigest(),
        "language": "python",
        "entrypoint": "main.handle",
    }
    row = msgspec.structs.replace(ROW, sha256=finalized["sha256"])
    api.answers["GET /v1/udf/bundles"] = BundlesPage(bundles=[row])
    again = trace("udf", "push", str(function), "--json")
    assert json.loads(again.out)["bundle_id"] == str(BUNDLE)
    assert trace("udf", "push", str(function), "--id").out == f"{BUNDLE}\n"
    assert len(uploads.bodies) == 1, "the same archive is not sent again"


def test_an_upload_whose_reply_was_lost_goes_on(
    trace: Trace, api: FakeApi, uploads: _Uploads, function: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(time, "sleep", lambda _: None)
    offer(api, uploads)
    uploads.statuses = [503, 412]
    assert trace("udf", "push", str(function)).status == 0
    assert len(uploads.bodies) == 2
    uploads.statuses = [403]
    refused = trace("udf", "push", str(function))
    assert (refused.status, "status 403" in refused.err, "secret" in refused.err) == (1, True, False)


def test_a_push_refuses_here_what_the_stack_would_refuse(trace: Trace, api: FakeApi, function: Path) -> None:
    (function / "link").symlink_to("/etc/passwd")
    assert "(link)" in trace("udf", "push", str(function)).err
    (function / "link").unlink()
    (function / "main.py").rename(function / "other.py")
    assert "(entrypoint_missing)" in trace("udf", "push", str(function)).err
    (function / "trace-udf.toml").write_text("language = 'cobol'\n")
    assert "expected language" in trace("udf", "push", str(function)).err
    (function / "trace-udf.toml").unlink()
    assert "trace-udf.toml is missing" in trace("udf", "push", str(function)).err
    archive = function / "x.zip"
    archive.write_bytes(b"no archive")
    assert "needs --language" in trace("udf", "push", str(archive)).err
    assert "(not_a_zip)" in trace("udf", "push", str(archive), "--language", "rust").err
    assert api.calls == []


def test_list_show_and_disable(trace: Trace, api: FakeApi) -> None:
    api.answers["GET /v1/udf/bundles"] = BundlesPage(bundles=[ROW])
    for part in (str(BUNDLE), "ready", "python", "main.handle", "ann"):
        assert part in trace("udf", "list").out
    rejected = BundleDetail(
        bundle_id=BUNDLE,
        status="rejected",
        created_at=samples.EARLIER,
        created_by="ann\x1b[31m",
        size_bytes=7,
        reason_code="overlap",
        reason="entries overlap: 'b'",
    )
    api.answers[f"GET {PATH}"] = rejected
    shown = trace("udf", "show", str(BUNDLE))
    assert "overlap: entries overlap" in shown.out
    assert "\x1b[31m" not in shown.out
    api.answers[f"POST {PATH}/disable"] = msgspec.structs.replace(
        msgspec.convert(msgspec.to_builtins(ROW), BundleDetail), status="disabled"
    )
    assert "is disabled" in trace("udf", "disable", str(BUNDLE), "--yes").out
    assert trace("udf", "disable", str(BUNDLE), stdin=b"n\n").status == 1
    api.answers[f"GET {PATH}"] = TraceError("bundle_not_found")
    assert "trace udf list" in trace("udf", "show", str(BUNDLE)).err
    api.answers["GET /v1/udf/bundles"] = BundlesPage(bundles=[])
    assert "trace udf new" in trace("udf", "list").out
