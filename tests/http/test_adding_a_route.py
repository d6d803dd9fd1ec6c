"""A route that is declared once is served, called by a command and documented, as CONTRIBUTING.md says.

The first part of this file is what the four source files would hold.
"""

import asyncio
import re
from collections.abc import Callable, MutableMapping
from pathlib import Path
from typing import Any
from unittest.mock import Mock
from urllib.parse import urlsplit

import click
import msgspec
import pytest
from click.testing import CliRunner
from tools.openapi import build_openapi

from tests.http.support import OpenGate
from tracelake.cli.session import Session, user_command
from tracelake.client.http import HttpClient, HttpReply
from tracelake.client.stack import Stack
from tracelake.client.user import TextCredential, UserClient
from tracelake.dispatcher.metrics import Metrics
from tracelake.errors import TraceError
from tracelake.http.app import ListenerApp
from tracelake.http.router import Router, answer
from tracelake.processes.main import one_line
from tracelake.wire import parameters as p
from tracelake.wire.base import Reply, Request
from tracelake.wire.contract import Access, Listener, Principal, Role, Route

ROOT = Path(__file__).parents[2]

# The feature itself: a module below dispatcher/


async def write_note(dag: str, text: str, copies: int) -> "NoteReply":
    if text == "taken":
        raise TraceError("trigger_conflict")
    return NoteReply(dag=dag, text=text, copies=copies)


# 1. src/tracelake/wire/<subject>.py


class NoteRequest(Request, frozen=True, kw_only=True):
    text: str


class NoteReply(Reply, frozen=True, kw_only=True):
    dag: str
    text: str
    copies: int


# 2. src/tracelake/wire/routes.py

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


# 3. src/tracelake/dispatcher/http/user_endpoints.py

ENDPOINT = answer(WRITE_NOTE, lambda request: write_note(request["dag"], request.body.text, request["copies"]))

# 4. src/tracelake/cli/<command>.py


@click.command()
@click.argument("dag")
@click.argument("text")
@click.option("--copies", type=int, default=1)
@user_command
def note(session: Session, dag: str, text: str, copies: int) -> None:
    """Write a note about a DAG."""
    request = NoteRequest(text=text)
    reply = session.ask(lambda client: client.call(WRITE_NOTE, request, dag=dag, copies=copies))
    session.say(f"Wrote {reply.copies} copies to {reply.dag}.")


# What follows from them


class InProcessClient(HttpClient):
    """Its server is an application in this process."""

    def __init__(self) -> None:
        self._app = ListenerApp(
            "public",
            Router([ENDPOINT]),
            OpenGate(),
            Metrics(),
            body_max_bytes=1000,
            batch_body_max_bytes=1000,
            webhook_max_bytes=1000,
            anonymous_body_bytes=1000,
        )

    async def close(self) -> None:
        pass

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


@pytest.fixture
def command(client: UserClient, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[..., Any]:
    """Runs the command on a stack whose public listener is in this process."""
    monkeypatch.setattr(UserClient, "of_stack", lambda *_, **_options: client)
    monkeypatch.setattr(Session, "stack", Mock(spec=Stack))

    def run(*arguments: str) -> Any:
        return CliRunner().invoke(note, [*arguments, "--home", str(tmp_path)])

    return run


def test_its_command_shows_the_reply(command: Callable[..., Any]) -> None:
    assert command("pools", "hello", "--copies", "2").output == "Wrote 2 copies to pools.\n"


def test_its_command_prints_the_reply_as_json(command: Callable[..., Any]) -> None:
    shown = msgspec.json.decode(command("pools", "hello", "--json").stdout)
    assert shown == {"dag": "pools", "text": "hello", "copies": 1}


def test_errors_need_no_code_in_its_command(command: Callable[..., Any]) -> None:
    result = command("pools", "taken", "--json")
    assert msgspec.json.decode(result.stdout)["error"]["code"] == "trigger_conflict"
    line = one_line(result.exception)
    assert line is not None
    assert line.startswith("trigger_conflict: ")


def test_the_page_names_the_four_files() -> None:
    page = (ROOT / "CONTRIBUTING.md").read_text()
    section = page.partition("## Adding a route and its command")[2]
    files = re.findall(r"^\d\. `(src/tracelake/[^`]+)`", section, re.M)
    assert files == re.findall(r"^# \d\. (src/tracelake/\S+)$", Path(__file__).read_text(), re.M)
    assert len(files) == 4
    assert all((ROOT / re.sub(r"/<\w+>\.py$", "", name)).exists() for name in files)


def test_it_is_documented() -> None:
    document = build_openapi(Listener.PUBLIC, [WRITE_NOTE])
    operation = document["paths"]["/v1/dags/{dag}/notes"]["post"]
    assert set(operation["responses"]) == {"200", "400", "401", "403", "404", "413", "422", "429", "500", "503"}
    assert {item["name"] for item in operation["parameters"]} == {"dag", "copies"}
    assert set(document["components"]["schemas"]) >= {"NoteRequest", "NoteReply"}
    assert msgspec.json.encode(document)
