"""The work of one process: rows from a server, or from deliveries."""

import os
import resource
import sys
import traceback
from collections.abc import Callable
from typing import TypeAlias

from tracelake.catalogue import read_config
from tracelake.catalogue.feeds.mapping import BLOCK, FeedConfig
from tracelake.catalogue.http_fetch import HttpFetchConfig
from tracelake.catalogue.webhook_rows import WebhookRowsConfig
from tracelake.feeds.documents import BadDocumentError, JsonNumber, read_document
from tracelake.feeds.errors import BadRowError, FeedError
from tracelake.feeds.exchange import FeedClient, FeedLimits
from tracelake.feeds.fetching import FeedFetch
from tracelake.feeds.files import LinesOutput, ParquetOutput
from tracelake.feeds.mapping import REJECTS, RowMapper
from tracelake.feeds.process.messages import (
    FeedDelivery,
    FeedDone,
    FeedFailed,
    FeedMessage,
    FeedOutput,
    FeedProgress,
    FeedTask,
    frame,
    read_task,
)
from tracelake.feeds.retrying import PatientClient
from tracelake.model.dag import Column
from tracelake.model.hiding import Hiding

_MOST_TRACEBACK = 4_000
Say: TypeAlias = Callable[[FeedMessage], None]


def serve() -> None:
    """One task from standard input; messages to standard output."""
    task = read_task(sys.stdin.buffer)

    def say(message: FeedMessage) -> None:
        sys.stdout.buffer.write(frame(message))
        sys.stdout.buffer.flush()

    resource.setrlimit(resource.RLIMIT_DATA, (task.memory_bytes, task.memory_bytes))
    try:
        say(run_task(task, say))
    except FeedError as error:
        say(FeedFailed(str(error), final=error.final))
    except MemoryError:
        megabytes = task.memory_bytes // 2**20
        say(
            FeedFailed(
                f"the documents need more than {megabytes} MiB of memory: use paging, or ask for less", final=True
            )
        )
    except Exception:
        text = Hiding(task.secrets.values())(traceback.format_exc())
        say(FeedFailed(text[-_MOST_TRACEBACK:], bug=True))


def run_task(task: FeedTask, say: Say, client: FeedClient | None = None) -> FeedDone:
    """Raises FeedError."""
    config = read_config(task.operator, task.config)
    assert isinstance(config, FeedConfig)
    columns = tuple(item.column for item in config.feed_columns())
    outputs = [_open(task.outputs[0], columns)] + [_open(output, REJECTS) for output in task.outputs[1:]]
    in_files = task.outputs[0].kind == "parquet"
    start, end = task.unit.start, task.unit.end
    blocks = (start, end) if in_files and start is not None and end is not None else None
    if isinstance(config, HttpFetchConfig):
        mapper = RowMapper(config, outputs[0], outputs[1] if len(outputs) > 1 else None, blocks=blocks)
        retries = _fetch(config, task, mapper, say, client or FeedClient(task.hosts))
        note = f", {retries} requests repeated" if retries else ""
    else:
        assert isinstance(config, WebhookRowsConfig)
        if in_files and any(column.name.lower() == BLOCK for column in columns):
            raise FeedError(
                f"the unit of deliveries counts them, so files cannot have a column {BLOCK}: rename it", final=True
            )
        mapper = RowMapper(config, outputs[0], outputs[1] if len(outputs) > 1 else None, final=True)
        for delivery in task.deliveries:
            _add_delivery(config, delivery, mapper)
        note = f" of {len(task.deliveries)} deliveries"
    mapper.finish()
    rejected = f", {mapper.rejected} rejected" if mapper.rejected else ""
    return FeedDone([output.finish() for output in outputs], f"{mapper.rows} rows{rejected}{note}")


def _fetch(config: HttpFetchConfig, task: FeedTask, mapper: RowMapper, say: Say, client: FeedClient) -> int:
    limits = FeedLimits(
        config.max_bytes, config.max_redirects, config.request_seconds, open_ended=config.format == "json"
    )
    patient = PatientClient(client, limits, config.retry_seconds, client.clock() + config.total_seconds)
    fetch = FeedFetch(config, task.unit, task.secrets, patient, mapper, lambda text: say(FeedProgress(text)))
    fetch.run()
    return patient.retries


def _add_delivery(config: WebhookRowsConfig, delivery: FeedDelivery, mapper: RowMapper) -> None:
    origin = f"delivery {delivery.delivery_id}"
    specials = {
        "delivery": delivery.delivery_id,
        "number": JsonNumber(delivery.number),
        "received_at": delivery.received_at.isoformat(),
    }
    try:
        mapper.add(read_document(delivery.body, config), origin, specials)
    except BadDocumentError as error:
        text = delivery.body.decode("utf-8", "replace")
        mapper.reject(origin, 0, BadRowError(f"the body cannot be read: {error}"), text)


def _open(output: FeedOutput, columns: tuple[Column, ...]) -> ParquetOutput | LinesOutput:
    file = os.fdopen(output.descriptor, "wb", closefd=False)
    if output.kind == "lines":
        return LinesOutput(file, columns, output.schema, output.dataset)
    order = next((column.name for column in columns if column.name.lower() == BLOCK), None)
    return ParquetOutput(file, columns, order)
