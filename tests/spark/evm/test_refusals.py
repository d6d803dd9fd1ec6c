"""What the words, codes and statuses of refusals are taken for."""

import pytest

from tracelake.spark.evm.errors import (
    BatchRefusedError,
    LateBlockError,
    NoSuchMethodError,
    QuotaExhaustedError,
    RateLimitedError,
    RefusedError,
    RpcError,
    TooLargeError,
    UnavailableError,
)
from tracelake.spark.evm.refusals import ProviderRefusal, clean, error_of, refusal_in

SINGLE: list[tuple[int, int | None, str, type[RpcError]]] = [
    (402, None, "", QuotaExhaustedError),
    (403, -32600, "Monthly capacity limit exceeded. Visit the dashboard", QuotaExhaustedError),
    (200, -32000, "Your subscription has expired", QuotaExhaustedError),
    (429, -32005, "daily request count exceeded, request rate limited", RateLimitedError),
    (429, None, "", RateLimitedError),
    (200, -32016, "over rate limit", RateLimitedError),
    (200, -32007, "50/second request limit reached - upgrade your account at quicknode.com", RateLimitedError),
    (403, None, "You have exceeded the RPS limit available on the current plan", RateLimitedError),
    (200, 429, "Your app has exceeded its compute units per second capacity", RateLimitedError),
    (200, -32003, "response too large", TooLargeError),
    (413, None, "", TooLargeError),
    (200, -32000, "block 5 is not available on this backend yet", LateBlockError),
    (200, -32601, "block 5 is not available on this backend yet", LateBlockError),
    (200, -32001, "block does not exist", LateBlockError),
    (200, -32000, "header not found", LateBlockError),
    (200, -39001, "Unknown block", LateBlockError),
    (200, -32601, "anything", NoSuchMethodError),
    (200, -32000, "the method eth_getBlockReceipts does not exist/is not available", NoSuchMethodError),
    (403, -32000, "rpc method is not whitelisted", NoSuchMethodError),
    (200, -32000, "not included in your current plan", NoSuchMethodError),
    (200, -32000, "method is not available on freetier", NoSuchMethodError),
    (403, None, "your IP address has been blocked", RefusedError),
    (401, -32000, "invalid api key", RefusedError),
    (404, None, "", RefusedError),
    (301, None, "", RefusedError),
    (500, None, "", UnavailableError),
    (400, None, "", UnavailableError),
    (200, -32603, "internal error", UnavailableError),
]
WHOLE_BATCH: list[tuple[int, int | None, str, type[RpcError]]] = [
    (200, -32005, "Batched requests are not supported by this server", BatchRefusedError),
    (400, -32202, "Batch requests are disabled", BatchRefusedError),
    (200, None, "this endpoint does not support batch requests", BatchRefusedError),
    (400, None, "", BatchRefusedError),
    (200, -32600, "invalid request", BatchRefusedError),
    (200, -32601, "method not found", BatchRefusedError),
    (200, -32005, "Batch size limit exceeded.", TooLargeError),
    (200, -32600, "batch too large", TooLargeError),
    (500, 31, "Batch of more than 3 requests are not allowed on free tier", TooLargeError),
    (200, -32010, "The batch request was too large", TooLargeError),
    (200, -32005, "rate limit exceeded", RateLimitedError),
    (500, None, "Internal Server Error", UnavailableError),
    (502, None, "", UnavailableError),
    (401, None, "", RefusedError),
]


@pytest.mark.parametrize(("status", "code", "words", "kind"), SINGLE)
def test_what_a_call_is_refused_with(status: int, code: int | None, words: str, kind: type[RpcError]) -> None:
    assert type(error_of(ProviderRefusal(status, code, words, method="eth_getBlockReceipts"), "host")) is kind
    in_a_batch = ProviderRefusal(status, code, words, method="eth_getBlockReceipts", calls=20, whole=False)
    assert type(error_of(in_a_batch, "host")) is kind


@pytest.mark.parametrize(("status", "code", "words", "kind"), WHOLE_BATCH)
def test_what_a_batch_is_refused_with(status: int, code: int | None, words: str, kind: type[RpcError]) -> None:
    assert type(error_of(ProviderRefusal(status, code, words, method="a batch", calls=20), "host")) is kind


@pytest.mark.parametrize(
    ("words", "limit"),
    [
        ("maximum 10 calls in 1 batch", 10),
        ("Batch of more than 3 requests are not allowed on free tier", 3),
        ("Batch request amount 20 exceeds max 15", 15),
        ("batch limit 100 exceeded", None),
        ("batch too large", None),
    ],
)
def test_the_largest_batch_is_read_from_the_words(words: str, limit: int | None) -> None:
    error = error_of(ProviderRefusal(200, -32600, words, calls=20), "host")
    assert isinstance(error, TooLargeError)
    assert error.limit == limit


@pytest.mark.parametrize(
    ("words", "header", "wait"),
    [
        ("Too many requests, retry in 10s", None, 10.0),
        ("Public RPC Rate Limit Hit, limit will reset in 60 seconds", None, 60.0),
        ("rate limit: try again in 250ms", None, 0.25),
        ("rate limit exceeded", None, None),
        ("rate limit: retry in 9999 minutes", None, 300.0),
        ("rate limit: retry in 10s", 2.0, 2.0),
    ],
)
def test_how_long_to_wait(words: str, header: float | None, wait: float | None) -> None:
    error = error_of(ProviderRefusal(429, None, words, retry_after=header), "host")
    assert isinstance(error, RateLimitedError)
    assert error.retry_after == wait


@pytest.mark.parametrize(
    ("body", "found"),
    [
        (b'{"jsonrpc":"2.0","id":1,"error":{"code":-32005,"message":"slow"}}', (-32005, "slow")),
        (b'[{"id":1,"result":1},{"id":2,"error":{"code":3,"message":"m"}}]', (3, "m")),
        (b'{"error":"plain words"}', (None, "plain words")),
        (b'{"message":"Forbidden"}', (None, "Forbidden")),
        (b'{"error":{"code":"X","detail":"d"}}', (None, "d")),
        (b"<html><head><title>Just a moment</title>", (None, "Just a moment")),
        (b"<html>", (None, "")),
        (b"rate limited\n", (None, "rate limited\n")),
        (b"", (None, "")),
        (b"[1]", (None, "")),
        (b"\xff\xfe", (None, "\ufffd\ufffd")),
    ],
)
def test_words_are_found_in_bodies_of_any_form(body: bytes, found: tuple[int | None, str]) -> None:
    assert refusal_in(body) == found


def test_words_are_cleaned() -> None:
    assert clean("see https://node.example/v2/abc?key=1 or www.x.y/z") == "see [URL] or [URL]"
    assert clean("key 0123456789abcdef0123456789abcdef is unknown") == "key [...] is unknown"
    assert clean("bad KEY-OF-mine", ["key-of-mine"]) == ""
    assert clean("bad a/b+c", ["a%2Fb%2Bc"]) == ""
    assert clean("a\x1b[31m\n\tb\u202e") == "a [31m b"
    assert clean(" " * 1995 + "key-of-mine", ["key-of-mine"]) == "", "also where it is cut off"
    assert clean("max" * 100_000) == "[...]"
    long = clean("word " * 100)
    assert len(long) == 160
    assert long.endswith("...")
