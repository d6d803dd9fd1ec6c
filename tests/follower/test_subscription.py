"""Subscriptions to heads: what they tell the follower, and how each of their failures ends."""

import datetime
import ipaddress
import json
import logging
import ssl
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from queue import Queue

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from websockets.datastructures import Headers
from websockets.http11 import Response
from websockets.sync.server import ServerConnection

from tests.follower.announcing_node import PATIENCE, AnnouncingNode, Manner, head_message, send_head
from tracelake.follower.head_signal import HeadSignal
from tracelake.follower.subscription import MAX_FRAME_BYTES, HeadSubscription, SubscriptionOptions
from tracelake.spark.evm.endpoints import ANNOUNCING, parse_endpoint

ONE, OTHER = "0x" + "11" * 32, "0x" + "22" * 32
FAST = SubscriptionOptions(
    connect_seconds=10.0,
    answer_seconds=PATIENCE,
    silent_seconds=PATIENCE,
    first_rest_seconds=0.01,
    longest_rest_seconds=0.05,
)


@pytest.fixture
def node() -> Iterator[AnnouncingNode]:
    with AnnouncingNode().serving() as serving:
        yield serving


class Subscribed:
    """A subscription that is closed at the end, and what it told."""

    def __init__(self, url: str, options: SubscriptionOptions = FAST) -> None:
        self.signal = HeadSignal(threading.Event())
        self.told: Queue[str] = Queue()
        endpoint = parse_endpoint(url, ANNOUNCING)
        self.subscription = HeadSubscription(endpoint, self.signal, self.told.put, options)

    def __enter__(self) -> "Subscribed":
        self.subscription.start()
        return self

    def __exit__(self, *_error: object) -> None:
        self.subscription.close()
        assert self.subscription.join(PATIENCE)

    def next_told(self) -> str:
        return self.told.get(timeout=PATIENCE)


# The signal


def test_a_new_block_wakes_the_follower_and_a_stored_one_does_not() -> None:
    signal = HeadSignal(threading.Event())
    assert not signal.wait(0)
    signal.announce(ONE)
    assert signal.wait(PATIENCE)
    signal.forget()
    signal.store(ONE)
    signal.announce(ONE)
    assert not signal.wait(0)
    assert signal.is_followed
    signal.announce(OTHER)
    signal.announce(ONE)
    assert signal.wait(0)
    assert not signal.is_followed


def test_a_block_that_is_stored_while_it_is_announced_is_no_news() -> None:
    signal = HeadSignal(threading.Event())
    signal.forget()
    signal.announce(ONE)
    signal.store(ONE)
    assert not signal.wait(0)
    assert signal.is_followed


def test_a_block_without_an_announcement_or_a_lost_subscription_means_polling() -> None:
    signal = HeadSignal(threading.Event())
    followed: list[bool] = []
    steps: tuple[tuple[Callable[..., None], str], ...] = (
        (signal.announce, ONE),
        (signal.store, ONE),
        (signal.store, OTHER),
        (signal.announce, ONE),  # of a node that is behind
        (signal.announce, OTHER),
    )
    for step, block_hash in steps:
        step(block_hash)
        followed.append(signal.is_followed)
    assert followed == [False, True, False, False, True]
    signal.lose()
    assert not signal.is_followed


def test_a_stop_ends_the_wait() -> None:
    cancel = threading.Event()
    cancel.set()
    assert not HeadSignal(cancel).wait(PATIENCE)


# The connection


def test_announcements_arrive(node: AnnouncingNode) -> None:
    with Subscribed(node.url) as subscribed:
        node.wait_subscribed()
        assert subscribed.next_told() == "subscription 1 announces new blocks"
        node.announce(ONE.upper().replace("0X", "0x"))
        assert subscribed.signal.wait(PATIENCE)
        subscribed.signal.store(ONE)
        assert subscribed.signal.is_followed


def test_a_connection_that_is_lost_is_made_again(node: AnnouncingNode) -> None:
    with Subscribed(node.url) as subscribed:
        node.wait_subscribed()
        assert "announces" in subscribed.next_told()
        node.drop()
        assert "the connection was closed; it is tried again" in subscribed.next_told()
        node.wait_subscribed()
        assert "announces" in subscribed.next_told()
        node.announce(ONE)
        assert subscribed.signal.wait(PATIENCE)


def refuse(connection: ServerConnection) -> None:
    request = json.loads(connection.recv())
    error = {"code": -32601, "message": "the method eth_subscribe does not exist"}
    connection.send(json.dumps({"jsonrpc": "2.0", "id": request["id"], "error": error}))
    connection.recv()


def say_nothing(connection: ServerConnection) -> None:
    for _message in connection:
        pass


def subscribed_then(*messages: str | bytes) -> Manner:
    def manner(connection: ServerConnection) -> None:
        request = json.loads(connection.recv())
        connection.send(json.dumps({"jsonrpc": "2.0", "id": request["id"], "result": "0xcafe"}))
        for message in messages:
            connection.send(message)
        for _message in connection:
            pass

    return manner


def flood(connection: ServerConnection) -> None:
    connection.recv()
    while True:
        send_head(connection, ONE)


