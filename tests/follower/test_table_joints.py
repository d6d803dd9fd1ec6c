"""Files of past blocks join the table of a live dataset, or are not committed: a node may show another chain.

The follower and `evm_ingest` run as in a stack, on nodes over HTTP and on a real Postgres. Only Spark is replaced.
"""

from contextlib import closing
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from uuid import uuid4

import msgspec
import pyarrow.parquet as pq
import pytest

from tests.follower.conftest import BLOCKS
from tests.follower.live_run import RANGES
from tests.follower.stored_files import InlineSession
from tests.follower.stored_tables import StoredTables
from tests.spark.evm.support import CHAIN_ID, expected
from tests.spark.evm.support import options as rpc_options
from tests.support.chain import ServedChain
from tests.support.postgres import TestCluster
from tracelake.catalogue.evm_columns import EVM_TABLES
from tracelake.follower.follow import BlockFollower
from tracelake.follower.options import FollowOptions, RepairPermit
from tracelake.follower.rpc_nodes import RpcChainNode
from tracelake.follower.table_store import TableChainStore
from tracelake.spark.directory_transfer import DirectoryTransfer
from tracelake.spark.evm.endpoints import parse_endpoint
from tracelake.spark.evm.errors import IngestError
from tracelake.spark.operators.evm_ingest import run as run_ingest
from tracelake.spark.reader import TableReader
from tracelake.spark.testing import BUCKET, make_context, make_unit
from tracelake.spark.work import SparkWork

UNIT = 10


class DriverSession(InlineSession):
    """With what `evm_ingest` asks of a session besides."""

    sparkContext = SimpleNamespace(defaultParallelism=1)


class History:
    """The live datasets of one chain, whose table begins with block 50: earlier blocks are read into files."""

    def __init__(self, dsn: str, root: Path) -> None:
        self.dsn = dsn
        self.tables = StoredTables(dsn)
        self.objects = DirectoryTransfer(root / "objects")
        self.options = FollowOptions(
            start=0, finality_depth=5, max_reorg_depth=5, unit_blocks=UNIT, batch_blocks=BLOCKS
        )
        self.attempt = 0
        self.announced: list[tuple[int | None, int | None]] = []
        """Ranges whose files are to be read."""

    def follow(self, node: ServedChain) -> str:
        """One look of a new attempt; returns what came of it."""
        self.attempt += 1
        attempt = self.attempt

        def emit(events: Any) -> None:
            dataset = RANGES.history.dataset_uuid
            self.announced += [(event.start, event.end) for event in events if event.dataset_uuid == dataset]

        store = TableChainStore(
            lambda: self.tables.open(attempt, None, lambda _point: None, emit, RANGES), self.tables.outputs, live=True
        )
        rpc_node = RpcChainNode(parse_endpoint(node.url), rpc_options(), EVM_TABLES)
        with closing(store), closing(rpc_node):
            follower = BlockFollower(store, [rpc_node], self.tables.outputs, self.options, attempt, emit, ranges=RANGES)
            return follower.run_once().state

    def ingest(self, first: int, last: int, *, live: bool = True) -> dict[str, list[dict[str, Any]]]:
        """One attempt of `evm_ingest`; returns the rows of its files, if it commits them."""
        prefixes: dict[str, str] = {name: f"{BUCKET}{name}/{uuid4().hex}/" for name in EVM_TABLES}
        config = {"chain_id": CHAIN_ID, "chunk_blocks": 4, "retry_seconds": 1}
        made = make_context("evm_ingest", config, make_unit((first, last)), [], prefixes)
        outputs = [
            msgspec.structs.replace(
                output,
                dataset_uuid=self.tables.outputs[output.name].dataset_uuid,
                storage=msgspec.structs.replace(output.storage, live=live),
            )
            for output in made.outputs
        ]
        session: Any = DriverSession()
        with closing(TableReader(session, lambda: self.dsn)) as reader:
            work = SparkWork(
                replace(made, outputs=outputs),
                session,
                self.objects,
                lambda *_: pytest.fail("there are no files to read"),
                hold_tables=reader.hold,
            )
            run_ingest(work)
        return {
            name: [
                row
                for file in work.written[index].files
                for row in pq.read_table(self.objects.path(file.meta.uri)).to_pylist()
            ]
            for index, name in enumerate(EVM_TABLES)
        }


@pytest.fixture
def history(cluster: TestCluster, tmp_path: Path, nodes: tuple[ServedChain, ServedChain]) -> History:
    made = History(cluster.fresh("data"), tmp_path)
    assert made.follow(nodes[0]) == "appended"
    assert made.announced == [(0, 49)]
    return made


def use(monkeypatch: pytest.MonkeyPatch, node: ServedChain) -> None:
    monkeypatch.setenv("TRACE_RPC_DEFAULT", node.url)


@pytest.mark.parametrize("parted", [41, 45, 49])
def test_history_of_another_chain_is_not_committed(
    history: History, nodes: tuple[ServedChain, ServedChain], monkeypatch: pytest.MonkeyPatch, parted: int
) -> None:
    honest, liar = nodes
    liar.reorganise(parted)
    use(monkeypatch, liar)
    hashes = [node.block(49).block["hash"] for node in (honest, liar)]
    with pytest.raises(IngestError, match=f"^table_mismatch: expected block 49 .*{hashes[0]}.*received {hashes[1]}"):
        history.ingest(40, 49)
    use(monkeypatch, honest)
    assert history.ingest(40, 49) == expected([honest.block(number) for number in range(40, 50)])


def test_only_live_datasets_have_a_table_to_join(
    history: History, nodes: tuple[ServedChain, ServedChain], monkeypatch: pytest.MonkeyPatch
) -> None:
    nodes[1].reorganise(45)
    use(monkeypatch, nodes[1])
    assert len(history.ingest(40, 49, live=False)["blocks"]) == UNIT


def test_if_the_table_is_wrong_a_repair_lets_the_history_in(
    history: History, nodes: tuple[ServedChain, ServedChain], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The node from which the table was begun had shown a chain of its own."""
    node = nodes[0]
    node.reorganise(45)
    use(monkeypatch, node)
    with pytest.raises(IngestError, match="table_mismatch"):
        history.ingest(40, 49)
    assert history.follow(node) == "reorg_too_deep"
    history.options = replace(history.options, repair=RepairPermit(1, float("inf"), 40))
    assert history.follow(node) == "rewritten"
    assert history.announced[1:] == [(40, 49)]
    assert history.ingest(40, 49) == expected([node.block(number) for number in range(40, 50)])
    node.restore()
    with pytest.raises(IngestError, match="expected block 49"):
        history.ingest(40, 49)


def test_files_that_are_read_anew_join_those_below_them(
    history: History, nodes: tuple[ServedChain, ServedChain], monkeypatch: pytest.MonkeyPatch
) -> None:
    use(monkeypatch, nodes[1])
    assert len(history.ingest(50, 59)["blocks"]) == UNIT
    nodes[1].reorganise(49)
    with pytest.raises(IngestError, match="table_mismatch: expected block 49"):
        history.ingest(50, 59)
