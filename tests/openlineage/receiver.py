"""A receiver of OpenLineage events on loopback."""

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


@dataclass
class TestReceiver:
    """Answers `status`, or that of `refuse` for a job of this name; while `hold` is not set, it does not answer."""

    __test__ = False

    status: int = 201
    refused_job: str = ""
    hold: threading.Event = field(default_factory=threading.Event)
    asked: threading.Event = field(default_factory=threading.Event)
    """Somebody has sent something."""
    events: list[dict[str, Any]] = field(default_factory=list)
    headers: list[dict[str, str]] = field(default_factory=list)
    paths: list[str] = field(default_factory=list)
    url: str = ""

    def types(self) -> list[str]:
        return [event["eventType"] for event in self.events]


@contextmanager
def receiving() -> Iterator[TestReceiver]:
    state = TestReceiver()
    state.hold.set()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            event = json.loads(self.rfile.read(int(self.headers["content-length"])))
            state.asked.set()
            state.hold.wait(60)
            status = 422 if event["job"]["name"] == state.refused_job else state.status
            if 200 <= status < 300:
                state.events.append(event)
                state.paths.append(self.path)
                state.headers.append({name.lower(): value for name, value in self.headers.items()})
            self.send_response(status)
            self.send_header("content-length", "0")
            self.end_headers()

        def log_message(self, *args: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    state.url = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    try:
        yield state
    finally:
        state.hold.set()
        server.shutdown()
        server.server_close()
        thread.join(10)
