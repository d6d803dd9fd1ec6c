"""The programs that the recorder drives: npm to fetch them, the compiler, the node, and a signer for rarer types."""

import http.client
import json
import os
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
HARDFORK = "prague"
ANSWER_SECONDS = 60


class Tools:
    """What package.json pins, installed below a scratch directory that is also the HOME of all of it."""

    def __init__(self, scratch: Path) -> None:
        self._folder = scratch
        self.environment = {**os.environ, "HOME": str(scratch)}

    def install(self) -> None:
        if shutil.which("npm") is None:
            raise SystemExit("Recording needs Node.js 20 or newer with npm. The demo, tests and benchmarks do not.")
        for name in ("package.json", "compile.mjs", "sign.mjs"):
            shutil.copy(HERE / name, self._folder)
        install = [
            "npm",
            "install",
            "--no-package-lock",
            "--ignore-scripts",
            "--no-audit",
            "--no-fund",
            "--no-update-notifier",
            "--loglevel=error",
        ]
        subprocess.run(install, cwd=self._folder, env=self.environment, check=True, stdout=subprocess.DEVNULL)

    def compile(self) -> dict[str, Any]:
        command = ["node", "compile.mjs", str(HERE / "contracts")]
        done = subprocess.run(command, cwd=self._folder, env=self.environment, check=True, stdout=subprocess.PIPE)
        compiled: dict[str, Any] = json.loads(done.stdout)
        return compiled

    @property
    def node_program(self) -> Path:
        programs = sorted(self._folder.glob("node_modules/@foundry-rs/anvil-*/bin/anvil*"))
        if not programs:
            raise SystemExit("npm has no build of anvil for this machine, so a chain cannot be recorded here.")
        return programs[0]

    @contextmanager
    def signer(self, mnemonic: str) -> Iterator["Signer"]:
        process = subprocess.Popen(
            ["node", "sign.mjs", mnemonic],
            cwd=self._folder,
            env=self.environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        try:
            yield Signer(process)
        finally:
            process.kill()
            process.wait()

    @contextmanager
    def node(self, *, mnemonic: str, chain_id: int, accounts: int, timestamp: int) -> Iterator["Node"]:
        with socket.create_server(("127.0.0.1", 0)) as probe:
            port = probe.getsockname()[1]
        # fmt: off
        command = [
            str(self.node_program), "--host", "127.0.0.1", "--port", str(port), "--silent", "--hardfork", HARDFORK,
            "--chain-id", str(chain_id), "--mnemonic", mnemonic, "--accounts", str(accounts), "--balance", "1000000",
            "--timestamp", str(timestamp), "--no-mining", "--order", "fifo", "--gas-limit", "30000000",
            "--block-base-fee-per-gas", "1000000000", "--prune-history", "--transaction-block-keeper", "1000000",
        ]
        # fmt: on
        process = subprocess.Popen(command, cwd=self._folder, env=self.environment, stdin=subprocess.DEVNULL)
        try:
            yield Node(port, process)
        finally:
            process.terminate()
            process.wait()


class Signer:
    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process

    def sign(self, request: dict[str, Any]) -> str:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()
        raw = self._process.stdout.readline().strip()
        if not raw:
            raise SystemExit("The signer ended; its complaint stands above.")
        return raw


class Node:
    """One connection to the node; calls are made one after the other, so that their order is the seed's."""

    def __init__(self, port: int, process: subprocess.Popen[bytes]) -> None:
        self._connection = http.client.HTTPConnection("127.0.0.1", port, timeout=ANSWER_SECONDS)
        self._process = process
        give_up = time.monotonic() + ANSWER_SECONDS
        while True:
            try:
                self._connection.connect()
                break
            except OSError:
                if process.poll() is not None or time.monotonic() > give_up:
                    raise SystemExit("The node did not start; its complaint stands above.") from None
                time.sleep(0.05)

    def call(self, method: str, *params: Any) -> Any:
        body = json.dumps({"jsonrpc": "2.0", "id": 1, "method": method, "params": params})
        self._connection.request("POST", "/", body, {"content-type": "application/json"})
        answer = json.loads(self._connection.getresponse().read())
        if "error" in answer:
            raise SystemExit(f"The node refused {method}: {answer['error']}")
        return answer["result"]
