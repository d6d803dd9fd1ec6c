"""What a webhook does not take: each refusal has its code and leaves no trace in any table."""

import re
import socket
import ssl
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import msgspec
import pytest

from tests.http.support import Refusals, head_of, raw_reply, raw_request
from tests.sources.webhook_support import BODY, UNLIMITED, Hook, running
from tests.support import dags
from tests.support.dispatcher import DispatcherHarness, Reply
from tests.support.postgres import TestCluster
from tracelake.wire.webhooks import signature_header

LIMIT = UNLIMITED.webhook_max_bytes


@pytest.fixture(scope="module")
def harness(cluster: TestCluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[DispatcherHarness]:
    with running(cluster, tmp_path_factory.mktemp("home")) as (dispatcher,):
        yield dispatcher


@pytest.fixture(scope="module")
def hook(harness: DispatcherHarness) -> Hook:
    return Hook(harness).deploy()


def post(hook: Hook, body: bytes, head: dict[str, str], path: str | None = None) -> Reply:
    return hook.harness.call("public", "POST", hook.where if path is None else path, body, head)


def test_headers_that_are_missing_or_cannot_be_read(hook: Hook) -> None:
    good = hook.head()
    with Refusals(hook.harness) as refusals:
        for name in good:
            head = {key: value for key, value in good.items() if key != name}
            for sent in (head, head | {name: ""}):
                error = refusals.check(post(hook, BODY, sent), 401, "credential_missing")
                assert error["details"] == {"header": name}
        for name, text in (("x-trace-signature", "t=1,v1=00"), ("x-trace-delivery", "x" * 201)):
            error = refusals.check(post(hook, BODY, good | {name: text}), 401, "signature_malformed")
            assert error["details"] == {}


def test_a_header_sent_twice_is_none(hook: Hook) -> None:
    good = hook.head()
    with Refusals(hook.harness) as refusals:
        for name, text in good.items():
            head = head_of("POST", hook.where, good | {"content-length": str(len(BODY))}) + f"\n{name}: {text}"
            error = refusals.check(raw_reply(hook.harness, "public", head, BODY), 401, "credential_missing")
            assert error["details"] == {"header": name}


def test_signatures_that_are_wrong(hook: Hook) -> None:
    secret = hook.secret()
    other = Hook(hook.harness).deploy().secret()
    good = hook.head(secrets=[secret])
    wrong: list[tuple[bytes, dict[str, str]]] = [
        (BODY + b" ", good),
        (b"", good),
        (BODY, good | {"x-trace-delivery": "two"}),
        (BODY, good | {"x-trace-signature": re.sub("t=[0-9]+", f"t={hook.now() - 9}", good["x-trace-signature"])}),
        (BODY, hook.head(secrets=["guessed"])),
        (BODY, hook.head(secrets=[other])),
        (BODY, hook.head(secrets=[other, "guessed", secret[:-1], secret.lower()])),
    ]
    with Refusals(hook.harness) as refusals:
        for body, head in wrong:
            assert refusals.check(post(hook, body, head), 401, "signature_invalid")["details"] == {}


def test_a_delivery_that_somebody_saw_is_no_other_delivery(hook: Hook) -> None:
    """The same bytes are signed, with the border between id and body at another dot."""
    body = b'{"price":7.5}'
    head = hook.head(body, secrets=[hook.secret()]) | {"x-trace-delivery": 'one.{"price":7'}
    with Refusals(hook.harness) as refusals:
        refusals.check(post(hook, b"5}", head), 401, "signature_malformed")


def test_one_good_signature_of_several_is_enough(hook: Hook) -> None:
    assert hook.send(delivery="several", secrets=["old", hook.quiet_secret(), "new"]).status == 200


def test_signatures_of_another_time(hook: Hook) -> None:
    secret = hook.secret()
    with Refusals(hook.harness) as refusals:
        for ahead in (-310, 310, -(10**6), 10**6):
            error = refusals.check(hook.send(secrets=[secret], ahead=ahead), 401, "signature_stale")
            assert error["details"] == {}
        # Whoever has no secret does not even learn that.
        refusals.check(hook.send(secrets=["guessed"], ahead=10**6), 401, "signature_invalid")
    for ahead in (-290, 290):
        assert hook.send(delivery=f"ahead {ahead}".replace(" ", ""), secrets=[secret], ahead=ahead).status == 200


def test_the_time_is_the_stores(hook: Hook) -> None:
    head = hook.head(delivery="kept", secrets=[hook.secret()])
    hook.harness.advance(400)
    with Refusals(hook.harness) as refusals:
        refusals.check(post(hook, BODY, head), 401, "signature_stale")
    assert hook.send(delivery="kept").status == 200


# --- paths


def test_paths_that_are_not_there_are_all_alike(hook: Hook) -> None:
    secret = hook.secret()
    paths = ["nowhere", "a/b/c", hook.path + "/more", hook.path + "/", hook.path.rpartition("/")[0], "UPPER", "a//b",
             "-a", "a.b", "..", "a/../b", "x" * 200, "x" * 201, "a;b", "~"]  # fmt: skip
    inactive = Hook(hook.harness, org=hook.org, dag="inactive", path=f"{hook.path}-inactive")
    dags.deploy(hook.harness, inactive.text(), hook.org, activate=False)
    replaced = Hook(hook.harness, org=hook.org, dag="replaced", path=f"{hook.path}-replaced").deploy()
    replaced.deploy(source="{ kind: manual }")
    with Refusals(hook.harness) as refusals:
        answers = []
        for path in [*paths, inactive.path, replaced.path]:
            reply = post(hook, BODY, hook.head(secrets=[secret]), f"/v1/webhooks/{path}")
            refusals.check(reply, 401, "signature_invalid")
            answers.append(reply)
        assert all(answer == answers[0] for answer in answers)
        refusals.check(post(hook, BODY, hook.head(secrets=[secret]), "/v1/webhooks/a%2Fb"), 404, "route_not_found")
        refusals.check(post(hook, BODY, hook.head(secrets=[secret]), "/v1/webhooks/"), 404, "route_not_found")


def test_only_the_active_version_answers(harness: DispatcherHarness) -> None:
    hook = Hook(harness).deploy()
    old = hook.where
    assert hook.sent(delivery="a")["number"] == 1
    first, hook.path = hook.path, f"{hook.path}-moved"
    hook.deploy()
    secret = hook.secret()
    with Refusals(harness) as refusals:
        refusals.check(post(hook, BODY, hook.head(secrets=[secret]), old), 401, "signature_invalid")
    assert hook.sent(delivery="b")["number"] == 2
    dags.activate(harness, hook.dag, 1, org=hook.org)
    moved, hook.path = hook.where, first
    with Refusals(harness) as refusals:
        refusals.check(post(hook, BODY, hook.head(secrets=[secret]), moved), 401, "signature_invalid")
    assert hook.sent(delivery="c", secrets=[secret])["number"] == 3
    hook.deploy(source="{ kind: manual }")
    with Refusals(harness) as refusals:
        refusals.check(post(hook, BODY, hook.head(secrets=[secret])), 401, "signature_invalid")
        refusals.check(hook.user("GET", "/webhook"), 404, "webhook_not_found")
        refusals.check(hook.user("POST", "/webhook/rotate"), 404, "webhook_not_found")


def test_a_job_that_is_no_webhook_has_none(harness: DispatcherHarness) -> None:
    hook = Hook(harness).deploy()
    hook.job = "work"
    with Refusals(harness) as refusals:
        refusals.check(hook.user("GET", "/webhook"), 404, "webhook_not_found")
    assert hook.user("GET", "/deliveries").body == {"deliveries": []}


# --- bodies


@pytest.mark.parametrize(
    "body",
    [b"", b"\0", b"\xff\xfe\xfd", b'{"a": "\\u0000"}', b"{", "\u00e9".encode("utf-16"), b"x" * LIMIT],
    ids=["empty", "nul", "no text", "nul in json", "no json", "utf-16", "largest"],
)
def test_any_body_up_to_the_limit_is_taken_as_it_is(harness: DispatcherHarness, body: bytes) -> None:
    hook = Hook(harness).deploy()
    assert hook.sent(body)["number"] == 1
    assert hook.raw("/deliveries/one").body == body


def test_a_body_beyond_the_limit(hook: Hook) -> None:
    body = b"x" * (LIMIT + 1)
    head = hook.head(body)
    with Refusals(hook.harness) as refusals:
        error = refusals.check(post(hook, body, head), 413, "body_too_large")
        assert error["details"] == {"limit_bytes": LIMIT}
        # Without a length it is found out on the way.
        chunked = head_of("POST", hook.where, head | {"transfer-encoding": "chunked"})
        chunk = b"%x\r\n%b\r\n0\r\n\r\n" % (len(body), body)
        refusals.check(raw_reply(hook.harness, "public", chunked, chunk), 413, "body_too_large")
        refusals.check(post(hook, body, {}), 401, "credential_missing")


def test_a_body_in_chunks_is_one_body(harness: DispatcherHarness) -> None:
    hook = Hook(harness).deploy()
    head = head_of("POST", hook.where, hook.head() | {"transfer-encoding": "chunked"})
    chunks = b"".join(b"1\r\n%c\r\n" % byte for byte in BODY) + b"0\r\n\r\n"
    status, body = raw_request(harness, "public", head, chunks)
    assert (status, msgspec.json.decode(body)["number"]) == (200, 1)
    assert hook.raw("/deliveries/one").body == BODY


def test_a_body_that_does_not_end_holds_nobody_up(harness: DispatcherHarness) -> None:
    hook = Hook(harness).deploy()
    secret = hook.secret()
    head = head_of("POST", hook.where, hook.head(delivery="slow", secrets=[secret]) | {"content-length": "12"})
    client = harness.clients["public"]
    context = ssl.create_default_context(cafile=str(harness.tls.ca))
    slow = []
    try:
        with Refusals(harness):
            for _ in range(20):
                plain = socket.create_connection((client._host, client._port), timeout=20)
                slow.append(context.wrap_socket(plain, server_hostname=client._host))
                slow[-1].sendall(head.replace("\n", "\r\n").encode() + b"\r\n\r\n" + BODY[:-1])
        assert hook.sent(delivery="quick", secrets=[secret])["number"] == 1
    finally:
        for connection in slow:
            connection.close()
    assert [row["delivery_id"] for row in hook.deliveries()] == ["quick"]


# --- too fast


def test_deliveries_that_come_too_fast(cluster: TestCluster, tmp_path: Any) -> None:
    config = replace(UNLIMITED, webhook_rate_per_second=0.001, webhook_rate_burst=3)
    with running(cluster, tmp_path, config) as (harness,):
        hook, other = Hook(harness).deploy(), Hook(harness).deploy()
        secret = hook.secret()
        with Refusals(harness) as refusals:
            for _ in range(10):  # who cannot sign uses up nothing
                refusals.check(hook.send(secrets=["guessed"]), 401, "signature_invalid")
        replies = [hook.send(delivery=f"d{number}", secrets=[secret]) for number in range(3)]
        assert [reply.status for reply in replies] == [200] * 3
        with Refusals(harness) as refusals:
            error = refusals.check(hook.send(delivery="d9", secrets=[secret]), 429, "rate_limited")
            assert error["details"]["retry_after_seconds"] >= 1
        assert other.send().status == 200
        same_path = Hook(harness, path=hook.path).deploy()  # of another org, which has a rate of its own
        assert same_path.send().status == 200


def test_the_refusals_are_counted(hook: Hook) -> None:
    hook.send(secrets=["guessed"])
    page = hook.harness.call("internal", "GET", "/metrics").body.decode()
    assert 'trace_token_failures_total{kind="signature",reason="signature_invalid"}' in page


def test_a_query_means_nothing(harness: DispatcherHarness) -> None:
    hook = Hook(harness).deploy()
    signature = signature_header([hook.secret()], hook.now(), "one", BODY)
    head = {"x-trace-delivery": "one", "x-trace-signature": signature}
    assert post(hook, BODY, head, f"{hook.where}?source=ci").status == 200
