"""The server's methods over HTTP: each answers what the recording holds, as far as its blocks are visible."""

import gzip
import http.client
import json
from collections.abc import Iterator
from typing import Any

import pytest

from tests.chain.client import Client, connected, request
from tests.support.chain import ServedChain, recorded, serve_chain
from tracelake.demo.chain.app import MAX_BODY_BYTES

BLOCKS = 60
NOBODY = "0x" + "00" * 31 + "01"


@pytest.fixture(scope="module")
def chain() -> Iterator[ServedChain]:
    with serve_chain(BLOCKS) as served:
        yield served


@pytest.fixture
def client(chain: ServedChain) -> Iterator[Client]:
    with connected(chain.url) as made:
        yield made


def _busy() -> int:
    return max(range(BLOCKS), key=lambda number: len(recorded(BLOCKS)[number].block["transactions"]))


def _brief(block: dict[str, Any]) -> dict[str, Any]:
    return {**block, "transactions": [transaction["hash"] for transaction in block["transactions"]]}


def test_every_block_and_its_receipts_come_as_they_were_recorded(client: Client) -> None:
    calls: list[tuple[str, list[Any]]] = []
    wanted: list[Any] = []
    for one in recorded(BLOCKS):
        number, block_hash = hex(one.number), one.block["hash"]
        calls += [("eth_getBlockByNumber", [number, True]), ("eth_getBlockByNumber", [number, False])]
        calls += [("eth_getBlockByHash", [block_hash, True]), ("eth_getBlockByHash", [block_hash, False])]
        wanted += [one.block, _brief(one.block), one.block, _brief(one.block)]
        calls += [("eth_getBlockReceipts", [given]) for given in (number, block_hash, {"blockHash": block_hash})]
        wanted += [one.receipts] * 3
        calls.append(("eth_getBlockTransactionCountByNumber", [number]))
        wanted.append(hex(len(one.block["transactions"])))
    answers = client.batch(*calls)
    assert [one["id"] for one in answers] == list(range(len(calls)))
    assert [one["result"] for one in answers] == wanted


def test_tags_name_the_ends_of_what_is_visible(chain: ServedChain, client: Client) -> None:
    for tag in ("latest", "safe", "finalized", "pending"):
        assert client.call("eth_getBlockByNumber", tag, True) == recorded(BLOCKS)[-1].block
        assert client.call("eth_getBlockReceipts", tag) == recorded(BLOCKS)[-1].receipts
    assert client.call("eth_getBlockByNumber", "earliest", True) == recorded(BLOCKS)[0].block
    assert client.call("eth_getBlockReceipts", "earliest") == []


def test_single_transactions_and_receipts(client: Client) -> None:
    one = recorded(BLOCKS)[_busy()]
    for transaction, receipt in zip(one.block["transactions"], one.receipts, strict=True):
        assert client.call("eth_getTransactionByHash", transaction["hash"]) == transaction
        assert client.call("eth_getTransactionReceipt", transaction["hash"].upper().replace("X", "x")) == receipt


def test_what_the_node_says_of_itself(client: Client) -> None:
    assert client.call("eth_chainId") == "0x1466a9"
    assert client.call("net_version") == "1337001"
    assert client.call("eth_syncing") is False
    assert client.call("eth_blockNumber") == hex(BLOCKS - 1)
    assert "anvil" in client.call("web3_clientVersion")


def test_what_is_not_there_is_null(client: Client) -> None:
    assert client.call("eth_getBlockByNumber", hex(BLOCKS), True) is None
    assert client.call("eth_getBlockByNumber", "0xffffffffffffffff", False) is None
    assert client.call("eth_getBlockByHash", NOBODY, True) is None
    assert client.call("eth_getBlockReceipts", hex(BLOCKS)) is None
    assert client.call("eth_getBlockReceipts", NOBODY) is None
    assert client.call("eth_getBlockTransactionCountByNumber", hex(BLOCKS)) is None
    assert client.call("eth_getTransactionByHash", NOBODY) is None
    assert client.call("eth_getTransactionReceipt", NOBODY) is None


def test_what_is_not_yet_visible_is_not_there_by_any_name() -> None:
    newest = next(one for one in reversed(recorded(BLOCKS)) if one.block["transactions"])
    transaction = newest.block["transactions"][0]["hash"]
    with serve_chain(BLOCKS, head=newest.number) as chain, connected(chain.url) as client:
        names: tuple[tuple[str, list[Any]], ...] = (
            ("eth_getBlockByNumber", [hex(newest.number), True]),
            ("eth_getBlockByHash", [newest.block["hash"], True]),
            ("eth_getBlockReceipts", [newest.block["hash"]]),
            ("eth_getTransactionByHash", [transaction]),
            ("eth_getTransactionReceipt", [transaction]),
        )
        assert client.call("eth_blockNumber") == hex(newest.number - 1)
        assert [client.call(method, *params) for method, params in names] == [None] * len(names)
        assert client.error("eth_getLogs", {"blockHash": newest.block["hash"]}) == -32000
        chain.show(newest.number + 1)
        assert client.call("eth_blockNumber") == hex(newest.number)
        assert None not in [client.call(method, *params) for method, params in names]


