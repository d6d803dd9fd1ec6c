"""What every HTTP client of the data plane needs: answers that come in time, and failures without a server's words."""

import email.utils
import http.client
import io
import socket
import ssl
import time
from collections.abc import Callable
from typing import Any

LONGEST_RETRY_AFTER = 300.0


class TimedResponse(http.client.HTTPResponse):
    """In time, all of it: status, headers and the ends of chunks too, which may come letter by letter."""

    def __init__(self, sock: socket.socket, *args: Any, left: Callable[[], float], **options: Any) -> None:
        super().__init__(sock, *args, **options)
        self.fp.close()
        self.fp = io.BufferedReader(_TimedSocket(sock, left))


class _TimedSocket(io.RawIOBase):
    """What a socket receives, as long as there is time left."""

    def __init__(self, sock: socket.socket, left: Callable[[], float]) -> None:
        self._sock = sock
        self._left = left
        self._raw = sock.makefile("rb", buffering=0)  # keeps the socket open until it is closed itself

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int | None:
        left = self._left()
        if left <= 0:
            raise TimeoutError
        self._sock.settimeout(left)
        return self._raw.readinto(buffer)

    def close(self) -> None:
        self._raw.close()
        super().close()


def read_retry_after(text: str | None) -> float | None:
    """Seconds from the header Retry-After, which is a number or a date; None without one that can be read."""
    if text is None:
        return None
    try:
        seconds = float(text)
    except ValueError:
        try:
            seconds = email.utils.parsedate_to_datetime(text).timestamp() - time.time()
        except ValueError:
            return None
    if seconds != seconds:  # not a number
        return None
    return min(max(0.0, seconds), LONGEST_RETRY_AFTER)


def describe_failure(error: Exception) -> str:
    """Never the error's own words, which may repeat what was sent."""
    if isinstance(error, TimeoutError):
        return "no answer in time"
    if isinstance(error, ssl.SSLCertVerificationError):
        return "its certificate cannot be trusted"
    if isinstance(error, ssl.SSLError):
        return "no TLS connection could be made"
    if isinstance(error, ConnectionRefusedError):
        return "it takes no connections"
    if isinstance(error, http.client.IncompleteRead):
        return "the answer was cut short"
    if isinstance(error, ConnectionError | http.client.RemoteDisconnected):
        return "the connection was lost"
    if isinstance(error, OSError):
        return "it cannot be reached"
    return "the answer is not HTTP as it should be"
