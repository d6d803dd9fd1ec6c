"""A real node for tests: anvil, from the PATH or from its npm package. Tests are skipped on a machine that has neither
anvil nor npm, or cannot download the package. Everything else is a failure, so that they are not left out unnoticed."""

import json
import os
import platform
import re
import shutil
import subprocess
import threading
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

PACKAGE = "@foundry-rs/anvil@1.7.1"
CHAIN_ID = 31337
_INSTALL_SECONDS = 180
_DOWNLOAD_FAILED = re.compile(
    r"\bcode (E(?:NOTFOUND|AI_AGAIN|CONN(?:REFUSED|RESET)|(?:HOST|NET)UNREACH|TIMEDOUT|[45]\d\d)|ERR_SOCKET_TIMEOUT)\b"
)
"""The network or the package index, as npm names it: another run may succeed."""
_MACHINES = {("Linux", "x86_64"), ("Linux", "aarch64"), ("Darwin", "x86_64"), ("Darwin", "arm64")}
"""The package has programs for them."""
_LISTENING = re.compile(r"Listening on (127\.0\.0\.1:\d+)")


def find_anvil(folder: Path) -> Path:
    """The program. It is installed into the folder if the machine has none."""
    given = os.environ.get("TRACE_ANVIL") or shutil.which("anvil")
    if given:
        return Path(given)
    npm = shutil.which("npm")
    if npm is None:
        pytest.skip("no anvil and no npm to install it with: put anvil on the PATH, or name it in TRACE_ANVIL")
    _install(npm, folder)
    programs = sorted(folder.glob("node_modules/@foundry-rs/anvil-*/bin/anvil"))
    if not programs and (platform.system(), platform.machine()) not in _MACHINES:
        pytest.skip(f"{PACKAGE} has no program for this machine: put anvil on the PATH, or name it in TRACE_ANVIL")
    assert programs, f"npm installed {PACKAGE}, and it has no program"
    return programs[0]


def _install(npm: str, folder: Path) -> None:
    command = [npm, "install", "--prefix", str(folder), "--no-audit", "--no-fund", "--no-save", PACKAGE]
    try:
        done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=_INSTALL_SECONDS)
    except subprocess.TimeoutExpired:
        pytest.skip(f"npm could not download {PACKAGE} in {_INSTALL_SECONDS} seconds")
    if done.returncode == 0:
        return
    code = _DOWNLOAD_FAILED.search(done.stderr)
    if code is not None:
        pytest.skip(f"npm could not download {PACKAGE}: {code[1]}")
    pytest.fail(f"npm could not install {PACKAGE}: {done.stderr or done.stdout}")


class Anvil:
    """A chain of its own, which mines when it is told to."""

    def __init__(self, address: str) -> None:
        self.http, self.ws = f"http://{address}", f"ws://{address}"

    def call(self, method: str, *params: Any) -> Any:
        body = json.dumps({"jsonrpc": "2.0", "id": 1, "method": method, "params": params}).encode()
        request = urllib.request.Request(self.http, body, {"content-type": "application/json"})
        with urllib.request.urlopen(request, timeout=30) as reply:
            answer = json.load(reply)
        assert "error" not in answer, (method, answer)
        return answer["result"]

    def head(self) -> Any:
        return self.call("eth_getBlockByNumber", "latest", False)


@contextmanager
def running_anvil(program: Path) -> Iterator[Anvil]:
    command = [str(program), "--port", "0", "--no-mining", "--accounts", "2", "--chain-id", str(CHAIN_ID)]
    environment = {**os.environ, "NO_COLOR": "1"}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as process:
        assert process.stdout is not None
        try:
            lines = process.stdout
            address = next((match[1] for line in lines if (match := _LISTENING.search(line))), None)
            assert address is not None, f"anvil ended with {process.wait(30)} before it listened"
            reader = threading.Thread(target=lines.read, daemon=True)  # so that it is never kept from writing
            reader.start()
            yield Anvil(address)
        finally:
            process.terminate()
            process.wait(30)
