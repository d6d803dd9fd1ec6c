"""A route that is declared once is served, called by the client and documented, as CONTRIBUTING.md says."""

import asyncio
from collections.abc import MutableMapping
from typing import Any
from urllib.parse import urlsplit

import msgspec
import pytest
from tools.openapi import build_openapi

from tests.http.support import OpenGate
from tracelake.client.http import HttpClient, HttpReply
from tracelake.client.user import TextCredential, UserClient
from tracelake.dispatcher.metrics import Metrics
from tracelake.errors import TraceError
from tracelake.http.app import ListenerApp
from tracelake.http.router import HttpRequest, Router, answer
from tracelake.wire import parameters as p
from tracelake.wire.base import Reply, Request
from tracelake.wire.contract import Access, Listener, Principal, Role, Route


class NoteRequest(Request, frozen=True, kw_only=True):
    text: str


class NoteReply(Reply, frozen=True, kw_only=True):
    dag: str
    text: str
    copies: int


WRITE_NOTE = Route(
    Access((Listener.PUBLIC,), Principal.USER, Role.WRITER),
    "POST",
    "/v1/dags/{dag}/notes",
    "Write a note about a DAG",
    NoteRequest,
    NoteReply,
    query=(p.number("copies", "How many.", least=1, default=1),),
    errors=("trigger_conflict",),
)


async def write_note(request: HttpRequest[NoteRequest]) -> NoteReply:
    if request.body.text == "taken":
        raise TraceError("trigger_conflict")
    return NoteReply(dag=request["dag"], text=request.body.text, copies=request["copies"])


class InProcessClient(HttpClient):
    """Its server is an application in this process."""

    def __init__(self) -> None:
        self._app = ListenerApp(
            "public",
            Router([answer(WRITE_NOTE, write_note)]),
            OpenGate(),
            Metrics(),
            body_max_bytes=1000,
            batch_body_max_bytes=1000,
            webhook_max_bytes=1000,
            anonymous_body_bytes=1000,
        )

    async def request(self, method: str, path: str, *, body: bytes | None = None, **_options: Any) -> HttpReply:
        url = urlsplit(path)
        scope = {"type": "http", "method": method, "path": url.path, "query_string": url.query.encode(), "headers": []}
        sent: list[MutableMapping[str, Any]] = []

        async def receive() -> MutableMapping[str, Any]:
            return {"type": "http.request", "body": body or b"", "more_body": False}

        async def send(message: MutableMapping[str, Any]) -> None:
            sent.append(message)

        await self._app(scope, receive, send)
        return HttpReply(sent[0]["status"], sent[1]["body"])


@pytest.fixture
def client() -> UserClient:
    return UserClient(InProcessClient(), TextCredential("token"))


def test_it_is_served_and_called_by_its_declaration(client: UserClient) -> None:
    call = client.call(WRITE_NOTE, NoteRequest(text="hello"), dag="pools", copies=2)
    assert asyncio.run(call) == NoteReply(dag="pools", text="hello", copies=2)
    default = client.call(WRITE_NOTE, NoteRequest(text="hello"), dag="pools")
    assert asyncio.run(default).copies == 1


@pytest.mark.parametrize(
    ("text", "parameters", "code"),
    [
        ("taken", {"dag": "pools"}, "trigger_conflict"),
        ("hello", {"dag": "pools", "copies": 0}, "body_invalid"),
        ("hello", {"dag": "No Name"}, "dag_not_found"),
        ("x" * 2000, {"dag": "pools"}, "body_too_large"),
    ],
)
def test_its_errors_reach_the_caller(client: UserClient, text: str, parameters: dict[str, Any], code: str) -> None:
    with pytest.raises(TraceError) as caught:
        asyncio.run(client.call(WRITE_NOTE, NoteRequest(text=text), **parameters))
    assert caught.value.code == code


def test_a_parameter_that_it_does_not_have_is_an_error_of_the_caller(client: UserClient) -> None:
    with pytest.raises(TypeError, match="has no parameter job"):
        asyncio.run(client.call(WRITE_NOTE, NoteRequest(text="hello"), dag="pools", job="x"))


def test_it_is_documented() -> None:
    document = build_openapi(Listener.PUBLIC, [WRITE_NOTE])
    operation = document["paths"]["/v1/dags/{dag}/notes"]["post"]
    assert set(operation["responses"]) == {"200", "400", "401", "403", "404", "413", "422", "429", "500", "503"}
    assert {item["name"] for item in operation["parameters"]} == {"dag", "copies"}
    assert set(document["components"]["schemas"]) >= {"NoteRequest", "NoteReply"}
    assert msgspec.json.encode(document)
