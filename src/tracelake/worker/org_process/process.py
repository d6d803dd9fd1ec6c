"""One Spark process, as the worker sees it: started, bound to an org for the rest of its life, fed with attempts,
ended.

Threads: one reads what the process says; requests of attempts are done by a small pool of the process' own, so that
an org that asks for much delays nobody else; each attempt waits on the thread of its operator.
"""

import logging
import os
import re
import shutil
import signal
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field

import msgspec

from tracelake.catalogue.context import (
    AttemptLostError,
    CanceledError,
    NonRetryableError,
    OperatorContext,
    OperatorResult,
)
from tracelake.errors import BoundaryMovedError
from tracelake.model.locations import Layout
from tracelake.model.log_attribution import ATTEMPT_KEY, attempt_key
from tracelake.ports import FileTransfer
from tracelake.spark.child.messages import (
    Ask,
    AttemptDone,
    AttemptFailure,
    BrokerAnswer,
    CancelAttempt,
    ChannelError,
    FailureAnswer,
    Progress,
    Ready,
    RunAttempt,
    StartFailed,
    worker_channel,
)
from tracelake.spark.failures import SparkFailedError
from tracelake.spark.gateway import LogRelay
from tracelake.worker.org_process.broker import AttemptBroker
from tracelake.worker.org_process.launch import OrgProcessConfig, launch, make_directory, start_message
from tracelake.worker.org_process.process_tree import family, own_bytes, read_parents

logger = logging.getLogger(__name__)

IDLE, RUNAWAY, MEMORY, STOPPING, CRASHED = "idle", "runaway", "memory", "stopping", "crashed"
REPLACED = "the worker ended the org's Spark process, because another task in it did not stop"
LOST_BESIDE = "the org's Spark process ended while several tasks ran in it; this one is tried again by itself"
LOST_ALONE = "Spark was lost while the task ran alone in it: it ran out of memory, or crashed"
OVER_LIMIT = "Spark was ended while the task ran alone in it: it took more memory than spark_memory and spark_overhead"
_LOOK_SECONDS = 0.1
_REQUESTS_AT_ONCE = 16
_MOST_ASKS = 1000
_LATE_ATTEMPTS = 64
_KIND = re.compile(r"[A-Za-z_]\w{0,63}", re.ASCII)
_CRASH_BYTES = 2**20


class OrgFailureError(Exception):
    """An error that an operator raised in the process of its org; `__name__` of its class is that of the original."""


class ProcessGoneError(Exception):
    """The process ended before the attempt had begun in it."""


@dataclass(slots=True, eq=False)
class RunningAttempt:
    context: OperatorContext
    broker: AttemptBroker
    ended: threading.Event = field(default_factory=threading.Event)
    done: AttemptDone | None = None


