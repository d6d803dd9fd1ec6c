"""The operator in a thread, on tables of live datasets in Postgres. After each crash another attempt begins."""

import random
from collections.abc import Sequence
from pathlib import Path

import msgspec

from tests.direct.support import ask
from tests.follower.live_run import RANGES
from tests.follower.memory_store import CrashError, CrashPoint
from tests.follower.running_source import RunningSource
from tests.follower.stored_files import LiveFiles
from tests.follower.stored_tables import StoredTables
from tracelake.catalogue.context import OperatorContext
from tracelake.follower.table_store import TableChainStore
from tracelake.model.buffered import quoted, table_name
from tracelake.spark.directory_transfer import DirectoryTransfer
from tracelake.spark.evm.tables import schema_of
from tracelake.wire.units import EventIn, TaskOutput


class StoredSource(RunningSource):
    def __init__(self, dsn: str, directory: Path, rng: random.Random, crashes: float, **config: object) -> None:
        """`crashes`: how likely the process is gone before, amid or after a write, or around its announcement."""
        super().__init__(**config)
        self.stored = StoredTables(dsn)
        self.crashes: list[CrashPoint] = []
        """Where the process was gone."""
        self._files = LiveFiles(self.stored, DirectoryTransfer(directory))
        self._rng = rng
        self._share = crashes

    @property
    def outputs(self) -> list[TaskOutput]:
        ranges = [
            msgspec.structs.replace(output, output_index=len(self.stored.outputs) + place)
            for place, output in enumerate(RANGES)
        ]
        return [*self.stored.outputs.values(), *ranges]

    def is_stored(self, number: int, block_hash: str) -> bool:
        table = quoted(table_name(self.stored.declared["blocks"].dataset_uuid))
        statement = f"SELECT encode(block_hash, 'hex') FROM {table} WHERE block_number = {number}"
        return self.stored.record.first is not None and ask(self.stored.dsn, statement) == [(block_hash[2:],)]

    def rows(self, table: str) -> list[dict[str, object]]:
        content = self._files.read()
        self._files.close()
        names = schema_of(table).names
        return [dict(zip(names, row, strict=True)) for row in content[table]]

    def _run(self) -> None:
        while not self._cancel.is_set():
            try:
                self.run(self._cancel)
            except CrashError:
                continue
            except BaseException as error:
                self.errors.append(error)
                with self._looked:
                    self._looked.notify_all()
                return

    def _open(self, context: OperatorContext, outputs: object) -> TableChainStore:
        attempt = context.attempt
        return TableChainStore(
            lambda: self.stored.open(attempt, None, self._crash, self._emit, RANGES), self.stored.outputs, live=True
        )

    def _crash(self, point: CrashPoint) -> None:
        if self._rng.random() < self._share:
            self.crashes.append(point)
            raise CrashError

    def _emit(self, events: Sequence[EventIn]) -> None:
        self.events += [event for event in events if event.dataset_uuid == self.stored.outputs["blocks"].dataset_uuid]
