"""The parts of `trace demo`: what is to be done, how far it is, what is left when something fails, what is printed."""

import io
import json
import shutil
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import uuid4

import pyarrow as pa
import pytest
import yaml
from rich.console import Console

from tests.chain.faults import Status
from tests.support.chain import RECORDING, serve_chain
from tests.support.postgres import scratch_directory
from tracelake.client.stack import ObjectStoreAddress, Stack
from tracelake.processes.demo import DemoError, command, plan, results, stack, tell, watch
from tracelake.processes.demo.progress import JobProgress, clock, measure, per_second
from tracelake.processes.demo.screen import Screen
from tracelake.wire.units import Unit
from tracelake.wire.user import BlockRange, LineageEdge, LineageReply, TaskRow

START = datetime(2026, 3, 2, 12, tzinfo=UTC)
KEY = "a-key-that-nobody-may-see"


def after(seconds: float) -> datetime:
    return START + timedelta(seconds=seconds)


def task(
    job: str, first: int, last: int, status: str, claimed: float | None = None, ended: float | None = None
) -> TaskRow:
    return TaskRow(
        task_id=uuid4(),
        dag="token_flows",
        job=job,
        operator="any",
        status=status,  # type: ignore[arg-type]
        attempt=1,
        unit=Unit(partition_key=f"{first}-{last}", start=first, end=last),
        created_at=START,
        claimed_at=None if claimed is None else after(claimed),
        finished_at=None if ended is None else after(ended),
    )


# --- what is to be done


def test_the_dag_and_the_recording_are_those_of_the_example() -> None:
    chosen = plan.recorded(None)
    assert chosen.recording is not None
    assert chosen.recording.read_bytes() == RECORDING.read_bytes()
    shipped = yaml.safe_load(RECORDING.with_name("flows.yaml").read_text())
    assert yaml.safe_load(chosen.document()) == shipped, "the example as it is does what the demo does"
    assert (chosen.chain_id, chosen.first, chosen.last, chosen.units) == (1337001, 0, 3999, 8)


def test_the_dag_is_for_the_chain_and_the_units() -> None:
    document = yaml.safe_load(plan.Plan(7, 0, 99, 50).document())
    jobs = {job["name"]: job for job in document["jobs"]}
    assert jobs["split"]["config"] == {"size": 50}
    assert jobs["ingest"]["config"]["chain_id"] == 7
    assert set(plan.JOBS) | {plan.SOURCE, plan.SPLIT} == set(jobs)
    assert set(document["publish"]) == set(plan.DATASETS)


@pytest.mark.parametrize(
    ("blocks", "unit"), [(1, 50), (100, 50), (400, 50), (401, 100), (4000, 500), (8000, 1000), (1_000_000, 1000)]
)
def test_units(blocks: int, unit: int) -> None:
    assert plan.unit_for(blocks) == unit


@pytest.mark.parametrize(("first", "last", "units"), [(0, 99, 2), (0, 100, 3), (49, 50, 2), (75, 75, 1), (100, 299, 4)])
def test_units_begin_at_multiples(first: int, last: int, units: int) -> None:
    assert plan.Plan(1, first, last, 50).units == units


def test_blocks_that_the_recording_does_not_have() -> None:
    with pytest.raises(DemoError, match=r"blocks 0 to 3,999"):
        plan.recorded(BlockRange(start=0, end=4000))


# --- a chain of one's own


def test_the_node_says_which_chain_it_is_and_the_last_blocks_are_taken() -> None:
    with serve_chain(300) as chain:
        found = plan.own(f"{chain.url}/v3/{KEY}", None)
        assert (found.chain_id, found.first, found.last) == (1337001, 190, 289)
        chain.show(20)
        few = plan.own(chain.url, None)
        assert (few.first, few.last) == (0, 19)
        assert plan.own(chain.url, BlockRange(start=3, end=5)).blocks == 3
    assert KEY not in repr(found) + found.label + found.document().decode()


