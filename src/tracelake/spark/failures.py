"""What went wrong in Spark, in one line: the kind and the message, without stack traces, plans or paths.

An error of our own that was raised in an executor comes back as text, the last line of a traceback; it is what it was
when it was raised.
"""

import errno
import os
import re

from tracelake.catalogue.context import CanceledError, NonRetryableError
from tracelake.errors import StoreUnavailableError

_LAST_LINE = re.compile(r"^([A-Za-z_][\w.]*(?:Error|Exception|Interrupt|Warning|Exit)): ?(.*)$", re.MULTILINE)
_CANCELED = ("cancelled because", "cancelled part of cancelled job group", "[INTERRUPTED]", "OPERATION_CANCELED")
_PATH = re.compile(r"(?:file:)?/[\w.@+=,~%-]+(?:/[\w.@+=,~%-]+)+/?")
_NON_RETRYABLE = f"{NonRetryableError.__module__}.{NonRetryableError.__qualname__}"
_UNAVAILABLE = f"{StoreUnavailableError.__module__}.{StoreUnavailableError.__qualname__}"
_NO_SPACE = os.strerror(errno.ENOSPC)
_CRASHED = "Python worker exited unexpectedly"
_USER_ERRORS = frozenset({"22", "42", "21", "0A"})
"""Classes of SQLSTATE that another attempt would meet again: data exceptions, names and syntax, features."""
_MAX_TEXT = 600
SETTING_ADVICE = re.compile(
    r"\s{0,4}(?:If necessary,? )?[Ss]et \"?spark\.[\w.]{1,100}\"? to \"?\w{1,20}\"?[^.]{0,100}?(?:bypass this error)?\."
)
"""Advice of Spark to change its settings, which no task can do."""


LOST = "Spark was lost while the task ran (its Java process or its server ended); the next attempt gets a new session"


class SparkFailedError(Exception):
    """Spark could not do it; another attempt may."""


def explain(error: Exception) -> Exception:
    """The error to report instead of what pyspark raised; anything else is handed back as it is."""
    from py4j.protocol import Py4JError
    from pyspark.errors import PySparkException

    text = str(error)
    if _NO_SPACE in text:
        return SparkFailedError("no space left on the worker's disk: free some below its home, or give it a larger one")
    if not isinstance(error, (PySparkException, Py4JError)):
        return error
    if any(mark in text for mark in _CANCELED):
        return CanceledError("Spark stopped its work")
    if _CRASHED in text:
        return SparkFailedError("a Python process of Spark ended unexpectedly: killed, perhaps for want of memory")
    raised = _LAST_LINE.findall(text) if "Traceback (most recent call last)" in text else []
    if raised:
        kind, message = raised[-1]
        summary = _short(message)
        if kind == _NON_RETRYABLE:
            return NonRetryableError(summary)
        if kind == _UNAVAILABLE:
            return StoreUnavailableError(summary.partition(": ")[2])
        return SparkFailedError(f"{kind.rpartition('.')[2]}: {summary}")
    state = ""
    if isinstance(error, PySparkException):
        state = error.getSqlState() or ""
        text = error.getMessage() or text
    summary = _short(text.split("\n", 1)[0])
    return NonRetryableError(summary) if state[:2] in _USER_ERRORS else SparkFailedError(summary)


def _short(text: str) -> str:
    return _PATH.sub("...", SETTING_ADVICE.sub("", text).strip())[:_MAX_TEXT]