class OrgProcess:
    """`on_change` is called when it is ready, when an attempt leaves it, and when it has ended."""

    def __init__(self, config: OrgProcessConfig, number: int, on_change: Callable[[], None]) -> None:
        self._config = config
        self._on_change = on_change
        self.org: str | None = None
        self.alone = False
        """Serves one attempt and no other."""
        self.closing = False
        """Takes no further attempts: another org waits for its place."""
        self.bound_at = self.used_at = time.monotonic()
        self.places = 0
        """Attempts that run here or are about to."""
        self.ready = threading.Event()
        self.ended = threading.Event()
        self.end_reason: str | None = None
        self.crowd = 0
        """How many attempts ran when it ended."""
        self.start_failure: str | None = None
        self.missing: Mapping[str, str] = {}
        self._lock = threading.Lock()
        self._attempts: dict[str, RunningAttempt] = {}
        self._ended_attempts: deque[str] = deque(maxlen=_LATE_ATTEMPTS)
        """Whose last lines may still be on their way."""
        self._asks = 0
        self._waited_for = False
        self._directory = config.scratch / f"process-{number}"
        self._requests = ThreadPoolExecutor(_REQUESTS_AT_ONCE, thread_name_prefix=f"spark-{number}")
        self._start()

    # --- its life

    def _start(self) -> None:
        self._device = make_directory(self._directory)
        self._process, ours = launch(self._config, self._directory)
        assert self._process.stdout is not None
        relay = LogRelay(self._is_attempt)
        threading.Thread(target=relay.run, args=(self._process.stdout,), name="spark-log", daemon=True).start()
        self._channel = worker_channel(ours)
        self._channel.send(start_message(self._config, self._directory))
        threading.Thread(target=self._listen, name="spark-process", daemon=True).start()

    @property
    def alive(self) -> bool:
        return self.end_reason is None

    @property
    def pid(self) -> int:
        return self._process.pid

    def end(self, reason: str) -> None:
        """With everything that it has started. The first reason stays."""
        with self._lock:
            if self.end_reason is None:
                self.end_reason = reason
                self.crowd = len(self._attempts)
            if self._waited_for:
                return  # its number may be another process' by now
        for pid in family(self.pid, read_parents()):
            with suppress(OSError):
                os.kill(pid, signal.SIGKILL)
        with suppress(OSError):
            os.killpg(self.pid, signal.SIGKILL)

    def memory(self, parents: Mapping[int, int]) -> int:
        """Bytes that are its own, of all its processes."""
        return sum(map(own_bytes, family(self.pid, parents)))

    # --- what it says

    def _listen(self) -> None:
        try:
            while (message := self._channel.receive()) is not None:
                self._handle(*message)
        except ChannelError as error:
            logger.error("a Spark process broke the protocol", extra={"org": self.org, "reason": str(error)})
        except Exception:
            logger.exception("a message of a Spark process was not handled")
        finally:
            self._finish()

    def _handle(self, body: object, descriptor: int | None) -> None:
        if isinstance(body, Ask):
            self._take_request(body, descriptor)
            return
        if descriptor is not None:
            os.close(descriptor)
        if isinstance(body, AttemptDone):
            with self._lock:
                running = self._attempts.pop(body.key, None)
            if running is not None:
                self._ended_attempts.append(body.key)
                running.done = body
                running.broker.close()
                running.ended.set()
        elif isinstance(body, Progress):
            running = self._attempts.get(body.key)
            if running is not None:
                running.context.progress(body.text)
        elif isinstance(body, Ready):
            self.missing = body.missing
            self.ready.set()
            self._on_change()
        elif isinstance(body, StartFailed):
            self.start_failure = body.text

    def _is_attempt(self, key: str) -> bool:
        """Whether a line may belong to the attempt: the process must not write into the logs of other orgs."""
        return key in self._attempts or key in self._ended_attempts

    def _take_request(self, request: Ask, descriptor: int | None) -> None:
        with self._lock:
            self._asks += 1
            too_many = self._asks > _MOST_ASKS
        if too_many:
            raise ChannelError("too many requests at once")
        self._requests.submit(self._answer, request, descriptor)

    def _answer(self, request: Ask, descriptor: int | None) -> None:
        try:
            running = self._attempts.get(request.key)
            if running is None:
                body = FailureAnswer("CanceledError", "the attempt has ended")
                self._channel.send(BrokerAnswer(request.number, body))
            else:
                ATTEMPT_KEY.set(request.key)
                self._channel.send(BrokerAnswer(request.number, running.broker.answer(request.body, descriptor)))
        except ChannelError:
            self.end(CRASHED)
        finally:
            ATTEMPT_KEY.set(None)
            if descriptor is not None:
                os.close(descriptor)
            with self._lock:
                self._asks -= 1

    def _finish(self) -> None:
        """The process has closed its end, or has to go."""
        self.end(CRASHED)
        self._channel.close()
        with self._lock:
            self._waited_for = True
        status = self._process.wait()
        if not self.ready.is_set() and self.start_failure is None and self.end_reason in (CRASHED, MEMORY):
            self.start_failure = f"its process ended with status {status}; see the worker's log"
        self._channel.free()
        extra = {"org": self.org, "reason": self.end_reason, "exit_status": status, "attempts": self.crowd}
        logger.log(
            logging.INFO if self.end_reason in (IDLE, STOPPING) else logging.ERROR, "Spark process ended", extra=extra
        )
        with self._lock:
            left, self._attempts = list(self._attempts.values()), {}
        for running in left:
            running.broker.close()
            running.ended.set()
        self._requests.shutdown(wait=False)  # queued requests still close their descriptors
        self._keep_reports()
        shutil.rmtree(self._directory, ignore_errors=True)
        self.ended.set()
        self.ready.set()
        self._on_change()

    def _keep_reports(self) -> None:
        """What Java wrote when it crashed; the process may have put anything there."""
        if self._config.logs is None:
            return
        for path in list((self._directory / "crash").glob("java-crash-*.log"))[:1]:
            with suppress(OSError):
                descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
                with os.fdopen(descriptor, "rb") as report:
                    self._config.logs.joinpath(f"java-crash-{self.pid}.log").write_bytes(report.read(_CRASH_BYTES))

    # --- attempts

    def run(
        self, name: str, module: str, context: OperatorContext, transfer: FileTransfer, data_dsn: Callable[[], str]
    ) -> OperatorResult:
        """Waits for the end of the attempt. Raises ProcessGoneError if it did not begin."""
        while not self.ready.wait(_LOOK_SECONDS):
            if context.cancel.is_set():
                raise CanceledError
        scratch_prefix = None
        if not self._config.local:
            scratch_prefix = Layout("", self._config.scratch_bucket).scratch_prefix(context.task_id, context.attempt)
        transit = self._config.scratch / "transit"
        broker = AttemptBroker(context, transfer, data_dsn, transit, self._device, scratch_prefix)
        running = RunningAttempt(context, broker)
        key = attempt_key(context.task_id, context.attempt)
        with self._lock:
            if not self.alive:
                if self.start_failure is not None:
                    raise SparkFailedError(f"Spark does not start: {self.start_failure}")
                raise ProcessGoneError
            self._attempts[key] = running
        try:
            self._channel.send(_as_message(key, name, module, context))
        except ChannelError as error:
            self.end(CRASHED)
            running.ended.wait()
            raise ProcessGoneError from error
        self._wait(key, running)
        if running.done is None:
            raise self._loss(running)
        if running.done.failure is not None:
            raise _as_error(running.done.failure)
        assert running.done.result is not None
        return running.done.result

    def _wait(self, key: str, running: RunningAttempt) -> None:
        deadline = None
        while not running.ended.wait(_LOOK_SECONDS):
            if not running.context.cancel.is_set():
                continue
            if deadline is None:
                deadline = time.monotonic() + self._config.stop_seconds
                with suppress(ChannelError):
                    self._channel.send(CancelAttempt(key))
            elif time.monotonic() > deadline:
                logger.error("work in Spark did not stop; ending its process", extra={"org": self.org, "attempt": key})
                self.end(RUNAWAY)

    def _loss(self, running: RunningAttempt) -> Exception:
        """What an attempt ends with whose process is gone."""
        if running.context.cancel.is_set() or self.end_reason == STOPPING:
            return CanceledError()
        if self.end_reason == RUNAWAY:
            return AttemptLostError(REPLACED)
        if self.crowd > 1:
            return AttemptLostError(LOST_BESIDE)
        return SparkFailedError(OVER_LIMIT if self.end_reason == MEMORY else LOST_ALONE)


def _as_message(key: str, name: str, module: str, context: OperatorContext) -> RunAttempt:
    return RunAttempt(
        key=key,
        module=module,
        operator=name,
        config=msgspec.to_builtins(context.config),
        task_id=context.task_id,
        attempt=context.attempt,
        inputs=list(context.inputs),
        outputs=list(context.outputs),
        org=context.org,
        traceparent=context.traceparent,
        checks=list(context.checks),
        references=list(context.references),
    )


def _as_error(failure: AttemptFailure) -> Exception:
    if failure.canceled:
        return CanceledError(failure.text)
    if failure.kind == BoundaryMovedError.__name__:
        return BoundaryMovedError(failure.text.removeprefix("boundary_moved: "))
    base = NonRetryableError if failure.final else OrgFailureError
    name = failure.kind if _KIND.fullmatch(failure.kind) else base.__name__
    if name == base.__name__:
        return base(failure.text)  # the class itself: the wrapper leaves out its name
    return type(name, (base,), {})(failure.text)  # type: ignore[no-any-return]
