"""What `trace demo` is about: the recorded chain, or a node of one's own, which is asked first."""

from pathlib import Path

import pytest
import yaml

from tests.chain.faults import Status
from tests.support.chain import RECORDING, serve_chain
from tracelake.demo import DemoError, plan, stack
from tracelake.demo.directory import DemoDirectory
from tracelake.wire.jobs import BlockRange

KEY = "a-key-that-nobody-may-see"


def test_the_dag_and_the_recording_are_those_of_the_example() -> None:
    chosen = plan.recorded(None)
    assert chosen.recording is not None
    assert chosen.recording.read_bytes() == RECORDING.read_bytes()
    shipped = yaml.safe_load(RECORDING.with_name("flows.yaml").read_text())
    assert yaml.safe_load(chosen.document()) == shipped, "the example as it is does what the demo does"
    assert (chosen.chain_id, chosen.first, chosen.last, chosen.units) == (1337001, 0, 3999, 4)


def test_the_dag_is_for_the_chain_and_the_units() -> None:
    document = yaml.safe_load(plan.DemoPlan(7, 0, 99, 50).document())
    jobs = {job["name"]: job for job in document["jobs"]}
    assert jobs["split"]["config"] == {"size": 50}
    assert jobs["ingest"]["config"]["chain_id"] == 7
    assert set(plan.JOBS) | {plan.SOURCE, plan.SPLIT} == set(jobs)
    assert set(document["publish"]) == {*plan.DATASETS, plan.TABLE}
    assert {source["job"] for source in document["publish"][plan.TABLE]["from"]} == set(plan.WRITERS)


def test_the_schema_that_forgets_mints_differs_by_nothing_else() -> None:
    chosen = plan.DemoPlan(7, 0, 99, 50)
    right, wrong = yaml.safe_load(chosen.document()), yaml.safe_load(chosen.document(without_mints=True))
    assert right != wrong
    column = next(column for column in wrong["publish"][plan.TABLE]["schema"]["columns"] if column["name"] == "kind")
    column["enum"].insert(1, "mint")
    assert right == wrong


@pytest.mark.parametrize(
    ("blocks", "unit"), [(1, 50), (100, 50), (200, 50), (201, 100), (2000, 500), (4000, 1000), (1_000_000, 1000)]
)
def test_units(blocks: int, unit: int) -> None:
    assert plan.unit_for(blocks) == unit


@pytest.mark.parametrize(("first", "last", "units"), [(0, 99, 2), (0, 100, 3), (49, 50, 2), (75, 75, 1), (100, 299, 4)])
def test_units_begin_at_multiples(first: int, last: int, units: int) -> None:
    assert plan.DemoPlan(1, first, last, 50).units == units


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


def test_a_node_without_batches_can_be_used() -> None:
    with serve_chain(130) as chain:
        chain.inject(Status(400), times=None, when=lambda calls: len(calls) > 1)
        assert plan.own(chain.url, None).last == 119


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
    own = plan.DemoPlan(7, 0, 9, 50, url=f"http://node.example/{KEY}", label="http://node.example:80")
    found = stack.DemoStack(DemoDirectory(tmp_path, tmp_path / "home"), own, keep=False)
    with pytest.raises(DemoError, match="lease_seconds"):
        found.start()
    assert KEY in found.home.rpc_file.read_text()
    assert found.home.rpc_file.stat().st_mode & 0o777 == 0o600
    assert KEY not in found.log.read_text()
