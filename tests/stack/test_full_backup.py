"""`trace backup --all` while a chain is followed, and `trace restore --all` into a new home, where it goes on."""

import asyncio
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support.chain import serve_chain
from tests.support.real_stack import ROOT, SHORT_TIMES, RealStack
from tracelake.adapters.s3.access import read_access
from tracelake.adapters.s3.object_store import S3ObjectStore

pytestmark = [pytest.mark.system, pytest.mark.timeout(900)]

FIRST, BEFORE, LAST = 100, 299, 379
DAG = f"""
name: live
defaults: {{runtime: ecs_platform}}
chains:
  - name: chain
    chain_id: 1337001
    start: {FIRST}
    unit_blocks: 50
    finality_depth_blocks: 20
    poll_max_seconds: 1
    publish: {{blocks: live_blocks, transactions: live_transactions, logs: live_logs}}
jobs:
  - {{name: hand, activation: source, source: {{kind: manual}}}}
  - {{name: work, activation: reactive, operator: noop, execution_strategy: PerPartition, inputs: [{{from: {{job: hand}}}}]}}
  - name: sizes
    activation: reactive
    operator: spark_sql
    units: {{by: blocks, size: 10}}
    inputs: [{{from: {{dataset: live_blocks}}}}]
    config: {{query: "SELECT block_number, hex(block_hash) AS hash FROM live_blocks"}}
publish:
  sizes:
    from: {{job: sizes}}
    storage: postgres
    write_mode: buffered
    schema:
      columns:
        - {{name: block_number, type: int64, nullable: false}}
        - {{name: hash, type: text}}
      unique: [block_number]
"""  # noqa: E501 - a document
BLOCKS = "SELECT count(*), count(DISTINCT block_number), min(block_number), max(block_number) FROM {}"
BOUNDARY = """
    SELECT coalesce(max(range_end), -1) AS last FROM dataset_units u JOIN datasets d USING (dataset_uuid)
    WHERE d.name = 'live_blocks'"""
TABLES = "SELECT count(*) AS n, max(removed_to) AS removed_to FROM table_extents"


class LiveStack(RealStack):
    def __init__(self, url: str) -> None:
        settings = {"query_service": "true", "spark_master": "local[2]", "lease_seconds": "30", "max_attempts": "100"}
        super().__init__(settings=SHORT_TIMES | settings, variables={"TRACE_RPC_DEFAULT": url})

    def ask(self, sql: str) -> list[list[Any]]:
        rows: list[list[Any]] = self.trace(f'query "{sql}"')["rows"]
        return rows

    def sizes(self, last: int) -> list[tuple[Any, ...]]:
        query = "SELECT block_number, hash FROM org_default.sizes WHERE block_number <= $1 ORDER BY 1"
        return [tuple(row) for row in self.sql(query, last, dsn_file=self.home.data_dsn_file)]

    def settle(self, last: int) -> None:
        """Until every block is in the table of the reader, once, and final units are files."""

        def settled() -> bool:
            whole = [[last - FIRST + 1, last - FIRST + 1, FIRST, last]]
            return self.ask(BLOCKS.format("live_blocks")) == whole and len(self.sizes(last)) == last - FIRST + 1

        self.wait_until(lambda: bool(self.tasks("live", "sizes", "completed")), "the first units", timeout=240)
        self.wait_until(settled, f"block {last}", timeout=300)
        final = (last - 20 + 1) // 50 * 50 - 1
        self.wait_until(lambda: self.sql(BOUNDARY)[0]["last"] >= final, "files of final blocks", timeout=240)

    def crash(self, *arguments: str) -> None:
        command = [sys.executable, "-m", "tests.stack.backup_crash", *arguments]
        environment = self.environment | {"PYTHONPATH": f"{ROOT}:{ROOT / 'src'}"}
        done = subprocess.run(command, env=environment, capture_output=True, timeout=300, check=False)
        assert done.returncode == -9, done


