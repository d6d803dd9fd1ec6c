"""Answers are asked for packed where that saves time, read into one piece, and no larger than memory is meant for."""

import gzip
import http.server
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from unittest.mock import Mock

import pytest

from tests.spark.evm.support import pool_of
from tests.support.chain import serve_chain
from tracelake.spark.evm import node as nodes
from tracelake.spark.evm.chunk import stretches
from tracelake.spark.evm.endpoints import parse_endpoint
from tracelake.spark.evm.errors import IncompleteAnswerError, TooLargeError
from tracelake.spark.evm.http import MAX_ANSWER_BYTES, HttpNode, HttpOptions, _is_near

ANSWER = b'{"id":1,"result":"0x' + b"1f" * 200_000 + b'"}'


def peer(address: str) -> Mock:
    """A socket that is connected to this address."""
    return Mock(spec=socket.socket, getpeername=lambda: (address, 8545))


@pytest.mark.parametrize(
    "near", ["127.0.0.1", "::1", "10.1.2.3", "192.168.0.9", "172.16.0.1", "fd00::1", "fe80::1%eth0"]
)
def test_neighbours(near: str) -> None:
    assert _is_near(peer(near))


@pytest.mark.parametrize("far", ["1.1.1.1", "2606:4700::1111", "172.32.0.1"])
def test_others(far: str) -> None:
    assert not _is_near(peer(far))


@contextmanager
def answering(headers: dict[str, str], body: bytes) -> Iterator[tuple[HttpNode, list[str | None]]]:
    asked: list[str | None] = []

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            asked.append(self.headers["accept-encoding"])
            self.rfile.read(int(self.headers["content-length"]))
            self.send_response(200)
            for name, value in headers.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    with http.server.HTTPServer(("127.0.0.1", 0), Handler) as server:
        serving = threading.Thread(target=server.serve_forever, args=(0.01,))
        serving.start()
        node = HttpNode(parse_endpoint(f"http://127.0.0.1:{server.server_port}"), HttpOptions(answer_seconds=10.0))
        try:
            yield node, asked
        finally:
            node.close()
            server.shutdown()
            serving.join()


def test_a_neighbour_is_not_asked_to_pack_its_answer_and_may_do_so_all_the_same() -> None:
    packed = gzip.compress(ANSWER)
    for headers, body in (
        ({"content-length": str(len(ANSWER))}, ANSWER),
        ({"content-length": str(len(packed)), "content-encoding": "gzip"}, packed),
        ({"content-encoding": "gzip"}, packed),
        ({}, ANSWER),
    ):
        with answering(headers, body) as (node, asked):
            assert node.post(b"{}", until=float("inf")).body == ANSWER
            assert asked == ["identity"]


def test_an_answer_shorter_than_it_says_is_none() -> None:
    with (
        answering({"content-length": str(len(ANSWER) + 1)}, ANSWER) as (node, _),
        pytest.raises(IncompleteAnswerError, match="cut short"),
    ):
        node.post(b"{}", until=float("inf"))


def test_an_answer_that_says_it_is_huge_is_not_waited_for() -> None:
    with (
        answering({"content-length": str(MAX_ANSWER_BYTES + 1)}, b"") as (node, _),
        pytest.raises(TooLargeError),
    ):
        node.post(b"{}", until=float("inf"))


def test_a_request_carries_as_many_calls_as_their_answers_are_small(monkeypatch: pytest.MonkeyPatch) -> None:
    with serve_chain(200) as chain:
        pool = pool_of(chain, batch_size=50)
        assert sum(len(stretch.numbers) for stretch in stretches(pool, 0, 199, ["blocks"])) == 200
        wide = chain.requests
        monkeypatch.setattr(nodes, "_ANSWER_BYTES", 4096)
        assert sum(len(stretch.numbers) for stretch in stretches(pool, 0, 199, ["blocks"])) == 200
        assert chain.requests - wide > 2 * wide
        pool.close()
