"""`trace demo` as a person runs it, on the real stack: a worker and the sink are killed, the result is the chain's."""

import fcntl
import json
import os
import platform
import re
import shutil
import signal
import subprocess
import sys
import termios
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from tests.chain.faults import Call
from tests.support.chain import recorded, serve_chain
from tests.support.postgres import scratch_directory, wait_until
from tracelake.demo.chain.recording import RecordedBlock
from tracelake.runner.languages import find_node

FIRST, LAST = 100, 199
TRANSFER = "0xddf252ad1be2c89b69c2b068fc378daa952ba7f163c4a11628f55a4df523b3ef"
SINGLE = "0xc3d58168c5ae7397731d063d5bbf3d657854427343f4c083240f7aacaa2d0f62"
BATCH = "0x4a39dc06d4c0dbc64b70af90fd698a233a518aa5d07e595d983b8c0526c8f7fb"


@pytest.fixture
def place() -> Iterator[Path]:
    """Where the demo puts its home; what is left there at the end is removed."""
    root = scratch_directory()
    yield root
    shutil.rmtree(root, ignore_errors=True)


def demo(place: Path, *arguments: str) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [sys.executable, "-m", "tracelake", "demo", *arguments],
        env={**os.environ, "TMPDIR": str(place)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def trace(home: str, *arguments: str) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-m", "tracelake", *arguments, "--home", home]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)


def processes_of(place: Path) -> list[str]:
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                command = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            except OSError:
                continue
            if str(place) in command:
                found.append(command)
    return found


class Expected:
    """The same by reading the recording, log by log."""

    def __init__(self) -> None:
        blocks = recorded(LAST + 1)[FIRST:]
        self.transactions = sum(len(one.block["transactions"]) for one in blocks)
        self.logs = self.transfers = 0
        self.flows: Counter[tuple[str, str]] = Counter()
        self.amounts: Counter[tuple[str, str]] = Counter()
        self.sent: dict[str, list[tuple[str, int]]] = {}
        """Token and block of each transfer, by sender."""
        self.mints: set[tuple[str, str]] = set()
        """Transaction and token of each mint of an ERC-20 token."""
        self.largest: dict[str, tuple[int, int, int]] = {}
        """Of each ERC-20 token: amount, block and log (both negative: the first one counts)."""
        for one in blocks:
            at = int(one.block["timestamp"], 16) // 3600 * 3600
            hour = f"{datetime.fromtimestamp(at, UTC):%Y-%m-%dT%H:%M:%S}Z"
            for log in (log for receipt in one.receipts for log in receipt["logs"]):
                self.logs += 1
                for amount in moved(log):
                    self.transfers += 1
                    self.flows[hour, log["address"]] += 1
                    self.amounts[hour, log["address"]] += amount
                    self._note_sender(one.block, log, amount)

    def _note_sender(self, block: dict[str, Any], log: dict[str, Any], amount: int) -> None:
        token, number, topics = log["address"], int(block["number"], 16), log["topics"]
        sender = "0x" + topics[1 if topics[0] == TRANSFER else 2][-40:]
        self.sent.setdefault(sender, []).append((token, number))
        if topics[0] == TRANSFER and len(topics) == 3:
            if not int(topics[1], 16):
                self.mints.add((log["transactionHash"], token))
            transfer = (amount, -number, -int(log["logIndex"], 16))
            self.largest[token] = max(self.largest.get(token, transfer), transfer)

    def answers(self) -> list[list[list[Any]]]:
        """Of the two questions that the demo asks in SQL."""
        senders: list[list[Any]] = [
            [sender, len(sent), len({token for token, _ in sent}), max(block for _, block in sent)]
            for sender, sent in self.sent.items()
        ]
        moved = Counter(dict.fromkeys(self.largest, 0))
        for (_, token), count in self.flows.items():
            moved[token] += count
        largest = [
            [token[:10], -block, str(amount), str(moved[token])] for token, (amount, block, _) in self.largest.items()
        ]
        return [
            sorted(senders, key=lambda row: (-row[1], row[0]))[:5],
            sorted(largest, key=lambda row: (-int(row[3]), row[0])),
        ]


def moved(log: dict[str, Any]) -> list[int]:
    """The amounts of the transfers that the log is, which are none if it is no transfer."""
    topics, data = log["topics"], bytes.fromhex(log["data"][2:])
    words = [int.from_bytes(data[at : at + 32], "big") for at in range(0, len(data), 32)]
    kind = topics[0] if topics else ""
    if kind in (TRANSFER, SINGLE, BATCH):
        indexed = topics[1:3] if kind == TRANSFER else topics[1:4]
        if any(int(topic, 16) >> 160 for topic in indexed):
            return []
    if kind == TRANSFER and len(topics) == 3 and len(data) == 32:
        return words
    if kind == TRANSFER and len(topics) == 4 and not data:
        return [1]
    if kind == SINGLE and len(topics) == 4 and len(data) == 64:
        return words[1:]
    if kind == BATCH and len(topics) == 4:
        amounts = words[1] // 32
        return words[amounts + 1 : amounts + 1 + words[amounts]]
    return []


def test_a_chain_becomes_flows_though_a_worker_is_killed(place: Path) -> None:
    process = demo(place, "--blocks", f"{FIRST}-{LAST}", "--keep", "--json")
    said, story = process.communicate(timeout=280)
    assert process.returncode == 0, story
    told = json.loads(said)
    home = told["home"]
    try:
        assert told["ok"], told["checks"]
        expected = Expected()
        rows = {name: made["rows"] for name, made in told["datasets"].items()}
        assert rows["blocks"] == told["blocks"] == LAST - FIRST + 1
        assert rows["transactions"] == expected.transactions
        assert rows["logs"] == expected.logs
        assert rows["transfers"] == expected.transfers > 0
        assert told["findings"] == rows["findings"] == 0
        assert told["flows"] == len(expected.flows)
        assert [flow["transfers"] for flow in told["busiest_flows"]] == sorted(expected.flows.values(), reverse=True)[
            : len(told["busiest_flows"])
        ]
        for flow in told["busiest_flows"]:
            assert flow["transfers"] == expected.flows[flow["hour"], flow["token"]]
            assert flow["amount"] == pytest.approx(expected.amounts[flow["hour"], flow["token"]])

        check_table(told, story)
        check_functions(told, story, expected)
        check_live(told["live"], story, expected)
        assert [query["rows"] for query in told["queries"]] == expected.answers()
        asked = json.loads(trace(home, "query", told["queries"][0]["sql"], "--json").stdout)
        assert asked["rows"] == told["queries"][0]["rows"]

        killed = told["killed"]
        assert killed["tasks"] == killed["recovered"] > 0
        assert told["retries"] >= 1
        assert f"killed {killed['worker']} (SIGKILL)" in story
        assert "lease expired" in story
        assert "attempt 2 by worker-" in story

        # The stack was left up, and what was printed can be tried.
        assert f"down --home {home}" in story
        assert trace(home, "status").returncode == 0
        assert "token_flows/summarise" in trace(home, "lineage", "hourly_flows").stdout
        look_at_rows(home, place / "transfers.parquet", expected)
        assert "no dead letters" in trace(home, "dlq", "list").stdout
    finally:
        assert trace(home, "down").returncode == 0
    wait_until(lambda: not processes_of(place), "everything to end")


@pytest.mark.timeout(600)
def test_a_chain_of_ones_own_is_reorganised_and_its_rows_become_files(place: Path) -> None:
    """It grows by three blocks only, each once the one before was read by the follower. The first of them replaces two
    others, and comes when the demo says that it watches."""
    head = 143
    with serve_chain(head + 4, head=head + 1) as chain:
        age = int(time.time()) - int(chain.block(head).block["timestamp"], 16)
        chain.reorganise(1, changed=0, later={1: age + 3_600})  # nobody waits for blocks of a chain whose head is old

        waiting = [head + 1, head + 2]

        def grow(calls: list[Call]) -> None:
            if waiting and any(reads_whole(call, chain.block(waiting[0])) for call in calls):
                chain.show(waiting.pop(0) + 2)

        chain.watch(grow)
        former = [chain.block(number).block["hash"] for number in (head - 1, head)]
        process = demo(place, "--rpc", chain.url, "--blocks", "40-89", "--json")
        assert process.stderr is not None
        assert process.stdout is not None
        lines: list[str] = []
        with ThreadPoolExecutor(1) as reader:
            output = reader.submit(process.stdout.read)
            for line in process.stderr:
                lines.append(line)
                if "live: watches the chain grow" in line:
                    chain.reorganise(head - 1, later={head - 1: 1})
                    chain.show(head + 2)
            said, story = output.result(60), "".join(lines)
        process.wait(60)
        latter = [chain.block(number).block["hash"] for number in (head - 1, head)]
    assert process.returncode == 0, story
    told = json.loads(said)
    assert told["ok"], told["checks"]
    live = told["live"]
    assert (live["first_block"], live["head_at_first"]) == (head - 40, head)
    assert live["last_block"] >= head + 2, story
    blocks = live["datasets"]["live_blocks"]
    assert blocks["boundary"] == 129, "the first unit of the tables: 120 to 129"
    assert blocks["rows_in_files"] == 129 - live["first_block"] + 1
    assert f"live: the node replaced its newest 2 blocks, {head - 1} to {head}" in story
    assert "live: followed the chain to block" in story
    replaced = live["reorganisation"]["blocks"]
    assert [block["hashes"] for block in replaced] == [list(pair) for pair in zip(former, latter, strict=True)]
    wait_until(lambda: not processes_of(place), "everything to end")


def reads_whole(call: Call, block: RecordedBlock) -> bool:
    """Whether the call asks for the block with its transactions. Those who only look at the head leave them out."""
    names = (hex(block.number), block.block["hash"])
    return call.method.startswith("eth_getBlockBy") and call.params[0] in names and call.params[1]


def check_table(told: dict[str, Any], story: str) -> None:
    """What fills it is killed, what is refused comes in later. That all of it is right, the demo's own checks say."""
    filled = told["table"]
    assert filled["batches"] == 2 * (LAST - FIRST + 1) / 50
    assert 1 <= filled["sink_killed"] <= filled["batches"]
    assert "killed the sink (SIGKILL) with" in story
    assert filled["refused"]
    assert all("kind: 'mint' is not one of move, burn" in error for error in filled["refused"])
    assert filled["retried"] == len(filled["refused"])
    assert "by_token" in story
    assert " failed: " in story
    assert "deployed the schema that knows mints: allow `mint` in the column `kind`" in story
    assert told["datasets"]["large_transfers"]["rows"] > 0


def check_functions(told: dict[str, Any], story: str, expected: "Expected") -> None:
    """That what they published is right, the demo's own checks say; and mints are counted here, log by log."""
    functions, units = told["functions"], (LAST - FIRST + 1) // 50
    assert functions["problem"] is None, "these tests need a machine that isolates functions"
    left_out = {"mints"} if find_node() is None else set()
    left_out |= set() if platform.machine() == "x86_64" else {"totals"}
    assert set(functions["left_out"]) == left_out
    assert functions["runs"] == dict.fromkeys({"whales", "mints", "totals"} - left_out, units)
    assert told["datasets"]["whales"]["rows"] > 0
    if "mints" not in left_out:
        assert told["datasets"]["mint_alerts"]["rows"] == len(expected.mints) > 0
    hostile = functions["hostile"]
    assert [attempt["tried"] for attempt in hostile["attempts"] if not attempt["refused"]] == []
    assert len(hostile["attempts"]) == 16
    results = {attempt["tried"]: attempt["result"] for attempt in hostile["attempts"]}
    # What refused it, so that a target which is not there does not pass for a sandbox.
    assert results["read a key of the platform"] == "no such file or directory"
    assert results["kill the runner"] == "no such process"
    assert results["connect to the internet"] == "network is unreachable"
    assert results["list the files of another dataset"] == "403 egress_refused"
    assert results["complete another task"] == "403 egress_refused"
    assert re.fullmatch(
        r"resource temporarily unavailable, after \d\d processes", results["start processes without end"]
    )
    assert hostile["memory"].startswith("memory")
    assert hostile["runner_restarts"] == 0
    assert hostile["runs_afterwards"] > 0
    assert "started a hostile one" in story


def check_live(live: dict[str, Any], story: str, expected: "Expected") -> None:
    """The chain grew through a reorganisation, into files and tables. That they are right, the demo's checks say."""
    assert (live["first_block"], live["last_block"], live["lag_blocks"], live["reorgs"]) == (FIRST, LAST, 0, 1)
    blocks = live["datasets"]["live_blocks"]
    assert FIRST < live["head_at_first"] < LAST
    assert blocks["rows_in_files"] + blocks["rows_in_table"] == LAST - FIRST + 1
    assert blocks["rows_in_files"] == blocks["boundary"] - FIRST + 1, "files end at the boundary, without a gap"
    assert blocks["boundary"] > live["head_at_first"], "rows of the table became files"
    replaced = live["reorganisation"]["blocks"]
    assert len(replaced) == live["reorganisation"]["last_block"] - live["reorganisation"]["first_block"] + 1 == 12
    assert all(before != after for before, after in (block["hashes"] for block in replaced))
    lost = {
        table: sum(before - after for before, after in (block[table] for block in replaced))
        for table in ("transactions", "logs")
    }
    assert lost["transactions"] > 0
    assert lost["logs"] > 0
    rows = {name: made["rows_in_files"] + made["rows_in_table"] for name, made in live["datasets"].items()}
    assert rows["live_transactions"] == expected.transactions - lost["transactions"]
    assert rows["live_logs"] == expected.logs - lost["logs"]
    assert "live: the node replaced its newest 12 blocks" in story


def look_at_rows(home: str, file: Path, expected: Expected) -> None:
    shown = trace(home, "read", "blocks", "--head", "2", "--columns", "block_number,block_hash", "--json")
    assert [row["block_number"] for row in json.loads(shown.stdout)] == [FIRST, FIRST + 1]
    assert json.loads(shown.stdout)[0]["block_hash"] == recorded(FIRST + 1)[FIRST].block["hash"]
    assert "parent_hash" in trace(home, "read", "blocks", "--head", "1").stdout
    written = trace(home, "read", "transfers", "--output", str(file))
    assert written.stdout == f"{expected.transfers:,} rows in {file}.\n"
    assert pq.read_table(file).num_rows == expected.transfers
    for arguments, said in (
        (("transfer",), "There is no dataset `transfer`"),
        (("blocks", "--columns", "nothing"), "there is no column nothing; there are block_hash"),
        (("blocks", "--range", f"{LAST + 1000}-{LAST + 2000}", "--output", str(file), "--force"), "nothing to write"),
        (("blocks", "--output", str(file)), "exists: replace it with --force"),
    ):
        refused = trace(home, "read", *arguments)
        assert refused.returncode == 1
        assert said in refused.stderr, refused.stderr
    assert pq.read_table(file).num_rows == expected.transfers, "a refusal changes no file"


def test_ctrl_c_leaves_nothing(place: Path) -> None:
    process = demo(place, "--blocks", "0-99")
    assert process.stdout is not None
    lines: list[str] = []
    for line in process.stdout:
        lines.append(line)
        if "triggered" in line:
            break
    process.send_signal(signal.SIGINT)
    said, errors = process.communicate(timeout=120)
    assert process.returncode == 130, "".join(lines) + said + errors
    assert "Interrupted." in said
    assert "Traceback" not in said + errors
    assert list(place.iterdir()) == []
    wait_until(lambda: not processes_of(place), "everything to end")


def test_the_end_of_its_terminal_leaves_nothing(place: Path) -> None:
    """The window is closed while Spark starts: the stack, and its home where TRACE_HOME says, are gone."""
    home, temporary = place / "mine", place / "tmp"
    temporary.mkdir()
    master, slave = os.openpty()
    process = subprocess.Popen(
        [sys.executable, "-m", "tracelake", "demo", "--blocks", "0-99"],
        env={**os.environ, "TMPDIR": str(temporary), "TRACE_HOME": str(home), "COLUMNS": "200", "TERM": "xterm"},
        stdin=slave,
        stdout=slave,
        stderr=slave,
        start_new_session=True,
        preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
    )
    os.close(slave)
    try:
        said = b""
        while b"starting Spark in the workers" not in said:
            said += os.read(master, 65536)
        assert (home / "stack.json").exists(), said
    finally:
        os.close(master)  # nobody reads or writes it any more: the terminal hangs up
    process.wait(timeout=120)
    assert not home.exists()
    assert list(temporary.iterdir()) == []
    wait_until(lambda: not processes_of(place), "everything to end")
