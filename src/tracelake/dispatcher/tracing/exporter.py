"""Sends spans over OTLP. The only module that imports OpenTelemetry; import it only where tracing is on.

A collector that is away, slow or wrong costs nothing but spans: `take` appends to a bounded queue, a thread of the SDK
sends. What finds no room, or is refused, is counted and dropped. The log says where traces go, once when they are no
longer taken, with the kind of the error, and once when that is over; of the address it names host and port alone.
"""

import asyncio
import logging
import threading
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from importlib.metadata import version
from typing import Any
from urllib.parse import urlsplit

from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import SpanContext, SpanKind, Status, StatusCode, TraceFlags

from tracelake.dispatcher.tracing.context import Span

logger = logging.getLogger(__name__)

QUEUE = 8_192
BATCH = 512
SEND_EVERY_SECONDS = 1.0
TIMEOUT_SECONDS = 5.0
"""Of one batch, with all its tries."""
FLUSH_SECONDS = 2.0
"""How long a Dispatcher that stops waits for what is still to be sent."""

_SAMPLED = TraceFlags(TraceFlags.SAMPLED)
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class OtlpSink:
    """One instance belongs to one event loop; `take` and `close` are called there alone."""

    def __init__(self, endpoint: str, on_dropped: Callable[[int], None], *, queue: int = QUEUE) -> None:
        """`on_dropped` is told how many spans were dropped, from any thread."""
        # Its loggers say every try of every batch, and might quote the request. `_Counting` says what matters.
        logging.getLogger("opentelemetry").setLevel(logging.CRITICAL)
        url = f"{endpoint.rstrip('/')}/v1/traces"
        address = _address(url)
        self._exporter = _Counting(OTLPSpanExporter(endpoint=url, timeout=TIMEOUT_SECONDS), on_dropped, address)
        logger.info("traces are on, and sent to %s", address)
        self._processor = BatchSpanProcessor(
            self._exporter,
            max_queue_size=queue + BATCH,
            schedule_delay_millis=SEND_EVERY_SECONDS * 1000,
            max_export_batch_size=BATCH,
        )
        self._resource = Resource.create({"service.name": "trace-dispatcher", "service.version": version("tracelake")})
        self._scope = InstrumentationScope("tracelake.dispatcher", version("tracelake"))
        self._on_dropped = on_dropped
        self._room = queue
        self._accepted = 0

    def take(self, span: Span, end: datetime) -> None:
        if self._accepted - self._exporter.exported >= self._room:
            self._on_dropped(1)
            return
        self._accepted += 1
        self._processor.on_end(self._readable(span, end))

    async def close(self) -> None:
        """Send what there is, but wait no longer than a moment: a daemon thread is left to its fate."""
        closing = threading.Thread(target=self._processor.shutdown, name="spans", daemon=True)
        closing.start()
        await asyncio.to_thread(closing.join, FLUSH_SECONDS)
        left = self._accepted - self._exporter.exported
        if left:
            self._on_dropped(left)

    def flush(self) -> None:
        """Send now, in this thread."""
        self._processor.force_flush()

    def _readable(self, span: Span, end: datetime) -> ReadableSpan:
        trace_id = span.context.trace_id
        parent = None if span.parent is None else SpanContext(trace_id, span.parent, True, _SAMPLED)
        start = _nanoseconds(span.start)
        return ReadableSpan(
            name=span.name,
            context=SpanContext(trace_id, span.context.span_id, False, _SAMPLED),
            parent=parent,
            resource=self._resource,
            attributes=span.attributes,
            kind=SpanKind.SERVER if span.server else SpanKind.INTERNAL,
            status=Status(StatusCode.UNSET) if span.error is None else Status(StatusCode.ERROR, span.error),
            start_time=start,
            end_time=max(start, _nanoseconds(end)),
            instrumentation_scope=self._scope,
        )


class _Counting(SpanExporter):
    """Counts what gets lost, and says once that it does."""

    def __init__(self, inner: SpanExporter, on_dropped: Callable[[int], None], address: str) -> None:
        self._inner = inner
        self._on_dropped = on_dropped
        self._address = address
        self._last_result = _keep_last_result(inner)
        self._failing = False
        self.exported = 0
        """Spans that left the queue. Written by the sending thread alone."""

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        self.exported += len(spans)
        kind = ""
        try:
            result = self._inner.export(spans)
        except Exception as error:
            result, kind = SpanExportResult.FAILURE, type(error).__name__
        failed = result is not SpanExportResult.SUCCESS
        if failed:
            self._on_dropped(len(spans))
        if failed and not self._failing:
            logger.warning(
                "the collector at %s takes no traces (%s); spans are dropped and counted until it does",
                self._address,
                kind or _kind(self._last_result),
            )
        elif self._failing and not failed:
            logger.info("the collector at %s takes traces again", self._address)
        self._failing = failed
        return result

    def shutdown(self) -> None:
        self._inner.shutdown()

    def force_flush(self, timeout_millis: int = 30_000) -> bool:
        return self._inner.force_flush(timeout_millis)


def _address(url: str) -> str:
    """Host and port; the rest of an address may be a secret."""
    parts = urlsplit(url)
    host = parts.hostname or ""
    return f"{host}:{parts.port}" if parts.port else host


def _keep_last_result(exporter: SpanExporter) -> list[Any]:
    """What the exporter's client answered last. The exporter itself says only that it failed, so this looks at its
    insides; where they are different, nothing is known."""
    results: list[Any] = []
    client = getattr(exporter, "_client", None)
    send = getattr(client, "export", None)
    if client is not None and send is not None:

        def export(*arguments: Any, **options: Any) -> Any:
            results[:] = [send(*arguments, **options)]
            return results[0]

        client.export = export
    return results


def _kind(results: list[Any]) -> str:
    """The status, or the name of the error: its text might quote the request."""
    for result in results:
        status, error = getattr(result, "status_code", None), getattr(result, "error", None)
        if status is not None:
            return f"it answers {status}"
        if error is not None:
            return type(error).__name__
    return "for a reason that is not known"


def _nanoseconds(moment: datetime) -> int:
    """Exact, which a float of seconds is not."""
    since = moment - _EPOCH
    return (since.days * 86_400 + since.seconds) * 1_000_000_000 + since.microseconds * 1_000
