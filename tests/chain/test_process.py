"""The server as a process: how it says that it is ready, how it is told things, and how it ends."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.chain.client import connected, request
from tests.support.chain import recorded
from tracelake.demo.chain.app import RequestPace
from tracelake.demo.chain.recording import write_recording
from tracelake.demo.chain.rpc import METHOD_NOT_FOUND

BLOCKS = 60
PROC = pytest.mark.skipif(not Path("/proc/net/tcp").exists(), reason="looks at processes and sockets in /proc")
HELLO = json.dumps(request("eth_chainId", [])).encode()


class Started(NamedTuple):
    process: subprocess.Popen[bytes]
    says: dict[str, Any]

    @property
    def url(self) -> str:
        url: str = self.says["url"]
        return url


@pytest.fixture(scope="module")
def recording(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("recording") / "chain.jsonl.xz"
    blocks = [(one.block, one.receipts) for one in recorded(BLOCKS)]
    write_recording(path, chain_id="0x1466a9", client="a node", about={}, blocks=blocks, count=BLOCKS)
    return path


def _command(recording: Path, *options: str) -> list[str]:
    return [sys.executable, "-m", "tracelake.demo.chain.server", "--recording", str(recording), *options]


@contextmanager
def _started(recording: Path, *options: str, stdin: int = subprocess.PIPE) -> Iterator[Started]:
    process = subprocess.Popen(
        _command(recording, *options), stdin=stdin, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    assert process.stdout is not None
    try:
        yield Started(process, json.loads(process.stdout.readline()))
    finally:
        process.kill()
        process.wait()
        for stream in (process.stdin, process.stdout, process.stderr):
            if stream is not None:
                stream.close()


def _end(started: Started) -> tuple[int, bytes, bytes]:
    out, err = started.process.communicate(timeout=60)
    return started.process.returncode, out, err


def test_it_says_where_it_is_and_ends_when_its_input_is_closed(recording: Path) -> None:
    with _started(recording) as started:
        assert started.says == {"url": started.url, "chain_id": "0x1466a9", "blocks": BLOCKS, "head": BLOCKS - 1}
        assert started.url.startswith("http://127.0.0.1:")
        with connected(started.url) as client:
            assert client.call("eth_blockNumber") == hex(BLOCKS - 1)
            assert _end(started) == (0, b"", b"")  # though a client is still connected


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_it_ends_when_it_is_told_to(recording: Path, number: signal.Signals) -> None:
    with _started(recording) as started:
        started.process.send_signal(number)
        assert started.process.wait(timeout=60) == 0


def test_without_a_parent_at_its_input_it_stays_until_it_is_told_to_end(recording: Path) -> None:
    with _started(recording, stdin=subprocess.DEVNULL) as started:
        assert {_head(started) for _ in range(50)} == {hex(BLOCKS - 1)}  # by new connections each time
        started.process.terminate()
        assert _end(started) == (0, b"", b"")


def test_its_parent_lets_the_chain_grow(recording: Path) -> None:
    with _started(recording, "--head", "10") as started, connected(started.url) as client:
        assert started.says["head"] == 9
        assert client.call("eth_blockNumber") == hex(9)
        _order(started, b"nonsense\nhead 33\n")
        while client.call("eth_blockNumber") != hex(32):
            pass
        code, _, complaint = _end(started)
        assert (code, complaint.decode()) == (0, "Not understood. The only order is: head NUMBER_OF_BLOCKS\n")


def test_the_chain_grows_by_itself(recording: Path) -> None:
    with _started(recording, "--head", "10", "--grow", "1000") as started, connected(started.url) as client:
        while client.call("eth_blockNumber") != hex(BLOCKS - 1):
            pass


def test_a_chain_that_moves_is_beside_the_recorded_one_if_it_is_asked_for(recording: Path) -> None:
    with _started(recording, "--live") as started, connected(f"{started.url}/live") as client:
        assert client.call("demo_setHead", 20) is True
        assert client.call("demo_reorg", 3) is True
        assert client.call("eth_blockNumber") == hex(20)
        assert _head(started) == hex(BLOCKS - 1)
    with _started(recording) as started, connected(f"{started.url}/live") as client:
        assert client.error("demo_setHead", 20) == METHOD_NOT_FOUND


@PROC
def test_several_processes_share_the_work_and_end_with_the_first(recording: Path) -> None:
    with _started(recording, "--workers", "3", "--head", "10") as started:
        children = _children(started.process.pid)
        try:
            assert len(children) == 2
            _order(started, b"head 20\n")
            heads: set[str] = set()
            while heads != {hex(19)}:
                heads = {_head(started) for _ in range(10)}  # by new connections, so that all of them are asked
            started.process.kill()  # no farewell
            started.process.wait()
            give_up = time.monotonic() + 30
            while any(map(_alive, children)) and time.monotonic() < give_up:
                pass
            assert [child for child in children if _alive(child)] == []
        finally:
            for child in filter(_alive, children):
                os.kill(child, signal.SIGKILL)


def _head(started: Started) -> str:
    with connected(started.url) as client:
        head: str = client.call("eth_blockNumber")
        return head


def _order(started: Started, line: bytes) -> None:
    assert started.process.stdin is not None
    started.process.stdin.write(line)
    started.process.stdin.flush()


def _children(parent: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{parent}/task/{parent}/children").read_text().split()]


def _alive(process: int) -> bool:
    try:
        return Path(f"/proc/{process}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def test_too_many_requests_are_told_when_to_come_again(recording: Path) -> None:
    with _started(recording, "--requests-per-second", "0.01") as started, connected(started.url) as client:
        assert client.post(HELLO).status == 200
        refused = client.post(HELLO)
        assert refused.status == 429
        assert 90 <= int(refused.headers["retry-after"]) <= 100


def test_the_pace_is_kept_over_time() -> None:
    now = [100.0]
    pace = RequestPace(4, clock=lambda: now[0])
    assert [pace.wait() for _ in range(5)] == [0.0, 0.0, 0.0, 0.0, 0.25]
    now[0] += 0.25
    assert [pace.wait(), pace.wait()] == [0.0, 0.25]
    now[0] += 1000
    assert [pace.wait() for _ in range(5)] == [0.0, 0.0, 0.0, 0.0, 0.25]


def test_plain_answers_only(recording: Path) -> None:
    with _started(recording, "--no-gzip") as started, connected(started.url) as client:
        body = json.dumps(request("eth_getBlockByNumber", ["latest", True])).encode()
        assert "content-encoding" not in client.post(body, {"accept-encoding": "gzip"}).headers


def _refused(*command: str) -> tuple[int, str]:
    done = subprocess.run(command, capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL, timeout=60)
    assert done.stdout == ""
    return done.returncode, done.stderr


def test_what_it_cannot_do_it_says(recording: Path, tmp_path: Path) -> None:
    damaged = tmp_path / "damaged.jsonl.xz"
    damaged.write_bytes(recording.read_bytes()[:-100])
    code, complaint = _refused(*_command(damaged))
    assert (code, complaint.count("\n")) == (1, 1)
    assert "damaged.jsonl.xz is not a whole recording" in complaint
    with _started(recording) as started:
        port = started.url.rsplit(":", 1)[1]
        code, complaint = _refused(*_command(recording, "--port", port))
        assert code == 1
        assert f"Port {port} cannot be used: Address already in use." in complaint
    for options in (
        ["--head", "0"],
        ["--grow", "-1"],
        ["--workers", "99"],
        ["--port", "65536"],
        ["--requests-per-second", "nan"],
    ):
        assert _refused(*_command(recording, *options))[0] == 2
    code, complaint = _refused(*_command(recording, "--requests-per-second", "5", "--workers", "2"))
    assert (code, "leave --workers at 1" in complaint) == (2, True)
    code, complaint = _refused(*_command(recording, "--live", "--workers", "2"))
    assert (code, "leave --workers at 1" in complaint) == (2, True)


@PROC
def test_it_listens_on_loopback_alone(recording: Path) -> None:
    with _started(recording) as started:
        port = int(started.url.rsplit(":", 1)[1])
        listening = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
        assert {line[1] for line in listening if line[1].endswith(f":{port:04X}") and line[3] == "0A"} == {
            f"0100007F:{port:04X}"
        }
