"""How `trace demo` ends: what is left when a stage fails, what is found to be right or wrong, what is printed."""

import asyncio
import errno
import json
import shutil
import signal
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any
from uuid import uuid4

import pyarrow as pa
import pytest

from tests.stack.demo_support import START, quiet, task
from tests.stack.test_demo_functions import make_story
from tests.support.postgres import scratch_directory
from tracelake.client.stack import LocalStack, ObjectStoreAddress
from tracelake.demo import DemoError, checks, command, plan, questions, results, stack, table, tell, watch
from tracelake.demo.directory import DemoDirectory
from tracelake.demo.function_runs import FunctionStory
from tracelake.demo.functions import FUNCTIONS
from tracelake.doc_pages import find_page
from tracelake.settings.home import Home
from tracelake.wire.datasets import LineageEdge, LineageReply
from tracelake.wire.query import QueryReply, ResultColumn

# --- what is left


@pytest.fixture(autouse=True)
def signals() -> Iterator[None]:
    """The demo ignores signals while it ends, which processes of later tests would inherit."""
    numbers = (signal.SIGTERM, signal.SIGHUP)
    handlers = [signal.getsignal(number) for number in numbers]
    yield
    for number, handler in zip(numbers, handlers, strict=True):
        signal.signal(number, handler)


@pytest.fixture
def scratch() -> Iterator[Path]:
    root = scratch_directory()
    yield root
    shutil.rmtree(root, ignore_errors=True)


class StandIn(stack.DemoStack):
    """A stack that counts how often it is stopped."""

    stopped = 0

    def start(self) -> LocalStack:
        self.home.make()
        names = ("public_url", "task_url", "internal_url", "ca_file", "worker_token_file", "service_token_file")
        texts: dict[str, Any] = dict.fromkeys((*names, "admin_token_file", "queue_dsn_file", "data_dsn_file"), "-")
        place = ObjectStoreAddress(endpoint=None, region="r", buckets={})
        return LocalStack(pid=1, home=str(self.home.root), object_store=place, **texts)

    @property
    def runs(self) -> bool:
        return not StandIn.stopped

    def stop(self) -> None:
        StandIn.stopped += 1


class NoClient:
    @classmethod
    def of_stack(cls, _: LocalStack) -> "NoClient":
        return cls()

    async def close(self) -> None:
        pass


class NoChapter:
    """A live chapter in which nothing happens."""

    def __init__(self, *_: object) -> None:
        pass

    async def begin(self) -> None:
        pass

    async def run(self) -> None:
        return None

    def close(self) -> None:
        pass


def run_demo(
    scratch: Path,
    monkeypatch: pytest.MonkeyPatch,
    stage: str,
    error: BaseException,
    *,
    keep: bool = False,
    found: results.Results | None = None,
) -> tuple[int, str]:
    """Run it with one stage that raises; the others do nothing, and find what is given."""

    async def nothing(*_: Any) -> watch.Story:
        return story()

    async def find(*_: Any) -> results.Results | None:
        return found

    async def fail(*_: Any) -> None:
        if isinstance(error, KeyboardInterrupt):  # as Ctrl-C does it: a task that raised it would be logged much later
            signal.raise_signal(signal.SIGINT)
            await asyncio.Event().wait()
        raise error

    monkeypatch.setattr(StandIn, "stopped", 0)
    monkeypatch.setattr(command, "DemoStack", StandIn)
    monkeypatch.setattr(command, "UserClient", NoClient)
    monkeypatch.setattr(command, "LiveChapter", NoChapter)
    for module, name in ((watch, "begin"), (watch, "follow"), (results, "collect")):
        does = find if name == "collect" else nothing
        monkeypatch.setattr(module, name, fail if name == stage else does)
    screen, out = quiet(200)
    directory = DemoDirectory(scratch, scratch / "home")
    demo = command.Demo(directory, plan.DemoPlan(1, 0, 9, 50), screen, keep=keep, as_json=False)
    return demo.run(), out.getvalue()


@pytest.mark.parametrize("keep", [False, True])
@pytest.mark.parametrize("stage", ["begin", "follow", "collect"])
def test_a_stage_that_fails_stops_everything_and_says_where_the_logs_are(
    scratch: Path, monkeypatch: pytest.MonkeyPatch, stage: str, keep: bool
) -> None:
    status, said = run_demo(
        scratch, monkeypatch, stage, DemoError("ingest 0-9 failed (no retries left): why"), keep=keep
    )
    assert status == 1
    assert StandIn.stopped == 1
    assert "The demo failed: ingest 0-9 failed (no retries left): why" in said
    assert str(scratch / "home" / "logs") in said
    assert (scratch / "home" / "logs").is_dir()