def test_a_name_stands_for_an_address_in_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    with serve_chain(20) as chain:
        monkeypatch.setenv("TRACE_RPC_MINE", chain.url)
        assert plan.own("mine", None).url == chain.url
    with pytest.raises(DemoError, match="TRACE_RPC_OTHER, and that is not set"):
        plan.own("other", None)


def test_a_node_that_is_not_there() -> None:
    with serve_chain(5) as chain:
        url = chain.url
    with pytest.raises(DemoError, match="is it running there") as told:
        plan.own(f"{url}/v3/{KEY}", None)
    assert url in str(told.value)
    assert KEY not in str(told.value)


def test_an_address_that_is_none() -> None:
    with pytest.raises(DemoError, match="must begin with http") as told:
        plan.own(f"ftp://host/{KEY}", None)
    assert KEY not in str(told.value)


def test_nodes_that_cannot_be_used() -> None:
    with serve_chain(20) as chain:
        chain.inject(Status(401), times=None)
        with pytest.raises(DemoError, match="key or the path"):
            plan.own(chain.url, None)
        chain.clear()
        with pytest.raises(DemoError, match=r"has blocks up to 19; --blocks ends at 20"):
            plan.own(chain.url, BlockRange(start=0, end=20))
        chain.null_block(3)
        with pytest.raises(DemoError, match="does not have block 3"):
            plan.own(chain.url, BlockRange(start=3, end=9))
        chain.show(1)
        with pytest.raises(DemoError, match="no block but the first"):
            plan.own(chain.url, None)
        assert plan.own(chain.url, BlockRange(start=0, end=0)).blocks == 1


def test_the_address_goes_into_a_file_of_ours_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stack, "SETTINGS", {"lease_seconds": "long"})
    own = plan.Plan(7, 0, 9, 50, url=f"http://node.example/{KEY}", label="http://node.example:80")
    found = stack.DemoStack(tmp_path, own, keep=False)
    with pytest.raises(DemoError, match="lease_seconds"):
        found.start()
    assert KEY in found.home.rpc_file.read_text()
    assert found.home.rpc_file.stat().st_mode & 0o777 == 0o600
    assert KEY not in found.log.read_text()


# --- how far it is


def test_rates_and_time_left() -> None:
    job = JobProgress("ingest", 2, 8, 1000, 4000, began=after(0))
    assert job.rate(after(10)) == 100.0
    assert job.left(after(10)) == 30.0
    assert not job.finished


def test_nothing_is_said_before_something_is_known() -> None:
    waiting = JobProgress("check", 0, 8, 0, 4000)
    begun = JobProgress("check", 0, 8, 0, 4000, began=after(0))
    at_once = JobProgress("check", 1, 8, 500, 4000, began=after(0))
    assert waiting.rate(after(9)) is waiting.left(after(9)) is begun.rate(after(9)) is at_once.rate(after(0)) is None


def test_a_finished_job_keeps_its_rate() -> None:
    job = JobProgress("decode", 8, 8, 4000, 4000, began=after(0), ended=after(20))
    assert job.rate(after(1000)) == 200.0
    assert job.left(after(1000)) == 0.0


def test_progress_is_measured_by_tasks() -> None:
    tasks = [
        task("split", 0, 149, "Completed", 0, 1),
        task("ingest", 0, 49, "Completed", 2, 7),
        task("ingest", 50, 99, "Running", 3),
        task("ingest", 100, 149, "Queued"),
        task("check", 0, 49, "Queued"),
    ]
    jobs = {job.job: job for job in measure(plan.Plan(1, 0, 149, 50), tasks)}
    assert list(jobs) == ["split", "ingest", "check", "decode", "summarise"]
    assert jobs["split"].finished
    ingest = jobs["ingest"]
    assert (ingest.done, ingest.total, ingest.done_blocks, ingest.total_blocks, ingest.running) == (1, 3, 50, 150, 1)
    assert ingest.rate(after(12)) == 5.0
    assert ingest.left(after(12)) == 20.0
    assert (jobs["summarise"].done, jobs["summarise"].total, jobs["summarise"].began) == (0, 3, None)


