"""`trace` with stand-ins for the Dispatcher, the scheduler and the worker: `python -m tests.support.fake_stack up ...`.

The supervisor, Postgres, TLS, sockets and signals are real; only the children's work is not.
"""

import os
import signal
import ssl
import sys
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from socket import socket

from tracelake.processes import parts, up
from tracelake.processes.main import main
from tracelake.settings import Settings
from tracelake.settings.home import CredentialFiles, Home, write_private
from tracelake.stack.listeners import inherited
from tracelake.stack.machine import wrap
from tracelake.stack.tls import tls_files


class _Ready(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(200 if self.path == "/readyz" else 404)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_request(self, code: int | str = "-", size: int | str = "-") -> None:
        pass


def dispatcher() -> None:
    settings = Settings.load()
    if settings.home.with_name("broken").exists():
        sys.exit("this dispatcher is broken")
    settings.resolve_state_dsn()
    files = tls_files(settings.layout.tls)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(files.certificate, files.key)
    sockets = inherited()
    assert sockets is not None
    for listener in sockets.values():
        threading.Thread(target=_serve, args=(listener, context), daemon=True).start()
    signal.sigwait({signal.SIGTERM})


def _serve(listener: socket, context: ssl.SSLContext) -> None:
    server = HTTPServer(("", 0), _Ready, bind_and_activate=False)
    server.socket.close()
    server.socket = context.wrap_socket(listener, server_side=True)
    server.serve_forever()


def worker() -> None:
    settings = Settings.load()
    settings.resolve_queue_dsn()
    if not settings.home.with_name("stubborn").exists():
        signal.sigwait({signal.SIGTERM})
        return
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    (settings.home / "ignores SIGTERM").touch()
    signal.sigwait({signal.SIGUSR1})


def scheduler() -> None:
    Settings.load()
    signal.sigwait({signal.SIGTERM})


def child_command(name: str) -> list[str]:
    return wrap([sys.executable, "-m", "tests.support.fake_stack", f"fake-{name}"], death_signal=signal.SIGKILL)


def credentials(settings: Settings, home: Home) -> CredentialFiles:
    paths: list[Path] = [home.keys / f"{name}.token" for name in ("worker", "service", "admin")]
    for path in paths:
        write_private(path, "token\n")
    return CredentialFiles(*paths)


if __name__ == "__main__":
    if sys.argv[1] == "fake-dispatcher":
        dispatcher()
    elif sys.argv[1] == "fake-worker":
        worker()
    elif sys.argv[1] == "fake-scheduler":
        scheduler()
    else:
        os.environ.setdefault("TRACE_QUERY_SERVICE", "false")  # there is no stand-in for it
        os.environ.setdefault("TRACE_RUNNER", "false")
        parts._child_command = child_command
        up.prepare_credentials = credentials
        main(sys.argv[1:])
