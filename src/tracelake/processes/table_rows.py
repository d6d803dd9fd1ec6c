"""Rows of tables in Postgres data for a Dispatcher, which streams them to people who have a token alone."""

import io
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from uuid import UUID

from tracelake.catalogue.context import NonRetryableError
from tracelake.errors import StoreUnavailableError
from tracelake.wire.content import LiveRows
from tracelake.wire.task_calls import TableColumn


@dataclass(frozen=True, slots=True)
class DataTables:
    """Streams rows of tables; the libraries that decode them are loaded with the first call."""

    dsn: Callable[[], str]

    def stream(
        self,
        dataset_uuid: UUID,
        columns: Sequence[TableColumn],
        head: int | None,
        seconds: float,
        live: LiveRows | None = None,
    ) -> Iterator[bytes]:
        import pyarrow as pa

        from tracelake.stack.dataset_rows import read_table

        sink = io.BytesIO()
        try:
            dsn = self.dsn()
        except Exception as error:
            raise StoreUnavailableError("This Dispatcher has no access to Postgres data: set data_read_dsn.") from error
        try:
            with closing(read_table(dsn, dataset_uuid, columns, head, seconds, live)) as tables:
                writer = pa.ipc.new_stream(sink, next(tables).schema)
                for table in tables:
                    writer.write_table(table)
                    yield sink.getvalue()
                    sink.seek(0)
                    sink.truncate()
                writer.close()
        except NonRetryableError as error:
            raise StoreUnavailableError(str(error)) from error
        yield sink.getvalue()