def test_a_result_that_is_not_right_is_kept_to_be_looked_at(scratch: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wrong = replace(found(), checks=[checks.Check("each of the blocks is there once", right=False)])
    status, said = run_demo(scratch, monkeypatch, "", ValueError(), found=wrong)
    assert status == 1
    assert StandIn.stopped == 1
    assert " NO  each of the blocks is there once" in said
    assert (scratch / "home" / "logs").is_dir()


@pytest.mark.parametrize("keep", [False, True])
def test_what_is_right_leaves_a_stack_only_if_asked_for(
    scratch: Path, monkeypatch: pytest.MonkeyPatch, keep: bool
) -> None:
    status, said = run_demo(scratch, monkeypatch, "", ValueError(), found=found(), keep=keep)
    assert status == 0
    assert StandIn.stopped == (not keep)
    assert scratch.exists() == keep
    assert (f"down --home {scratch / 'home'}" in said) == keep
    assert ("nothing is left running" in said) != keep


def test_what_nobody_expected_is_no_wall_of_text(scratch: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    status, said = run_demo(scratch, monkeypatch, "collect", ZeroDivisionError("secret"))
    assert status == 1
    assert "Traceback" not in said
    assert "secret" not in said
    assert str(scratch / "demo.log") in said
    assert "ZeroDivisionError: secret" in (scratch / "demo.log").read_text()


@pytest.mark.parametrize("stage", ["begin", "follow", "collect"])
def test_an_interrupt_stops_everything_and_removes_the_home(
    scratch: Path, monkeypatch: pytest.MonkeyPatch, stage: str
) -> None:
    # A run of the tests in the background of a shell ignores the signal.
    former = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        status, said = run_demo(scratch, monkeypatch, stage, KeyboardInterrupt())
    finally:
        signal.signal(signal.SIGINT, former)
    assert status == 130
    assert StandIn.stopped == 1
    assert "Interrupted." in said
    assert not scratch.exists()


def test_a_terminal_that_is_gone_is_an_interrupt(scratch: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its signal may come after the first write that fails."""
    assert run_demo(scratch, monkeypatch, "follow", OSError(errno.EIO, "gone"))[0] == 130
    assert StandIn.stopped == 1
    assert not scratch.exists()


def test_a_home_that_is_named_is_used_if_it_is_empty(scratch: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(scratch))
    absent, empty, full = scratch / "absent" / "deep", scratch / "empty", scratch / "full"
    empty.mkdir()
    full.mkdir()
    (full / "settings.toml").write_text("workers = 3\n")
    for named, kept in ((absent, False), (empty, True)):
        ours = DemoDirectory.make({"TRACE_HOME": str(named)})
        assert (ours.home, ours.refused) == (named, None)
        Home(ours.home).make()
        other = DemoDirectory.make({"TRACE_HOME": str(named)})
        assert other.refused == named, "of two demos, one has it"
        other.remove()
        assert Home(named).run.is_dir()
        ours.remove()
        assert named.exists() == kept
        assert not kept or list(named.iterdir()) == []
    beside = DemoDirectory.make({"TRACE_HOME": str(full)})
    assert (beside.home, beside.refused) == (beside.scratch / "home", full)
    beside.remove()
    assert [path.name for path in full.iterdir()] == ["settings.toml"]
    assert DemoDirectory.make({}).refused is None


def test_a_stack_that_does_not_start(scratch: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stack, "SETTINGS", {"lease_seconds": "long"})
    screen, out = quiet(300)
    directory = DemoDirectory(scratch, scratch / "home")
    demo = command.Demo(directory, plan.DemoPlan(1, 0, 9, 50), screen, keep=False, as_json=False)
    assert demo.run() == 1
    assert "did not start: lease_seconds" in out.getvalue()


# --- what is found and printed

BLOCKS = pa.table({"block_number": pa.array([5, 6], pa.uint32()), "timestamp": pa.array([3600, 7300], pa.uint32())})
TOKENS = (b"\x01" * 20, b"\x02" * 20)
TRANSFERS = pa.table(
    {
        "block_number": pa.array([5, 5, 6, 6], pa.uint32()),
        "token": pa.array([TOKENS[0], TOKENS[0], TOKENS[0], TOKENS[1]], pa.binary()),
        "standard": ["erc20", "erc20", "erc20", "erc721"],
        "amount_f64": [1.0, 2.0, 4.0, 1.0],
        "log_index": pa.array([0, 1, 0, 1], pa.int64()),
        "from_address": pa.array([bytes(20), b"s" * 20, b"s" * 20, b"s" * 20], pa.binary()),
        "amount_string": ["1", "2", "4", "1"],
    }
)


def flows_table(**changes: Any) -> pa.Table:
    columns: dict[str, Any] = {
        "hour": pa.array([7200, 3600, 7200], pa.timestamp("s")).cast(pa.timestamp("us", "UTC")),
        "token": [TOKENS[1].hex(), TOKENS[0].hex(), TOKENS[0].hex()],
        "standard": ["erc721", "erc20", "erc20"],
        "transfers": [1, 2, 1],
        "amount": [1.0, 3.0, 4.0],
    }
    return pa.table(columns | changes)


def made(**rows: int) -> list[results.Made]:
    told = dict.fromkeys(plan.DATASETS, 0) | {"blocks": 2, "transfers": 4, "hourly_flows": 3} | rows
    return [results.Made(name, number, 1, 2048) for name, number in told.items()]


def story() -> watch.Story:
    tasks = [task(job, 5, 6, "Completed", 1, 2) for job in (plan.SPLIT, *plan.BLOCK_JOBS)]
    tasks += [task(plan.SUMMARY, 0, 86_399, "Completed", began, began + 1) for began in (2, 3)]
    kill = watch.Kill("worker-1", START, {tasks[1].task_id: "ingest 5-6"})
    kill.returns[tasks[1].task_id] = watch.Return("ingest 5-6", 2, "worker-2", 7.25)
    return watch.Story(seconds=4.0, kill=kill, tasks=tasks)


CHOSEN = plan.DemoPlan(7, 5, 6, 50)


def verified(blocks: pa.Table = BLOCKS, flows: pa.Table | None = None, **rows: int) -> list[bool]:
    listed = results.listed(flows_table() if flows is None else flows)
    return [check.right for check in results.verify(CHOSEN, story(), blocks, TRANSFERS, listed, made(**rows))]


def test_what_is_right_is_found_to_be() -> None:
    assert verified() == [True] * 4


def test_what_is_wrong_is_found() -> None:
    assert verified(blocks=BLOCKS.slice(1))[0] is False, "a block is missing"
    assert verified(blocks=pa.concat_tables([BLOCKS, BLOCKS.slice(1)]))[0] is False, "a block is there twice"
    assert verified(transfers=5)[2] is False, "a task said more rows"
    assert verified(hourly_flows=5)[2] is False, "a day that was computed twice is counted twice"
    assert verified(flows=flows_table(transfers=[1, 2, 2]))[3] is False
    assert verified(flows=flows_table(amount=[1.0, 3.0, 4.1]))[3] is False
    assert verified(flows=flows_table().slice(1))[3] is False
    parts = flows_table(transfers=[1, 1, 1], amount=[1.0, 1.0, 4.0]), flows_table(amount=[1.0, 2.0, 4.0]).slice(1, 1)
    assert verified(flows=pa.concat_tables(parts))[3] is False, "an hour of a token has two rows"


ROWS = [
    table.Row(5, 0, "1", "by_token"),
    table.Row(5, 1, "2", "by_token"),
    table.Row(6, 0, "4", "by_sender"),
]
"""What the two jobs find here: all of a token, and the largest of its sender; nobody sends what is minted."""


def table_right(rows: list[table.Row], *, dead: int = 0) -> list[bool]:
    told = replace(story(), table=table.TableStory(batches=2, dead=dead))
    return [check.right for check in results.verify_table(CHOSEN, told, TRANSFERS, rows)]


def test_a_table_that_is_right() -> None:
    assert table_right(ROWS) == [True, True]
    assert table_right([*ROWS[:2], replace(ROWS[2], found="by_token")]) == [True, True], "both found it"


def test_a_table_that_is_not() -> None:
    assert table_right(ROWS[1:])[0] is False, "a row is missing"
    assert table_right([*ROWS, ROWS[0]])[0] is False, "a row is there twice"
    assert table_right([*ROWS[:2], ROWS[0]])[0] is False, "one is there twice and one is missing"
    assert table_right([replace(ROWS[0], amount="3"), *ROWS[1:]])[0] is False
    assert table_right([ROWS[0], replace(ROWS[1], found="by_sender"), ROWS[2]])[0] is False, "that job does not find it"
    assert table_right([*ROWS, table.Row(6, 1, "1", "by_token")])[0] is False, "no token of that kind"
    assert table_right(ROWS, dead=1)[1] is False


def test_the_largest_of_each_unit_count() -> None:
    blocks = [0] * 30 + [50] * 30
    many = pa.table(
        {
            "block_number": pa.array(blocks, pa.int64()),
            "log_index": pa.array([*range(30), *range(30)], pa.int64()),
            "token": pa.array([TOKENS[0]] * 60, pa.binary()),
            "standard": ["erc20"] * 60,
            "from_address": pa.array([b"s" * 20] * 60, pa.binary()),
            "amount_f64": [float(number) for number in range(60)],
            "amount_string": [str(number) for number in range(60)],
        }
    )
    wanted = results.large_transfers(plan.DemoPlan(7, 0, 99, 50), many)
    assert sorted(wanted) == [(0, log) for log in range(10, 30)] + [(50, log) for log in range(10, 30)]
    assert [key for key, (_, jobs) in wanted.items() if "by_sender" in jobs] == [(50, 29), (0, 29)]


def found() -> results.Results:
    flows = results.listed(flows_table())
    return results.Results(
        made=made(),
        flows=flows,
        findings=3,
        checks=results.verify(CHOSEN, story(), BLOCKS, TRANSFERS, flows, made()),
        tasks=5,
        attempts=6,
        lost=1,
        failed=0,
        lineage=LineageReply(
            dataset="hourly_flows",
            dataset_version=uuid4(),
            upstream=[
                LineageEdge(from_dataset="transfers", dag="token_flows", job="summarise", to_dataset="hourly_flows")
            ],
            downstream=[],
            units=[],
        ),
        answers=[questions.QuestionReply(questions.QUESTIONS[0], REPLY)],
    )


REPLY = QueryReply(
    query_id=uuid4(),
    columns=[ResultColumn(name="sender", type="BLOB"), ResultColumn(name="transfers", type="BIGINT")],
    rows=[["0x" + "02" * 20, 3], [None, 11]],
    row_count=2,
    datasets=[],
    bytes_read=0,
    elapsed_ms=1,
)


def test_the_end_of_the_story() -> None:
    screen, out = quiet(120)
    tell.tell(screen.console, CHOSEN, story(), found())
    said = out.getvalue()
    for line in (
        "transfers        4      1  2 KiB",
        "1970-01-01 01:00  0x010101...0101  erc20             2       3",
        "└── token_flows/summarise",
        "    3  integrity findings",
        "    5  tasks, in 6 attempts (1 retry)",
        "7.2 s  from the kill of worker-1 until what it held (1 task) was taken up again",
        "yes  each of the 2 blocks is there once",
        "GROUP BY sender\n",
        f"sender{' ' * 38}transfers\nblob{' ' * 43}bigint\n",
        f"0x{'02' * 20}          3\nNULL                                               11\n",
    ):
        assert line in said, said
    assert "NO" not in said


def test_the_story_of_functions() -> None:
    screen, out = quiet(160)
    told = replace(
        story(), functions=make_story(skipped={"mints": "this machine has no Node"}, functions=FUNCTIONS[:1])
    )
    tables = [results.Made("whales", 1234, None, 4096)]
    tell.tell(screen.console, CHOSEN, told, replace(found(), made=[*made(), *tables]))
    said = out.getvalue()
    for line in (
        "whales    Python    whales        2  1,234\n",
        "mints was left out: this machine has no Node.\n",
        "read the machine's accounts  no such file or directory\n",
        "take all memory              memory: more than 64 MiB\n",
        "2  runs of functions, besides the hostile one\n",
    ):
        assert line in said, said
    reply = json.loads(json.dumps(tell.as_json(CHOSEN, told, found(), None)))["functions"]
    assert (reply["runs"], reply["left_out"]) == ({"whales": 2}, {"mints": "this machine has no Node"})
    assert reply["hostile"]["attempts"][0]["refused"] is True


def test_a_machine_without_functions() -> None:
    screen, out = quiet(160)
    told = replace(story(), functions=FunctionStory(problem="the sandbox needs user namespaces"))
    tell.tell(screen.console, CHOSEN, told, found())
    said = "".join(out.getvalue().split("\n"))
    assert f"None ran: the sandbox needs user namespaces. See {find_page('functions.md')}." in said
    assert tell.as_json(CHOSEN, told, found(), None)["functions"]["hostile"] is None
    assert found().right, "a machine that cannot isolate functions is no failure"


def test_the_same_for_programs() -> None:
    told = json.loads(json.dumps(tell.as_json(CHOSEN, story(), found(), None)))
    assert told["ok"] is True
    assert told["blocks_per_s"] == 0.5
    assert told["killed"] == {"worker": "worker-1", "tasks": 1, "recovered": 1, "recovery_seconds": 7.2}
    assert told["busiest_flows"][0] == {
        "hour": "1970-01-01T01:00:00Z",
        "token": "0x" + "01" * 20,
        "standard": "erc20",
        "transfers": 2,
        "amount": 3.0,
    }


@pytest.mark.parametrize(
    ("number", "text"), [(0.5, "0.5"), (12, "12"), (1234567.8, "1,234,568"), (3e40, "3.000e+40"), (0, "0")]
)
def test_amounts(number: float, text: str) -> None:
    assert tell.amount(number) == text
