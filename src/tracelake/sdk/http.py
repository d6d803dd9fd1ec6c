"""HTTP of the SDK: one exchange, and what is repeated."""

import http.client
import ssl
import time
from collections.abc import Callable, Mapping
from typing import Protocol
from urllib.parse import urlsplit

_SECONDS = 330.0
"""A query of a task may take 300."""
_TRIES = 6
_FIRST_WAIT_SECONDS = 0.2
_LONGEST_WAIT_SECONDS = 5.0
_REPEATED = (500, 502, 503, 504)
"""All calls of the SDK may be repeated: they are idempotent."""
_AWS = (".amazonaws.com", ".amazonaws.com.cn")


class HttpAnswer:
    def __init__(self, status: int, headers: Mapping[str, str], body: bytes) -> None:
        """Names of headers are in lower case."""
        self.status = status
        self.headers = headers
        self.body = body


class HttpExchange(Protocol):
    def __call__(self, method: str, url: str, headers: Mapping[str, str], body: bytes) -> HttpAnswer:
        """Raises OSError if there is no answer."""
        ...


class NetworkExchange:
    """Exchanges over the network, each on a connection of its own."""

    def __init__(self, ca_file: str | None) -> None:
        self._ca_file = ca_file

    def __call__(self, method: str, url: str, headers: Mapping[str, str], body: bytes) -> HttpAnswer:
        place = urlsplit(url)
        connection: http.client.HTTPConnection
        if place.scheme == "https":
            context = ssl.create_default_context(cafile=self._choose_ca(place.hostname or ""))
            connection = http.client.HTTPSConnection(place.netloc, timeout=_SECONDS, context=context)
        else:
            connection = http.client.HTTPConnection(place.netloc, timeout=_SECONDS)
        try:
            target = place.path + (f"?{place.query}" if place.query else "")
            connection.request(method, target, body if body or method != "GET" else None, dict(headers))
            reply = connection.getresponse()
            names = {name.lower(): value for name, value in reply.getheaders()}
            return HttpAnswer(reply.status, names, reply.read())
        except http.client.HTTPException as error:
            raise OSError(f"no answer: {type(error).__name__}") from error
        finally:
            connection.close()

    def _choose_ca(self, host: str) -> str | None:
        """The platform's own CA does not verify AWS itself, which the object store may be."""
        return None if host.endswith(_AWS) else self._ca_file


def exchange_patiently(
    exchange: HttpExchange,
    make_headers: Callable[[], Mapping[str, str]],
    method: str,
    url: str,
    body: bytes,
    sleep: Callable[[float], None] = time.sleep,
) -> HttpAnswer:
    """Repeats the call while nobody answers or a store is away. The headers are made anew, since signatures have a
    time."""
    wait = _FIRST_WAIT_SECONDS
    for tries in range(1, _TRIES + 1):
        try:
            answer = exchange(method, url, make_headers(), body)
            if answer.status not in _REPEATED or tries == _TRIES:
                return answer
        except OSError:
            if tries == _TRIES:
                raise
        sleep(wait)
        wait = min(wait * 2, _LONGEST_WAIT_SECONDS)
    raise AssertionError("unreachable")
