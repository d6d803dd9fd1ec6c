"""Whatever goes wrong between us and the nodes, what is read is right, or the error says what is wrong where."""

import http.server
import socket
import ssl
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from tests.chain.faults import (
    Delay,
    Drop,
    Fault,
    NotJson,
    PartialBatch,
    RpcErrors,
    ShuffledBatch,
    Status,
    Truncate,
    WrongIds,
)
from tests.spark.evm.support import CHAIN_ID, expected, pool_of
from tests.support.chain import ServedChain, recorded, serve_chain
from tracelake.spark.evm.endpoints import parse_endpoint
from tracelake.spark.evm.errors import (
    AnswerError,
    BrokenChainError,
    ChainMismatchError,
    ForeignReceiptsError,
    IncompleteAnswerError,
    MissingAnswerError,
    RateLimitedError,
    RefusedError,
    RpcError,
    TooLargeError,
    UnavailableError,
    ValueTooLargeError,
    WrongBlockError,
    WrongReceiptsError,
)
from tracelake.spark.evm.fetch import Stretch, fetch
from tracelake.spark.evm.http import HttpNode, HttpOptions
from tracelake.spark.evm.node import ProgressDeadline, RpcNode, RpcOptions
from tracelake.spark.evm.node_pool import RpcPool, head_of

TABLES = ("blocks", "transactions", "logs")
BLOCKS = 60
ASKED = range(10, 40)


@pytest.fixture
def chain() -> Iterator[ServedChain]:
    with serve_chain(BLOCKS) as served:
        yield served


@pytest.fixture
def other() -> Iterator[ServedChain]:
    with serve_chain(BLOCKS) as served:
        yield served


def assert_right(stretch: Stretch) -> None:
    wanted = expected(recorded(BLOCKS)[ASKED.start : ASKED.stop])
    for table in TABLES:
        assert stretch.tables[table].to_pylist() == wanted[table]


def read(pool: RpcPool) -> Stretch:
    try:
        return fetch(pool, ASKED, TABLES)
    finally:
        pool.close()


TRANSPORT: dict[str, tuple[Fault, type[RpcError]]] = {
    "dropped": (Drop(), UnavailableError),
    "truncated": (Truncate(300), UnavailableError),
    "not json": (NotJson(), UnavailableError),
    "500": (Status(500), UnavailableError),
    "502": (Status(502, body=b"<html>"), UnavailableError),
    "503": (Status(503), UnavailableError),
    "429": (Status(429), RateLimitedError),
    "413": (Status(413), TooLargeError),
    "429 with a wait": (Status(429, retry_after="0"), RateLimitedError),
    "a strange wait": (Status(429, retry_after="soon"), RateLimitedError),
    "limits as errors": (RpcErrors(-32005, "daily request count exceeded, request rate limited"), RateLimitedError),
    "too large as errors": (RpcErrors(-32000, "response size should not exceed 10 MB: too large"), TooLargeError),
    "errors": (RpcErrors(-32000, "header not found"), UnavailableError),
    "wrong ids": (WrongIds(), AnswerError),
    "no answers": (PartialBatch(0), MissingAnswerError),
}


@pytest.mark.parametrize("name", TRANSPORT)
def test_a_fault_that_passes_is_waited_out(chain: ServedChain, name: str) -> None:
    fault, _ = TRANSPORT[name]
    pool = pool_of(chain, tries=10)
    chain.inject(fault, times=2, when=lambda calls: calls[0].method != "eth_chainId")
    assert_right(read(pool))


@pytest.mark.parametrize("name", TRANSPORT)
def test_a_fault_that_stays_is_named(chain: ServedChain, name: str) -> None:
    fault, error = TRANSPORT[name]
    chain.inject(fault, times=None)
    with pytest.raises(error, match="node-1"):
        read(pool_of(chain, tries=3))


@pytest.mark.parametrize("name", TRANSPORT)
def test_a_second_endpoint_stands_in(chain: ServedChain, other: ServedChain, name: str) -> None:
    fault, _ = TRANSPORT[name]
    chain.inject(fault, times=None)
    assert_right(read(pool_of(chain, other, tries=12)))


