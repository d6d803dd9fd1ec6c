"""A flood at one listener of a real Dispatcher process: the others go on answering, and so does the flooded one.

The process has 512 descriptors, far fewer than there are connections: without limits per listener the flood would take
all of them. `make bench-floods` measures what the others notice of larger ones.
"""

import asyncio
import os
import resource
import socket
import ssl
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.support.postgres import TestCluster
from tracelake.client.errors import DispatcherUnavailableError
from tracelake.client.http import HttpClient
from tracelake.settings import Settings
from tracelake.settings.home import Home
from tracelake.stack import listeners
from tracelake.stack.credentials import LiteCredentials
from tracelake.stack.tls import ensure_tls

DESCRIPTORS = 512
SILENT, HALF, SLOW = 500, 100, 60
ANSWER_SECONDS = 10.0
"""Bounds the wait for one answer on a busy machine; on an idle one it takes a few milliseconds."""
PROBES = {"public": "/v1/whoami", "task": "/internal/jwks/task", "internal": "/healthz"}
STATUS = {"public": 401, "task": 200, "internal": 200}


class FloodedDispatcher:
    """A process of its own, and a client for each of its listeners."""

    def __init__(self, home: Path, state_dsn: str, queue_dsn: str) -> None:
        Home(home).make()
        settings = Settings.load({"home": home}, environ={})
        self.ca = ensure_tls(settings.layout.tls, *settings.bind_hosts).ca
        LiteCredentials.ensure(settings.layout.keys)
        sockets = listeners.bind(settings)
        self.ports = {name: sock.getsockname()[1] for name, sock in sockets.items()}
        self.urls = {name: listeners.url(sock, settings.bind_host_of(name)) for name, sock in sockets.items()}
        self._log = (home / "dispatcher.log").open("ab")
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", "tracelake", "dispatcher", "--home", str(home)],
            env={
                "PATH": os.environ["PATH"],
                "PYTHONPATH": os.environ.get("PYTHONPATH", ""),
                "TRACE_STATE_DSN": state_dsn,
                "TRACE_QUEUE_DSN": queue_dsn,
                "TRACE_S3_ENDPOINT": "http://127.0.0.1:1",
                listeners.VARIABLE: listeners.to_variable(sockets),
            },
            pass_fds=[sock.fileno() for sock in sockets.values()],
            preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (DESCRIPTORS // 2, DESCRIPTORS)),
            stderr=self._log,
            stdout=self._log,
        )
        for sock in sockets.values():
            sock.close()

    def client(self, name: str) -> HttpClient:
        return HttpClient(self.urls[name], self.ca, timeout=ANSWER_SECONDS, max_connections=1)

    def stop(self) -> None:
        self._process.terminate()
        try:
            self._process.wait(30)
        finally:
            self._process.kill()
            self._log.close()

    @property
    def descriptors(self) -> int:
        return len(list(Path(f"/proc/{self._process.pid}/fd").iterdir()))

    @property
    def log(self) -> str:
        return Path(self._log.name).read_text()


@pytest.fixture(scope="module")
def dispatcher(cluster: TestCluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[FloodedDispatcher]:
    state_dsn, queue_dsn = cluster.fresh("state"), cluster.fresh("queue")
    flooded = FloodedDispatcher(tmp_path_factory.mktemp("flooded"), state_dsn, queue_dsn)
    try:
        asyncio.run(until_ready(flooded))
        yield flooded
    finally:
        flooded.stop()
        asyncio.run(cluster.drop(state_dsn))
        asyncio.run(cluster.drop(queue_dsn))


async def until_ready(flooded: FloodedDispatcher) -> None:
    client = HttpClient(flooded.urls["internal"], flooded.ca, timeout=60.0)
    assert (await client.request("GET", "/readyz")).status == 200
    await client.close()


async def connect(port: int) -> socket.socket:
    client = socket.socket()
    client.setblocking(False)
    await asyncio.get_running_loop().sock_connect(client, ("127.0.0.1", port))
    return client


async def flood(flooded: FloodedDispatcher, name: str) -> list[Callable[[], object]]:
    """Open everything at once and keep it open; answers what closes it."""
    port = flooded.ports[name]
    silent = await asyncio.gather(*(connect(port) for _ in range(SILENT)))
    halves = await asyncio.gather(*(connect(port) for _ in range(HALF)))
    for half in halves:
        half.send(b"\x16\x03\x01\x02")
    context = ssl.create_default_context(cafile=str(flooded.ca))
    body = b"POST /v1/task/batch HTTP/1.1\r\nhost: x\r\ncontent-length: 60000\r\n\r\n{"
    slow: list[asyncio.WriteTransport] = []

    async def send_slowly() -> None:
        try:
            _, writer = await asyncio.open_connection("127.0.0.1", port, ssl=context)
            writer.write(body)
            slow.append(writer.transport)
        except OSError:
            pass  # given up for another one

    await asyncio.wait_for(asyncio.gather(*(send_slowly() for _ in range(SLOW))), 60)
    return [*(client.close for client in (*silent, *halves)), *(transport.abort for transport in slow)]


@pytest.mark.parametrize("name", ["public", "task", "internal"])
def test_the_other_listeners_answer(dispatcher: FloodedDispatcher, name: str) -> None:
    async def work() -> None:
        closers = await flood(dispatcher, name)
        try:
            for _ in range(5):
                for other in PROBES.keys() - {name}:
                    client = dispatcher.client(other)  # a new connection each time
                    assert (await client.request("GET", PROBES[other])).status == STATUS[other]
                    await client.close()
            assert dispatcher.descriptors < DESCRIPTORS - 64, "the reserve was not touched"
            client = dispatcher.client(name)  # also the listener itself: who is silent gives way
            assert (await client.request("GET", PROBES[name])).status == STATUS[name]
            await client.close()
        except DispatcherUnavailableError as error:
            pytest.fail(f"{error.message}; {dispatcher.descriptors} descriptors\n{dispatcher.log[-2000:]}")
        finally:
            for close in closers:
                close()

    asyncio.run(work())


def test_limits_that_do_not_fit_are_lowered_with_a_warning(dispatcher: FloodedDispatcher) -> None:
    (warning,) = [line for line in dispatcher.log.splitlines() if "limit of open files is too low" in line]
    assert f'"open_files":{DESCRIPTORS}' in warning.replace(" ", "")
