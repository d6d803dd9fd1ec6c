"""Catching up: `block_follower` over a stretch of blocks, against its own node client that only reads them."""

import time
from dataclasses import dataclass

import adbc_driver_postgresql.dbapi as adbc

from benchmarks.support.follow_source import RunningFollower, bare_node
from tracelake.catalogue.evm_columns import EVM_TABLES
from tracelake.model.buffered import quoted, table_name


@dataclass
class CatchUp:
    dsn: str
    url: str
    blocks: int
    """From 0 on; there are no others."""
    batch_blocks: int

    async def follow(self) -> float:
        """Blocks per second into empty tables, from the first question to the last event."""
        last = self.blocks - 1

        def heard(number: int) -> None:
            if number in (last, -1):
                follower.cancel()

        follower = RunningFollower(self.dsn, self.url, heard, start=0, batch_blocks=self.batch_blocks)
        follower.make_tables()
        began = time.perf_counter()
        with follower:
            follower.wait()
        rate = self.blocks / (time.perf_counter() - began)
        self._check_and_drop(follower)
        return rate

    async def fetch(self) -> float:
        """The same blocks in the same batches, decoded to tables, and dropped."""
        node = bare_node(self.url)
        rows = 0
        try:
            began = time.perf_counter()
            for first in range(0, self.blocks, self.batch_blocks):
                read = node.read_rows(first, min(self.blocks, first + self.batch_blocks) - 1)
                rows += sum(table.num_rows for table in read.tables.values())
            rate = self.blocks / (time.perf_counter() - began)
        finally:
            node.close()
        self.rows = rows
        return rate

    rows: int = 0
    """Of all tables, as the bare client has read them."""

    def _check_and_drop(self, follower: RunningFollower) -> None:
        names = [quoted(table_name(follower.declared[name].dataset_uuid)) for name in EVM_TABLES]
        with adbc.connect(self.dsn) as connection, connection.cursor() as cursor:
            cursor.execute("SELECT " + " + ".join(f"(SELECT count(*) FROM {name})" for name in names))
            assert cursor.fetchall() == [(self.rows,)], "rows are missing"
            cursor.execute(f"TRUNCATE {', '.join(names)}")
            connection.commit()
