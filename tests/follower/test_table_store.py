"""The follower on real tables: a random chain with reorganisations, crashes between commit and event, two attempts."""

import json
import random
import time
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any
from uuid import UUID

import pytest

from tests.direct.support import ask, direct_table, new_writer, stored_rows
from tests.follower.block_tree import chain_to
from tests.follower.world import ChainWorld, ShownNode
from tests.spark.evm.support import options as rpc_options
from tests.spark.evm.support import pool_of
from tests.spark.live_chain import nested_blocks
from tests.support.chain import serve_chain
from tests.support.postgres import TestCluster
from tracelake.catalogue.direct_schemas import table_schema
from tracelake.catalogue.evm_columns import EVM_KEYS, EVM_OPTIONAL_COLUMNS, EVM_TABLES, EvmTable, evm_columns
from tracelake.follower.follow import BlockFollower
from tracelake.follower.nodes import ChainNode
from tracelake.follower.options import FollowOptions
from tracelake.follower.rpc_nodes import RpcChainNode
from tracelake.follower.store import StaleFollowerError
from tracelake.follower.table_store import TableChainStore
from tracelake.ports.direct_tables import WHOLE_TABLE, TableWriter
from tracelake.spark.evm.endpoints import parse_endpoint
from tracelake.spark.evm.fetch import fetch
from tracelake.spark.evm.read_options import ReadOptions
from tracelake.spark.evm.tables import schema_of
from tracelake.storage.direct_tables import PostgresDirectTables
from tracelake.storage.output_tables import DirectOutputs
from tracelake.wire.units import EventIn, StorageOut, TaskOutput


class LostReplyError(Exception):
    """The process ended before the events were accepted."""


class Tables:
    """The tables of one follower in a database, opened by attempt after attempt."""

    def __init__(self, dsn: str, columns: Mapping[EvmTable, Sequence[str]] = MappingProxyType({})) -> None:
        """`columns`: the optional ones."""
        self.dsn = dsn
        self.declared = {
            table: direct_table(table_schema(evm_columns(table, columns.get(table, ())), EVM_KEYS[table]), table)
            for table in EVM_TABLES
        }
        self.outputs: dict[str, TaskOutput] = {
            table: TaskOutput(
                output_index=index,
                dataset_uuid=self.declared[table].dataset_uuid,
                dataset_version=UUID(int=1),
                storage=StorageOut(kind="postgres"),
            )
            for index, table in enumerate(EVM_TABLES)
        }
        self.task_id = new_writer().task_id
        self.attempt = 0
        self.events: list[EventIn] = []
        self.lost_replies = 0

    def follow(self, world: ChainWorld) -> tuple[BlockFollower, TableChainStore]:
        return self.follow_node(ShownNode(world, "node-1"), lambda: world.now)

    def follow_node(self, node: ChainNode, clock: Callable[[], float]) -> tuple[BlockFollower, TableChainStore]:
        self.attempt += 1
        writer = TableWriter(self.task_id, self.attempt)
        declared = [(self.outputs[table], self.declared[table]) for table in EVM_TABLES]
        tables = PostgresDirectTables(lambda: self.dsn)
        store = TableChainStore(
            lambda: DirectOutputs.open(tables, declared, WHOLE_TABLE, writer, self._emit), self.outputs
        )
        options = FollowOptions(start=0, batch_blocks=10)
        return BlockFollower(store, [node], self.outputs, options, self.attempt, self._emit, clock), store

    def _emit(self, events: Sequence[EventIn]) -> None:
        if self.lost_replies:
            self.lost_replies -= 1
            raise LostReplyError
        self.events += events

    def rows(self, table: EvmTable, optional: Sequence[str] = ()) -> list[tuple[Any, ...]]:
        names = schema_of(table, optional).names
        key = EVM_KEYS[table]
        ordered = [*key, *(name for name in names if name not in key)]
        places = [ordered.index(name) for name in names]
        return [tuple(row[place] for place in places) for row in stored_rows(self.dsn, self.declared[table], *ordered)]


@pytest.fixture(scope="module")
def dsn(cluster: TestCluster) -> str:
    return cluster.fresh("data")


def run_to_head(follower: BlockFollower) -> None:
    while follower.run_once().state != "at_head":
        pass


def comparable(row: tuple[Any, ...]) -> tuple[str, ...]:
    return tuple(json.dumps(as_json(value)) if isinstance(value, list) else str(value) for value in row)


def as_json(value: Any) -> Any:
    """Lists and structs as the tables have them."""
    if isinstance(value, dict):
        return {name: as_json(item) for name, item in sorted(value.items(), key=lambda item: (len(item[0]), item[0]))}
    return [as_json(item) for item in value] if isinstance(value, list) else hex_text(value)


def hex_text(value: Any) -> Any:
    return f"0x{value.hex()}" if isinstance(value, bytes) else value


def test_rows_events_and_fences_are_right_after_reorganisations_and_lost_replies(dsn: str) -> None:
    world = ChainWorld(random.Random(5), 25)
    tables = Tables(dsn)
    follower, store = tables.follow(world)
    run_to_head(follower)
    world.reorganise(7, 9)
    tables.lost_replies = 1
    with pytest.raises(LostReplyError):
        run_to_head(follower)
    old_follower, old_store = follower, store
    known = len(tables.events)
    follower, store = tables.follow(world)
    run_to_head(follower)
    invalid = [event.invalidates for event in tables.events[known:] if event.invalidates is not None]
    assert [(one.start, one.end) for one in invalid] == [(18, 24)] * 3
    world.grow(2)
    with pytest.raises(StaleFollowerError):
        run_to_head(old_follower)
    old_store.close()
    world.reorganise(30, 40)
    run_to_head(follower)
    store.close()
    chain = chain_to(world.head)
    for table in EVM_TABLES:
        expected = [comparable(row) for block in chain for row in block.rows[table]]
        assert [comparable(row) for row in tables.rows(table)] == expected


def test_a_database_that_goes_away_is_waited_for_and_nothing_is_written_twice(dsn: str) -> None:
    world = ChainWorld(random.Random(6), 25)
    tables = Tables(dsn)
    follower, store = tables.follow(world)
    run_to_head(follower)
    world.reorganise(3, 4)
    ask(
        dsn,
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
        " WHERE datname = current_database() AND pid <> pg_backend_pid()",
    )
    assert follower.run_once().state == "store_unavailable"
    run_to_head(follower)
    store.close()
    for table in EVM_TABLES:
        expected = [comparable(row) for block in world.chain for row in block.rows[table]]
        assert [comparable(row) for row in tables.rows(table)] == expected


def test_every_optional_column_is_written(dsn: str) -> None:
    columns: dict[EvmTable, list[str]] = {
        table: [column.name for column in EVM_OPTIONAL_COLUMNS[table]] for table in EVM_TABLES
    }
    reading = ReadOptions.of({str(table): names for table, names in columns.items()})
    tables = Tables(dsn, columns)
    with serve_chain(nested_blocks(12)) as chain:
        node = RpcChainNode(parse_endpoint(chain.url), rpc_options(), EVM_TABLES, reading=reading)
        follower, store = tables.follow_node(node, time.monotonic)
        run_to_head(follower)
        store.close()
        node.close()
        pool = pool_of(chain)
        wanted = fetch(pool, range(12), EVM_TABLES, None, reading).tables
        pool.close()
    for table in EVM_TABLES:
        expected = [comparable(tuple(row.values())) for row in wanted[table].to_pylist()]
        assert [comparable(row) for row in tables.rows(table, columns[table])] == expected
