"""Structured logs: one JSON object a line, on standard error, that never hold a token.

Anything that looks like a JWT, a bearer credential or a password in a DSN is blanked before it is written, whatever
module logged it: the last line of defence, not the first. Secrets of jobs are blanked by their value (`HIDDEN`).
"""

import json
import logging
import sys
from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Any, TextIO, cast

from tracelake.model.redaction import scrub

_SECRET_FIELDS = frozenset({"lease_token", "capability_token", "password", "token", "dsn"})
_MAX_DEPTH = 8
_STANDARD = frozenset(logging.makeLogRecord({}).__dict__) | {"message", "asctime", "taskName"}


def clean(value: Any, depth: int = 0) -> Any:
    """The value as JSON can hold it, scrubbed at every level. Before encoding: escapes would hide what to look for."""
    if value is None or isinstance(value, bool | int | float):
        return value
    if depth < _MAX_DEPTH and isinstance(value, dict):
        return {
            scrub(str(key)): "[hidden]" if str(key).lower() in _SECRET_FIELDS else clean(item, depth + 1)
            for key, item in value.items()
        }
    if depth < _MAX_DEPTH and isinstance(value, list | tuple | set | frozenset):
        return [clean(item, depth + 1) for item in value]
    return scrub(str(value))


class JsonFormatter(logging.Formatter):
    def __init__(self, process: str) -> None:
        super().__init__()
        self._process = process

    def format(self, record: logging.LogRecord) -> str:
        entry: dict[str, Any] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "process": self._process,
            "logger": record.name,
            "message": record.getMessage(),
        }
        entry.update((key, value) for key, value in record.__dict__.items() if key not in _STANDARD)
        if record.exc_info:
            entry["error"] = self.formatException(record.exc_info)
        # Whatever is in a log line, writing it must not fail on half of a surrogate pair.
        return json.dumps(clean(entry), ensure_ascii=False).encode(errors="replace").decode()


class _CleanStream:
    """A stream that blanks what a log would: an operator's `print` ends in the same file."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        return self._stream.write(scrub(text))

    def writelines(self, lines: Iterable[str]) -> None:
        for line in lines:
            self.write(line)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


def clean_prints() -> None:
    """Blanks secrets in what this process prints; for a process that runs code of others."""
    sys.stdout = cast(TextIO, _CleanStream(sys.stdout))
    sys.stderr = cast(TextIO, _CleanStream(sys.stderr))


def configure(process: str, level: str) -> None:
    """Send everything of this process to standard error as JSON lines."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter(process))
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)
    logging.captureWarnings(True)
    for noisy in ("uvicorn", "uvicorn.error", "asyncio"):
        logging.getLogger(noisy).setLevel(max(logging.WARNING, logging.getLogger().level))
