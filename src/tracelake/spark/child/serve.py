"""What runs in the Spark process of an org: a session, and the attempts that the worker sends.

A thread for each attempt. Its context asks the worker for everything that is outside of Spark. A session whose Java has
died ends the process: the worker sees that, says what became of the attempts, and starts another one.
"""

import itertools
import json
import logging
import os
import sys
import threading
import time
from concurrent.futures import Future
from pathlib import Path
from socket import socket
from typing import TYPE_CHECKING, Any

from tracelake.catalogue import read_config
from tracelake.catalogue.context import (
    Batch,
    CanceledError,
    LiveInput,
    NonRetryableError,
    OperatorContext,
    OperatorResult,
    TableInput,
)
from tracelake.model.dag import Schema
from tracelake.model.log_attribution import ATTEMPT_KEY, RECORD_FIELD
from tracelake.ports import FileTransfer, ObjectMeta
from tracelake.spark import gateway
from tracelake.spark.child.messages import (
    AnswerBody,
    Ask,
    AskBody,
    AskEmit,
    AskFiles,
    AskPublish,
    AskSchema,
    AttemptDone,
    AttemptFailure,
    CancelAttempt,
    Channel,
    ChannelError,
    FilesAnswer,
    LiveAnswer,
    Progress,
    Ready,
    RunAttempt,
    SchemaAnswer,
    Start,
    StartFailed,
    TableAnswer,
    ToProcess,
    process_channel,
)
from tracelake.spark.child.transfer import (
    BrokeredTables,
    BrokerTransfer,
    ClusterTransfer,
    ExportedTables,
    Relay,
    check,
)
from tracelake.spark.failures import explain
from tracelake.spark.reader import Reader
from tracelake.spark.runner import AttemptRunner
from tracelake.spark.session import SharedSession, SparkConfig
from tracelake.spark.sizes import session_for_small
from tracelake.storage.file_cache import FileCache
from tracelake.wire.units import EventIn, PayloadInput, TaskOutput

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

logger = logging.getLogger(__name__)

SESSION_LOST = 70
"""The exit status of a process whose Java died."""
_MOST_TEXT = 4_000
_TIDY_SECONDS = 10.0


def serve(descriptor: int, missing: dict[str, str]) -> None:
    """Until the worker closes its end, which also happens when it dies. Does not return."""
    _log_as_json()
    channel = process_channel(socket(fileno=descriptor))
    try:
        message = channel.receive()
        assert message is not None
        start = message[0]
        assert isinstance(start, Start)
        try:
            process = SparkProcess(channel, start)
        except Exception as error:
            logger.exception("Spark does not start")
            channel.send(StartFailed(str(explain(error))[:_MOST_TEXT]))
            os._exit(1)
        channel.send(Ready(missing))
        process.listen()
    except ChannelError:
        logger.exception("the worker cannot be heard")
    os._exit(0)


