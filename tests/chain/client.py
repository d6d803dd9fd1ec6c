"""A plain client for the tests: one connection, one request at a time, nothing hidden."""

import http.client
import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit


@dataclass(frozen=True, slots=True)
class Answer:
    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


class Client:
    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        assert parts.hostname is not None
        self.connection = http.client.HTTPConnection(parts.hostname, parts.port, timeout=60)
        self._path = parts.path or "/"

    def post(self, body: bytes, headers: Mapping[str, str] | None = None, *, method: str = "POST") -> Answer:
        self.connection.request(method, self._path, body, {"content-type": "application/json", **(headers or {})})
        response = self.connection.getresponse()
        read = response.read()
        return Answer(response.status, {name.lower(): value for name, value in response.getheaders()}, read)

    def batch(self, *calls: tuple[str, list[Any]]) -> Any:
        """The answers to calls with the ids 0, 1, ..."""
        return self.post(json.dumps([request(*call, id=number) for number, call in enumerate(calls)]).encode()).json

    def ask(self, method: str, *params: Any) -> Any:
        """The whole JSON-RPC answer."""
        return self.post(json.dumps(request(method, list(params))).encode()).json

    def call(self, method: str, *params: Any) -> Any:
        answer = self.ask(method, *params)
        assert answer.keys() == {"jsonrpc", "id", "result"}, answer
        return answer["result"]

    def error(self, method: str, *params: Any) -> int:
        """The code of the error that the call is answered with."""
        answer = self.ask(method, *params)
        assert answer.keys() == {"jsonrpc", "id", "error"}, answer
        assert isinstance(answer["error"]["message"], str)
        code: int = answer["error"]["code"]
        return code


def request(method: str, params: list[Any], id: int = 1) -> dict[str, Any]:  # noqa: A002 (its name on the wire)
    return {"jsonrpc": "2.0", "id": id, "method": method, "params": params}


@contextmanager
def connected(url: str) -> Iterator[Client]:
    client = Client(url)
    try:
        yield client
    finally:
        client.connection.close()
