"""A Runtime API that behaves as AWS Lambda's: one process serves many events, and is frozen or ended between them."""

import json
import queue
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from time import time
from typing import Any, ClassVar

_PREFIX = "/2018-06-01/runtime"


class LambdaRuntimeApi:
    """Hands events out in their order, and keeps how each of them ended."""

    def __init__(self) -> None:
        self.address = ""
        self.events: queue.Queue[tuple[str, Any] | None] = queue.Queue()
        self.endings: queue.Queue[tuple[str, str, Any]] = queue.Queue()
        """The id of the invocation, `response` or `error`, and the body."""
        self._count = 0

    def invoke(self, event: Any) -> tuple[str, Any]:
        """Returns `response` or `error`, with its body."""
        self._count += 1
        request_id = f"8476a536-e9f4-11e8-9739-{self._count:012d}"
        self.events.put((request_id, event))
        answered_id, kind, body = self.endings.get(timeout=120)
        assert answered_id == request_id
        return kind, body


class RuntimeApiHandler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    api: ClassVar[LambdaRuntimeApi]

    def do_GET(self) -> None:
        assert self.path == f"{_PREFIX}/invocation/next"
        item = self.api.events.get()
        if item is None:
            self.close_connection = True
            return
        request_id, event = item
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Lambda-Runtime-Aws-Request-Id", request_id)
        self.send_header("Lambda-Runtime-Deadline-Ms", str(int(time() * 1000) + 60_000))
        arn = "arn:aws:lambda:us-east-1:123456789012:function:large_moves"
        self.send_header("Lambda-Runtime-Invoked-Function-Arn", arn)
        self.send_header("Lambda-Runtime-Trace-Id", f"Root=1-5bef4de7-{request_id[-12:]}ad49b0e8;Sampled=1")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        data = json.dumps(event).encode()
        for start in range(0, len(data), 1000):
            part = data[start : start + 1000]
            self.wfile.write(f"{len(part):x}\r\n".encode() + part + b"\r\n")
        self.wfile.write(b"0\r\n\r\n")

    def do_POST(self) -> None:
        parts = self.path.removeprefix(f"{_PREFIX}/").split("/")
        if self.headers.get("transfer-encoding") == "chunked":
            body = b""
            while size := int(self.rfile.readline(), 16):
                body += self.rfile.read(size)
                self.rfile.readline()
            self.rfile.readline()
        else:
            body = self.rfile.read(int(self.headers["content-length"]))
        if parts[0] == "init":
            parts = ["invocation", "init", "error"]
        self.api.endings.put((parts[1], parts[2], json.loads(body)))
        reply = b'{"status":"OK"}'
        self.send_response(202)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(reply)))
        self.end_headers()
        self.wfile.write(reply)

    def log_message(self, *arguments: Any) -> None:
        pass


class RuntimeApiServer(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A process that is killed while it waits for an event is no error."""


@contextmanager
def runtime_api() -> Iterator[LambdaRuntimeApi]:
    api = LambdaRuntimeApi()
    server = RuntimeApiServer(("127.0.0.1", 0), type("Handler", (RuntimeApiHandler,), {"api": api}))
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    api.address = f"127.0.0.1:{server.server_address[1]}"
    try:
        yield api
    finally:
        api.events.put(None)
        server.shutdown()
        thread.join()
        server.server_close()