@pytest.mark.parametrize(
    ("method", "params"),
    [
        ("eth_getBlockByNumber", []),
        ("eth_getBlockByNumber", ["0x1"]),
        ("eth_getBlockByNumber", ["0x1", True, 3]),
        ("eth_getBlockByNumber", ["0x1", "yes"]),
        ("eth_getBlockByNumber", [1, True]),
        ("eth_getBlockByNumber", ["1", True]),
        ("eth_getBlockByNumber", ["0x01", True]),
        ("eth_getBlockByNumber", ["0x", True]),
        ("eth_getBlockByNumber", ["0x1\n", True]),
        ("eth_getBlockByNumber", ["0x" + "f" * 17, True]),
        ("eth_getBlockByNumber", ["newest", True]),
        ("eth_getBlockByNumber", [None, True]),
        ("eth_getBlockByNumber", [["latest"], True]),
        ("eth_getBlockByHash", ["0x12", True]),
        ("eth_getBlockReceipts", [{}]),
        ("eth_getBlockReceipts", ["0x" + "g" * 64]),
        ("eth_getTransactionByHash", [7]),
        ("eth_getTransactionReceipt", ["0x" + "1" * 63]),
        ("eth_chainId", [1]),
        ("eth_blockNumber", [None]),
        ("eth_getLogs", []),
        ("eth_getLogs", ["0x1"]),
        ("eth_getLogs", [{"unknown": 1}]),
        ("eth_getLogs", [{"address": "0x12"}]),
        ("eth_getLogs", [{"topics": "0x" + "1" * 64}]),
        ("eth_getLogs", [{"topics": [[["0x" + "1" * 64]]]}]),
        ("eth_getLogs", [{"topics": [None] * 5}]),
        ("eth_getLogs", [{"fromBlock": {}}]),
    ],
)
def test_parameters_that_a_node_would_refuse_are_refused(client: Client, method: str, params: list[Any]) -> None:
    assert client.error(method, *params) == -32602


def test_methods_that_there_are_not(client: Client) -> None:
    assert client.error("eth_getBalance", NOBODY, "latest") == -32601
    assert client.error("") == -32601


def test_a_connection_serves_many_requests_and_several_at_once(client: Client) -> None:
    assert client.call("eth_chainId") == "0x1466a9"
    sock = client.connection.sock
    assert client.call("eth_syncing") is False
    assert client.connection.sock is sock
    body = json.dumps(request("eth_chainId", [])).encode()
    head = f"POST / HTTP/1.1\r\nhost: x\r\ncontent-length: {len(body)}\r\n\r\n".encode()
    sock.sendall((head + body) * 3)
    with sock.makefile("rb") as answers:
        for _ in range(3):
            assert answers.readline() == b"HTTP/1.1 200 OK\r\n"
            headers = http.client.parse_headers(answers)
            assert json.loads(answers.read(int(headers["content-length"])))["result"] == "0x1466a9"


def test_gzip_for_who_asks_and_only_then(client: Client) -> None:
    body = json.dumps(request("eth_getBlockByNumber", [hex(_busy()), True])).encode()
    for encoding, packed in (("gzip", True), ("br, gzip;q=0.5", True), ("identity", False), ("gzip;q=0", False)):
        answer = client.post(body, {"accept-encoding": encoding})
        assert ("content-encoding" in answer.headers) == packed
        plain = gzip.decompress(answer.body) if packed else answer.body
        assert json.loads(plain)["result"] == recorded(BLOCKS)[_busy()].block
    small = client.post(json.dumps(request("eth_chainId", [])).encode(), {"accept-encoding": "gzip"})
    assert "content-encoding" not in small.headers


def test_other_http_than_a_post_of_json(client: Client) -> None:
    assert client.post(b"", method="GET").status == 405
    assert client.post(b"", method="PUT").headers["allow"] == "POST"
    notification = client.post(b'{"jsonrpc":"2.0","method":"eth_chainId"}')
    assert (notification.status, notification.body) == (204, b"")
    broken = client.post(b"{")
    assert (broken.status, broken.json["error"]["code"]) == (200, -32700)
    assert client.post(b" " * (MAX_BODY_BYTES + 1)).status == 413
