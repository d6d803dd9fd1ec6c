"""A local server that keeps what is sent with PUT, as presigned addresses of an object store do."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import msgspec

from tracelake.wire.claims import LogAddresses
from tracelake.wire.run_logs import RunLog


class LogStore:
    def __init__(self) -> None:
        self.objects: dict[str, bytes] = {}
        self.uploads: list[tuple[str, int]] = []
        """Each upload that arrived: its name and size."""
        self.statuses: list[int] = []
        """What the next uploads are answered with; 0 closes the connection without a word."""
        self.arrived = threading.Event()
        store = self

        class Handler(BaseHTTPRequestHandler):
            def do_PUT(self) -> None:
                body = self.rfile.read(int(self.headers["content-length"]))
                name = self.path.strip("/").partition("?")[0]
                store.uploads.append((name, len(body)))
                status = store.statuses.pop(0) if store.statuses else 200
                if status == 200 and self.headers.get("if-none-match") == "*" and name in store.objects:
                    status = 412
                if status == 200:
                    store.objects[name] = body
                store.arrived.set()
                if status:
                    self.send_response(status)
                    self.send_header("content-length", "0")
                    self.end_headers()

            def log_message(self, *arguments: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def addresses(self, name: str = "run") -> LogAddresses:
        base = f"http://127.0.0.1:{self._server.server_port}/{name}"
        return LogAddresses(
            running_url=f"{base}/running?X-Amz-Signature=ab", final_url=f"{base}/final?X-Amz-Signature=cd"
        )

    def log(self, name: str) -> RunLog:
        return msgspec.json.decode(self.objects[name], type=RunLog)

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


@contextmanager
def open_log_store() -> Iterator[LogStore]:
    store = LogStore()
    try:
        yield store
    finally:
        store.close()