@pytest.mark.parametrize(
    ("manner", "reason"),
    [
        (refuse, "the node refuses eth_subscribe"),
        (subscribed_then("no JSON at all"), "a message that is not JSON-RPC"),
        (subscribed_then(b"\xff\xfe"), "a message that is not JSON-RPC"),
        (subscribed_then("[" * 10_000), "a message that is not JSON-RPC"),
        (subscribed_then('{"params": 7}'), "a message that is not JSON-RPC"),
        (subscribed_then(head_message(None)), "a block without a hash"),
        (subscribed_then(head_message("0x" + "ab" * 1000)), "a block without a hash"),
        (subscribed_then(head_message("0x" + "ab" * MAX_FRAME_BYTES)), "a message of more than 262144 bytes"),
        (flood, "more than 500 messages in a second"),
    ],
)
def test_whatever_goes_wrong_the_next_connection_is_tried(node: AnnouncingNode, manner: Manner, reason: str) -> None:
    node.manners = [manner]
    with Subscribed(node.url) as subscribed:
        node.wait_subscribed()
        told = subscribed.next_told()
        if "announces" in told:
            told = subscribed.next_told()
        assert told.startswith(f"subscription 1 ended: {reason}; it is tried again")
        assert "announces" in subscribed.next_told()
        node.announce(OTHER)
        assert subscribed.signal.wait(PATIENCE)


def test_announcements_of_others_are_passed_over(node: AnnouncingNode) -> None:
    node.manners = [
        subscribed_then(head_message(ONE, "0xbeef"), '{"jsonrpc": "2.0", "result": 7}', head_message(OTHER))
    ]
    with Subscribed(node.url) as subscribed:
        assert subscribed.signal.wait(PATIENCE)
        subscribed.signal.store(OTHER)
        assert subscribed.signal.is_followed, "the one that it subscribed to, and no other"


def test_a_node_that_does_not_answer_is_left(node: AnnouncingNode) -> None:
    node.manners = [say_nothing]
    options = SubscriptionOptions(answer_seconds=0.2, first_rest_seconds=0.01, longest_rest_seconds=0.01)
    with Subscribed(node.url, options) as subscribed:
        assert "nothing came for 0.2 seconds; it is tried again" in subscribed.next_told()


def test_a_silent_subscription_is_made_again(node: AnnouncingNode) -> None:
    options = SubscriptionOptions(silent_seconds=0.2, first_rest_seconds=0.01, longest_rest_seconds=0.01)
    with Subscribed(node.url, options) as subscribed:
        node.wait_subscribed()
        assert "announces" in subscribed.next_told()
        assert "nothing came for 0.2 seconds" in subscribed.next_told()
        node.wait_subscribed()


def test_the_time_to_connect_does_not_bound_the_time_between_blocks(node: AnnouncingNode) -> None:
    options = SubscriptionOptions(connect_seconds=0.2, silent_seconds=1.0, first_rest_seconds=0.01)
    with Subscribed(node.url, options) as subscribed:
        while "announces" not in subscribed.next_told():
            pass  # the machine was too slow to connect in that time
        assert "nothing came for 1 seconds" in subscribed.next_told()


@pytest.mark.parametrize(
    ("status", "headers"), [(404, {}), (503, {}), (302, {"location": "ws://127.0.0.1:1/elsewhere"})]
)
def test_answers_that_are_no_websocket_and_redirects_are_refusals(
    node: AnnouncingNode, status: int, headers: dict[str, str]
) -> None:
    node.refusals = [Response(status, "No", Headers({**headers, "content-length": "0"}), b"")]
    with Subscribed(node.url) as subscribed:
        assert f"HTTP status {status} instead of a WebSocket" in subscribed.next_told()
        node.wait_subscribed()


def test_an_address_without_a_server_is_tried_again_and_told_once() -> None:
    gone = AnnouncingNode()
    with gone.serving():
        pass
    with Subscribed(gone.url) as subscribed:
        assert "it takes no connections" in subscribed.next_told()
        with gone.serving():  # on another port, which nobody knows
            pass
    assert subscribed.told.empty()


def test_the_user_and_password_are_sent_and_the_address_is_never_shown(
    node: AnnouncingNode, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    node.manners = [refuse]
    node.refusals = [Response(401, "No secret-key-of-mine", Headers({"content-length": "0"}), b"")]
    url = node.url.replace("ws://", "ws://somebody:passw0rd@")
    with Subscribed(url) as subscribed:
        node.wait_subscribed()
        node.drop()
        node.wait_subscribed()
    assert {request.headers["authorization"] for request in node.requests} == {"Basic c29tZWJvZHk6cGFzc3cwcmQ="}
    texts = [subscribed.told.get_nowait() for _ in range(subscribed.told.qsize())]
    client_logs = [record.getMessage() for record in caplog.records if not record.name.startswith("websockets.server")]
    assert not any(secret in text for text in (*texts, *client_logs) for secret in ("secret-key", "passw0rd", "c29t"))


def test_a_certificate_that_nobody_trusts_is_refused(tmp_path: Path) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(write_certificate(tmp_path))
    with AnnouncingNode().serving(context) as node, Subscribed(node.url) as subscribed:
        assert "its certificate cannot be trusted" in subscribed.next_told()
    assert node.requests == []


def test_a_certificate_of_the_machine_is_accepted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    certificate = write_certificate(tmp_path)
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate)
    with AnnouncingNode().serving(context) as node, Subscribed(node.url):
        node.wait_subscribed()


def write_certificate(folder: Path) -> Path:
    """One that signs itself, with its key."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "a node")])
    now = datetime.datetime.now(datetime.UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    path = folder / "node.pem"
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    path.write_bytes(private + certificate.public_bytes(serialization.Encoding.PEM))
    return path
