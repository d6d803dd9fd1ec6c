"""`block_follower` itself, on a chain that another process serves and on tables in a real Postgres. Its events go to a
stub that accepts them."""

import http.client
import json
import os
import threading
from collections.abc import Callable, Sequence
from contextlib import closing
from types import TracebackType
from typing import Any, Self
from urllib.parse import urlsplit

from benchmarks.support.compact_data import make_table
from tracelake.catalogue import read_config
from tracelake.catalogue.block_follower import BlockFollowerConfig
from tracelake.catalogue.context import CanceledError, OperatorContext
from tracelake.catalogue.evm_columns import EVM_TABLES
from tracelake.follower.rpc_nodes import RpcChainNode
from tracelake.model.ids import new_id
from tracelake.ports.direct_tables import WHOLE_TABLE, OutputTables, TableWriter
from tracelake.spark.evm.endpoints import PREFIX, parse_endpoint
from tracelake.spark.evm.node import RpcOptions
from tracelake.storage.direct_tables import PostgresDirectTables
from tracelake.storage.output_tables import DirectOutputs
from tracelake.wire.units import EventIn, StorageOut, TaskOutput
from tracelake.worker.block_follower import follow_blocks

CHAIN_ID = 1337001
BATCH_SIZE = 20
"""Calls in one HTTP request: the default of the operator."""
SECONDS = 300.0


class MovedChain:
    """The chain at /live, whose head and branch are changed by calls."""

    def __init__(self, url: str) -> None:
        self.url = f"{url}/live"
        self._address = urlsplit(url).netloc

    def call(self, method: str, *params: Any) -> Any:
        body = json.dumps({"jsonrpc": "2.0", "id": 1, "method": method, "params": params})
        with closing(http.client.HTTPConnection(self._address, timeout=SECONDS)) as connection:
            connection.request("POST", "/live", body, {"content-type": "application/json"})
            reply = json.loads(connection.getresponse().read())
        if "error" in reply:
            raise RuntimeError(f"{method}: {reply['error']}")
        return reply["result"]

    def show(self, number: int) -> None:
        """Makes the block of this number the newest."""
        self.call("demo_setHead", number)

    def reorganise(self, depth: int) -> None:
        self.call("demo_reorg", depth)

    def hash_of(self, number: int) -> str:
        found: str = self.call("eth_getBlockByNumber", hex(number), False)["hash"]
        return found


def bare_node(url: str) -> RpcChainNode:
    """The client of the follower."""
    options = RpcOptions(chain_id=CHAIN_ID, batch_size=BATCH_SIZE, deadline_seconds=SECONDS)
    return RpcChainNode(parse_endpoint(url), options, EVM_TABLES)


class RunningFollower:
    """Follows into empty tables, in a thread, until the block of the `with` ends. `heard` is called with the newest
    block of each event, when its rows are durable and it was accepted."""

    def __init__(self, dsn: str, url: str, heard: Callable[[int], None], **config: Any) -> None:
        """`url`: of the node, and, after a comma, of a WebSocket that announces its blocks."""
        self._tables = PostgresDirectTables(lambda: dsn)
        self._url = url
        self._heard = heard
        self.declared = {name: make_table(name) for name in EVM_TABLES}
        self._outputs = [
            TaskOutput(
                output_index=index,
                dataset_uuid=table.dataset_uuid,
                dataset_version=new_id(),
                storage=StorageOut(kind="postgres"),
            )
            for index, table in enumerate(self.declared.values())
        ]
        read = read_config("block_follower", {"chain_id": CHAIN_ID, "batch_size": BATCH_SIZE, **config})
        assert isinstance(read, BlockFollowerConfig)
        self._config = read
        self._cancel = threading.Event()
        self._task_id = new_id()
        self._thread = threading.Thread(target=self._run, name="follower", daemon=True)
        self._failure: BaseException | None = None

    def make_tables(self) -> None:
        """Else its first write makes them."""
        self._open(WHOLE_TABLE).close()

    def __enter__(self) -> Self:
        os.environ[f"{PREFIX}DEFAULT"] = self._url
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._cancel.set()
        self._thread.join(SECONDS)
        if self._failure is not None:
            raise self._failure

    def wait(self) -> None:
        """Until it was cancelled, or failed."""
        self._thread.join(SECONDS)
        if self._failure is not None:
            raise self._failure

    def cancel(self) -> None:
        self._cancel.set()

    def _run(self) -> None:
        context = OperatorContext(
            task_id=self._task_id,
            attempt=1,
            config=self._config,
            inputs=[],
            outputs=self._outputs,
            progress=lambda _text: None,
            cancel=self._cancel,
            paused=threading.Event(),
            emit=self._emit,
            files=lambda _item: [],
            open_tables=self._open,
        )
        try:
            follow_blocks(context)
        except CanceledError:
            pass
        except BaseException as error:
            self._failure = error
            self._heard(-1)

    def _open(self, scope: str) -> OutputTables:
        declared = list(zip(self._outputs, self.declared.values(), strict=True))
        return DirectOutputs.open(self._tables, declared, scope, TableWriter(self._task_id, 1), self._emit)

    def _emit(self, events: Sequence[EventIn]) -> None:
        blocks = self._outputs[0].dataset_uuid
        for event in events:
            if event.dataset_uuid == blocks and event.cursor is not None:
                self._heard(event.cursor)