def test_a_dead_endpoint_is_passed_over(other: ServedChain) -> None:
    with serve_chain(BLOCKS) as dead:
        url = dead.url
    pool = pool_of(url, other)
    assert_right(fetch(pool, ASKED, TABLES))
    assert_right(read(pool))
    assert pool.nodes[0].failures == 1, "it was not tried again"
    assert len([call for call in other.calls if call.method == "eth_chainId"]) == 1


def test_a_slow_endpoint_is_given_up_for_another(chain: ServedChain, other: ServedChain) -> None:
    chain.inject(Delay(until=threading.Event()), times=None)
    assert_right(read(pool_of(chain, other, http=HttpOptions(answer_seconds=0.2))))
    with pytest.raises(UnavailableError, match="no answer in time"):
        read(pool_of(chain, tries=2, http=HttpOptions(answer_seconds=0.2)))


def test_answers_in_any_order(chain: ServedChain) -> None:
    chain.inject(ShuffledBatch(), times=None)
    assert_right(read(pool_of(chain)))


def test_parts_of_a_batch_are_kept_and_the_rest_is_asked_for(chain: ServedChain) -> None:
    pool = pool_of(chain, batch_size=30, tries=1)
    chain.inject(PartialBatch(7), times=None, when=lambda calls: len(calls) > 7)
    assert_right(read(pool))
    assert pool.nodes[0].batch_size < 30, "and the next batches are smaller"


def test_batches_become_smaller_where_they_are_refused(chain: ServedChain) -> None:
    pool = pool_of(chain, batch_size=30, tries=6)
    chain.inject(Status(413), times=None, when=lambda calls: len(calls) > 4)
    assert_right(read(pool))
    assert pool.nodes[0].batch_size <= 4


def test_receipts_one_by_one_where_there_are_none_by_block(chain: ServedChain) -> None:
    no_method = RpcErrors(-32601, "the method eth_getBlockReceipts does not exist/is not available")
    chain.inject(no_method, times=None, when=lambda calls: calls[0].method == "eth_getBlockReceipts")
    pool = pool_of(chain)
    assert_right(fetch(pool, ASKED, TABLES))
    assert_right(read(pool))
    asked = [call for call in chain.calls if call.method == "eth_getBlockReceipts"]
    assert len(asked) <= pool.options.batch_size, "it is asked once"


DATA: dict[str, tuple[Callable[[ServedChain], None], type[RpcError], str]] = {
    "null block": (lambda chain: chain.null_block(20), MissingAnswerError, "null for block 20"),
    "null receipts": (lambda chain: chain.null_receipts(20), MissingAnswerError, "the receipts of block 20"),
    "too few receipts": (lambda chain: chain.lose_receipts(20), WrongReceiptsError, "block 20 has"),
    "other number": (lambda chain: chain.misnumber(20, 21), WrongBlockError, "asked for block 20"),
    "broken parent": (lambda chain: chain.break_parent(20), BrokenChainError, "block 20 is not the child"),
}


@pytest.mark.parametrize("name", DATA)
def test_an_endpoint_that_errs_is_caught(chain: ServedChain, other: ServedChain, name: str) -> None:
    break_it, error, said = DATA[name]
    break_it(chain)
    with pytest.raises(error, match=f"^node-1: .*{said}"):
        read(pool_of(chain, tries=2))
    assert_right(read(pool_of(chain, other)))


