"""One JSON route behind TLS, served by four stacks: ours, ours without its joined writes, Starlette, FastAPI.

Each server is a child process; all get the same socket, certificate, event loop, HTTP parser and settings of uvicorn.
The route validates a body as strict as ours (two UUIDs, a bounded number, no unknown field) and sends it back. The
peers are imported by name: they are installed beside Trace for this benchmark and are no part of it.

    python -m benchmarks.support.choices_http SUBJECT DESCRIPTOR CERTIFICATE KEY
"""

import asyncio
import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any
from uuid import UUID, uuid4

import msgspec
import uvicorn
import uvloop

from tracelake.client.http import HttpClient
from tracelake.dispatcher.http.credentials import Gatekeeper
from tracelake.dispatcher.metrics import Metrics
from tracelake.http.app import ListenerApp
from tracelake.http.router import HttpRequest, Router, answer
from tracelake.http.server import UVICORN, ListenerServer
from tracelake.processes.listener_limits import listener_limits
from tracelake.settings import Settings
from tracelake.wire import base
from tracelake.wire.contract import Access, Listener, Principal, Route

SUBJECTS = ("trace", "trace_two_writes", "starlette", "fastapi")
PATH = "/echo"
CONNECTIONS = 32
_TICKS = os.sysconf("SC_CLK_TCK")


class Echo(base.Request, frozen=True, kw_only=True):
    task_id: UUID
    attempt: Annotated[int, msgspec.Meta(ge=1, le=2**31 - 1)]
    lease_token: UUID


# --- the applications


class OpenGatekeeper(Gatekeeper):
    """The comparison is about HTTP: nobody has credentials here, as in the peers."""

    def __init__(self) -> None:
        pass

    async def admit(self, request: HttpRequest[Any], header: Callable[[str], str | None]) -> None:
        pass


def trace_app() -> ListenerApp:
    async def echo(request: HttpRequest[Echo]) -> Echo:
        return request.body

    route = Route(Access((Listener.TASK,), Principal.NOBODY), "POST", PATH, "Echo", Echo, Echo)
    return ListenerApp(
        "task",
        Router([answer(route, echo)]),
        OpenGatekeeper(),
        Metrics(),
        body_max_bytes=1024 * 1024,
        batch_body_max_bytes=1024 * 1024,
        webhook_max_bytes=1024 * 1024,
        anonymous_body_bytes=1024 * 1024,
    )


def starlette_app() -> Any:
    applications, responses = import_module("starlette.applications"), import_module("starlette.responses")
    routing = import_module("starlette.routing")
    decoder = msgspec.json.Decoder(Echo)

    async def echo(request: Any) -> Any:
        body = decoder.decode(await request.body())
        return responses.Response(msgspec.json.encode(body), media_type="application/json")

    return applications.Starlette(routes=[routing.Route(PATH, echo, methods=["POST"])])


def fastapi_app() -> Any:
    fastapi, pydantic = import_module("fastapi"), import_module("pydantic")
    attempt = Annotated[int, pydantic.Field(ge=1, le=2**31 - 1)]
    strict = pydantic.ConfigDict(extra="forbid")
    model = pydantic.create_model(
        "Echo", __config__=strict, task_id=(UUID, ...), attempt=(attempt, ...), lease_token=(UUID, ...)
    )

    async def echo(body: Any) -> Any:
        return body

    echo.__annotations__ = {"body": model, "return": model}
    app = fastapi.FastAPI()
    app.post(PATH)(echo)
    return app


# --- the child process


async def _serve(subject: str, listener: socket.socket, certificate: Path, key: Path) -> None:
    if subject == "trace":
        limits = listener_limits(Settings())["public"]
        server = ListenerServer(
            trace_app(),
            listener,
            certificate=certificate,
            private_key=key,
            limits=limits,
        )
        await server.start()
        await asyncio.Event().wait()
    apps = {"trace_two_writes": trace_app, "starlette": starlette_app, "fastapi": fastapi_app}
    plain = uvicorn.Config(
        apps[subject](),
        http="httptools",
        **UVICORN,
        ssl_certfile=str(certificate),
        ssl_keyfile=str(key),
    )
    await uvicorn.Server(plain).serve(sockets=[listener])


# --- the measuring side


class Server:
    """One subject in its process, and the client that drives it."""

    def __init__(self, subject: str, tls: tuple[Path, Path, Path]) -> None:
        ca, certificate, key = tls
        listener = socket.create_server(("127.0.0.1", 0), backlog=1024)
        descriptor = listener.fileno()
        self._process = subprocess.Popen(
            [sys.executable, "-m", __spec__.name, subject, str(descriptor), str(certificate), str(key)],
            pass_fds=(descriptor,),
        )
        url = f"https://127.0.0.1:{listener.getsockname()[1]}"
        listener.close()
        self._client = HttpClient(url, ca, max_connections=CONNECTIONS)
        self._body = msgspec.json.encode({"task_id": uuid4(), "attempt": 1, "lease_token": uuid4()})
        self.cpu_us: list[float] = []
        """The server's processor time per request, one reading per run."""

    async def check(self) -> None:
        """The route gives back what it was sent. The socket is bound, so this waits until the process serves it."""
        reply = await self._client.request("POST", PATH, body=self._body)
        assert reply.status == 200, reply
        assert msgspec.json.decode(reply.body) == msgspec.json.decode(self._body)

    async def rate(self, requests: int) -> float:
        left = requests
        cpu_before, started = self._cpu_seconds(), time.perf_counter()

        async def caller() -> None:
            nonlocal left
            while left > 0:
                left -= 1
                reply = await self._client.request("POST", PATH, body=self._body)
                assert reply.status == 200

        async with asyncio.TaskGroup() as group:
            for _ in range(CONNECTIONS):
                group.create_task(caller())
        seconds = time.perf_counter() - started
        self.cpu_us.append((self._cpu_seconds() - cpu_before) / requests * 1e6)
        return requests / seconds

    async def close(self) -> None:
        await self._client.close()
        self._process.kill()
        self._process.wait(10)

    def _cpu_seconds(self) -> float:
        fields = Path(f"/proc/{self._process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / _TICKS


def main() -> None:
    subject, descriptor, certificate, key = sys.argv[1:]
    listener = socket.socket(fileno=int(descriptor))
    uvloop.run(_serve(subject, listener, Path(certificate), Path(key)))


if __name__ == "__main__":
    main()