def test_numbers_for_people() -> None:
    assert [clock(value) for value in (None, 0.4, 59.4, 65, 600)] == ["-", "0 s", "59 s", "1:05 min", "10:00 min"]
    assert [per_second(value) for value in (None, 1.25, 1234.5)] == ["-", "1.2 blocks/s", "1,234 blocks/s"]


def quiet(width: int = 100) -> tuple[Screen, io.StringIO]:
    out = io.StringIO()
    return Screen(Console(file=out, width=width, highlight=False, markup=False)), out


def test_elsewhere_than_on_a_terminal_lines_are_few() -> None:
    out = io.StringIO()
    seconds = 0.0
    screen = Screen(Console(file=out, width=200), clock=lambda: seconds)
    for step in range(100):
        seconds = step / 2
        screen.show([JobProgress("ingest", step // 10, 10, step * 10, 1000, began=after(-1))], after(seconds))
    seconds = 50.0
    screen.show([JobProgress("ingest", 10, 10, 1000, 1000, began=after(-1), ended=after(50))], after(50))
    lines = out.getvalue().splitlines()
    assert 4 <= len(lines) <= 7
    assert "ingest 10/10" in lines[-1]
    assert "left" in lines[1]


def test_on_a_terminal_there_is_a_bar_for_each_job() -> None:
    out = io.StringIO()
    screen = Screen(Console(file=out, width=100, force_terminal=True, color_system=None))
    jobs = [
        JobProgress("ingest", 2, 8, 1000, 4000, running=2, began=after(0)),
        JobProgress("check", 0, 8, 0, 4000),
    ]
    screen.show(jobs, after(10))
    screen.say("killed worker-1")
    screen.close()
    shown = out.getvalue()
    assert "2 of 8 tasks" in shown
    assert "100 blocks/s" in shown
    assert "30 s left" in shown
    assert "waits" in shown
    assert "killed worker-1" in shown


# --- what is left when something fails


@pytest.fixture
def scratch() -> Iterator[Path]:
    root = scratch_directory()
    yield root
    shutil.rmtree(root, ignore_errors=True)


class StandIn(stack.DemoStack):
    """A stack that counts how often it is stopped."""

    stopped = 0

    def start(self) -> Stack:
        self.home.make()
        names = ("public_url", "task_url", "internal_url", "ca_file", "worker_token_file", "service_token_file")
        texts: dict[str, Any] = dict.fromkeys((*names, "admin_token_file", "queue_dsn_file", "data_dsn_file"), "-")
        place = ObjectStoreAddress(endpoint=None, region="r", buckets={})
        return Stack(pid=1, home=str(self.home.root), object_store=place, **texts)

    @property
    def runs(self) -> bool:
        return not StandIn.stopped

    def stop(self) -> None:
        StandIn.stopped += 1


class NoClient:
    @classmethod
    def of_stack(cls, _: Stack) -> "NoClient":
        return cls()

    async def close(self) -> None:
        pass


def run_demo(
    scratch: Path, monkeypatch: pytest.MonkeyPatch, stage: str, error: BaseException, *, keep: bool = False
) -> tuple[int, str]:
    """Run it with one stage that raises; the stages before it do nothing."""

    async def nothing(*_: Any) -> watch.Story:
        return watch.Story(seconds=1.0)

    async def fail(*_: Any) -> None:
        raise error

    monkeypatch.setattr(StandIn, "stopped", 0)
    monkeypatch.setattr(command, "DemoStack", StandIn)
    monkeypatch.setattr(command, "UserClient", NoClient)
    for module, name in ((watch, "begin"), (watch, "follow"), (results, "collect")):
        monkeypatch.setattr(module, name, fail if name == stage else nothing)
    screen, out = quiet(200)
    demo = command.Demo(scratch, plan.Plan(1, 0, 9, 50), screen, keep=keep, as_json=False)
    return demo.run(), out.getvalue()


@pytest.mark.parametrize("keep", [False, True])
@pytest.mark.parametrize("stage", ["begin", "follow", "collect"])
def test_a_stage_that_fails_stops_everything_and_says_where_the_logs_are(
    scratch: Path, monkeypatch: pytest.MonkeyPatch, stage: str, keep: bool
) -> None:
    status, said = run_demo(scratch, monkeypatch, stage, DemoError("ingest 0-9 failed for good: why"), keep=keep)
    assert status == 1
    assert StandIn.stopped == 1
    assert "The demo failed: ingest 0-9 failed for good: why" in said
    assert str(scratch / "home" / "logs") in said
    assert (scratch / "home" / "logs").is_dir()


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
    status, said = run_demo(scratch, monkeypatch, stage, KeyboardInterrupt())
    assert status == 130
    assert StandIn.stopped == 1
    assert "Interrupted." in said
    assert not scratch.exists()


def test_a_stack_that_does_not_start(scratch: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stack, "SETTINGS", {"lease_seconds": "long"})
    screen, out = quiet(300)
    demo = command.Demo(scratch, plan.Plan(1, 0, 9, 50), screen, keep=False, as_json=False)
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
    }
)


def flows_table(**changes: Any) -> pa.Table:
    """In two units: the first hour of the first token is in both."""
    columns: dict[str, Any] = {
        "hour": pa.array([3600, 3600, 7200, 7200], pa.timestamp("s")).cast(pa.timestamp("us", "UTC")),
        "token": [TOKENS[0].hex(), TOKENS[0].hex(), TOKENS[0].hex(), TOKENS[1].hex()],
        "standard": ["erc20", "erc20", "erc20", "erc721"],
        "transfers": [1, 1, 1, 1],
        "amount": [1.0, 2.0, 4.0, 1.0],
    }
    return pa.table(columns | changes)


def made(**rows: int) -> list[results.Made]:
    told = dict.fromkeys(plan.DATASETS, 0) | {"blocks": 2, "transfers": 4} | rows
    return [results.Made(name, number, 1, 2048) for name, number in told.items()]


def story() -> watch.Story:
    tasks = [task(job, 5, 6, "Completed", 1, 2) for job in (plan.SPLIT, *plan.JOBS)]
    kill = watch.Kill("worker-1", START, {tasks[1].task_id: "ingest 5-6"})
    kill.returns[tasks[1].task_id] = watch.Return("ingest 5-6", 2, "worker-2", 7.25)
    return watch.Story(seconds=4.0, kill=kill, tasks=tasks)


CHOSEN = plan.Plan(7, 5, 6, 50)


def verified(blocks: pa.Table = BLOCKS, flows: pa.Table | None = None, **rows: int) -> list[bool]:
    summed = results.summed(flows_table() if flows is None else flows)
    return [check.right for check in results.verify(CHOSEN, story(), blocks, TRANSFERS, summed, made(**rows))]


def test_what_is_right_is_found_to_be() -> None:
    assert verified() == [True] * 4


def test_what_is_wrong_is_found() -> None:
    assert verified(blocks=BLOCKS.slice(1))[0] is False, "a block is missing"
    assert verified(blocks=pa.concat_tables([BLOCKS, BLOCKS.slice(1)]))[0] is False, "a block is there twice"
    assert verified(transfers=5)[2] is False, "a task said more rows"
    assert verified(flows=flows_table(transfers=[1, 1, 1, 2]))[3] is False
    assert verified(flows=flows_table(amount=[1.0, 2.0, 4.1, 1.0]))[3] is False
    assert verified(flows=flows_table().slice(1))[3] is False


def found() -> results.Results:
    flows = results.summed(flows_table())
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
    ):
        assert line in said, said
    assert "NO" not in said


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