def test_a_value_that_no_column_holds_is_believed_when_all_nodes_say_it(chain: ServedChain, other: ServedChain) -> None:
    def lie(block: dict[str, Any], receipts: list[dict[str, Any]]) -> tuple[dict[str, Any], list[dict[str, Any]]]:
        return {**block, "gasUsed": hex(2**64)}, receipts

    chain._change(20, lie)
    assert_right(read(pool_of(chain, other)))
    other._change(20, lie)
    for nodes in ((chain,), (chain, other)):
        with pytest.raises(ValueTooLargeError, match="a value of gas_used is 18446744073709551616"):
            read(pool_of(*nodes))


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (b"HTTP/1.1 200 OK\r\nx: ", b"\r\ncontent-length: 2\r\n\r\n[]"),
        (b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n2;", b"\r\n[]\r\n0\r\n\r\n"),
    ],
    ids=["headers", "the size of a chunk"],
)
def test_an_answer_that_trickles_is_given_up(before: bytes, after: bytes) -> None:
    over = threading.Event()

    def trickle(server: socket.socket) -> None:
        peer, _ = server.accept()
        with peer, suppress(OSError):  # the other side has gone, as it should
            peer.recv(65536)
            peer.sendall(before)
            for _ in range(100):
                if over.wait(0.02):
                    return
                peer.sendall(b"x")
            peer.sendall(after)

    with socket.create_server(("127.0.0.1", 0)) as server:
        thread = threading.Thread(target=trickle, args=(server,))
        thread.start()
        address = parse_endpoint(f"http://127.0.0.1:{server.getsockname()[1]}")
        node = HttpNode(address, HttpOptions(connect_seconds=5.0, answer_seconds=0.2))
        try:
            with pytest.raises(UnavailableError, match="no answer in time"):
                node.post(b"[]", until=float("inf"))
        finally:
            over.set()
            thread.join()


def test_receipts_of_another_block_are_caught(chain: ServedChain) -> None:
    """The chain is reorganised after the blocks were read, before their receipts are."""

    def reorganise(calls: object) -> None:
        if chain.calls[-1].method == "eth_getBlockReceipts" and not done:
            done.append(True)
            chain.reorganise(15)

    done: list[bool] = []
    chain.watch(reorganise)
    with pytest.raises((ForeignReceiptsError, WrongReceiptsError), match="block 15"):
        read(pool_of(chain, tries=1))
    done.clear()
    chain.restore()
    stretch = read(pool_of(chain))
    wanted = expected([chain.block(number) for number in ASKED])
    assert stretch.tables["transactions"].to_pylist() == wanted["transactions"], "the whole stretch is read again"


def test_another_chain_is_refused_at_once_whoever_else_there_is(chain: ServedChain, other: ServedChain) -> None:
    chain.other_chain(56)
    with pytest.raises(ChainMismatchError, match=f"node of chain 56, and the job is for chain {CHAIN_ID}"):
        read(pool_of(chain, other))
    assert not [call for call in chain.calls if call.method != "eth_chainId"]


def test_a_wrong_key_is_not_tried_for_long(chain: ServedChain, other: ServedChain) -> None:
    chain.inject(Status(401), times=None)
    with pytest.raises(RefusedError, match=r"HTTP status 401 \(not now\): check the key and the plan"):
        read(pool_of(chain))
    assert chain.requests == 1
    assert_right(read(pool_of(chain, other)))


def test_who_comes_after_a_refusal_hears_of_it_until_it_is_forgiven(chain: ServedChain) -> None:
    chain.inject(Status(403), times=1)
    pool = pool_of(chain)
    for _ in range(2):
        with pytest.raises(RefusedError, match="HTTP status 403"):
            head_of(pool)
    assert chain.requests == 1
    pool.forgive()
    assert head_of(pool) == BLOCKS - 1
    pool.close()


def test_who_comes_while_all_nodes_rest_hears_why(chain: ServedChain) -> None:
    chain.inject(Status(503), times=None)
    pool = pool_of(chain, deadline_seconds=1.0, backoff_seconds=60.0, longest_backoff_seconds=60.0)
    for _ in range(2):
        with pytest.raises(UnavailableError, match="node-1: HTTP status 503"):
            head_of(pool)
    assert chain.requests == 1
    pool.close()


def test_the_deadline_ends_all_tries(chain: ServedChain) -> None:
    chain.inject(Status(429, retry_after="200"), times=None)
    with pytest.raises(RateLimitedError):
        read(pool_of(chain, deadline_seconds=60.0))
    assert chain.requests == 1, "the wait it asks for is longer than we have"