def test_a_backup_of_a_stack_at_work_is_restored_and_goes_on() -> None:
    with serve_chain(LAST + 1, head=BEFORE + 1) as chain:
        first = LiveStack(chain.url)
        second = LiveStack(chain.url)
        backup = second.root / "backup"
        try:
            with first.running():
                first.deploy("live", DAG)
                first.settle(BEFORE)
                first.shell("trace trigger live/hand --range 0-9 --wait")
                rows = first.sizes(BEFORE)
                chain.show(LAST + 1)  # from here on there is work
                first.crash("backup", "--all", str(backup))
                assert not backup.exists()
                (abandoned,) = second.root.glob(".backup.*.partial")
                said = first.shell(f"trace backup --all {backup}")
                assert "state and tables, as of one moment" in said
                assert not abandoned.exists(), "what a killed backup left"
                assert "exists; name another directory" in first.shell(f"trace backup --all {backup}", fine=(1,))
                refused = first.shell(f"trace restore --all {backup} --replace --yes", fine=(1,))
                assert "already running" in refused
                lose_a_file(first, second.root)
            check_files(backup)
            restore(second, backup)
            with second.running():
                assert second.sizes(BEFORE) == rows, "the rows of the backup"
                second.settle(LAST)
                assert second.sizes(BEFORE) == rows
                broken = "SELECT count(*) FROM live_blocks b JOIN live_blocks p ON p.block_number = b.block_number - 1"
                assert second.ask(f"{broken} WHERE p.block_hash <> b.parent_hash") == [[0]]
                second.shell("trace trigger live/hand --range 10-19 --wait")
                assert len(second.tasks("live", "work", "completed")) == 2
                assert second.sql("SELECT count(*) AS n FROM tasks WHERE error LIKE '%boundary_moved%'")[0]["n"] == 0
                assert (
                    second.home.keys.joinpath("webhook.key").read_bytes()
                    == (backup / "home" / "keys" / "webhook.key").read_bytes()
                )
                second.down()
                report = second.trace(f"restore --all {backup} --replace --yes")
                assert "keys/webhook.key" in report["files_kept"], "keys of the home stay"
                assert report["files_written"] == []
                assert report["state"]["rewound"]["continued"], "the home tells which numbers were given out"
        finally:
            first.close()
            second.close()


def lose_a_file(stack: LiveStack, place: Path) -> None:
    """A store without a file that the state names: a backup without it is made only if that is meant."""
    (row,) = stack.sql("SELECT objects->0->>'uri' AS uri FROM manifests WHERE json_array_length(objects) > 0 LIMIT 1")
    store = S3ObjectStore(read_access(stack.home.object_store_file))
    asyncio.run(store.delete(row["uri"]))
    refused = stack.shell(f"trace backup --all {place}/other", fine=(1,))
    assert f"are not in the object store as they were committed, the first is {row['uri']}" in refused
    assert not list(place.glob("*other*")), "nothing is left of it"
    report = stack.trace(f"backup --all {place}/other --allow-missing --without-secrets")
    assert report["missing"] == [row["uri"]]
    assert not list((place / "other" / "home").iterdir())


def check_files(backup: Path) -> None:
    done = subprocess.run(["sha256sum", "--check", "--quiet", "SHA256SUMS"], cwd=backup, check=False)
    assert done.returncode == 0, "people can verify it, too"
    assert not [path for path in backup.rglob("*") if path.is_file() and path.stat().st_mode & 0o077]


def restore(stack: LiveStack, backup: Path) -> None:
    damaged = backup.with_name("damaged")
    shutil.copytree(backup, damaged)
    with (damaged / "data.dump").open("r+b") as file:
        file.seek(200)
        file.write(b"XXXX")
    assert "data.dump does not have the hash" in stack.shell(f"trace restore --all {damaged}", fine=(1,))
    assert not stack.home.root.exists(), "nothing was changed"

    stack.crash("restore", "--all", str(backup))
    refused = stack.shell("trace up", fine=(1,))
    assert f"was interrupted, and its parts do not fit each other: run `trace restore --all {backup}" in refused
    report = stack.trace(f"restore --all {backup}")
    assert report["objects"] > 0
    assert report["etags_changed"] == 0
    assert "holds a stack already" in stack.shell(f"trace restore --all {backup}", fine=(1,))
