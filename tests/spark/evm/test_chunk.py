"""A chunk holds a few stretches of blocks at a time, however long it is, and starts anew when the chain changes."""

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.chain.faults import Call
from tests.spark.evm.support import expected, options, pool_of
from tests.spark.support import DirectoryTransfer
from tests.support.chain import recorded, serve_chain
from tracelake.spark import writer
from tracelake.spark.evm import chunk
from tracelake.spark.evm.block_times import unit_times
from tracelake.spark.evm.chunk import MANIFEST, STREAMS, Chunks, stretches
from tracelake.spark.evm.endpoints import parse_endpoint
from tracelake.spark.evm.tables import SCHEMAS, TRANSACTIONS
from tracelake.spark.writer import PartWriter, Target

TABLES = ("blocks", "transactions", "logs")


def test_what_is_not_yet_taken_is_not_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chunk, "_MOST_BLOCKS", 10)
    with serve_chain(300) as chain:
        pool = pool_of(chain, batch_size=10)
        coming = stretches(pool, 0, 299, TABLES)
        taken = 0
        for stretch in coming:
            taken += len(stretch.numbers)
            asked = {call.params[0] for call in chain.calls if call.method == "eth_getBlockByNumber"}
            assert len(asked) <= taken + 10 * STREAMS
        assert taken == 300
        pool.close()


def test_stretches_are_as_long_as_blocks_are_small(monkeypatch: pytest.MonkeyPatch) -> None:
    with serve_chain(400) as chain:
        pool = pool_of(chain, batch_size=5)
        sizes = [len(stretch.numbers) for stretch in stretches(pool, 0, 399, TABLES)]
        assert sizes[0] == 5
        assert max(sizes) == 100
        monkeypatch.setattr(chunk, "_STRETCH_BYTES", 1)
        assert {len(stretch.numbers) for stretch in stretches(pool, 100, 140, TABLES)} == {5, 1}
        pool.close()


def test_rows_are_let_go_as_soon_as_a_group_is_full(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(writer, "GROUP_BYTES", 20_000)
    target = Target("s3://bucket-one/some/", "transactions", DirectoryTransfer(tmp_path))
    table = pa.Table.from_pylist(expected(recorded(100))["transactions"], TRANSACTIONS)
    part = PartWriter(target, TRANSACTIONS)
    try:
        for first in range(0, table.num_rows, 10):
            part.write(table.slice(first, 10))
            assert sum(one.nbytes for one in part._waiting) < 20_000
        file = part.upload(0, 99)
    finally:
        part.discard()
    assert file.rows == table.num_rows
    written = pq.ParquetFile(target.transfer.path(file.meta.uri))  # type: ignore[attr-defined]
    assert written.metadata.num_row_groups > 2
    assert written.read().to_pylist() == table.to_pylist()


def test_a_chain_that_changes_in_the_middle_is_read_again(tmp_path: Path) -> None:
    with serve_chain(200) as chain:
        done = False

        def reorganise(calls: list[Call]) -> None:
            nonlocal done
            if not done and any(call.params and call.params[0] == hex(150) for call in calls):
                done = True
                chain.reorganise(5)

        chain.watch(reorganise)
        transfer = DirectoryTransfer(tmp_path)
        targets = {table: Target("s3://bucket-one/some/", table, transfer) for table in TABLES}
        work = Chunks((parse_endpoint(chain.url),), options(batch_size=10), targets, 0, 199, 200)
        (rows,) = work(iter([pa.RecordBatch.from_pydict({"id": [0]})]))
        assert done
        assert rows.schema == MANIFEST
        wanted = expected([chain.block(number) for number in range(200)])
        for row in rows.to_pylist():
            assert row["kind"] is None
            found = pq.read_table(transfer.path(row["uri"]))
            assert found.schema == SCHEMAS[row["table"]]
            assert found.to_pylist() == wanted[row["table"]]
        assert {row["last_hash"] for row in rows.to_pylist()} == {chain.block(199).block["hash"]}


def test_nothing_is_left_on_the_disk_after_a_failure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    local = tmp_path / "local"
    local.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(local))
    with serve_chain(30) as chain:
        chain.null_block(20)
        targets = {"logs": Target("s3://bucket-one/some/", "logs", DirectoryTransfer(tmp_path / "objects"))}
        work = Chunks((parse_endpoint(chain.url),), options(tries=2), targets, 0, 29, 30)
        (rows,) = work(iter([pa.RecordBatch.from_pydict({"id": [0]})]))
    (row,) = rows.to_pylist()
    assert (row["kind"], row["retryable"], row["first"], row["last"]) == ("rpc_missing_answer", True, 0, 29)
    assert not list(local.iterdir())
    assert not (tmp_path / "objects").exists()


def test_after_a_failure_no_other_chunk_of_the_attempt_is_tried(tmp_path: Path) -> None:
    with serve_chain(30) as chain:
        chain.null_block(3)
        for attempt, kinds in (("1", ["rpc_missing_answer", "skipped", "skipped"]), ("2", [None, None, None])):
            targets = {
                "logs": Target(f"s3://bucket-one/{tmp_path.name}/{attempt}/", "logs", DirectoryTransfer(tmp_path))
            }
            work = Chunks((parse_endpoint(chain.url),), options(tries=2), targets, 0, 29, 10)
            rows = work(iter([pa.RecordBatch.from_pydict({"id": [0, 1, 2]})]))
            assert [batch["kind"][0].as_py() for batch in rows] == kinds
            chain.restore()


@pytest.mark.parametrize(
    ("first", "last", "size", "ranges"),
    [
        (0, 0, 1, [(0, 0)]),
        (0, 9, 5, [(0, 4), (5, 9)]),
        (7, 17, 5, [(7, 11), (12, 16), (17, 17)]),
    ],
)
def test_chunks_cover_the_range(first: int, last: int, size: int, ranges: list[tuple[int, int]]) -> None:
    work = Chunks((), options(), {}, first, last, size)
    assert [work.range_of(number) for number in range(work.count)] == ranges


@pytest.mark.parametrize("parts", [None, 1, 2, 3, 7])
def test_parts_share_the_chunks(parts: int | None) -> None:
    work = Chunks((), options(), {}, 0, 69, 10, parts)
    shared = [list(work.numbers_of(part)) for part in range(parts or work.count)]
    assert sorted(number for numbers in shared for number in numbers) == list(range(7))
    assert max(map(len, shared)) - min(map(len, shared)) <= 1


def test_a_genesis_without_a_time_begins_no_unit() -> None:
    """Whether it is a stretch of its own, a chunk of its own, or the whole unit."""
    with serve_chain(20) as chain:
        chain._change(0, lambda block, receipts: (block | {"timestamp": "0x0"}, receipts))
        times = [int(chain.block(number).block["timestamp"], 16) for number in range(20)]
        pool = pool_of(chain, batch_size=1)
        ends = [chunk.read_chunk(pool, *chunk_range, {}) for chunk_range in ((0, 0), (1, 9), (0, 9), (10, 19))]
        pool.close()
    assert [(one.first_time, one.last_time) for one in ends] == [
        (0, 0), (times[1], times[9]), (times[1], times[9]), (times[10], times[19])
    ]  # fmt: skip
    parts = [(one.first_time, one.last_time) for one in ends]
    assert unit_times([parts[0], parts[1], parts[3]]) == (times[1], times[19])
    assert unit_times(parts[:1]) is None