def test_a_request_that_the_deadline_cuts_off_hides_no_earlier_error() -> None:
    """That there was no time left for an answer says nothing about the node."""
    now = [0.0]

    def sleep(seconds: float) -> None:
        now[0] += seconds

    pool = RpcPool([parse_endpoint("http://127.0.0.1:1")], RpcOptions(CHAIN_ID), clock=lambda: now[0], sleep=sleep)
    pool.nodes[0].verified = True
    deadlines: list[ProgressDeadline] = []

    def ask(_node: RpcNode, deadline: ProgressDeadline) -> None:
        deadlines.append(deadline)
        if len(deadlines) == 1:
            raise UnavailableError("HTTP status 503", host="node-1")
        now[0] = deadline.until
        raise IncompleteAnswerError("no answer in time", host="node-1")

    with pytest.raises(UnavailableError, match="HTTP status 503"):
        pool.run(ask)
    assert len(deadlines) == 2


def test_secrets_of_an_address_are_in_no_error(chain: ServedChain) -> None:
    address = chain.url.replace("//", "//user:passw0rd@") + "/v2/k3y-of-mine?token=t0ken"
    faults: list[Fault] = [
        Drop(),
        Status(401),
        Status(404),
        Status(500),
        NotJson(),
        RpcErrors(1, "bad key k3y-of-mine"),
        RpcErrors(1, "bad token t0ken of passw0rd"),
        WrongIds(),
    ]
    for fault in faults:
        chain.inject(fault, times=None)
        pool = pool_of(address, tries=2)
        with pytest.raises(RpcError) as caught:
            read(pool)
        chain.clear()
        shown = f"{caught.value!r} {caught.value} {pool.nodes[0]._http.endpoint!r}"
        assert not [secret for secret in ("passw0rd", "k3y-of-mine", "t0ken", "user") if secret in shown]
        assert chain.url in shown


def test_what_a_node_says_is_passed_on_where_it_is_harmless(chain: ServedChain) -> None:
    chain.inject(RpcErrors(-32000, "missing trie node\x1b[31m"), times=None)
    with pytest.raises(UnavailableError, match=r"error -32000 to eth_chainId \(missing trie node \[31m\)"):
        read(pool_of(chain, tries=1))


def test_the_head(chain: ServedChain) -> None:
    pool = pool_of(chain)
    assert head_of(pool) == BLOCKS - 1
    chain.show(5)
    assert head_of(pool) == 4
    pool.close()


def test_a_connection_is_used_again_and_a_stale_one_is_replaced(chain: ServedChain) -> None:
    pool = pool_of(chain, tries=1)
    head_of(pool)
    (connection,) = pool.nodes[0]._http._idle
    head_of(pool)
    assert pool.nodes[0]._http._idle == [connection]
    chain.inject(Drop(), times=1)
    assert head_of(pool) == BLOCKS - 1
    assert pool.nodes[0]._http._idle != [connection]
    pool.close()


def test_tls_is_verified(chain: ServedChain, tmp_path: Path) -> None:
    """A certificate that nobody signed is refused, in words that say so."""
    key, certificate = tmp_path / "key.pem", tmp_path / "certificate.pem"
    made = [
        "openssl",
        "req",
        "-x509",
        "-newkey",
        "ec",
        "-pkeyopt",
        "ec_paramgen_curve:prime256v1",
        "-nodes",
        "-days",
        "2",
    ]
    try:
        subprocess.run(
            [*made, "-keyout", key, "-out", certificate, "-subj", "/CN=localhost"], check=True, capture_output=True
        )
    except FileNotFoundError:
        pytest.skip("there is no openssl to make a certificate with")
    server = http.server.HTTPServer(("127.0.0.1", 0), http.server.BaseHTTPRequestHandler)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    server.socket = context.wrap_socket(server.socket, server_side=True, do_handshake_on_connect=False)
    server.handle_error = lambda *_: None  # type: ignore[method-assign]
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        with pytest.raises(UnavailableError, match="its certificate cannot be trusted"):
            read(pool_of(f"https://127.0.0.1:{server.server_port}/", tries=1))
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
