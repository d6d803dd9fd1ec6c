"""The replay server of the comparison, one process for both sides, and what it gives to who only listens."""

import contextlib
import json
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self
from urllib.parse import urlsplit

RECORDING = Path(__file__).parents[2] / "examples" / "token_flows" / "chain.jsonl.xz"
_TICKS = os.sysconf("SC_CLK_TCK")


RECORDED = ("tracelake.demo.chain.server", "--recording", str(RECORDING), "--no-gzip")
"""The module that serves the recorded chain, and its arguments."""


def dense(blocks: int, *, gzip: bool = False) -> tuple[str, ...]:
    """The module that serves blocks like mainnet's."""
    return ("benchmarks.support.dense_server", "--blocks", str(blocks), *(["--gzip"] if gzip else []))


class Replay:
    def __init__(self, module: Sequence[str] = RECORDED) -> None:
        command = [sys.executable, "-m", *module]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        assert self._process.stdout is not None
        said = json.loads(self._process.stdout.readline())
        self.url: str = said["url"]
        self.chain_id = int(said["chain_id"], 16)

    @property
    def pid(self) -> int:
        return self._process.pid

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.wait()
        self._process.stdout.close()

    def seconds_for(self, bodies: Sequence[bytes]) -> float:
        """Until all are answered, asked one after another on one connection by a client that looks at nothing."""
        place = urlsplit(self.url)
        assert place.hostname is not None
        head = f"POST / HTTP/1.1\r\nhost: {place.netloc}\r\ncontent-type: application/json\r\n"
        asked = [f"{head}content-length: {len(body)}\r\n\r\n".encode() + body for body in bodies]
        asked[-1] = asked[-1].replace(b"\r\n\r\n", b"\r\nconnection: close\r\n\r\n", 1)
        held = bytearray(1024 * 1024)
        with socket.create_connection((place.hostname, place.port or 80)) as connection:
            asking = threading.Thread(target=connection.sendall, args=(b"".join(asked),))
            began = time.perf_counter()
            asking.start()
            while connection.recv_into(held):
                pass
            seconds = time.perf_counter() - began
            asking.join()
        return seconds


def asked_by_ours(blocks: int, batch: int) -> list[bytes]:
    """A batch of blocks, then one of their receipts."""
    bodies = []
    for first in range(0, blocks, batch):
        numbers = [hex(number) for number in range(first, min(blocks, first + batch))]
        bodies.append(_body([_call("eth_getBlockByNumber", [number, True]) for number in numbers]))
        bodies.append(_body([_call("eth_getBlockReceipts", [number]) for number in numbers]))
    return bodies


def asked_by_cryo(blocks: int) -> list[bytes]:
    """Three calls a block, each a request of its own."""
    bodies = []
    for number in map(hex, range(blocks)):
        bodies.append(_body(_call("eth_getBlockByNumber", [number, True])))
        bodies.append(_body(_call("eth_getBlockReceipts", [number])))
        bodies.append(_body(_call("eth_getLogs", [{"fromBlock": number, "toBlock": number, "topics": []}])))
    return bodies


def _call(method: str, params: list[Any]) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}


def _body(said: Any) -> bytes:
    return json.dumps(said, separators=(",", ":")).encode()


def cpu_seconds(pid: int) -> float:
    """Of this process."""
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS


def cpu_seconds_below(pid: int, *, without: Sequence[int] = ()) -> float:
    """Of this process and all that came from it and are still there."""
    total = 0.0
    with contextlib.suppress(OSError):  # threads and processes may end while they are looked at
        total += cpu_seconds(pid)
        children = [child for one in Path(f"/proc/{pid}/task").iterdir() for child in _children(one)]
        total += sum(cpu_seconds_below(child, without=without) for child in children if child not in without)
    return total


def processes_below(pid: int, *, without: Sequence[int] = ()) -> list[int]:
    found = [pid]
    with contextlib.suppress(OSError):
        children = [child for one in Path(f"/proc/{pid}/task").iterdir() for child in _children(one)]
        for child in children:
            if child not in without:
                found += processes_below(child, without=without)
    return found


def forget_peaks(pids: Sequence[int]) -> None:
    for pid in pids:
        with contextlib.suppress(OSError):
            Path(f"/proc/{pid}/clear_refs").write_text("5")


def peak_megabytes(pids: Sequence[int]) -> float:
    """The most that each had in memory since its peak was forgotten, together; what they share counts for each."""
    total = 0
    for pid in pids:
        with contextlib.suppress(OSError):
            lines = Path(f"/proc/{pid}/status").read_text().splitlines()
            total += sum(int(line.split()[1]) for line in lines if line.startswith("VmHWM:"))
    return total / 1024


def _children(thread: Path) -> list[int]:
    try:
        return [int(child) for child in (thread / "children").read_text().split()]
    except OSError:
        return []