class SparkProcess:
    def __init__(self, channel: "Channel[ToProcess]", start: Start) -> None:
        self._channel = channel
        self._scratch = Path(start.scratch)
        self._config = SparkConfig(
            self._scratch / "session",
            start.master,
            start.memory,
            start.options,
            start.log_level,
            crash_directory=self._scratch / "crash",
            java_options=tuple(start.java_options),
        )
        self._shared = SharedSession(self._config)
        self._numbers = itertools.count(1)
        self._answers: dict[int, Future[AnswerBody]] = {}
        self._cancels: dict[str, threading.Event] = {}
        Relay(self._scratch, self.ask)
        session = self._shared.get()
        if self._config.local:
            # The first query of a session is slow: it loads classes, and starts Spark's Python processes.
            session_for_small(session).range(0, 1, 1, 1).mapInArrow(_give_back, "id long").collect()
        if not self._config.connect:
            threading.Thread(target=_end_with_java, name="java", daemon=True).start()
            threading.Thread(target=self._tidy, name="tidy", daemon=True).start()

    def listen(self) -> None:
        while (message := self._channel.receive()) is not None:
            body = message[0]
            if isinstance(body, RunAttempt):
                self._cancels[body.key] = threading.Event()
                threading.Thread(target=self._run, args=(body,), name=body.key, daemon=True).start()
            elif isinstance(body, CancelAttempt):
                if (cancel := self._cancels.get(body.key)) is not None:
                    cancel.set()
            elif not isinstance(body, Start) and (waiting := self._answers.pop(body.number, None)) is not None:
                waiting.set_result(body.body)

    def _tidy(self) -> None:
        """Java gives memory back when it collects garbage, and executors of a cluster with it, whose shuffles nobody
        needs; and does that when it needs some: idle ones are asked to."""
        tidied = False
        while True:
            if self._cancels:
                tidied = False
            elif not tidied:
                self._shared.collect_garbage()
                tidied = True
            time.sleep(_TIDY_SECONDS)

    def ask(self, key: str, body: AskBody, descriptor: int | None = None) -> AnswerBody:
        """The worker's answer, which may be that it failed."""
        number = next(self._numbers)
        answer: Future[AnswerBody] = Future()
        self._answers[number] = answer
        self._channel.send(Ask(number, key, body), descriptor)
        return answer.result()

    def _run(self, message: RunAttempt) -> None:
        ATTEMPT_KEY.set(message.key)
        cancel = self._cancels[message.key]
        try:
            done = AttemptDone(message.key, result=self._result(message, cancel))
        except BaseException as error:
            done = AttemptDone(message.key, failure=self._failure(error, cancel))
        self._cancels.pop(message.key, None)
        try:
            self._channel.send(done)
        except Exception as error:  # what cannot be sent is this attempt's failure and nobody else's
            text = f"{type(error).__name__}: {error}"[:_MOST_TEXT]
            self._channel.send(AttemptDone(message.key, failure=AttemptFailure("SparkFailedError", text)))

    def _result(self, message: RunAttempt, cancel: threading.Event) -> OperatorResult:
        context = self._context(message, cancel)
        session = self._shared.get()
        broker = BrokerTransfer(self._scratch, message.key)
        transfer: FileTransfer = broker if self._config.local else ClusterTransfer(broker)
        cache = FileCache(self._scratch / "cache", transfer)
        tables = self._tables(session, broker, cache)
        return AttemptRunner(session, self._config, cache, self._scratch, tables.read).run(message.module, context)

    def _tables(
        self, session: "SparkSession", broker: BrokerTransfer, cache: FileCache
    ) -> BrokeredTables | ExportedTables:
        def ask(body: AskBody) -> AnswerBody:
            return check(self.ask(broker.key, body))

        if self._config.local:
            return BrokeredTables(session, broker, ask)
        return ExportedTables(Reader(session, cache, self._scratch / "tables", local=False), ask)

    def _failure(self, error: BaseException, cancel: threading.Event) -> AttemptFailure:
        if self._shared.has_died():
            logger.error("the Spark session was lost", exc_info=error)
            os._exit(SESSION_LOST)
        if isinstance(error, CanceledError) or cancel.is_set():
            return AttemptFailure("CanceledError", "", canceled=True)
        explained = explain(error) if isinstance(error, Exception) else error
        log_failure(error, explained)
        return AttemptFailure(
            type(explained).__name__,
            str(explained)[:_MOST_TEXT].encode("utf-8", "replace").decode(),
            final=isinstance(explained, NonRetryableError),
            canceled=isinstance(explained, CanceledError),
        )

    def _context(self, message: RunAttempt, cancel: threading.Event) -> OperatorContext:
        key = message.key

        def files(item: PayloadInput) -> list[ObjectMeta] | TableInput | LiveInput:
            answer = check(self.ask(key, AskFiles(item.input_index, item.unit)))
            if isinstance(answer, TableAnswer):
                return TableInput(tuple(answer.columns), answer.by_position)
            if isinstance(answer, LiveAnswer):
                table = TableInput(tuple(answer.table.columns), answer.table.by_position)
                return LiveInput(answer.files, table, answer.boundary)
            assert isinstance(answer, FilesAnswer)
            return answer.files

        def schema(output: TaskOutput) -> Schema | None:
            answer = check(self.ask(key, AskSchema(output.output_index)))
            assert isinstance(answer, SchemaAnswer)
            return answer.schema

        def publish(batch: Batch) -> None:
            check(self.ask(key, AskPublish(batch.output.output_index, batch.uri, batch.records, batch.sha256)))

        def emit(events: "list[EventIn] | tuple[EventIn, ...] | Any") -> None:
            check(self.ask(key, AskEmit(list(events))))

        return OperatorContext(
            task_id=message.task_id,
            attempt=message.attempt,
            config=read_config(message.operator, message.config),
            inputs=message.inputs,
            outputs=message.outputs,
            progress=lambda text: self._channel.send(Progress(key, text[:_MOST_TEXT])),
            cancel=cancel,
            paused=threading.Event(),
            emit=emit,
            files=files,
            publish=publish,
            schema=schema,
            org=message.org,
            checks=message.checks,
            references=message.references,
            traceparent=message.traceparent,
        )


def log_failure(error: BaseException, explained: BaseException) -> None:
    """An error of the user's own query in the words that are reported; anything unexpected with its traceback."""
    if isinstance(explained, NonRetryableError):
        logger.warning("operator failed: %s", explained)
    else:
        logger.warning("operator failed", exc_info=error)


def _end_with_java() -> None:
    """The worker then says what became of the attempts, and starts another process."""
    gateway.wait_for_end()
    logger.error("the Java process of Spark ended")
    os._exit(SESSION_LOST)


def _give_back(batches: "Any") -> "Any":
    yield from batches


class _JsonHandler(logging.StreamHandler[Any]):
    """Lines as Java's log has them: the worker reads both."""

    def format(self, record: logging.LogRecord) -> str:
        text = super().format(record)
        name = record.name.removeprefix("spark.")
        line = {"level": _LEVELS.get(record.levelno, "INFO"), "logger": name, "message": text[:10_000]}
        key = getattr(record, RECORD_FIELD, None) or ATTEMPT_KEY.get()
        return json.dumps(line | {"attempt": key} if key else line)


_LEVELS = {
    logging.DEBUG: "DEBUG",
    logging.INFO: "INFO",
    logging.WARNING: "WARN",
    logging.ERROR: "ERROR",
    logging.CRITICAL: "FATAL",
}


def _log_as_json() -> None:
    root = logging.getLogger()
    root.handlers[:] = [_JsonHandler(sys.stderr)]
    root.setLevel(logging.INFO)
