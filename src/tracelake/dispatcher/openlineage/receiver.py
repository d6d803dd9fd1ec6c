"""The HTTP of a receiver of OpenLineage events: one POST for each event, on one connection, with a time limit.

The address is the operator's, and redirects are not followed. Neither the key nor a word of the receiver is logged.
"""

import http.client
import ssl
import time
from enum import Enum
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import msgspec

from tracelake.outbound_http import TimedResponse, describe_failure

PATH = "/api/v1/lineage"
"""Where Marquez and others receive events, unless the address has a path."""
TIMEOUT_SECONDS = 5.0
_MAX_KEY_BYTES = 4096
_REPLY_BYTES = 64 * 1024
_LATER = frozenset({401, 403, 404, 405, 407, 408, 425, 429})
"""The receiver is not ready, or the address or the key is wrong: an event may be received later."""


class SendOutcome(Enum):
    RECEIVED = "received"
    REJECTED = "rejected"
    """The receiver will not take this event, however often it is sent."""
    LATER = "later"


class LineageReceiver:
    """Used from one thread at a time."""

    def __init__(self, url: str, key_file: Path | None) -> None:
        parts = urlsplit(url)
        self._secure = parts.scheme == "https"
        self._host, self._port = parts.hostname or "", parts.port
        self._path = parts.path if parts.path.strip("/") else PATH
        self._key_file = key_file
        self._connection: http.client.HTTPConnection | None = None
        self.failure = ""
        """Why the last event was not received, in words of this process."""

    @property
    def address(self) -> str:
        """Host and port; the rest may be a secret."""
        return f"{self._host}:{self._port}" if self._port else self._host

    def send(self, events: list[dict[str, Any]], seconds: float) -> list[SendOutcome]:
        """Sends events in their order, up to the first that has to wait, and as long as there is time."""
        outcomes: list[SendOutcome] = []
        until = time.monotonic() + seconds
        for event in events:
            if outcomes and time.monotonic() > until:
                break
            outcomes.append(self._send(event))
            if outcomes[-1] is SendOutcome.LATER:
                break
        return outcomes

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _send(self, event: dict[str, Any]) -> SendOutcome:
        fresh = self._connection is None
        try:
            return self._post(event)
        except (OSError, http.client.HTTPException, ValueError) as error:
            self.close()
            self.failure = describe_failure(error)
        if fresh:
            return SendOutcome.LATER
        return self._send(event)  # the receiver had closed a connection that was kept

    def _post(self, event: dict[str, Any]) -> SendOutcome:
        headers = {"content-type": "application/json", "user-agent": "tracelake"}
        if self._key_file is not None:
            try:
                headers["authorization"] = f"Bearer {self._read_key()}"
            except (OSError, ValueError):
                self.failure = "openlineage_key_file cannot be read"
                return SendOutcome.LATER
        if self._connection is None:
            self._connection = self._connect()
        until = time.monotonic() + TIMEOUT_SECONDS
        self._connection.response_class = partial(TimedResponse, left=lambda: until - time.monotonic())  # type: ignore[assignment]
        self._connection.request("POST", self._path, msgspec.json.encode(event), headers)
        reply = self._connection.getresponse()
        body = reply.read(_REPLY_BYTES + 1)
        if len(body) > _REPLY_BYTES or reply.will_close:
            self.close()
        if 200 <= reply.status < 300:
            return SendOutcome.RECEIVED
        self.failure = f"it answers {reply.status}"
        return (
            SendOutcome.LATER
            if reply.status >= 500 or reply.status < 400 or reply.status in _LATER
            else SendOutcome.REJECTED
        )

    def _connect(self) -> http.client.HTTPConnection:
        if not self._secure:
            return http.client.HTTPConnection(self._host, self._port, timeout=TIMEOUT_SECONDS)
        context = ssl.create_default_context()
        return http.client.HTTPSConnection(self._host, self._port, timeout=TIMEOUT_SECONDS, context=context)

    def _read_key(self) -> str:
        """Read for each event, so that a new key needs no restart."""
        assert self._key_file is not None
        with self._key_file.open("rb") as file:
            return file.read(_MAX_KEY_BYTES).decode("ascii").strip()
