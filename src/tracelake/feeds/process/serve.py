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
from tracelake.feeds.checks import CheckedOutput, FileOutput
from tracelake.feeds.documents import BadDocumentError, JsonNumber, read_document
from tracelake.feeds.errors import BadRowError, FeedError
from tracelake.feeds.exchange import FeedClient, FeedLimits
from tracelake.feeds.fetching import FeedFetch
from tracelake.feeds.files import LinesOutput, ParquetOutput, SchemaFilter
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
from tracelake.spark.checks.reports import SampleBudget

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
    outputs = [_open(task, index, REJECTS if index else columns) for index in range(len(task.outputs))]
    in_files = task.outputs[0].kind == "parquet"
    start, end = task.unit.start, task.unit.end
    blocks = (start, end) if in_files and start is not None and end is not None else None
    rejects = outputs[1] if len(outputs) > 1 else None
    schema = task.outputs[0].schema
    find_misfits = None if rejects is None or schema is None else SchemaFilter(columns, schema).find_misfits
    if isinstance(config, HttpFetchConfig):
        mapper = RowMapper(config, outputs[0], rejects, blocks=blocks, find_misfits=find_misfits)
        retries = _fetch(config, task, mapper, say, client or FeedClient(task.hosts))
        note = f", {retries} requests repeated" if retries else ""
    else:
        assert isinstance(config, WebhookRowsConfig)
        if in_files and any(column.name.lower() == BLOCK for column in columns):
            raise FeedError(
                f"the unit of deliveries counts them, so files cannot have a column {BLOCK}: rename it", final=True
            )
        mapper = RowMapper(config, outputs[0], rejects, final=True, find_misfits=find_misfits)
        for delivery in task.deliveries:
            _add_delivery(config, delivery, mapper)
        note = f" of {len(task.deliveries)} deliveries"
    mapper.finish()
    rejected = f", {mapper.rejected} rejected" if mapper.rejected else ""
    budget = SampleBudget()
    reports = [report for output in outputs if isinstance(output, CheckedOutput) for report in output.report(budget)]
    return FeedDone([output.finish() for output in outputs], f"{mapper.rows} rows{rejected}{note}", reports)


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


def _open(task: FeedTask, index: int, columns: tuple[Column, ...]) -> FileOutput:
    output = _open_file(task.outputs[index], columns)
    checks = [check for check in task.checks if check.output_index == index]
    return CheckedOutput(output, columns, checks) if checks else output


def _open_file(output: FeedOutput, columns: tuple[Column, ...]) -> ParquetOutput | LinesOutput:
    file = os.fdopen(output.descriptor, "wb", closefd=False)
    if output.kind == "lines":
        return LinesOutput(file, columns, output.schema, output.dataset)
    order = next((column.name for column in columns if column.name.lower() == BLOCK), None)
    return ParquetOutput(file, columns, order)
